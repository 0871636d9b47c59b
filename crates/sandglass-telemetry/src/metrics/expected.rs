//! Counters that are exported at zero before their first event. A counter that first appears at 1 hides
//! that event from `increase()`.

use sandglass_model::{Directive, Limit, OutcomeKind, SpawnObstacle};

use super::sessions::directive;
use super::{
    CancelTarget, ClaimReason, ForwardOutcome, Metrics, OpenwopRefusal, Refusal, RequestFailure,
    ResumedBy, SpansDropped,
};

/// The dying spans that every handler can have, whatever it imports.
const DYING_SPANS: [&str; 2] = ["guest", "instantiate"];

/// The events that are possible for entities of one type, as far as known beforehand.
#[derive(Clone, Debug, Default)]
pub struct ExpectedEvents<'a> {
    /// The type.
    pub entity_type: &'a str,
    /// Its actions that start handlers.
    pub dispatching: Vec<&'a str>,
    /// All of its actions.
    pub actions: Vec<&'a str>,
    /// Its states with a timer.
    pub timed_states: Vec<&'a str>,
    /// Its integrations that declare no budget.
    pub without_budget: Vec<&'a str>,
    /// The events of sessions, if the entities are sessions.
    pub sessions: Option<ExpectedSessionEvents>,
}

/// The events that are possible for sessions of one type, as far as known beforehand.
#[derive(Clone, Debug, Default)]
pub struct ExpectedSessionEvents {
    /// Their limits.
    pub limits: Vec<Limit>,
    /// The codes of the reasons for which their runs can stop, each with the decision.
    pub stops: Vec<(&'static str, Option<Directive>)>,
    /// What can resume them.
    pub resumes: Vec<ResumedBy>,
}

impl Metrics {
    /// Exports the counters that need no names of entities.
    pub(super) fn expect_known_events(&self) {
        let Some(families) = self.families() else { return };
        for reason in Refusal::ALL {
            families.refused.expect([reason.as_str()]);
        }
        for reason in SpawnObstacle::ALL {
            families.spawns_refused.expect([reason.as_str()]);
        }
        for reason in SpansDropped::ALL {
            families.spans_dropped.expect([reason.as_str()]);
        }
        for of in CancelTarget::ALL {
            families.cancels_refused.expect([of.as_str()]);
        }
        for reason in ClaimReason::ALL {
            families.cluster_claims.expect([reason.as_str()]);
        }
        for outcome in ForwardOutcome::ALL {
            families.cluster_forwards.expect([outcome.as_str()]);
        }
        for code in RequestFailure::ALL {
            families.cluster_failures.expect([code.as_str()]);
        }
        families.openwop_readers_dropped.expect([]);
        for of in OpenwopRefusal::ALL {
            families.openwop_refused.expect([of.as_str()]);
        }
    }

    /// Exports the counters of handlers of `action` of `entity_type` from now on. `dying_spans` are the
    /// host functions that may hang: those that the guest imports and that wait.
    pub fn expect_dispatches(&self, entity_type: &str, action: &str, dying_spans: &[&str]) {
        let Some(families) = self.families() else { return };
        for outcome in OutcomeKind::ALL {
            families.dispatches.expect([entity_type, action, outcome.as_str()]);
        }
        for dying_span in DYING_SPANS.iter().chain(dying_spans) {
            families.deadline_exceeded.expect([entity_type, action, dying_span]);
        }
    }

    /// Exports the counters of entities of a type from now on, as long as they leave half of the scrape to
    /// events that do happen. The rarest come first.
    pub fn expect(&self, expected: &ExpectedEvents<'_>) {
        let Some(families) = self.families() else { return };
        let ExpectedEvents {
            entity_type,
            dispatching,
            actions,
            timed_states,
            without_budget,
            sessions,
        } = expected;
        for integration in without_budget {
            families.default_budgets.expect_in_half([integration]);
        }
        for state in timed_states {
            families.state_timeouts.expect_in_half([entity_type, state]);
        }
        families.signals_dropped.expect_in_half([entity_type]);
        if let Some(sessions) = sessions {
            self.expect_of_sessions(entity_type, sessions);
        }
        for action in dispatching {
            for dying_span in DYING_SPANS {
                families.deadline_exceeded.expect_in_half([entity_type, action, dying_span]);
            }
            for outcome in OutcomeKind::ALL {
                families.dispatches.expect_in_half([entity_type, action, outcome.as_str()]);
            }
            families.soft_deadlines.expect_in_half([entity_type, action]);
            families.superseded.expect_in_half([entity_type, action]);
        }
        for action in actions {
            families.transitions.expect_in_half([entity_type, action]);
        }
    }

    fn expect_of_sessions(&self, entity_type: &str, expected: &ExpectedSessionEvents) {
        let Some(families) = self.families() else { return };
        let ExpectedSessionEvents { limits, stops, resumes } = expected;
        for limit in limits {
            let action = limit.action().as_str();
            families.limit_breaches.expect_in_half([entity_type, limit.as_str(), action]);
        }
        for (code, decision) in stops {
            families.run_stops.expect_in_half([entity_type, code, directive(*decision)]);
        }
        for by in resumes {
            families.resumes.expect_in_half([entity_type, by.as_str()]);
        }
    }
}
