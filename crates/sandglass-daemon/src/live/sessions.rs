//! What a scene tells of sessions: how those stand that have handlers in flight, and which wait
//! to be resumed.

use std::time::Duration;

use sandglass_liveness::session::{RunPhase, Status};
use sandglass_model::{Directive, EntityRef, WallTime};
use sandglass_runtime::{BlockedSession, Snapshot};
use serde::Serialize;
use utoipa::ToSchema;

use super::millis;

/// A session with handlers in flight. What passes with time alone isn't in it, but for marks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SessionNow {
    run_seq: u32,
    status: Status,
    is_stuck: bool,
    stop_reason_code: Option<String>,
    status_text: Option<String>,
    /// When its run has taken as long as it may.
    ends_at: Option<WallTime>,
}

impl SessionNow {
    /// How the session of `snapshot` stands at `now`; none where it is no session.
    pub(super) fn of(snapshot: &Snapshot, now: WallTime) -> Option<Self> {
        let view = snapshot.status(now)?;
        let session = snapshot.session.as_deref()?;
        let most = session.limits.run_timeout_ms.map(Duration::from_millis);
        let goes_on = !matches!(session.phase, RunPhase::Stopped(_));
        Some(Self {
            run_seq: view.run_seq,
            status: view.status,
            is_stuck: view.stuck,
            stop_reason_code: view.stop_reason_code,
            status_text: view.status_text,
            ends_at: most.filter(|_| goes_on).map(|most| session.run_started.after(most)),
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

/// How a session stands that has a handler in flight.
#[derive(Serialize, ToSchema)]
pub(crate) struct SessionNowView<'a> {
    #[schema(minimum = 1)]
    run_seq: u32,
    /// `RUNNING`, `SILENT`, `STUCK` or `STOPPING`; `QUEUED`, `BLOCKED` or `DONE` where what is
    /// in flight is about to begin or to be recorded.
    status: &'static str,
    /// Whether it is marked STUCK: it has given no sign of life for as long as it may.
    stuck: bool,
    /// Why it stops, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason_code: Option<&'a str>,
    /// What its handler says that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    status_text: Option<&'a str>,
    /// How much of `run_timeout` is left; not there where that is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget_left_ms: Option<u64>,
}

/// A session that waits to be resumed.
#[derive(Serialize, ToSchema)]
pub(crate) struct BlockedView<'a> {
    /// TYPE/ID.
    #[schema(value_type = String)]
    session: &'a EntityRef,
    /// The run that has stopped.
    #[schema(minimum = 1)]
    run_seq: u32,
    /// Why, as a code.
    stop_reason_code: &'a str,
    /// What was decided of it: `wait`, or `unstuck` where somebody has to look after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    directive: Option<&'static str>,
    /// Since when it waits, in milliseconds since 1970.
    #[schema(value_type = i64)]
    at: WallTime,
}

impl<'a> From<&'a BlockedSession> for BlockedView<'a> {
    fn from(blocked: &'a BlockedSession) -> Self {
        Self {
            session: &blocked.entity,
            run_seq: blocked.run_seq,
            stop_reason_code: &blocked.stop_reason_code,
            directive: blocked.directive.map(Directive::as_str),
            at: blocked.since,
        }
    }
}
