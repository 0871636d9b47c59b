//! Snapshots of entities in the journal: when one is due, and how an entity is read from its last
//! one on.

use std::ops::Range;

use sandglass_journal::{self as journal, Journal};
use sandglass_liveness::{Entity, Fold, entity};
use sandglass_model::{EntityRef, Position};

const _: () = assert!(entity::SNAPSHOT_MAX_BYTES <= journal::SNAPSHOT_MAX_BYTES, "each fits");

/// Records of an entity between two of its snapshots, and so the most that are read when it wakes,
/// except for those while a handler is in flight. A snapshot takes about as much space as twenty
/// records.
pub const SNAPSHOT_EVERY: u64 = 256;

/// When the next snapshot of an entity is due.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Due {
    /// Its records since the last one.
    pub(crate) records: u64,
}

impl Due {
    /// Counts `more` records, and returns the snapshot of `entity`, to which they led, if one is
    /// due. While the entity is not at rest, none is taken.
    pub(crate) fn after(self, more: usize, entity: &Entity) -> (Self, Option<String>) {
        let records = self.records.saturating_add(u64::try_from(more).unwrap_or(u64::MAX));
        if records < SNAPSHOT_EVERY || !entity.is_at_rest() {
            return (Self { records }, None);
        }
        // If it is too large, the next one is due as late as if it had been taken.
        (Self::default(), entity.to_snapshot())
    }
}

/// Puts the entity's last snapshot into `fold`, and returns the position of its last record; `None`
/// if there is none behind the start and before the end of `range`, or it cannot be used.
pub(crate) async fn skip_to(
    journal: &dyn Journal,
    fold: &mut Fold,
    name: &EntityRef,
    range: Range<Position>,
) -> Result<Option<Position>, journal::Error> {
    let found = journal.snapshot(name.clone()).await?;
    let is_within =
        |found: &journal::Snapshot| found.position > range.start && found.position < range.end;
    let Some(found) = found.filter(is_within) else { return Ok(None) };
    match Entity::of_snapshot(&found.body) {
        Ok(entity) if entity.entity == *name => Ok(fold.put(entity).then_some(found.position)),
        Ok(_) => {
            tracing::warn!(entity = %name, "a snapshot is of another one; the records are read");
            Ok(None)
        }
        Err(why) => {
            tracing::warn!(entity = %name, %why, "a snapshot cannot be used; the records are read");
            Ok(None)
        }
    }
}
