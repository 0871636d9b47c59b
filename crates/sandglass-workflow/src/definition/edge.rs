//! Edges: which node follows which, and when.

use std::collections::BTreeMap;

use serde_json::Value;

use super::node::node_named;
use super::{ID_MAX_BYTES, PROSE_MAX_BYTES};
use crate::condition::Condition;
use crate::fields::Fields;
use crate::names::names;
use crate::problem::Problems;

/// One node follows another.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Edge {
    /// Its id, which is unique in the definition.
    pub id: String,
    /// The index of the node that it comes from.
    pub source: usize,
    /// The output of that node: `output` by default.
    pub source_output: String,
    /// The index of the node that it leads to.
    pub target: usize,
    /// The port of that node: `input` by default.
    pub target_input: String,
    /// When it is taken: always if `None`.
    pub condition: Option<Condition>,
    /// What its target waits for.
    pub trigger_rule: TriggerRule,
}

names! {
    /// What a node waits for at the nodes before it.
    #[derive(Default)]
    TriggerRule {
        /// All succeed.
        #[default]
        AllSuccess = "all_success",
        /// One succeeds.
        AnySuccess = "any_success",
        /// All end, in any way.
        AllComplete = "all_complete",
        /// All end, and none fails.
        NoneFailed = "none_failed",
        /// One fails.
        AnyFailed = "any_failed",
    }
}

impl Edge {
    pub(super) fn read(
        value: &Value,
        path: String,
        nodes: &BTreeMap<&str, usize>,
        out: &Problems,
    ) -> Option<Self> {
        Fields::closed(value, path, "the edge", out, |fields| {
            let id = fields.required_name("id", ID_MAX_BYTES);
            let source = node_named(fields, "sourceNodeId", nodes);
            let target = node_named(fields, "targetNodeId", nodes);
            let port =
                |key, default: &str| fields.name(key, ID_MAX_BYTES).unwrap_or(default).to_owned();
            fields.prose("label", PROSE_MAX_BYTES);
            Some(Self {
                source_output: port("sourceOutput", "output"),
                target_input: port("targetInput", "input"),
                condition: fields
                    .value("condition")
                    .and_then(|value| Condition::read(value, &fields.under("condition"), out)),
                trigger_rule: fields.word("triggerRule", TriggerRule::WORDS).unwrap_or_default(),
                id: id?.to_owned(),
                source: source?,
                target: target?,
            })
        })?
    }
}
