//! What the actions of a run's entity carry: what it begins with, and what it does next.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::{ForkedFrom, Payload, RunEvent};

/// All that a run begins with. Kept in its first record, so that nothing else is needed to
/// tell its story.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// The workflow.
    pub workflow: String,
    /// The digest of its definition: later versions of it change nothing for this run.
    pub digest: String,
    /// The inputs of the request.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// How it is to run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub configurable: Map<String, Value>,
    /// What it is found by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The metadata of the request, returned as it was sent.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The digest of the request, where it came with an idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The run that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    /// What of its bounds was used by the events that it has from that run.
    #[serde(default, skip_serializing_if = "Copied::is_nothing")]
    pub copied: Copied,
    /// The run that it works for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
}

/// How a run was forked from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// That run.
    pub source: String,
    /// The first of its events that is not simply taken over.
    pub from: u64,
    /// What becomes of the others.
    pub mode: ForkMode,
}

/// What a fork does with the events of its source from some point on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkMode {
    /// It comes to them again: pure nodes are run once more and compared.
    Replay,
    /// It goes on by itself.
    Branch,
}

/// What a fork has of its source's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Copied {
    /// Nodes that were executed.
    pub executions: u64,
    /// Turns that an orchestrator took.
    pub turns: u64,
}

impl Copied {
    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
    fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
}

/// Who a child run works for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The run.
    pub run: String,
    /// Its node.
    pub node: String,
    /// How many runs are above this one.
    pub depth: u32,
}

impl Begin {
    /// The first event of the run.
    pub fn started(&self) -> RunEvent {
        RunEvent::of_run(Payload::RunStarted {
            workflow_id: self.workflow.clone(),
            inputs: self.inputs.clone(),
            transport: "rest".to_owned(),
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            tags: self.tags.clone(),
            metadata: self.metadata.clone(),
            forked_from: self.fork.as_ref().map(Fork::forked_from),
            parent_run_id: self.parent.as_ref().map(|parent| parent.run.clone()),
        })
    }
}

impl Fork {
    /// The fork as clients see it.
    pub fn forked_from(&self) -> ForkedFrom {
        ForkedFrom { run_id: self.source.clone(), from_seq: self.from, mode: self.mode }
    }
}

/// What a run does next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Next {
    /// It runs a node.
    Node {
        /// Which.
        node: String,
        /// Of which type.
        type_id: String,
    },
    /// It goes on with a node that has waited, or runs one once more that has failed.
    Resumed {
        /// Which.
        node: String,
        /// Of which type.
        type_id: String,
    },
    /// It takes over, or comes again to, its source's events from here on.
    Replay {
        /// The next event.
        at: u64,
    },
    /// It waits for an answer until some time.
    Expiry {
        /// The interrupt.
        interrupt: String,
        /// How long, in milliseconds.
        after_ms: u64,
    },
}
