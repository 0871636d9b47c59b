//! `core.orchestrator.supervisor`: one turn of an orchestrator, which a node of a pack, a plan or a
//! fixed rule decides.
//!
//! Each turn is a node of the run. The edge that leads back to the orchestrator begins it, and it is counted
//! before it begins.

use serde::Serialize;
use serde_json::{Map, Number, Value, json};

use super::{End, is_orchestrator};
use crate::decision::{Decision, ID_MAX_BYTES};
use crate::definition::{Definition, Node};
use crate::error::{ErrorCode, RunError};
use crate::event::{Payload, RunEvent};
use crate::interrupt::{Interrupt, InterruptKind};
use crate::state::RunState;

/// The field of its `config` that names the type of the pack's node that decides.
pub const DECIDER: &str = "decider";

/// The key of `configurable` that sets the confidence below which decisions are held.
pub const ESCALATION_THRESHOLD: &str = "escalationThreshold";
/// The confidence below which decisions are held if a run sets none: the protocol's.
const DEFAULT_THRESHOLD: f64 = 0.7;

/// How a turn is decided.
#[derive(Debug)]
pub enum Decider<'a> {
    /// By a node of this type, of a pack.
    Pack(&'a str),
    /// It was decided without a pack.
    Decided(Decision),
}

/// How the next turn of `node` is decided: by its `config.decider`, else by its `config.plan` (or
/// `mockDispatchPlan`, as the protocol's fixtures call it) with one decision for each turn, else
/// by one pass over the nodes that follow it.
///
/// # Errors
/// The configuration is invalid.
pub fn decider<'a>(
    definition: &Definition,
    state: &RunState,
    index: usize,
    node: &'a Node,
) -> Result<Decider<'a>, RunError> {
    if let Some(decider) = node.config.get(DECIDER) {
        return decider.as_str().map(Decider::Pack).ok_or_else(|| {
            let message = "`decider` must be the type of a pack's node";
            RunError::new(ErrorCode::InvalidConfig, message)
        });
    }
    let turn = usize::try_from(state.iteration).unwrap_or(usize::MAX);
    let plan = node.config.get("plan").or_else(|| node.config.get("mockDispatchPlan"));
    let decision = match plan.and_then(Value::as_array).filter(|plan| !plan.is_empty()) {
        Some(plan) => match plan.get(turn) {
            Some(decision) => read(decision)?,
            None => Decision::terminate("plan-finished"),
        },
        None => one_pass(definition, turn, index)?,
    };
    Ok(Decider::Decided(decision))
}

/// The nodes that follow the one at `index`, in the first turn; else the end.
fn one_pass(definition: &Definition, turn: usize, index: usize) -> Result<Decision, RunError> {
    let following = definition.graph.outgoing(index).iter();
    let following: Vec<&str> = following
        .filter(|edge| !definition.graph.is_back(**edge))
        .map(|edge| definition.nodes[definition.edges[*edge].target].id.as_str())
        .collect();
    if turn > 0 || following.is_empty() {
        return Ok(Decision::terminate("goal-reached"));
    }
    // The limits of every decision apply.
    read(&json!({ "kind": "next-worker", "nextWorkerIds": following }))
}

/// Reads a decision.
///
/// # Errors
/// It is not one of the protocol.
pub fn read(decision: &Value) -> Result<Decision, RunError> {
    Decision::parse(decision).map_err(|why| {
        let message = format!("the orchestrator's decision: {why}");
        RunError::new(ErrorCode::InvalidDecision, message)
    })
}

/// The inputs of a pack's node that decides: the orchestrator's own inputs and configuration,
/// the number of the turn, the last decision, and the answers of people.
pub fn inputs(node: &Node, state: &RunState, own: Map<String, Value>) -> Map<String, Value> {
    let mut inputs: Map<String, Value> = node.config.clone().into_iter().collect();
    inputs.remove(DECIDER);
    inputs.extend(own);
    inputs.insert("iteration".to_owned(), state.iteration.saturating_add(1).into());
    inputs.insert("answers".to_owned(), state.answers.clone().into());
    if let Some(last) = &state.decision {
        inputs.insert("lastDecision".to_owned(), plain(last));
    }
    inputs
}

