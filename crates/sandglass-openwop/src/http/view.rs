//! Runs and events as clients see them: with what is sensitive masked.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::discovery::EVENT_LOG_SCHEMA_VERSION;
use crate::definition::Definition;
use crate::event::{Entry, Kind};
use crate::library::Library;
use crate::log::Standing;
use crate::service::status;
use crate::state::{NodeStatus, RunState};

/// What stands in the place of what is sensitive.
const MASK: &str = "[masked]";

/// What clients don't see of a definition's runs.
#[derive(Debug, Default)]
pub(crate) struct Masks {
    variables: BTreeSet<String>,
    channels: BTreeSet<String>,
    /// Outputs, by node.
    outputs: BTreeSet<(String, String)>,
}

impl Masks {
    /// Those of `definition`: what it says of outputs comes before what packs say of theirs.
    pub(crate) fn of(definition: &Definition, library: &Library) -> Self {
        let variables = definition.variables.iter().filter(|variable| variable.sensitive);
        let channels = definition.channels.iter().filter(|(_, channel)| channel.sensitive);
        let mut outputs = BTreeSet::new();
        for node in &definition.nodes {
            let of_pack = library.node(&node.type_id).map(|of| of.sensitive_outputs());
            for port in of_pack.into_iter().flatten() {
                outputs.insert((node.id.clone(), port.to_owned()));
            }
            for (port, is_sensitive) in &node.output_sensitivity {
                let output = (node.id.clone(), port.clone());
                if *is_sensitive {
                    outputs.insert(output);
                } else {
                    outputs.remove(&output);
                }
            }
        }
        Self {
            variables: variables.map(|variable| variable.name.clone()).collect(),
            channels: channels.map(|(name, _)| name.clone()).collect(),
            outputs,
        }
    }

    fn is_empty(&self) -> bool {
        self.variables.is_empty() && self.channels.is_empty() && self.outputs.is_empty()
    }

    /// An event, as clients get it.
    pub(crate) fn event(&self, run: &str, entry: &Entry) -> Value {
        let mut document = entry.document(run);
        if self.is_empty() {
            return document;
        }
        let payload = &mut document["payload"];
        let node = entry.event.node_id.as_deref().unwrap_or_default();
        let names = |name: &str| payload_name(&entry.event.payload, name);
        match entry.event.kind {
            Kind::RunStarted => {
                mask_keys(&mut payload["inputs"], |name| self.variables.contains(name))
            }
            Kind::VariableChanged if self.variables.contains(names("name")) => {
                mask_keys(payload, |key| key == "next" || key == "previous");
            }
            Kind::ChannelWritten if self.channels.contains(names("channel")) => {
                mask_keys(payload, |key| key == "value");
            }
            Kind::NodeCompleted => self.mask_outputs(node, &mut payload["outputs"]),
            // What differs may be what is masked.
            Kind::ReplayDiverged => mask_keys(payload, |key| key == "recorded" || key == "came"),
            Kind::RunCompleted => self.mask_all_outputs(&mut payload["outputs"]),
            _ => {}
        }
        document
    }

    fn mask_outputs(&self, node: &str, outputs: &mut Value) {
        mask_keys(outputs, |port| self.outputs.contains(&(node.to_owned(), port.to_owned())));
        // What a node hands on of a variable's is the variable's, too.
        mask_keys(outputs, |port| self.variables.contains(port));
    }

    /// The outputs of a run: those of one node, or of several by their ids.
    pub(crate) fn mask_all_outputs(&self, outputs: &mut Value) {
        let ports: BTreeSet<&str> = self.outputs.iter().map(|(_, port)| port.as_str()).collect();
        let is_masked = |name: &str| ports.contains(name) || self.variables.contains(name);
        mask_keys(outputs, is_masked);
        for output in outputs.as_object_mut().into_iter().flat_map(Map::values_mut) {
            mask_keys(output, is_masked);
        }
    }
}

fn payload_name<'a>(payload: &'a Value, key: &str) -> &'a str {
    payload.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn mask_keys(value: &mut Value, is_masked: impl Fn(&str) -> bool) {
    for (key, value) in value.as_object_mut().into_iter().flatten() {
        if is_masked(key) {
            *value = json!(MASK);
        }
    }
}

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
    let of = |(node, at): (&crate::definition::Node, &crate::state::NodeState)| {
        // What was under way when its run came to its end was ended with it.
        let is_cut = state.ended.is_some()
            && matches!(at.status, NodeStatus::Running | NodeStatus::Suspended);
        let status = if is_cut { "cancelled" } else { at.status.as_str() };
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
