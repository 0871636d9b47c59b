//! What director and worker say to each other: one JSON object a line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sandglass_host::CompileLimits;
use sandglass_model::{EntityRef, Object, Position, WallTime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{Module, Server, SpecFile};

/// The first line that a worker reads: all that it needs to start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) journal: PathBuf,
    /// With the servers' addresses in them.
    pub(crate) specs: Vec<SpecFile>,
    pub(crate) modules: Vec<Module>,
    pub(crate) metrics: Option<SocketAddr>,
    #[serde(default)]
    pub(crate) compiling: CompileBounds,
    /// Where time is virtual; it is real else.
    pub(crate) virtual_time: Option<VirtualTime>,
}

/// What compiling one module may take.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct CompileBounds {
    timeout: Duration,
    memory_bytes: u64,
}

impl Default for CompileBounds {
    fn default() -> Self {
        CompileLimits::default().into()
    }
}

impl From<CompileLimits> for CompileBounds {
    fn from(CompileLimits { timeout, memory_bytes }: CompileLimits) -> Self {
        Self { timeout, memory_bytes }
    }
}

impl From<CompileBounds> for CompileLimits {
    fn from(CompileBounds { timeout, memory_bytes }: CompileBounds) -> Self {
        Self { timeout, memory_bytes }
    }
}

/// Where virtual time stands as a worker starts, and who answers requests in it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VirtualTime {
    /// Since the scenario began, in milliseconds.
    pub(crate) elapsed_ms: u64,
    /// The moment that it stands for.
    pub(crate) wall: WallTime,
    /// The scenario's servers, each at its port.
    pub(crate) servers: BTreeMap<u16, Server>,
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
        limits: Object,
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
    /// Of a session its run, of another entity its handlers.
    Cancel {
        entity: EntityRef,
        by: String,
        reason: String,
    },
    Resume {
        entity: EntityRef,
        by: String,
        limits: Object,
    },
    /// How a session stands, as JSON.
    Session {
        entity: EntityRef,
    },
    /// Whether the journal takes anything.
    Journal {
        works: bool,
    },
    /// Lets virtual time go on until something is appended, or has been appended since the last
    /// such request, or so much of it has passed since the scenario began.
    GoOn {
        until_ms: u64,
    },
    /// All metrics as text.
    Metrics,
    /// An orderly end. Answered when the journal is closed.
    Stop,
}

/// A line of a worker's.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    /// Virtual time since the scenario began, in milliseconds; none where time is real.
    pub(crate) elapsed_ms: Option<u64>,
    pub(crate) reply: Reply,
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
