//! The messages between director and worker: one JSON object per line.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use sandglass_host::CompileLimits;
use sandglass_model::{EntityRef, Object, Position, WallTime};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::file::{Module, Server, SpecFile};

/// The first line that a worker reads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) journal: PathBuf,
    /// With the addresses of the servers in place of their names.
    pub(crate) specs: Vec<SpecFile>,
    pub(crate) modules: Vec<Module>,
    pub(crate) metrics: Option<SocketAddr>,
    #[serde(default)]
    pub(crate) compiling: CompileLimits,
    /// Size from which modules begin with code of the baseline compiler, in bytes; `None` if none do.
    pub(crate) baseline_from: Option<u64>,
    /// `None` if time is real.
    pub(crate) virtual_time: Option<VirtualTime>,
}

/// Where virtual time stands when a worker starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct VirtualTime {
    /// Since the scenario began.
    pub(crate) elapsed_ms: u64,
    /// The wall time at that moment.
    pub(crate) wall: WallTime,
    /// The scenario's servers by their ports. There are no sockets in virtual time.
    pub(crate) servers: BTreeMap<u16, Server>,
}

/// A command with its number, which the reply carries too.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) id: u64,
    #[serde(rename = "ask")]
    pub(crate) command: Command,
}

/// A command of the director.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Command {
    Create {
        entity: EntityRef,
        limits: Object,
    },
    /// Creates the entity first if there is none.
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
    /// Cancels the run of a session, or the handlers of another entity.
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
    /// Returns the status of a session, as JSON.
    Session {
        entity: EntityRef,
    },
    /// Makes the journal fail, or work again.
    Journal {
        works: bool,
    },
    /// Lets virtual time pass until so much of it has passed since the scenario began, or until
    /// something is appended. What was appended since the last such command counts.
    #[serde(rename = "go_on")]
    Advance {
        until_ms: u64,
    },
    /// Returns all metrics, as text.
    Metrics,
    /// Stops the runtime. The reply is sent when the journal is closed.
    Stop,
}

impl Command {
    /// The entity that the command is about; `None` if there is none.
    pub(crate) const fn entity(&self) -> Option<&EntityRef> {
        match self {
            Self::Create { entity, .. }
            | Self::Send { entity, .. }
            | Self::Signal { entity, .. }
            | Self::Cancel { entity, .. }
            | Self::Resume { entity, .. }
            | Self::Session { entity } => Some(entity),
            Self::Journal { .. } | Self::Advance { .. } | Self::Metrics | Self::Stop => None,
        }
    }
}

/// One line from a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct WorkerMessage {
    /// Virtual time since the scenario began; `None` if time is real.
    pub(crate) elapsed_ms: Option<u64>,
    pub(crate) reply: Reply,
}

/// What a worker reports once it has started.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Ready {
    /// Where its metrics are served.
    pub(crate) metrics: Option<SocketAddr>,
    /// Torn records that it has set aside.
    pub(crate) recovered: Vec<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Reply {
    /// The worker has started.
    Ready(Ready),
    /// The worker could not start.
    Failed { why: String },
    /// Records up to this position were appended to the journal.
    Appended { last: Position },
    /// The command is done; some commands return a text.
    Done { id: u64, text: Option<String> },
    /// The command was refused.
    Refused { id: u64, why: String },
}
