//! Checks that each host call that reached its time limit is counted exactly once: when it happened,
//! or with the end of its handler.

use std::collections::BTreeMap;

use sandglass_liveness::session::SHAPES_MAX;
use sandglass_liveness::{Entity, Session};
use sandglass_model::signature::CALL_TIMED_OUT;
use sandglass_model::{Ended, EntityRef, Event, Limit, LimitBreached, OutcomeKind};

use super::{Finding, Key};
use crate::invariant::Invariant;

/// The host calls of all handler runs that reached their time limit.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    /// How many happened so far, by attempt.
    happened: BTreeMap<Key, u64>,
    /// How many were recorded while their handler was running, by attempt.
    recorded: BTreeMap<Key, u64>,
    /// How many the present batch still has to record, by session.
    owed: BTreeMap<EntityRef, u64>,
    /// How many were recorded of each session.
    counted: BTreeMap<EntityRef, u64>,
}

impl Calls {
    /// Notes that a call of a running handler reached its time limit.
    pub(crate) fn note(&mut self, key: Key) {
        *self.happened.entry(key).or_default() += 1;
    }

    /// How many calls of this attempt reached their time limit so far.
    pub(crate) fn of(&self, key: Key) -> u64 {
        self.happened.get(&key).copied().unwrap_or(0)
    }

    /// Checks one more record about `entity`, which is as it was before.
    pub(super) fn record(&mut self, entity: &Entity, event: &Event) -> Finding {
        entity.session()?;
        let name = &entity.entity;
        let wrong = match event {
            Event::Ended(ended) => self.ended(name, ended),
            Event::LimitBreached(breach) if breach.limit == Limit::HostCallTimeout => {
                self.breached(entity, breach)
            }
            _ => None,
        };
        wrong.map(|what| (Invariant::CountedOnce, format!("{name} {what}")))
    }

    fn ended(&mut self, name: &EntityRef, ended: &Ended) -> Option<String> {
        let recorded = self.recorded.remove(&(ended.dispatch, ended.attempt)).unwrap_or(0);
        let calls = ended.overruns.iter().filter(|one| one.limit == Limit::HostCallTimeout);
        let reported: u64 = calls.map(|one| one.times).sum();
        // A handler that was lost with its host has no report.
        if recorded > reported && ended.outcome.kind() != OutcomeKind::Interrupted {
            return Some(format!("records {recorded} calls of a handler that made {reported}"));
        }
        *self.owed.entry(name.clone()).or_default() += reported.saturating_sub(recorded);
        None
    }

    fn breached(&mut self, entity: &Entity, breach: &LimitBreached) -> Option<String> {
        let (name, times) = (&entity.entity, breach.times);
        *self.counted.entry(name.clone()).or_default() += times;
        let Some(dispatch) = breach.dispatch else {
            let owed = self.owed.entry(name.clone()).or_default();
            let is_owed = *owed >= times;
            *owed = owed.saturating_sub(times);
            return (!is_owed).then(|| format!("records {times} calls that no end has reported"));
        };
        let Some(run) = entity.in_flight_handler(dispatch) else {
            return Some("records a call of a handler that is not in flight".to_owned());
        };
        let key = (dispatch, run.dispatched.attempt);
        let recorded = self.recorded.entry(key).or_default();
        *recorded += times;
        let (recorded, happened) = (*recorded, self.of(key));
        (recorded > happened)
            .then(|| format!("records {recorded} calls of a handler that has made {happened}"))
    }

    /// Checks a batch that is durable now; `entity` is as it is after that batch.
    pub(super) fn commit(&mut self, entity: &Entity) -> Finding {
        let name = &entity.entity;
        let owed = self.owed.remove(name).unwrap_or(0);
        let counted = self.counted.get(name).copied().unwrap_or(0);
        let what = if owed > 0 {
            Some(format!("does not record {owed} calls that an end has reported"))
        } else {
            let failures = entity.session().map_or(&[][..], Session::failures);
            let of_calls = failures.iter().filter(|one| one.signature.error == CALL_TIMED_OUT);
            let known: u64 = of_calls.map(|one| one.count).sum();
            // A session that knows as many shapes as it may has forgotten others.
            (failures.len() < SHAPES_MAX && known != counted)
                .then(|| format!("counts {known} calls, and its records are about {counted}"))
        };
        what.map(|what| (Invariant::CountedOnce, format!("{name} {what}")))
    }
}
