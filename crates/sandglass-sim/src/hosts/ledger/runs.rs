//! Which handlers run where.

use std::collections::BTreeMap;

use sandglass_model::{DispatchId, EntityRef, Partition, Position};

use super::PlaceOf;
use crate::hosts::timeline::Life;
use crate::invariant::Invariant;

/// One attempt of one dispatch.
pub(crate) type Key = (DispatchId, u32);

type Finding = Option<(Invariant, String)>;

#[derive(Debug)]
struct Run {
    life: Life,
    entity: EntityRef,
    is_running: bool,
    /// Where it was started before, if a failover has lost the record of that start.
    former: Option<Life>,
    /// Whether it was started only after another process had recorded its end.
    is_late: bool,
    /// Whether a failover has lost the record of this start, and it is recorded again, so that it may be started
    /// again.
    is_again: bool,
}

/// The records of one attempt.
#[derive(Clone, Copy, Debug)]
struct Recorded {
    by: Life,
    place: PlaceOf,
    ended: Option<(Life, Position)>,
    is_lost: bool,
}

/// What the log contains of an attempt when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Basis {
    /// It is in flight, or a failover may have lost that.
    InFlight,
    /// It is not in flight, and the host that starts it has no valid lease.
    NoLease,
    /// It is not in flight, and the host that starts it has a valid lease.
    NotInFlight,
}

/// All handlers that were started.
#[derive(Debug, Default)]
pub(crate) struct Runs {
    runs: BTreeMap<Key, Run>,
    records: BTreeMap<Key, Recorded>,
}

impl Runs {
    pub(super) fn note_dispatched(&mut self, by: Life, key: Key, place: PlaceOf) {
        let recorded = Recorded { by, place, ended: None, is_lost: false };
        let was_lost = self.records.insert(key, recorded).is_some_and(|before| before.is_lost);
        if let Some(run) = self.runs.get_mut(&key) {
            run.is_again |= was_lost;
        }
    }

    pub(super) fn note_ended(&mut self, by: Life, key: Key, at: Position) {
        if let Some(recorded) = self.records.get_mut(&key) {
            recorded.ended = Some((by, at));
        }
    }

    /// A failover has lost what is behind this place.
    pub(super) fn lose(&mut self, (partition, last): PlaceOf) {
        for recorded in self.records.values_mut().filter(|one| one.place.0 == partition) {
            recorded.is_lost |= recorded.place.1 > last;
            recorded.ended = recorded.ended.filter(|(_, at)| *at <= last);
        }
    }

    /// A handler is started. There are two exceptions to the rule that this happens once, and while the
    /// attempt is in flight:
    /// - If a failover has lost the record of an attempt and it is recorded again, it is started again,
    ///   because the database does not know of the first start.
    /// - If a host appends the record and is paused before it gets the acknowledgment, others may have ended
    ///   the attempt when it continues. It starts the handler if it does not know yet that it has lost the
    ///   partition, but its lease is over, so the handler must have no effect.
    pub(super) fn note_start(
        &mut self,
        life: Life,
        entity: &EntityRef,
        key: Key,
        basis: Basis,
    ) -> Finding {
        let ended_by_other = self
            .records
            .get(&key)
            .filter(|recorded| recorded.by == life && !recorded.is_lost)
            .and_then(|recorded| recorded.ended)
            .is_some_and(|(by, _)| by != life);
        let is_late = basis == Basis::NoLease && ended_by_other;
        let before = self.runs.remove(&key);
        // One process does not start an attempt beside itself.
        let may_follow = |run: &&Run| run.is_again && (run.life, run.is_running) != (life, true);
        let former = before.as_ref().filter(may_follow).map(|run| run.life);
        let run = Run {
            life,
            entity: entity.clone(),
            is_running: true,
            former,
            is_late,
            is_again: false,
        };
        self.runs.insert(key, run);
        if let (Some(before), None) = (before, former) {
            let what = format!(
                "attempt {} of {} of {entity} starts on {life}, and has started on {}",
                key.1, key.0, before.life
            );
            return Some((Invariant::AtMostOnce, what));
        }
        (basis != Basis::InFlight && !is_late).then(|| {
            let what = format!("{} of {entity} starts on {life}, and is not in flight", key.0);
            (Invariant::DurableFirst, what)
        })
    }

    /// A handler does not run any more.
    pub(crate) fn note_stop(&mut self, life: Life, key: Key) {
        if let Some(run) = self.runs.get_mut(&key).filter(|run| run.life == life) {
            run.is_running = false;
        }
    }

    /// The slots in which handlers run, once for each handler.
    pub(crate) fn busy_slots(&self) -> Vec<usize> {
        self.runs.values().filter(|run| run.is_running).map(|run| run.life.slot).collect()
    }

    pub(super) fn note_effect(&self, life: Life, entity: &EntityRef, key: Key) -> Finding {
        let run = self.runs.get(&key);
        if run.is_some_and(|run| run.is_late) {
            let what =
                format!("{} of {entity} acts on {life}, and had ended before it began", key.0);
            return Some((Invariant::NoEffectPastLease, what));
        }
        let is_own = run.is_some_and(|run| run.life == life || run.former == Some(life));
        (!is_own).then(|| {
            let of = run.map(|run| run.life);
            let what = format!("{} of {entity} acts on {life}, and started on {of:?}", key.0);
            (Invariant::AtMostOnce, what)
        })
    }

    /// An entity of the partition with a handler that runs in this process.
    pub(super) fn running_in(&self, life: Life, partition: Partition) -> Option<&EntityRef> {
        let of = |run: &&Run| {
            run.is_running && run.life == life && Partition::of(&run.entity) == partition
        };
        self.runs.values().find(of).map(|run| &run.entity)
    }
}
