//! `core.orchestrator.supervisor`: one turn of an orchestrator, which a pack's node, a plan or
//! nobody decides.
//!
//! The loop is a real one: each turn is a node of the run, begun by the edge that leads back
//! to the orchestrator, and counted before it begins.

use serde_json::{Map, Value, json};

use super::End;
use crate::definition::{Definition, Node};
use crate::event::{Kind, RunError, RunEvent};
use crate::state::RunState;

/// Most workers that one decision may name.
const WORKERS_MAX: usize = 256;
/// Longest id of a worker, and of an agent, in bytes; the protocol's.
const ID_MAX_BYTES: usize = 256;

/// What of its `config` names the pack's node that decides.
pub const DECIDER: &str = "decider";

/// Who decides.
#[derive(Debug)]
pub enum Decider<'a> {
    /// A node type of a pack.
    Pack(&'a str),
    /// It is decided already.
    Decided(Value),
}

/// Who decides the next turn of `node`: its `config.decider`, else its `config.plan` (or
/// `mockDispatchPlan`, as the protocol's fixtures call it), one decision for each turn, else
/// one pass over what follows it.
pub fn decider<'a>(
    definition: &Definition,
    state: &RunState,
    index: usize,
    node: &'a Node,
) -> Result<Decider<'a>, RunError> {
    let terminate = |reason: &str| json!({ "kind": "terminate", "reason": reason });
    if let Some(decider) = node.config.get(DECIDER) {
        return decider.as_str().map(Decider::Pack).ok_or_else(|| {
            RunError::new("invalid_config", "`decider` must be the type of a pack's node")
        });
    }
    let turn = usize::try_from(state.iteration).unwrap_or(usize::MAX);
    let plan = node.config.get("plan").or_else(|| node.config.get("mockDispatchPlan"));
    if let Some(plan) = plan.and_then(Value::as_array).filter(|plan| !plan.is_empty()) {
        let decision = plan.get(turn).cloned();
        return Ok(Decider::Decided(decision.unwrap_or_else(|| terminate("plan-finished"))));
    }
    let following = definition.graph.outgoing(index).iter();
    let following: Vec<&str> = following
        .filter(|edge| !definition.graph.is_back(**edge))
        .map(|edge| definition.nodes[definition.edges[*edge].target].id.as_str())
        .collect();
    let decision = if turn == 0 && !following.is_empty() {
        json!({ "kind": "next-worker", "nextWorkerIds": following })
    } else {
        terminate("goal-reached")
    };
    Ok(Decider::Decided(decision))
}

/// What a pack's node is given to decide by: the orchestrator's own inputs and configuration,
/// which turn it is, what was decided last, and what people have answered.
pub fn inputs(node: &Node, state: &RunState, own: Map<String, Value>) -> Map<String, Value> {
    let mut inputs: Map<String, Value> = node.config.clone().into_iter().collect();
    inputs.remove(DECIDER);
    inputs.extend(own);
    inputs.insert("iteration".to_owned(), json!(state.iteration.saturating_add(1)));
    inputs.insert("answers".to_owned(), json!(state.answers));
    if let Some(last) = &state.decision {
        inputs.insert("lastDecision".to_owned(), last.clone());
    }
    inputs
}

/// What follows from a decision.
pub fn decided(node: &Node, state: &RunState, decision: Value) -> (End, Vec<RunEvent>) {
    if let Err(why) = check(&decision) {
        let message = format!("the orchestrator's decision: {why}");
        return (End::Failed(RunError::new("invalid_decision", message)), Vec::new());
    }
    let iteration = state.iteration.saturating_add(1);
    let payload = json!({
        "agentId": agent(node, state),
        "decision": decision,
        "iteration": iteration,
    });
    let event = RunEvent::of_node(Kind::OrchestratorDecided, &node.id, payload);
    let outputs = json!({ "decision": decision, "iteration": iteration });
    if decision["kind"] != "ask-user" {
        return (End::Completed(outputs), vec![event]);
    }
    let prompt = decision["prompt"].clone();
    let interrupt = json!({
        "kind": "clarification",
        "key": format!("turn-{iteration}"),
        "data": { "questions": [{ "id": "answer", "question": prompt }] },
    });
    (End::Suspended(interrupt), vec![event])
}

/// What the orchestrator puts out once somebody has answered it.
pub fn answered(state: &RunState) -> Value {
    json!({
        "decision": state.decision,
        "iteration": state.iteration,
        "answer": state.answers.last(),
    })
}

/// The name of an orchestrator: the same as long as its run lives.
fn agent(node: &Node, state: &RunState) -> String {
    let named = node.config.get("agentId").and_then(Value::as_str);
    let named = named.filter(|name| (3..=ID_MAX_BYTES).contains(&name.len()));
    let own = || named.map_or_else(|| format!("supervisor-{}", node.id), str::to_owned);
    state.orchestrator.clone().unwrap_or_else(own)
}

/// Whether it is a decision of the protocol: one of a closed set of kinds.
fn check(decision: &Value) -> Result<(), String> {
    let fields = decision.as_object().ok_or("it must be an object")?;
    let only = |known: &[&str]| match fields.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(format!("it has `{key}`, which this kind doesn't have")),
        None => Ok(()),
    };
    let text = |key: &str, is_needed: bool| match fields.get(key) {
        Some(Value::String(text)) if !text.is_empty() => Ok(()),
        None if !is_needed => Ok(()),
        _ => Err(format!("`{key}` must be a text that isn't empty")),
    };
    if let Some(confidence) = fields.get("confidence")
        && !confidence.as_f64().is_some_and(|confidence| (0.0..=1.0).contains(&confidence))
    {
        return Err("`confidence` must be a number from 0 to 1".to_owned());
    }
    match fields.get("kind").and_then(Value::as_str) {
        Some("next-worker") => {
            only(&["kind", "nextWorkerIds", "confidence"])?;
            let workers = fields.get("nextWorkerIds").and_then(Value::as_array);
            let is_id =
                |id: &Value| id.as_str().is_some_and(|id| (1..=ID_MAX_BYTES).contains(&id.len()));
            match workers {
                Some(ids) if (1..=WORKERS_MAX).contains(&ids.len()) && ids.iter().all(is_id) => {
                    Ok(())
                }
                _ => Err(format!(
                    "`nextWorkerIds` must be a list of 1 to {WORKERS_MAX} ids of up to \
                     {ID_MAX_BYTES} bytes"
                )),
            }
        }
        Some("ask-user") => {
            only(&["kind", "prompt"])?;
            text("prompt", true)
        }
        Some("terminate") => {
            only(&["kind", "reason", "confidence", "successCriteria"])?;
            text("reason", false)?;
            let is_criterion = |one: &Value| {
                let fields = one.as_object().filter(|fields| fields.len() == 2);
                fields.is_some_and(|fields| {
                    let key = fields.get("key").and_then(Value::as_str);
                    key.is_some_and(|key| !key.is_empty())
                        && fields.get("met").is_some_and(Value::is_boolean)
                })
            };
            match fields.get("successCriteria") {
                None => Ok(()),
                Some(Value::Array(all)) if all.iter().all(is_criterion) => Ok(()),
                Some(_) => Err("`successCriteria` must be a list of {key, met}".to_owned()),
            }
        }
        _ => Err("`kind` must be `next-worker`, `ask-user` or `terminate`".to_owned()),
    }
}
