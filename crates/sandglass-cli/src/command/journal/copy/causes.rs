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
