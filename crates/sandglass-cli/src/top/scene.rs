//! A snapshot of the live view as the daemon sends it (`GET /v1/live`): the parts that are shown.

use anyhow::Context as _;
use serde::Deserialize;

/// What the handlers do at one moment.
#[derive(Debug, Deserialize)]
pub(super) struct Scene {
    pub(super) at: i64,
    pub(super) health: Health,
    pub(super) in_flight: usize,
    pub(super) handlers: Vec<Handler>,
    pub(super) kills: Vec<Kill>,
    /// How many sessions are blocked; absent in snapshots of daemons that have no sessions yet.
    #[serde(default)]
    pub(super) blocked: usize,
    #[serde(default)]
    pub(super) blocked_sessions: Vec<Blocked>,
    /// The hosts of the cluster; none without one.
    #[serde(default)]
    pub(super) hosts: Vec<Host>,
    /// The hosts that did not respond, whose handlers are not in the snapshot.
    #[serde(default)]
    pub(super) missing: Vec<Missing>,
}

/// A host of the cluster.
#[derive(Debug, Deserialize)]
pub(super) struct Host {
    pub(super) host: String,
    pub(super) name: String,
    pub(super) state: String,
    pub(super) partitions: usize,
}

#[derive(Debug, Deserialize)]
pub(super) struct Missing {
    pub(super) host: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Health {
    pub(super) reasons: Vec<Reason>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Reason {
    pub(super) message: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Handler {
    pub(super) entity: String,
    pub(super) action: String,
    pub(super) attempt: u32,
    pub(super) has_ms: u64,
    pub(super) left_ms: i64,
    pub(super) doing: String,
    pub(super) for_ms: Option<u64>,
    /// The calls in flight, if its guest can have several.
    #[serde(default)]
    pub(super) calls: Vec<Call>,
    pub(super) stuck: bool,
    #[serde(default)]
    pub(super) session: Option<Session>,
    /// The id of its host; absent without a cluster.
    #[serde(default)]
    pub(super) host: Option<String>,
}

/// A host call in flight.
#[derive(Debug, Deserialize)]
pub(super) struct Call {
    pub(super) name: String,
}

impl Handler {
    /// What it is doing, with the number of further calls in flight.
    pub(super) fn activity(&self) -> String {
        let is_oldest = self.calls.first().is_some_and(|call| call.name == self.doing);
        match self.calls.len() - usize::from(is_oldest) {
            0 => self.doing.clone(),
            further => format!("{} +{further}", self.doing),
        }
    }
}

/// The status of a handler's session.
#[derive(Debug, Deserialize)]
pub(super) struct Session {
    pub(super) run_seq: u32,
    pub(super) status: String,
    pub(super) stuck: bool,
    #[serde(default)]
    pub(super) stop_reason_code: Option<String>,
    #[serde(default)]
    pub(super) status_text: Option<String>,
    #[serde(default)]
    pub(super) budget_left_ms: Option<u64>,
}

/// A session that is blocked until it is resumed.
#[derive(Debug, Deserialize)]
pub(super) struct Blocked {
    pub(super) session: String,
    pub(super) run_seq: u32,
    pub(super) stop_reason_code: String,
    pub(super) at: i64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Kill {
    pub(super) entity: String,
    #[serde(default)]
    pub(super) action: Option<String>,
    pub(super) by: String,
    pub(super) dying_span: String,
    pub(super) budget_ms: u64,
    pub(super) elapsed_ms: u64,
    pub(super) overrun_us: u64,
    pub(super) at: i64,
}

impl Scene {
    /// Parses the data of an event.
    ///
    /// # Errors
    /// Errors if it is not a snapshot that this version knows.
    pub(super) fn read(data: &str) -> anyhow::Result<Self> {
        serde_json::from_str(data).context("the response is not a live view")
    }
}
