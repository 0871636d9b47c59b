//! The order of records of one time. Partitions have no common order, and what is decided in one may be
//! due to a record of the same millisecond in another one: such causes come first in a file.

use std::collections::{BTreeMap, VecDeque};

use sandglass_model::{EntityRef, Event, Record, TransitionCause, WallTime};

/// Most records that are held back. More of one millisecond keep the order in which they came.
const HELD_MAX: usize = 4_096;

/// Records of one time, by the index of their journal.
#[derive(Debug, Default)]
pub(super) struct Causes {
    at: Option<WallTime>,
    held: BTreeMap<usize, VecDeque<Record>>,
    count: usize,
}

impl Causes {
    /// Takes the next record of a journal; returns the records that come next, if the time before it is
    /// over.
    pub(super) fn put(&mut self, index: usize, record: Record) -> Vec<(usize, Record)> {
        let is_over = self.at.is_some_and(|at| record.at > at) || self.count >= HELD_MAX;
        let next = if is_over { self.finish() } else { Vec::new() };
        self.at = self.at.max(Some(record.at));
        self.held.entry(index).or_default().push_back(record);
        self.count += 1;
        next
    }

    /// All records that are held back, in their order.
    pub(super) fn finish(&mut self) -> Vec<(usize, Record)> {
        let mut ordered = Vec::with_capacity(self.count);
        let indexes: Vec<usize> = self.held.keys().copied().collect();
        while ordered.len() < self.count {
            let before = ordered.len();
            for index in &indexes {
                while let Some(record) = self.pop_if(*index, |held, record| !is_due(held, record)) {
                    ordered.push((*index, record));
                }
            }
            if ordered.len() == before {
                // They wait for each other, which only a forged journal contains.
                let first = indexes
                    .iter()
                    .find_map(|index| self.pop_if(*index, |_, _| true).map(|one| (*index, one)));
                let Some(first) = first else { break };
                ordered.push(first);
            }
        }
        self.held.clear();
        self.count = 0;
        ordered
    }

    /// Removes the first record of a journal if it may come next.
    fn pop_if(
        &mut self,
        index: usize,
        may: impl Fn(&BTreeMap<usize, VecDeque<Record>>, &Record) -> bool,
    ) -> Option<Record> {
        let is_next = self.held.get(&index)?.front().is_some_and(|first| may(&self.held, first));
        if is_next { self.held.get_mut(&index)?.pop_front() } else { None }
    }
}

/// Whether a record that is held back has to come before `record`.
fn is_due(held: &BTreeMap<usize, VecDeque<Record>>, record: &Record) -> bool {
    let has = |is_cause: &dyn Fn(&Record) -> bool| held.values().flatten().any(is_cause);
    let is_created = |entity: &EntityRef| {
        has(&|other| is_of(other, entity) && matches!(other.event, Event::Created { .. }))
    };
    if record.event.observed().iter().any(|one| one.state.is_some() && is_created(&one.entity)) {
        return true;
    }
    match &record.event {
        Event::Created { spawned_by: Some(_), .. } => has(&|other| match &other.event {
            Event::Spawning(spawn) => record.entity.as_ref() == Some(&spawn.entity),
            _ => false,
        }),
        Event::Spawned { entity, .. } | Event::SpawnRefused { entity, .. } => {
            has(&|other| is_of(other, entity) && is_begun(&other.event))
        }
        Event::Transition { cause: TransitionCause::Asked(asked), .. } => {
            has(&|other| match &other.event {
                Event::Dispatched(dispatched) => dispatched.dispatch == asked.dispatch,
                _ => false,
            })
        }
        _ => false,
    }
}

fn is_of(record: &Record, entity: &EntityRef) -> bool {
    record.entity.as_ref() == Some(entity)
}

/// Whether it is one of the first records of an entity that was spawned.
fn is_begun(event: &Event) -> bool {
    matches!(event, Event::Created { .. })
        || matches!(event, Event::Transition { cause: TransitionCause::Spawned, .. })
}

#[cfg(test)]
mod tests {
    use sandglass_journal::conformance::{created, dispatched, session, transition};
    use sandglass_model::{
        AskUntil, Asked, DispatchId, Incarnation, Observed, Position, Sequence, Spawn, SpawnedBy,
        TraceContext,
    };

    use super::*;

    fn record(entity: &str, at: i64, event: Event) -> Record {
        let (position, sequence) = (Position(1), Sequence(0));
        let (at, entity) = (WallTime::from_millis(at), Some(session(entity)));
        Record { position, at, entity, sequence, event }
    }

