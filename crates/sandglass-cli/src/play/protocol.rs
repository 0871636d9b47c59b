//! What director and worker say to each other: one JSON object a line.

use std::net::SocketAddr;
use std::path::PathBuf;

use sandglass_model::{EntityRef, Object, Position};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::scenario::{Module, SpecFile};

/// The first line that a worker reads: all that it needs to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) journal: PathBuf,
    /// With the servers' addresses in them.
    pub(crate) specs: Vec<SpecFile>,
    pub(crate) modules: Vec<Module>,
    pub(crate) metrics: Option<SocketAddr>,
}

/// What the director asks for, and the number that the answer carries.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    pub(crate) ask: Ask,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Ask {
    Create {
        entity: EntityRef,
    },
    /// Creates the entity first, where it is absent.
    Send {
        entity: EntityRef,
        action: String,
        params: Object,
    },
    Signal {
        entity: EntityRef,
        name: String,
        from: Option<EntityRef>,
        payload: Value,
    },
    Cancel {
        entity: EntityRef,
        reason: String,
    },
    /// All metrics as text.
    Metrics,
    /// An orderly end. Answered when the journal is closed.
    Stop,
}

/// What a worker says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// It has started.
    Ready {
        /// Where its metrics are served.
        metrics: Option<SocketAddr>,
        /// Torn records that were set aside.
        recovered: Vec<String>,
    },
    /// It could not start.
    Failed { why: String },
    /// Something was appended to the journal.
    Appended { last: Position },
    /// Done, or answered.
    Done { id: u64, text: Option<String> },
    /// Not done.
    Refused { id: u64, why: String },
}
