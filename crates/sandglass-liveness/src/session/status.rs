//! The status of a session, or of the handlers of an entity that is not a session, for people and
//! monitoring: computed from the fold and the time.

use std::fmt;
use std::time::Duration;

use sandglass_model::{Directive, EntityRef, LastSignal, Sequence, WallTime};
use serde::{Deserialize, Serialize};

use super::{RunPhase, Session, Watched};
use crate::entity::Entity;

/// How much two readings of the time of one host call may differ.
const CLOCKS_DIFFER: Duration = Duration::from_millis(2);

/// The status of a session, or of handlers without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Status {
    /// It was started, and has not taken an action.
    Queued,
    /// It is running.
    Running,
    /// It has work in flight, and was warned of its inactivity.
    Silent,
    /// It has work in flight, and has been inactive for long.
    Stuck,
    /// Its run is stopping, and waits for what is in flight.
    Stopping,
    /// Its run has stopped, and it waits to be resumed.
    Blocked,
    /// It is over.
    Done,
}

impl Status {
    /// As it is written in text.
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

/// The view of a session, or of the handlers in flight of an entity that is not a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StatusView {
    /// The session, or the entity.
    pub session: String,
    /// Its status.
    pub status: Status,
    /// Why it is stopping or has stopped, as a code.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason_code: Option<String>,
    /// What happens to it afterwards, if its run is stopping or has stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directive: Option<Directive>,
    /// Whether it is marked STUCK: it has work in flight, and has been inactive for longer than its
    /// limit.
    pub stuck: bool,
    /// Its present run, or the last; `None` if the entity is not a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seq: Option<u32>,
    /// The state of its entity.
    pub state: String,
    /// How long its run has lasted, in milliseconds; if the entity is not a session, how long it has
    /// had handlers in flight.
    pub elapsed_ms: u64,
    /// The rest of `run_timeout`, in milliseconds; `None` if that is off or the run has stopped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_left_ms: Option<u64>,
    /// How long it has been inactive with work in flight, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silent_ms: Option<u64>,
    /// The last activity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_signal: Option<LastSignal>,
    /// The handlers that are queued or in flight.
    pub in_flight: Vec<String>,
    /// What the first of them is doing, such as a host function; known only to its executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<String>,
    /// The last status text of a handler.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_text: Option<String>,
}

/// The status of `entity` at `now`; `None` if it is not a session and has no handlers in flight that
/// are watched. `now` only determines how long ago the recorded times are.
#[must_use]
pub fn status(entity: &Entity, now: WallTime) -> Option<StatusView> {
    let runs = entity.in_flight().into_iter();
    let shown = Shown {
        name: &entity.entity,
        state: &entity.state,
        sequence: entity.sequence,
        watched: entity.watched()?,
        active: None,
        handlers: runs.map(|run| run.dispatched.integration.clone()).collect(),
    };
    Some(shown.status(now))
}

/// What a status is computed from.
#[derive(Clone, Debug)]
pub struct Shown<'a> {
    /// Its name.
    pub name: &'a EntityRef,
    /// Its state.
    pub state: &'a str,
    /// How many transitions it has taken.
    pub sequence: Sequence,
    /// Its session, or its handlers.
    pub watched: Watched<'a>,
    /// The last host call of its handlers, if that is known: activity that no record shows.
    pub active: Option<LastSignal>,
    /// The handlers that are queued or in flight.
    pub handlers: Vec<String>,
}

impl Shown<'_> {
    /// The status at `now`.
    #[must_use]
    pub fn status(self, now: WallTime) -> StatusView {
        let Self { name, state, sequence, watched, active, handlers } = self;
        let has_work = !handlers.is_empty();
        // The call before a warning is in its record. Read again, its time can differ by a millisecond,
        // because two clocks give it.
        let differ = if watched.is_silent() { CLOCKS_DIFFER } else { Duration::ZERO };
        let known = watched.active_since().after(differ);
        let active = active.filter(|active| active.at > known);
        let silent = now.since(active.as_ref().map_or(watched.active_since(), |active| active.at));
        let is_silent = watched.is_silent() && active.is_none();
        let stuck_after = Duration::from_millis(watched.stuck_after_ms());
        let is_stuck = has_work && watched.is_running() && silent > stuck_after;
        let phase = watched.session().map(|session| &session.phase);
        let (ended_at, code) = match phase {
            Some(RunPhase::Stopping { stopping, .. }) => {
                (None, Some(stopping.stop_reason_code.clone()))
            }
            Some(RunPhase::Stopped(stopped)) => {
                (Some(stopped.elapsed_ms), Some(stopped.stop_reason_code.clone()))
            }
            Some(RunPhase::Running) | None => (None, None),
        };
        let since = match watched {
            Watched::Session(session) => session.run_started,
            Watched::Handlers(handlers) => handlers.since,
        };
        let elapsed_ms = ended_at.unwrap_or_else(|| millis(now.since(since)));
        let run_timeout_ms = watched.session().and_then(|session| session.limits.run_timeout_ms);
        let left = |most: u64| most.saturating_sub(elapsed_ms);
        let status_text = watched.session().and_then(|session| session.status_text.as_ref());
        StatusView {
            session: name.to_string(),
            status: status_of(watched, (is_silent, is_stuck), sequence.0 == 0 && !has_work),
            stop_reason_code: code,
            directive: watched.session().and_then(Session::directive),
            stuck: is_stuck,
            run_seq: watched.session().map(|session| session.run_seq),
            state: state.to_owned(),
            elapsed_ms,
            budget_left_ms: run_timeout_ms.filter(|_| ended_at.is_none()).map(left),
            silent_ms: (has_work && watched.is_running()).then(|| millis(silent)),
            last_signal: active.or_else(|| watched.last_signal().cloned()),
            in_flight: handlers,
            host_call: None,
            status_text: status_text.map(|status| status.text.clone()),
        }
    }
}

fn status_of(
    watched: Watched<'_>,
    (is_silent, is_stuck): (bool, bool),
    is_untouched: bool,
) -> Status {
    match watched.session().map(|session| (session, &session.phase)) {
        Some((_, RunPhase::Stopping { .. })) => Status::Stopping,
        Some((session, RunPhase::Stopped(_))) if session.is_over() => Status::Done,
        Some((_, RunPhase::Stopped(_))) => Status::Blocked,
        Some((_, RunPhase::Running)) | None if is_silent => Status::Silent,
        Some((_, RunPhase::Running)) | None if is_stuck => Status::Stuck,
        Some((_, RunPhase::Running)) | None if is_untouched => Status::Queued,
        Some((_, RunPhase::Running)) | None => Status::Running,
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
