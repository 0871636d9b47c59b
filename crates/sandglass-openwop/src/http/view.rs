//! Runs as clients see them.

use serde_json::{Value, json};

use super::discovery::EVENT_LOG_SCHEMA_VERSION;
use crate::log::Standing;
use crate::service::status;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::event::Kind;
use sandglass_workflow::masks::{Masks, mask_keys};
use sandglass_workflow::state::{NodeStatus, RunState};

/// How a run stands.
pub(crate) fn snapshot(run: &str, standing: &Standing, masks: &Masks, is_stopping: bool) -> Value {
    let Standing { folded, definition, state } = standing;
    let begin = folded.projection.begin.as_ref();
    let mut snapshot = json!({
        "runId": run,
        "workflowId": definition.id,
        "status": status(state, is_stopping),
        "nodeStates": node_states(definition, state, masks),
        "variables": variables(definition, state, masks),
        "engineVersion": env!("CARGO_PKG_VERSION"),
        "eventLogSchemaVersion": EVENT_LOG_SCHEMA_VERSION,
    });
    let mut set = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            snapshot[key] = value;
        }
    };
    set("startedAt", folded.started_at.map(|at| json!(at.to_string())));
    if let Some((kind, payload)) = &state.ended {
        set("completedAt", folded.last_at.map(|at| json!(at.to_string())));
        if *kind == Kind::RunFailed {
            set("error", Some(error(&payload["error"])));
        }
        if *kind == Kind::RunCompleted {
            let mut outputs = payload["outputs"].clone();
            masks.mask_all_outputs(&mut outputs);
            set("outputs", Some(outputs));
        }
    }
    if let Some(waiting) = &state.waiting {
        set("currentNodeId", Some(json!(waiting.node)));
        set(
            "interrupt",
            Some(json!({
                "interruptId": waiting.interrupt,
                "nodeId": waiting.node,
                "payload": waiting.payload,
            })),
        );
    }
    if !definition.channels.is_empty() {
        let mut channels = json!(state.channels);
        mask_keys(&mut channels, |name| masks.channels.contains(name));
        set("channels", Some(channels));
    }
    if let Some(orchestrator) = &state.orchestrator {
        set("runOrchestrator", Some(json!({ "agentId": orchestrator })));
    }
    if let Some(begin) = begin {
        if !begin.tags.is_empty() {
            set("tags", Some(json!(begin.tags)));
        }
        if !begin.metadata.is_empty() {
            set("metadata", Some(json!(begin.metadata)));
        }
        set("configurable", Some(json!(begin.configurable)));
        if let Some(fork) = &begin.fork {
            set(
                "forkedFrom",
                Some(json!({
                    "runId": fork.source, "fromSeq": fork.from, "mode": fork.mode,
                })),
            );
        }
        if let Some(parent) = &begin.parent {
            set("parentRunId", Some(json!(parent.run)));
        }
    }
    snapshot
}

/// The error of a run: nothing but its code, message and details.
fn error(told: &Value) -> Value {
    let mut error = json!({ "code": told["code"], "message": told["message"] });
    if let Some(details) = told.get("details").filter(|details| details.is_object()) {
        error["details"] = details.clone();
    }
    error
}

/// The variables, and what each node has put out under its id, where no variable is called so.
fn variables(definition: &Definition, state: &RunState, masks: &Masks) -> Value {
    let mut variables = Value::Object(state.variables.clone());
    mask_keys(&mut variables, |name| masks.variables.contains(name));
    for (node, at) in definition.nodes.iter().zip(&state.nodes) {
        if at.outputs.is_object() && variables.get(&node.id).is_none() {
            let mut outputs = at.outputs.clone();
            masks.mask_outputs(&node.id, &mut outputs);
            variables[node.id.as_str()] = outputs;
        }
    }
    variables
}

fn node_states(definition: &Definition, state: &RunState, masks: &Masks) -> Value {
    let of = |(node, at): (
        &sandglass_workflow::definition::Node,
        &sandglass_workflow::state::NodeState,
    )| {
        // What was under way when its run came to its end was ended with it.
        let is_cut = state.ended.is_some()
            && matches!(at.status, NodeStatus::Running | NodeStatus::Suspended);
        // What the last round of a loop has not come to again is as the round before left it.
        let is_left = state.ended.is_some() && at.status == NodeStatus::Pending;
        let status = match () {
            () if is_cut => "cancelled",
            () if is_left => at.before.as_str(),
            () => at.status.as_str(),
        };
        let mut told = json!({
            "status": status,
            "typeId": node.type_id,
            "executions": at.executions,
            "attempt": at.attempt,
        });
        if at.outputs.is_object() {
            let mut outputs = at.outputs.clone();
            masks.mask_outputs(&node.id, &mut outputs);
            told["outputs"] = outputs;
        }
        (node.id.clone(), told)
    };
    Value::Object(definition.nodes.iter().zip(&state.nodes).map(of).collect())
}
