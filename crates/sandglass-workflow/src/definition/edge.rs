//! Edges: what follows what, and when.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::node_named;
use super::{ID_MAX_BYTES, PROSE_MAX_BYTES};
use crate::condition::Condition;
use crate::fields::Fields;
use crate::names::names;
use crate::problem::Problems;

/// That one node follows another.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Edge {
    /// Its id, which no other edge of the definition has.
    pub id: String,
    /// The index of the node that it comes from.
    pub source: usize,
    /// Which output of it: `output` where nothing is said.
    pub source_output: String,
    /// The index of the node that it goes to.
    pub target: usize,
    /// Which port of it: `input` where nothing is said.
    pub target_input: String,
    /// When it is taken: always where there is none.
    pub condition: Option<Condition>,
    /// What its target waits for.
    pub trigger_rule: TriggerRule,
}

names! {
    /// What of the nodes before it a node waits for.
    #[derive(Default)]
    TriggerRule {
        /// All succeed.
        #[default]
        AllSuccess = "all_success",
        /// One succeeds.
        AnySuccess = "any_success",
        /// All end, however.
        AllComplete = "all_complete",
        /// All end, and none fails.
        NoneFailed = "none_failed",
        /// One fails.
        AnyFailed = "any_failed",
    }
}

const KEYS: &[&str] = &[
    "id",
    "sourceNodeId",
    "sourceOutput",
    "targetNodeId",
    "targetInput",
    "condition",
    "label",
    "triggerRule",
];

impl Edge {
    pub(super) fn read(
        value: &Value,
        path: String,
        nodes: &BTreeMap<&str, usize>,
        out: &mut Problems,
    ) -> Option<Self> {
        let fields = Fields::of(value, path, "the edge", out)?;
        fields.only(KEYS, out);
        let id = fields.required_name("id", ID_MAX_BYTES, out);
        let source = node_named(&fields, "sourceNodeId", nodes, out);
        let target = node_named(&fields, "targetNodeId", nodes, out);
        let port = |key, default: &str, out: &mut _| {
            fields.name(key, ID_MAX_BYTES, out).unwrap_or(default).to_owned()
        };
        let source_output = port("sourceOutput", "output", out);
        let target_input = port("targetInput", "input", out);
        fields.prose("label", PROSE_MAX_BYTES, out);
        let condition = fields
            .value("condition")
            .and_then(|value| Condition::read(value, &fields.under("condition"), out));
        let trigger_rule = fields.word("triggerRule", TriggerRule::WORDS, out).unwrap_or_default();
        Some(Self {
            id: id?.to_owned(),
            source: source?,
            source_output,
            target: target?,
            target_input,
            condition,
            trigger_rule,
        })
    }
}