    /// The entities and kinds of these records in the order in which they come out.
    fn order(records: Vec<(usize, Record)>) -> Vec<String> {
        let mut causes = Causes::default();
        let mut ordered = Vec::new();
        for (index, record) in records {
            ordered.extend(causes.put(index, record));
        }
        ordered.extend(causes.finish());
        let describe = |(_, record): &(usize, Record)| {
            let entity = record.entity.as_ref().map_or("-", EntityRef::id);
            format!("{entity} {}", record.event.kind())
        };
        ordered.iter().map(describe).collect()
    }

    fn asked(dispatch: DispatchId) -> Event {
        let mut event = transition("Go");
        if let Event::Transition { cause, .. } = &mut event {
            *cause = TransitionCause::Asked(Asked {
                by: session("asker"),
                dispatch,
                attempt: 1,
                until: AskUntil::Transition,
                remaining_ms: 1,
                depth: 1,
            });
        }
        event
    }

    fn observing(entity: &str) -> Event {
        let mut event = transition("Go");
        if let Event::Transition { observed, .. } = &mut event {
            let state = Some("Idle".to_owned());
            *observed = vec![Observed { entity: session(entity), state }];
        }
        event
    }

    fn spawned(parent: &str) -> Event {
        let mut event = created();
        if let Event::Created { spawned_by, .. } = &mut event {
            *spawned_by = Some(Box::new(SpawnedBy {
                parent: session(parent),
                incarnation: Incarnation::from_bytes([7; 16]),
                sequence: Sequence(0),
                index: 0,
                action_refused: None,
            }));
        }
        event
    }

    fn spawning(entity: &str) -> Event {
        Event::Spawning(Box::new(Spawn {
            index: 0,
            entity: session(entity),
            action: None,
            params: Default::default(),
            stored_in: None,
            trace: TraceContext::root([5; 24]),
        }))
    }

    fn has_spawned(entity: &str) -> Event {
        let (spawned_at, entity) = (Sequence(0), session(entity));
        Event::Spawned { spawned_at, index: 0, entity, action_refused: None }
    }

    #[test]
    fn a_cause_of_the_same_millisecond_comes_before_its_effect() {
        let dispatch = DispatchId::from_bytes([1; 16]);
        let asks = vec![
            (0, record("a", 1, asked(dispatch))),
            (1, record("b", 1, dispatched(dispatch, 1))),
        ];
        assert_eq!(order(asks), ["b dispatched", "a transition"]);
        let guards = vec![(0, record("a", 1, observing("b"))), (1, record("b", 1, created()))];
        assert_eq!(order(guards), ["b created", "a transition"]);
        let spawns = vec![
            (0, record("child", 1, spawned("parent"))),
            (1, record("parent", 1, spawning("child"))),
            (1, record("parent", 1, has_spawned("child"))),
        ];
        assert_eq!(order(spawns), ["parent spawning", "child created", "parent spawned"]);
    }

    #[test]
    fn records_of_one_journal_and_of_different_times_keep_their_order() {
        let dispatch = DispatchId::from_bytes([1; 16]);
        let later = vec![
            (0, record("a", 1, asked(dispatch))),
            (1, record("b", 2, dispatched(dispatch, 1))),
        ];
        assert_eq!(order(later), ["a transition", "b dispatched"]);
        let one = vec![
            (0, record("a", 1, created())),
            (0, record("a", 1, transition("Go"))),
            (1, record("b", 1, created())),
        ];
        assert_eq!(order(one), ["a created", "a transition", "b created"]);
        // A time that goes back is of the present one.
        let back = vec![(0, record("a", 2, created())), (1, record("b", 1, created()))];
        assert_eq!(order(back), ["a created", "b created"]);
    }

    #[test]
    fn records_that_wait_for_each_other_and_too_many_come_out() {
        let (one, two) = (DispatchId::from_bytes([1; 16]), DispatchId::from_bytes([2; 16]));
        let forged = vec![
            (0, record("a", 1, asked(two))),
            (0, record("a", 1, dispatched(one, 1))),
            (1, record("b", 1, asked(one))),
            (1, record("b", 1, dispatched(two, 1))),
        ];
        let expected = ["a transition", "a dispatched", "b transition", "b dispatched"];
        assert_eq!(order(forged), expected);
        let many = (0..HELD_MAX + 1).map(|_| (0, record("a", 1, transition("Go"))));
        assert_eq!(order(many.collect()).len(), HELD_MAX + 1);
    }
}
