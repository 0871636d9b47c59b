//! Replays a journal: decides each record again, and compares the result with the record.

mod snapshots;

use sandglass_journal::{Entry, Error, PAGE_MAX_ENTRIES, Page, SqliteReader};
use sandglass_liveness::replay::{Replay, Summary};
use sandglass_model::{Partition, Position, Record};

use self::snapshots::Snapshots;

/// Replays everything in `journal` that can be read, and passes each whole record to `each`.
///
/// If the file becomes unreadable at some position, that is a divergence, and the replay ends there.
///
/// # Errors
/// Errors if the journal cannot be read at all, and with the first error of `each`.
pub fn replay_journal<E: From<Error>>(
    journal: &mut SqliteReader,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<Summary, E> {
    let mut replay = Replay::new();
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = match journal.read(start, PAGE_MAX_ENTRIES) {
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

/// Replays the journal of a partition alone, of which `read` returns the page from a position on, and
/// passes each whole record to `each`. Its snapshots are not compared.
///
/// # Errors
/// As [`replay_journal`].
pub fn replay_partition<E: From<Error>>(
    partition: Partition,
    mut read: impl FnMut(Position) -> Result<Page, Error>,
    mut each: impl FnMut(&Record) -> Result<(), E>,
) -> Result<Summary, E> {
    let mut replay = Replay::new().of_partition(partition);
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = read(start)?;
        for entry in &page.entries {
            feed(&mut replay, entry);
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
