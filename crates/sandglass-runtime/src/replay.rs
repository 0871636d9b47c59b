//! Replays a journal: decides each record again, and compares the result with the record.

mod snapshots;

use sandglass_journal::{Entry, Error, PAGE_MAX_ENTRIES, Page, Snapshot, SqliteReader};
use sandglass_liveness::replay::{Replay, Summary};
use sandglass_model::{EntityRef, Partition, Position, Record};

use self::snapshots::Snapshots;

/// A journal that is replayed. It blocks its caller's thread.
pub trait ReplaySource {
    /// A page of all records from `from` on.
    ///
    /// # Errors
    /// [`Error::Damaged`] if nothing more can be read; [`Error::Unavailable`].
    fn page(&mut self, from: Position) -> Result<Page, Error>;

    /// The entities whose snapshots are of positions from `first` to `last`, in that order.
    ///
    /// # Errors
    /// As [`ReplaySource::page`].
    fn snapshots(&mut self, first: Position, last: Position) -> Result<Vec<EntityRef>, Error>;

    /// The snapshot of an entity; `None` if it has no intact one.
    ///
    /// # Errors
    /// As [`ReplaySource::page`].
    fn snapshot_of(&mut self, entity: &EntityRef) -> Result<Option<Snapshot>, Error>;
}

impl ReplaySource for SqliteReader {
    fn page(&mut self, from: Position) -> Result<Page, Error> {
        self.read(from, PAGE_MAX_ENTRIES)
    }

    fn snapshots(&mut self, first: Position, last: Position) -> Result<Vec<EntityRef>, Error> {
        Self::snapshots(self, first, last)
    }

    fn snapshot_of(&mut self, entity: &EntityRef) -> Result<Option<Snapshot>, Error> {
        Self::snapshot_of(self, entity)
    }
}

/// Replays everything in `journal` that can be read, and passes each whole record to `each`. With a
/// `partition`, it is the journal of that one, which is replayed alone.
///
/// If the journal becomes unreadable at some position, that is a divergence, and the replay ends there.
///
/// # Errors
/// Errors if the journal cannot be read at all, and with the first error of `each`.
pub fn replay_journal<E: From<Error>>(
    journal: &mut impl ReplaySource,
    partition: Option<Partition>,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<Summary, E> {
    let mut replay = Replay::new();
    if let Some(partition) = partition {
        replay = replay.of_partition(partition);
    }
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = match journal.page(start) {
            Ok(page) => page,
            Err(Error::Damaged { what, .. }) => {
                replay.damaged(start, None, &format!("nothing more can be read: {what}"));
                break;
            }
            Err(error) => return Err(error.into()),
        };
        let last = page.entries.last().map_or(start, Entry::position);
        let mut snapshots = Snapshots::of(journal, start, last);
        for entry in &page.entries {
            feed(&mut replay, entry);
            snapshots.compare(journal, &mut replay, entry.position());
            if let Entry::Record(record) = entry {
                each(record)?;
            }
        }
        from = page.next;
    }
    Ok(replay.finish())
}

fn feed(replay: &mut Replay, entry: &Entry) {
    match entry {
        Entry::Record(record) => replay.feed(record),
        Entry::Damaged { position, what } => replay.damaged(*position, None, what),
        Entry::Pruned { first, last } => replay.pruned(*first, *last),
        Entry::Missing { first, last } => replay.missing(*first, *last),
    }
}