/// The outputs of the orchestrator.
#[derive(Serialize)]
struct Outputs<'a> {
    decision: Option<&'a Decision>,
    iteration: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a Value>,
}

fn plain(value: &impl Serialize) -> Value {
    serde_json::to_value(value).expect("it is plain data")
}

/// How the node ends with `decision`, and the event of it. A decision whose confidence is below the
/// threshold of the run, which `configurable` may set, is held and has no event: a person ratifies it.
pub fn take_or_hold(
    node: &Node,
    state: &RunState,
    configurable: &Map<String, Value>,
    decision: Decision,
) -> (End, Option<RunEvent>) {
    let threshold = configurable.get(ESCALATION_THRESHOLD).and_then(Value::as_f64);
    let threshold = threshold.unwrap_or(DEFAULT_THRESHOLD);
    let observed = decision.confidence().and_then(Number::as_f64);
    if observed.is_some_and(|observed| observed < threshold) {
        return (End::Suspended(ratification_request(node, state, &decision, threshold)), None);
    }
    let (end, event) = take_decision(node, state, decision);
    (end, Some(event))
}

/// What a person is asked who has to ratify `decision`.
fn ratification_request(
    node: &Node,
    state: &RunState,
    decision: &Decision,
    threshold: f64,
) -> Interrupt {
    let data = [
        ("agentId", agent(node, state).into()),
        ("threshold", threshold.into()),
        ("observed", plain(&decision.confidence())),
        ("decision", plain(decision)),
    ];
    Interrupt {
        kind: InterruptKind::LowConfidence,
        key: ratification_key(state),
        data: data.map(|(key, value)| (key.to_owned(), value)).into_iter().collect(),
        resume_schema: None,
        timeout_ms: None,
    }
}

/// The key of the interrupt that holds the decision of the present turn.
fn ratification_key(state: &RunState) -> String {
    format!("turn-{}-decision", state.iteration.saturating_add(1))
}

/// Whether `interrupt` of `node` holds the decision of the present turn.
pub fn is_ratification(node: &Node, state: &RunState, interrupt: &Interrupt) -> bool {
    is_orchestrator(node) && interrupt.key == ratification_key(state)
}

/// The decision of the present turn that a person has given instead of one that was held.
pub fn ratified_decision<'a>(node: &Node, state: &'a RunState) -> Option<&'a Value> {
    let resolved = Some(&state.resolved).filter(|_| is_orchestrator(node));
    resolved?.get(&(node.id.clone(), ratification_key(state)))
}

/// How the node ends with `decision`, whatever its confidence, and the event of it.
pub fn take_decision(node: &Node, state: &RunState, decision: Decision) -> (End, RunEvent) {
    let iteration = state.iteration.saturating_add(1);
    let end = match &decision {
        Decision::AskUser { prompt } => {
            let questions = json!([{ "id": "answer", "question": prompt }]);
            End::Suspended(Interrupt {
                kind: InterruptKind::Clarification,
                key: format!("turn-{iteration}"),
                data: Map::from_iter([("questions".to_owned(), questions)]),
                resume_schema: None,
                timeout_ms: None,
            })
        }
        Decision::NextWorker { .. } | Decision::Terminate { .. } => {
            let decision = Some(&decision);
            End::Completed(plain(&Outputs { decision, iteration, answer: None }))
        }
    };
    let agent_id = agent(node, state);
    let event = Payload::OrchestratorDecided { agent_id, decision, iteration };
    (end, RunEvent::of_node(&node.id, event))
}

/// The outputs of the orchestrator once its question is answered.
pub fn answered(state: &RunState) -> Value {
    let (decision, iteration) = (state.decision.as_ref(), state.iteration);
    plain(&Outputs { decision, iteration, answer: state.answers.last() })
}

/// The name of an orchestrator, which does not change during a run.
fn agent(node: &Node, state: &RunState) -> String {
    let named = node.config.get("agentId").and_then(Value::as_str);
    let named = named.filter(|name| (3..=ID_MAX_BYTES).contains(&name.len()));
    let own = || named.map_or_else(|| format!("supervisor-{}", node.id), str::to_owned);
    state.orchestrator.clone().unwrap_or_else(own)
}
