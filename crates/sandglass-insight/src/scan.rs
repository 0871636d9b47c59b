//! Sums up, per session, what costs time in a journal: timeouts, and failures that repeat. It is a
//! fold of the records and reports nothing else.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{
    Decision, DispatchId, Dispatched, Ended, EntityRef, Event, Limit, LimitBreached, Outcome,
    Overrun, Record, Repeated,
};
use serde::Serialize;

use sandglass_liveness::session::{
    Failures, RecordedCalls, default_limits, failed_by_timed_out_call, failed_calls,
};

/// A scan in progress. Its memory grows with the entities that failed and the handlers in flight.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    in_flight: BTreeMap<(EntityRef, DispatchId), InFlight>,
    found: BTreeMap<EntityRef, Found>,
}

/// A handler that has not ended.
#[derive(Clone, Debug)]
struct InFlight {
    dispatched: Arc<Dispatched>,
    /// Its host calls that timed out and are recorded already.
    recorded: RecordedCalls,
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
                self.add_timed_out_calls(overrun.threshold_ms, overrun.times);
            }
            Limit::ScheduleToStartTimeout => {
                self.late_starts = self.late_starts.saturating_add(overrun.times);
            }
            _ => {}
        }
    }

    fn add_timed_out_calls(&mut self, limit_ms: u64, times: u64) {
        let took_ms = limit_ms.saturating_mul(times);
        self.call_timeouts = self.call_timeouts.saturating_add(times);
        self.timeouts = self.timeouts.saturating_add(times);
        self.timeouts_ms = self.timeouts_ms.saturating_add(took_ms);
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
                let dispatched = Arc::new((**dispatched).clone());
                let recorded = RecordedCalls::default();
                self.in_flight.insert(key, InFlight { dispatched, recorded });
            }
            Event::Ended(ended) => self.ended(entity, ended),
            Event::LimitBreached(breach) => self.call_timed_out(entity, breach),
            _ => {}
        }
    }

    fn ended(&mut self, entity: &EntityRef, ended: &Ended) {
        let key = (entity.clone(), ended.dispatch);
        let Some(InFlight { dispatched, recorded }) = self.in_flight.remove(&key) else { return };
        if failed_calls(entity, &dispatched, ended, &recorded).next().is_some() {
            let found = self.found.entry(entity.clone()).or_default();
            found.failures.count_calls(entity, &dispatched, ended, &recorded);
        }
        for overrun in ended.overruns.iter().filter_map(|overrun| recorded.unrecorded(overrun)) {
            self.found.entry(entity.clone()).or_default().add_overrun(&overrun);
        }
        if matches!(ended.outcome, Outcome::Completed(_)) || ended.decision == Decision::Rerun {
            return;
        }
        let found = self.found.entry(entity.clone()).or_default();
        if matches!(ended.outcome, Outcome::TimedOut(_)) {
            found.timeouts = found.timeouts.saturating_add(1);
            found.timeouts_ms = found.timeouts_ms.saturating_add(ended.deadline.elapsed_ms);
        }
        // Its call is listed as a timeout already.
        if !failed_by_timed_out_call(ended) {
            found.failures.count(entity, &dispatched, ended);
        }
    }

    /// Counts a host call that timed out while its handler was running. All others are counted with
    /// the ends of their handlers.
    fn call_timed_out(&mut self, entity: &EntityRef, breach: &LimitBreached) {
        let Some((dispatch, _)) = breach.call_of_running() else { return };
        let Some(run) = self.in_flight.get_mut(&(entity.clone(), dispatch)) else { return };
        run.recorded.add(breach);
        let found = self.found.entry(entity.clone()).or_default();
        found.failures.count_timed_out_call(entity, &run.dispatched, breach);
        found.add_timed_out_calls(breach.threshold, breach.times);
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
