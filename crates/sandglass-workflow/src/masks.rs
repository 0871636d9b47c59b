//! Which values of a run clients do not see.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::definition::Definition;
use crate::event::{Entry, Payload};

/// What clients see instead of a sensitive value.
const MASK: &str = "[masked]";

/// The sensitive values of runs of a definition.
#[derive(Debug, Default)]
pub struct Masks {
    /// Names of sensitive variables.
    pub variables: BTreeSet<String>,
    /// Names of sensitive channels.
    pub channels: BTreeSet<String>,
    /// Outputs, by node.
    outputs: BTreeSet<(String, String)>,
}

impl Masks {
    /// The masks of `definition`, whose settings for outputs override those of packs, which
    /// `sensitive_outputs` returns for a type of nodes.
    pub fn of<'a, I>(definition: &Definition, sensitive_outputs: impl Fn(&str) -> I) -> Self
    where
        I: IntoIterator<Item = &'a str>,
    {
        let variables = definition.variables.iter().filter(|variable| variable.sensitive);
        let channels = definition.channels.iter().filter(|(_, channel)| channel.sensitive);
        let mut outputs = BTreeSet::new();
        for node in &definition.nodes {
            for port in sensitive_outputs(&node.type_id) {
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

    /// An event as clients receive it.
    pub fn event(&self, run: &str, entry: &Entry) -> Value {
        let mut document = entry.document(run);
        if self.is_empty() {
            return document;
        }
        let payload = &mut document["payload"];
        match &entry.event.payload {
            Payload::RunStarted { .. } => {
                mask_keys(&mut payload["inputs"], |name| self.variables.contains(name));
            }
            Payload::VariableChanged { name, .. } if self.variables.contains(name) => {
                mask_keys(payload, |key| key == "next" || key == "previous");
            }
            Payload::ChannelWritten { channel, .. } if self.channels.contains(channel) => {
                mask_keys(payload, |key| key == "value");
            }
            Payload::NodeCompleted { node_id, .. } => {
                self.mask_outputs(node_id, &mut payload["outputs"]);
            }
            // What differs may be sensitive.
            Payload::ReplayDiverged { .. } => {
                mask_keys(payload, |key| key == "recorded" || key == "came");
            }
            Payload::RunCompleted(_) => {
                self.mask_all_outputs(&mut payload["outputs"]);
            }
            _ => {}
        }
        document
    }

    /// Masks the sensitive outputs of `node`.
    pub fn mask_outputs(&self, node: &str, outputs: &mut Value) {
        mask_keys(outputs, |port| self.outputs.contains(&(node.to_owned(), port.to_owned())));
        // A node may pass a sensitive variable on as an output of that name.
        mask_keys(outputs, |port| self.variables.contains(port));
    }

    /// The outputs of a run: those of one node, or of several by their ids.
    pub fn mask_all_outputs(&self, outputs: &mut Value) {
        let ports: BTreeSet<&str> = self.outputs.iter().map(|(_, port)| port.as_str()).collect();
        let is_masked = |name: &str| ports.contains(name) || self.variables.contains(name);
        mask_keys(outputs, is_masked);
        for output in outputs.as_object_mut().into_iter().flat_map(Map::values_mut) {
            mask_keys(output, is_masked);
        }
    }
}

/// Masks the values of the keys for which `is_masked` holds.
pub fn mask_keys(value: &mut Value, is_masked: impl Fn(&str) -> bool) {
    for (key, value) in value.as_object_mut().into_iter().flatten() {
        if is_masked(key) {
            *value = MASK.into();
        }
    }
}
