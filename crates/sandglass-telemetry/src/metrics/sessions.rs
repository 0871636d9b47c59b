//! Metrics about sessions: breached limits, stopped runs, and resumes.

use std::time::Duration;

use sandglass_model::{Action, Directive, Limit};

use super::{CancelTarget, Metrics, ResumedBy};

/// The label value for no directive, if the session ended by itself, and for no reason, if it goes on.
pub(super) const NONE: &str = "none";

pub(super) fn directive(directive: Option<Directive>) -> &'static str {
    directive.map_or(NONE, Directive::as_str)
}

impl Metrics {
    /// A session of `entity_type` breached a limit `times` times, which causes `action`.
    pub fn limit_breached(&self, entity_type: &str, limit: Limit, action: Action, times: u64) {
        let labels = [entity_type, limit.as_str(), action.as_str()];
        self.report(|families| families.limit_breaches.report(labels, times));
    }

    /// The run of a session of `entity_type` has stopped, for the reason that `code` names.
    pub fn run_stopped(&self, entity_type: &str, code: &str, decision: Option<Directive>) {
        let labels = [entity_type, code, directive(decision)];
        self.report(|families| families.run_stops.count(labels));
    }

    /// Nothing of a run was in flight any more after `time` since its stop was requested.
    pub fn run_stopped_within(&self, entity_type: &str, time: Duration) {
        self.report(|families| families.stopping.report([entity_type], time.as_secs_f64()));
    }

    /// A session was resumed.
    pub fn session_resumed(&self, entity_type: &str, by: ResumedBy) {
        self.report(|families| families.resumes.count([entity_type, by.as_str()]));
    }

    /// A cancel was refused, because the client may not cancel.
    pub fn cancel_refused(&self, of: CancelTarget) {
        self.report(|families| families.cancels_refused.count([of.as_str()]));
    }
}
