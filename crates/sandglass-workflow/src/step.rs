//! Parameters of the actions of a run's entity: what the run begins with, and what it does next.

use sandglass_model::WallTime;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::event::{ForkedFrom, Payload, RunEvent};

/// Everything that a run begins with. Its first record contains it, so that the records of the run suffice
/// to explain it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Begin {
    /// The workflow.
    pub workflow: String,
    /// The digest of its definition: later versions do not affect this run.
    pub digest: String,
    /// The inputs of the request.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub inputs: Map<String, Value>,
    /// The options of the run.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub configurable: Map<String, Value>,
    /// Labels to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The metadata of the request, returned as it was sent.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The fields of the first event, if the run is a fork that copies that event.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inherited: Option<Start>,
    /// When the source recorded that event, if the run is a fork that copies it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copied_at: Option<WallTime>,
    /// The digest of the request, if it had an idempotency key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The run that it was forked from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<Fork>,
    /// What the events that it copied from that run used of its limits.
    #[serde(default, skip_serializing_if = "Copied::is_nothing")]
    pub copied: Copied,
    /// Its parent, if it is a child run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
}

/// The fields of a run's first event in which a run and its fork may differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Labels to find the run by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// The metadata of the request.
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub metadata: Map<String, Value>,
    /// The parent, if the run is a child run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
}

/// How a run was forked from another one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fork {
    /// That run.
    pub source: String,
    /// The first of its events that is not copied.
    pub from: u64,
    /// Where a branch begins if it copies more events than those before `from` ([`Cut::to`]).
    ///
    /// [`Cut::to`]: crate::cut::Cut::to
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<u64>,
    /// How the fork uses the others.
    pub mode: ForkMode,
}

/// What a fork does with the events of its source that it does not copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ForkMode {
    /// It repeats them: pure nodes are executed again and compared.
    Replay,
    /// It continues on its own.
    Branch,
}

/// What a fork counts from its source.
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

/// The parent of a child run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    /// The run.
    pub run: String,
    /// Its node.
    pub node: String,
    /// How many ancestors this run has.
    pub depth: u32,
}

impl Begin {
    /// The fields of the first event in which a fork may differ.
    pub fn start(&self) -> Start {
        self.inherited.clone().unwrap_or_else(|| Start {
            tags: self.tags.clone(),
            metadata: self.metadata.clone(),
            parent_run_id: self.parent.as_ref().map(|parent| parent.run.clone()),
        })
    }

    /// The first event of the run.
    pub fn started(&self) -> RunEvent {
        let Start { tags, metadata, parent_run_id } = self.start();
        let event = RunEvent::of_run(Payload::RunStarted {
            workflow_id: self.workflow.clone(),
            inputs: self.inputs.clone(),
            transport: "rest".to_owned(),
            engine_version: env!("CARGO_PKG_VERSION").to_owned(),
            tags,
            metadata,
            parent_run_id,
        });
        RunEvent { copied_at: self.copied_at, ..event }
    }
}

impl Fork {
    /// The first event that a branch does not copy.
    pub fn branches_at(&self) -> u64 {
        self.to.unwrap_or(self.from)
    }

    /// The fork as clients see it.
    pub fn forked_from(&self) -> ForkedFrom {
        ForkedFrom { run_id: self.source.clone(), from_seq: self.from, mode: self.mode }
    }
}

/// What a run does next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Next {
    /// It executes a node.
    Node {
        /// Its id.
        node: String,
        /// Its type.
        type_id: String,
    },
    /// It continues a node that waited, or retries one that failed.
    Resumed {
        /// Its id.
        node: String,
        /// Its type.
        type_id: String,
    },
    /// It copies or repeats the events of its source from here on.
    Replay {
        /// The next event.
        at: u64,
    },
    /// It waits for an answer for a limited time.
    Expiry {
        /// The interrupt.
        interrupt: String,
        /// How long, in milliseconds.
        after_ms: u64,
    },
}
