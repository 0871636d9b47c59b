//! Runs as clients see them.

use std::collections::BTreeMap;

use sandglass_workflow::definition::{Definition, Node};
use sandglass_workflow::error::RunError;
use sandglass_workflow::event::{Ending, ForkedFrom};
use sandglass_workflow::interrupt::Interrupt;
use sandglass_workflow::masks::{Masks, mask_keys};
use sandglass_workflow::state::{NodeState, NodeStatus, RunState, RunStatus};
use sandglass_workflow::step::Fork;
use serde::Serialize;
use serde_json::{Map, Value};

use super::discovery::EVENT_LOG_SCHEMA_VERSION;
use crate::log::Standing;

/// A run (`run-snapshot.schema.json`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct RunSnapshot<'a> {
    run_id: &'a str,
    workflow_id: &'a str,
    status: RunStatus,
    node_states: BTreeMap<&'a str, NodeView<'a>>,
    variables: Value,
    engine_version: &'static str,
    event_log_schema_version: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    started_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    completed_at: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RunError>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_node_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interrupt: Option<InterruptView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    channels: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_orchestrator: Option<Orchestrator<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    configurable: Option<&'a Map<String, Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    forked_from: Option<ForkedFrom>,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent_run_id: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NodeView<'a> {
    status: &'static str,
    type_id: &'a str,
    executions: u64,
    attempt: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    outputs: Option<Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InterruptView<'a> {
    interrupt_id: &'a str,
    node_id: &'a str,
    payload: &'a Interrupt,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Orchestrator<'a> {
    agent_id: &'a str,
}

impl<'a> RunSnapshot<'a> {
    /// The run `run_id`, without sensitive values.
    pub(super) fn new(
        run_id: &'a str,
        standing: &'a Standing,
        masks: &Masks,
        is_stopping: bool,
    ) -> Self {
        let Standing { folded, definition, state } = standing;
        let begin = folded.projection.begin.as_ref();
        let waiting = state.waiting.as_ref();
        let (mut error, mut outputs) = (None, None);
        match &state.ended {
            Some(Ending::Failed(failed)) => error = Some(&failed.error),
            Some(Ending::Completed(completed)) => {
                let mut all = completed.outputs.clone().unwrap_or_default();
                masks.mask_all_outputs(&mut all);
                outputs = Some(all);
            }
            Some(Ending::Cancelled(_)) | None => {}
        }
        let channels = (!definition.channels.is_empty()).then(|| {
            let channels = state.channels.iter();
            let channels = channels.map(|(name, value)| (name.clone(), value.clone()));
            let mut channels = Value::Object(channels.collect());
            mask_keys(&mut channels, |name| masks.channels.contains(name));
            channels
        });
        let last_at = folded.last_at.filter(|_| state.ended.is_some());
        let metadata = begin.map(|begin| &begin.metadata);
        Self {
            run_id,
            workflow_id: &definition.id,
            status: state.status(is_stopping),
            node_states: node_views(definition, state, masks),
            variables: variables(definition, state, masks),
            engine_version: env!("CARGO_PKG_VERSION"),
            event_log_schema_version: EVENT_LOG_SCHEMA_VERSION,
            started_at: folded.started_at.map(|at| at.to_string()),
            completed_at: last_at.map(|at| at.to_string()),
            error,
            outputs,
            current_node_id: waiting.map(|waiting| &*waiting.node),
            interrupt: waiting.map(|waiting| InterruptView {
                interrupt_id: &waiting.id,
                node_id: &waiting.node,
                payload: &waiting.interrupt,
            }),
            channels,
            run_orchestrator: state
                .orchestrator
                .as_deref()
                .map(|agent_id| Orchestrator { agent_id }),
            tags: begin.map(|begin| begin.tags.as_slice()).unwrap_or_default(),
            metadata: metadata.filter(|metadata| !metadata.is_empty()),
            configurable: begin.map(|begin| &begin.configurable),
            forked_from: begin.and_then(|begin| begin.fork.as_ref()).map(Fork::forked_from),
            parent_run_id: begin.and_then(|begin| Some(&*begin.parent.as_ref()?.run)),
        }
    }
}

/// The variables, and the outputs of each node under its id, unless a variable has that name.
fn variables(definition: &Definition, state: &RunState, masks: &Masks) -> Value {
    let mut variables = Value::Object(state.variables.clone());
    mask_keys(&mut variables, |name| masks.variables.contains(name));
    for (node, at) in definition.nodes.iter().zip(&state.nodes) {
        if variables.get(&node.id).is_none()
            && let Some(outputs) = outputs(node, at, masks)
        {
            variables[node.id.as_str()] = outputs;
        }
    }
    variables
}

fn outputs(node: &Node, at: &NodeState, masks: &Masks) -> Option<Value> {
    let mut outputs = Some(&at.outputs).filter(|outputs| outputs.is_object()).cloned()?;
    masks.mask_outputs(&node.id, &mut outputs);
    Some(outputs)
}

fn node_views<'a>(
    definition: &'a Definition,
    state: &RunState,
    masks: &Masks,
) -> BTreeMap<&'a str, NodeView<'a>> {
    let view = |(node, at): (&'a Node, &NodeState)| {
        let status = match &at.status {
            // A node that executed when its run ended was ended with it.
            NodeStatus::Running | NodeStatus::Suspended if state.ended.is_some() => "cancelled",
            // A node that the last round of a loop did not reach is as the round before left it.
            NodeStatus::Pending if state.ended.is_some() => at.before.as_str(),
            status => status.as_str(),
        };
        let view = NodeView {
            status,
            type_id: &node.type_id,
            executions: at.executions,
            attempt: at.attempt,
            outputs: outputs(node, at, masks),
        };
        (node.id.as_str(), view)
    };
    definition.nodes.iter().zip(&state.nodes).map(view).collect()
}
