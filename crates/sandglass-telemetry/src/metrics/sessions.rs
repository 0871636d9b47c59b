//! What is measured of sessions: what their limits do, how their runs stop, and that they go on.

use std::time::Duration;

use sandglass_model::{Action, Directive, Limit};

use super::Metrics;

/// What a label says that there is none of: of what becomes of a session that came to an end by
/// itself, and why one stops that doesn't.
pub(super) const NONE: &str = "none";

/// What had a session go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumedBy {
    /// Somebody asked for it.
    Request,
    /// Its spec lets a run that was stopped be followed by another.
    Retry,
}

impl ResumedBy {
    /// The value of the label `by`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Request => "request",
            Self::Retry => "retry",
        }
    }
}

/// What was to be cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CancelTarget {
    /// The run of a session.
    Session,
    /// One handler.
    Dispatch,
}

impl CancelTarget {
    pub(super) const ALL: [Self; 2] = [Self::Session, Self::Dispatch];

    /// The value of the label `of`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Dispatch => "dispatch",
        }
    }
}

pub(super) const fn directive(directive: Option<Directive>) -> &'static str {
    match directive {
        Some(directive) => directive.as_str(),
        None => NONE,
    }
}

impl Metrics {
    /// A session of `entity_type` breached a limit so many times, by which `does` happens.
    pub fn limit_breached(&self, entity_type: &str, limit: Limit, does: Action, times: u64) {
        let Some(families) = self.families() else { return };
        families.limit_breaches.add([entity_type, limit.as_str(), does.as_str()], times);
    }

    /// The run of a session of `entity_type` has stopped, for the reason that `code` names.
    pub fn run_stopped(&self, entity_type: &str, code: &str, becomes: Option<Directive>) {
        let Some(families) = self.families() else { return };
        families.run_stops.count([entity_type, code, directive(becomes)]);
    }

    /// Nothing of a run was in flight any more so long after it was told to stop.
    pub fn run_stopped_within(&self, entity_type: &str, time: Duration) {
        let Some(families) = self.families() else { return };
        families.stopping.record([entity_type], time.as_secs_f64());
    }

    /// A session goes on in another run.
    pub fn session_resumed(&self, entity_type: &str, by: ResumedBy) {
        let Some(families) = self.families() else { return };
        families.resumes.count([entity_type, by.as_str()]);
    }

    /// Somebody may not cancel what they wanted to.
    pub fn cancel_refused(&self, of: CancelTarget) {
        let Some(families) = self.families() else { return };
        families.cancels_refused.count([of.as_str()]);
    }
}
