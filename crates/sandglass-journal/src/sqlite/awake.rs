//! The last records of entities that are awake, as the writer knows them, so that an append looks up
//! neither that record nor the row of the entity. The writer is the only one that changes them.

use std::collections::HashMap;

use sandglass_model::EntityRef;

use crate::LastRecord;

/// Most entities that are known: a few megabytes. If there are more, all are forgotten.
const KNOWN_MAX: usize = 16_384;

/// Entities whose rows in the table of entities say that they are awake.
#[derive(Debug, Default)]
pub(super) struct Awake(HashMap<EntityRef, LastRecord>);

impl Awake {
    /// The last record of `entity`; `None` if it is not known, or the entity may rest.
    pub(super) fn last(&self, entity: &EntityRef) -> Option<LastRecord> {
        self.0.get(entity).copied()
    }

    /// The records of `entity`, which is awake, end with `last` from now on.
    pub(super) fn append(&mut self, entity: &EntityRef, last: LastRecord) {
        if let Some(known) = self.0.get_mut(entity) {
            *known = last;
            return;
        }
        if self.0.len() >= KNOWN_MAX {
            self.0.clear();
        }
        self.0.insert(entity.clone(), last);
    }

    /// The entity rests, or is removed.
    pub(super) fn forget(&mut self, entity: &EntityRef) {
        self.0.remove(entity);
    }

    /// What was appended last may not be in the journal.
    pub(super) fn forget_all(&mut self) {
        self.0.clear();
    }
}
