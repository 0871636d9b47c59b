//! What the owner of a partition knows: the end of its log, its epoch, and the last records of
//! entities.

use std::collections::{BTreeSet, HashMap};

use sandglass_journal::LastRecord;
use sandglass_model::{EntityRef, Partition};

/// The end of the log of a partition that this process owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    /// The epoch of this process's ownership.
    pub(crate) epoch: i64,
    /// The last position that was assigned.
    pub(crate) last: i64,
    /// The checksum of the record there; `None` if it was pruned, or there is none.
    pub(crate) checksum: Option<[u8; 16]>,
}

/// What an append needs to know of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// The position of its first record.
    pub(crate) key: i64,
    pub(crate) last: LastRecord,
    /// Whether the table of entities has a note of how it rests.
    pub(crate) rests: bool,
}

/// Entities that are remembered in each of two generations.
const GENERATION: usize = 50_000;

/// The last records of entities that were used recently. The others are read from the database.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    young: HashMap<(Partition, EntityRef), Known>,
    old: HashMap<(Partition, EntityRef), Known>,
}

impl Recent {
    pub(crate) fn get(&self, partition: Partition, entity: &EntityRef) -> Option<Known> {
        let key = (partition, entity.clone());
        self.young.get(&key).or_else(|| self.old.get(&key)).copied()
    }

    pub(crate) fn put(&mut self, partition: Partition, entity: EntityRef, known: Known) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert((partition, entity), known);
    }

    /// Forgets the entities of partitions to which another process may append.
    pub(crate) fn forget(&mut self, partitions: &BTreeSet<Partition>) {
        for generation in [&mut self.young, &mut self.old] {
            generation.retain(|(partition, _), _| !partitions.contains(partition));
        }
    }

    pub(crate) fn remove(&mut self, partition: Partition, entity: &EntityRef) {
        let key = (partition, entity.clone());
        self.young.remove(&key);
        self.old.remove(&key);
    }
}
