//! Sessions in the live view: those with handlers in flight, and those that are blocked.

use std::time::Duration;

use sandglass_liveness::session::{RunPhase, Status, StatusView};
use sandglass_model::{Directive, EntityRef, HostId, WallTime};
use sandglass_runtime::{BlockedSession, Snapshot};
use serde::Serialize;
use utoipa::ToSchema;

use super::millis;

/// A session with handlers in flight. Except for its marks, nothing in it changes by the mere passing
/// of time.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionNow {
    run_seq: u32,
    status: Status,
    is_stuck: bool,
    stop_reason_code: Option<String>,
    status_text: Option<String>,
    /// When `run_timeout` will stop its run.
    ends_at: Option<WallTime>,
}

impl SessionNow {
    /// The session of `snapshot`, whose status is `view`; `None` if the entity is not a session.
    pub(super) fn new(snapshot: &Snapshot, view: StatusView) -> Option<Self> {
        let session = snapshot.session.as_deref()?;
        let run_timeout = session.limits.run_timeout_ms.map(Duration::from_millis);
        let is_running = !matches!(session.phase, RunPhase::Stopped(_));
        Some(Self {
            run_seq: session.run_seq,
            status: view.status,
            is_stuck: view.stuck,
            stop_reason_code: view.stop_reason_code,
            status_text: view.status_text,
            ends_at: run_timeout
                .filter(|_| is_running)
                .map(|timeout| session.run_started.after(timeout)),
        })
    }

    pub(super) fn view(&self, now: WallTime) -> SessionNowView<'_> {
        SessionNowView {
            run_seq: self.run_seq,
            status: self.status.as_str(),
            stuck: self.is_stuck,
            stop_reason_code: self.stop_reason_code.as_deref(),
            status_text: self.status_text.as_deref(),
            budget_left_ms: self.ends_at.map(|ends_at| millis(ends_at.since(now))),
        }
    }
}

/// A session with a handler in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionNowView<'a> {
    #[schema(minimum = 1)]
    run_seq: u32,
    /// `RUNNING`, `SILENT`, `STUCK` or `STOPPING`; `QUEUED`, `BLOCKED` or `DONE` if its handler is
    /// about to begin, or its end is about to be recorded.
    status: &'static str,
    /// Whether it is marked STUCK: it has given no sign of life for the whole permitted time.
    stuck: bool,
    /// The code of the reason for its stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason_code: Option<&'a str>,
    /// The status that its handler reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_text: Option<&'a str>,
    /// What is left of `run_timeout`; absent if that limit is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_left_ms: Option<u64>,
}

/// A session that is blocked until it is resumed.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockedView<'a> {
    /// TYPE/ID.
    #[schema(value_type = String)]
    session: &'a EntityRef,
    /// The run that has stopped.
    #[schema(minimum = 1)]
    run_seq: u32,
    /// The code of the reason.
    stop_reason_code: &'a str,
    /// The decision: `wait`, or `unstuck` if an operator has to look at it.
    #[serde(skip_serializing_if = "Option::is_none")]
    directive: Option<&'static str>,
    /// When it was blocked, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
    /// The host that owns it; absent without a cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    host: Option<HostId>,
}

impl<'a> BlockedView<'a> {
    pub(super) fn new(blocked: &'a BlockedSession, host: Option<HostId>) -> Self {
        Self {
            session: &blocked.entity,
            run_seq: blocked.run_seq,
            stop_reason_code: &blocked.stop_reason_code,
            directive: blocked.directive.map(Directive::as_str),
            at: blocked.since,
            host,
        }
    }
}
