//! Sums up, per session, what costs time in a journal: timeouts, and failures that repeat. It is a
//! fold of the records and reports nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{
    Decision, DispatchId, Dispatched, EntityRef, Event, Limit, Outcome, Overrun, Record, Repeated,
};
use serde::Serialize;

use sandglass_liveness::session::{Failures, default_limits, failed_calls};

/// A scan in progress. Its memory grows with the entities that failed and the handlers in flight.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    in_flight: BTreeMap<(EntityRef, DispatchId), Arc<Dispatched>>,
    found: BTreeMap<EntityRef, Found>,
}

#[derive(Clone, Debug, Default)]
struct Found {
    timeouts: u64,
    timeouts_ms: u64,
    call_timeouts: u64,
    late_starts: u64,
    failures: Failures,
}

impl Found {
    fn add_overrun(&mut self, overrun: &Overrun) {
        match overrun.limit {
            Limit::HostCallTimeout => {
                let took_ms = overrun.threshold_ms.saturating_mul(overrun.times);
                self.call_timeouts = self.call_timeouts.saturating_add(overrun.times);
                self.timeouts = self.timeouts.saturating_add(overrun.times);
                self.timeouts_ms = self.timeouts_ms.saturating_add(took_ms);
            }
            Limit::ScheduleToStartTimeout => {
                self.late_starts = self.late_starts.saturating_add(overrun.times);
            }
            _ => {}
        }
    }
}

/// The result of a scan for one session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Scanned {
    /// The session, or any other entity.
    pub session: EntityRef,
    /// Handlers of the session that were killed at their deadlines, and host calls that their own
    /// time limit ended.
    pub timeouts: u64,
    /// How long those took until then, in milliseconds.
    pub timeouts_ms: u64,
    /// The host calls among them; they count however their handler ended.
    pub call_timeouts: u64,
    /// Handlers of the session that were not started in time.
    pub late_starts: u64,
    /// Repeated failures, the most frequent first.
    pub repeats: Vec<Repeated>,
    /// The total cost in milliseconds: timeouts, and repeated failures of other kinds.
    pub cost_ms: u64,
}

impl Scan {
    /// Applies the next record.
    pub fn feed(&mut self, record: &Record) {
        let Some(entity) = &record.entity else { return };
        match &record.event {
            Event::Dispatched(dispatched) => {
                let key = (entity.clone(), dispatched.dispatch);
                self.in_flight.insert(key, Arc::new((**dispatched).clone()));
            }
            Event::Ended(ended) => {
                let key = (entity.clone(), ended.dispatch);
                let Some(dispatched) = self.in_flight.remove(&key) else { return };
                if failed_calls(entity, &dispatched, ended).next().is_some() {
                    let found = self.found.entry(entity.clone()).or_default();
                    found.failures.count_calls(entity, &dispatched, ended);
                }
                for overrun in &ended.overruns {
                    self.found.entry(entity.clone()).or_default().add_overrun(overrun);
                }
                if matches!(ended.outcome, Outcome::Completed(_))
                    || ended.decision == Decision::Rerun
                {
                    return;
                }
                let found = self.found.entry(entity.clone()).or_default();
                if matches!(ended.outcome, Outcome::TimedOut(_)) {
                    found.timeouts = found.timeouts.saturating_add(1);
                    found.timeouts_ms = found.timeouts_ms.saturating_add(ended.deadline.elapsed_ms);
                }
                found.failures.count(entity, &dispatched, ended);
            }
            _ => {}
        }
    }

    /// Returns the sessions with timeouts or repeated failures, the costliest first.
    #[must_use]
    pub fn finish(self) -> Vec<Scanned> {
        // The default repeat threshold of a session; settings of single sessions do not apply here.
        let least = default_limits().repeat_threshold.unwrap_or(1);
        let scanned = |(session, found): (EntityRef, Found)| {
            let repeats = found.failures.all().iter().filter(|known| known.count >= least);
            let repeats: Vec<Repeated> = repeats.cloned().collect();
            let others = repeats.iter().filter(|known| !known.signature.is_timeout());
            let cost_ms =
                others.map(|known| known.cost_ms).fold(found.timeouts_ms, u64::saturating_add);
            let Found { timeouts, timeouts_ms, call_timeouts, late_starts, .. } = found;
            Scanned { session, timeouts, timeouts_ms, call_timeouts, late_starts, repeats, cost_ms }
        };
        let all = self.found.into_iter().map(scanned);
        let is_worth_it =
            |one: &Scanned| one.timeouts > 0 || one.late_starts > 0 || !one.repeats.is_empty();
        let mut all: Vec<Scanned> = all.filter(is_worth_it).collect();
        // Stable: sessions with the same cost stay sorted by name.
        all.sort_by_key(|one| std::cmp::Reverse(one.cost_ms));
        all
    }
}
