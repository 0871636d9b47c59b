//! Which entities can be removed from a journal: old ones among those that have ended.

use std::collections::BTreeSet;
use std::time::Duration;

use sandglass_model::{EntityRef, Position, Record, WallTime};

use crate::fold::{Fold, Unfit};

/// Which of the entities that have ended may be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retention {
    /// Those whose last record is older than this.
    OlderThan(Duration),
    /// All but this many, whose last records are the newest.
    Keep(u64),
}

/// An entity that will never change: its state is terminal, and it has no handler in flight, no
/// scheduled action and no entity to spawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The entity.
    pub entity: EntityRef,
    /// Its last record.
    pub last: Position,
    /// When its last record was decided.
    pub at: WallTime,
    /// How many records it has.
    pub records: u64,
}

impl Retention {
    /// Those of `ended` that may be removed, the oldest first.
    #[must_use]
    pub fn beyond(self, mut ended: Vec<Ended>, now: WallTime) -> Vec<Ended> {
        // Positions of different partitions have no order.
        ended.sort_by_key(|one| (one.at, one.last));
        match self {
            Self::OlderThan(age) => ended.retain(|one| is_older(one.at, age, now)),
            Self::Keep(most) => {
                let most = usize::try_from(most).unwrap_or(usize::MAX);
                ended.truncate(ended.len().saturating_sub(most));
            }
        }
        ended
    }
}

/// Whether what was decided at `at` is older than `age`.
#[must_use]
pub fn is_older(at: WallTime, age: Duration, now: WallTime) -> bool {
    now.since(at) > age
}

/// Finds the entities of a journal that have ended. The specs come first, then the records of each
/// entity together; the journals of several partitions one after the other.
#[derive(Debug, Default)]
pub struct Survey {
    fold: Fold,
    current: Option<Ended>,
    ended: Vec<Ended>,
    /// Entities whose parents have not recorded their creation: without them, they would be created a
    /// second time.
    spawning: BTreeSet<EntityRef>,
}

impl Survey {
    /// Takes the next record.
    ///
    /// # Errors
    /// It does not fit the ones before it.
    pub fn feed(&mut self, record: &Record) -> Result<(), Unfit> {
        if self.current.as_ref().map(|current| &current.entity) != record.entity.as_ref() {
            self.close();
        }
        self.fold.apply(record)?;
        if let Some(entity) = &record.entity {
            let records = self.current.as_ref().map_or(0, |current| current.records) + 1;
            let (last, at) = (record.position, record.at);
            self.current = Some(Ended { entity: entity.clone(), last, at, records });
        }
        Ok(())
    }

    /// All that have ended.
    #[must_use]
    pub fn finish(mut self) -> Vec<Ended> {
        self.close();
        self.ended.retain(|one| !self.spawning.contains(&one.entity));
        self.ended
    }

    fn close(&mut self) {
        let Some(current) = self.current.take() else { return };
        let Some(entity) = self.fold.take(&current.entity) else { return };
        self.spawning.extend(entity.spawning().map(|(_, spawn)| spawn.entity.clone()));
        let spec = self.fold.spec(entity.spec);
        let is_terminal = spec.is_some_and(|spec| spec.is_terminal(&entity.state));
        if is_terminal && entity.is_at_rest() && entity.schedules().len() == 0 {
            self.ended.push(current);
        }
    }
}
