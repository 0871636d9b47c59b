//! The snapshots of a journal, which a replay compares with the state that its records fold to.

use sandglass_journal::Snapshot;
use sandglass_liveness::replay::Replay;
use sandglass_model::{EntityRef, Position};

use super::ReplaySource;

/// The snapshots whose positions are on one page. They are large, so only one is in memory at a
/// time. A snapshot that a writer has replaced meanwhile is compared on a later page.
pub(super) struct Snapshots {
    names: std::vec::IntoIter<EntityRef>,
    next: Option<Snapshot>,
}

impl Snapshots {
    pub(super) fn of(journal: &mut impl ReplaySource, first: Position, last: Position) -> Self {
        // A runtime does not use snapshots that cannot be read either: it folds all records.
        let names = journal.snapshots(first, last).unwrap_or_default().into_iter();
        let mut snapshots = Self { names, next: None };
        snapshots.advance(journal);
        snapshots
    }

    pub(super) fn compare(
        &mut self,
        journal: &mut impl ReplaySource,
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

    fn advance(&mut self, journal: &mut impl ReplaySource) {
        self.next = self.names.find_map(|name| journal.snapshot_of(&name).ok().flatten());
    }
}
