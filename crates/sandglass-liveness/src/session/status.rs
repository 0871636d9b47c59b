//! How a session stands, for people and for what watches it: a fold of its records, and the
//! time.

use std::fmt;
use std::time::Duration;

use sandglass_model::{Directive, EntityRef, LastSignal, Sequence, WallTime};
use serde::{Deserialize, Serialize};

use super::{Session, Standing};
use crate::entity::Entity;

/// How a session stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// It was started, and nothing has been asked of it.
    Queued,
    /// It goes on.
    Running,
    /// It has work in flight, and has been silent for so long that it was warned of.
    Silent,
    /// It has work in flight, and has given no sign of life for long.
    Stuck,
    /// Its run is to stop, and waits for what is in flight.
    Stopping,
    /// Its run has stopped, and it waits to be resumed.
    Blocked,
    /// It is over.
    Done,
}

impl Status {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "QUEUED",
            Self::Running => "RUNNING",
            Self::Silent => "SILENT",
            Self::Stuck => "STUCK",
            Self::Stopping => "STOPPING",
            Self::Blocked => "BLOCKED",
            Self::Done => "DONE",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A session as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// The session.
    pub session: String,
    /// How it stands.
    pub status: Status,
    /// Why it stops or has stopped, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason_code: Option<String>,
    /// What becomes of it, where its run is to stop or has stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directive: Option<Directive>,
    /// Whether it is marked STUCK: work in flight, and no sign of life for as long as it may
    /// be without one.
    pub stuck: bool,
    /// Its present run, or the last.
    pub run_seq: u32,
    /// The state of its entity.
    pub state: String,
    /// How long its run has gone on, or did, in milliseconds.
    pub elapsed_ms: u64,
    /// How much of `run_timeout` is left, in milliseconds; none where that is off or the run
    /// has stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_left_ms: Option<u64>,
    /// How long it has given no sign of life while work was in flight, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// The last sign of life.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_signal: Option<LastSignal>,
    /// The handlers that are queued or in flight.
    pub in_flight: Vec<String>,
    /// The host function that the first of them is in, or where else it is: known only to who
    /// runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<String>,
    /// What a handler says that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_text: Option<String>,
}

/// How `entity` stands at `now`; none where it is no session. What was is told by the
/// records; `now` says only how long ago that is.
#[must_use]
pub fn status(entity: &Entity, now: WallTime) -> Option<StatusView> {
    let runs = entity.in_flight().into_iter();
    let shown = Shown {
        name: &entity.entity,
        state: &entity.state,
        sequence: entity.sequence,
        session: entity.session()?,
        handlers: runs.map(|run| run.dispatched.integration.clone()).collect(),
    };
    Some(shown.status(now))
}

/// What of an entity tells how it stands.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Its name.
    pub name: &'a EntityRef,
    /// Its state.
    pub state: &'a str,
    /// How many transitions it has taken.
    pub sequence: Sequence,
    /// What it is as a session.
    pub session: &'a Session,
    /// The handlers that are queued or in flight.
    pub handlers: Vec<String>,
}

impl Shown<'_> {
    /// How it stands at `now`.
    #[must_use]
    pub fn status(self, now: WallTime) -> StatusView {
        let Self { name, state, sequence, session, handlers } = self;
        let has_work = !handlers.is_empty();
        let silent = now.since(session.active_since());
        let stuck_after = Duration::from_millis(session.limits.stuck_after_ms);
        let is_stuck = has_work && session.is_running() && silent > stuck_after;
        let (ended_at, code) = match &session.standing {
            Standing::Running => (None, None),
            Standing::Stopping { stopping, .. } => (None, Some(stopping.stop_reason_code.clone())),
            Standing::Stopped(stopped) => {
                (Some(stopped.elapsed_ms), Some(stopped.stop_reason_code.clone()))
            }
        };
        let elapsed_ms = ended_at.unwrap_or_else(|| millis(now.since(session.run_started)));
        let left = |most: u64| most.saturating_sub(elapsed_ms);
        StatusView {
            session: name.to_string(),
            status: stands(session, is_stuck, sequence.0 == 0 && !has_work),
            stop_reason_code: code,
            directive: session.directive(),
            stuck: is_stuck,
            run_seq: session.run_seq,
            state: state.to_owned(),
            elapsed_ms,
            budget_left_ms: session.limits.run_timeout_ms.filter(|_| ended_at.is_none()).map(left),
            silent_ms: (has_work && session.is_running()).then(|| millis(silent)),
            last_signal: session.last_signal.clone(),
            in_flight: handlers,
            host_call: None,
            status_text: session.status_text.as_ref().map(|status| status.text.clone()),
        }
    }
}

fn stands(session: &Session, is_stuck: bool, is_untouched: bool) -> Status {
    match &session.standing {
        Standing::Running if session.is_silent() => Status::Silent,
        Standing::Running if is_stuck => Status::Stuck,
        Standing::Running if is_untouched => Status::Queued,
        Standing::Running => Status::Running,
        Standing::Stopping { .. } => Status::Stopping,
        Standing::Stopped(_) if session.is_over() => Status::Done,
        Standing::Stopped(_) => Status::Blocked,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
