//! The snapshots of a journal, beside what its records fold to.

use sandglass_journal::{Snapshot, SqliteReader};
use sandglass_liveness::replay::Replay;
use sandglass_model::{EntityRef, Position};

/// The snapshots of the places of one page. One at a time is held, which are large; one that
/// a writer has replaced meanwhile is met further on.
pub(super) struct Snapshots {
    names: std::vec::IntoIter<EntityRef>,
    next: Option<Snapshot>,
}

impl Snapshots {
    /// What can't be read of them isn't used by anybody either.
    pub(super) fn of(journal: &mut SqliteReader, first: Position, last: Position) -> Self {
        let names = journal.snapshots(first, last).unwrap_or_default().into_iter();
        let mut snapshots = Self { names, next: None };
        snapshots.advance(journal);
        snapshots
    }

    pub(super) fn compare(
        &mut self,
        journal: &mut SqliteReader,
        replay: &mut Replay,
        at: Position,
    ) {
        while let Some(one) = self.next.take_if(|one| one.position <= at) {
            if one.position == at {
                replay.snapshot(&one.entity, &one.body);
            }
            self.advance(journal);
        }
    }

    fn advance(&mut self, journal: &mut SqliteReader) {
        self.next = self.names.find_map(|name| journal.snapshot_of(&name).ok().flatten());
    }
}
