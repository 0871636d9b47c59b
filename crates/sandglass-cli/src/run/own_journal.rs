//! A journal as the run of one entity sees it: the specs, and the records of that
//! entity. Others in the same file are nobody's here: no timer of theirs fires, and
//! none of their handlers is ended or run again with a guest that isn't theirs.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_journal::{
    Around, Batch, ByEntity, Entry, Error, Journal, Page, Pending, Place, Positions,
};
use sandglass_model::{DispatchId, EntityRef, Position};

use crate::terminal;

#[derive(Debug)]
pub(super) struct OwnJournal {
    whole: Arc<dyn Journal>,
    entity: EntityRef,
    appends: Mutex<Appends>,
}

/// How appends went so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appends {
    None,
    Work,
    Fail,
}

impl OwnJournal {
    pub(super) fn new(whole: Arc<dyn Journal>, entity: EntityRef) -> Self {
        Self { whole, entity, appends: Mutex::new(Appends::None) }
    }

    /// Tells who waits that a run that was begun can't be recorded, and that it can again.
    /// Where nothing was begun, the run is refused, and says so itself.
    fn tell(&self, appended: &Result<Positions, Error>) {
        let now = match appended {
            Ok(_) => Appends::Work,
            Err(Error::Unavailable { .. } | Error::Damaged { .. }) => Appends::Fail,
            Err(_) => return,
        };
        let mut appends = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        match (*appends, appended) {
            (Appends::None, Err(_)) => return,
            (Appends::Work, Err(error)) => terminal::note(&format!(
                "the journal takes no records: {error}; the run is recorded and reported when it \
                 takes them again"
            )),
            (Appends::Fail, Ok(_)) => terminal::note("the journal takes records again"),
            _ => {}
        }
        *appends = now;
    }

    /// Damage is everybody's: nothing is appended behind it unseen.
    fn shows(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Record(record) => {
                record.entity.as_ref().is_none_or(|entity| *entity == self.entity)
            }
            Entry::Pruned { .. } => false,
            Entry::Damaged { .. } | Entry::Missing { .. } => true,
        }
    }
}

impl Around for OwnJournal {
    fn inner(&self) -> &dyn Journal {
        &*self.whole
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move {
            let appended = self.whole.append(batch).await;
            self.tell(&appended);
            appended
        })
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            let mut page = self.whole.read(from, limit).await?;
            page.entries.retain(|entry| self.shows(entry));
            Ok(page)
        })
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        Box::pin(async move {
            let mut page = self.whole.read_by_entity(after, limit).await?;
            page.entries.retain(|entry| self.shows(entry));
            Ok(page)
        })
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        Box::pin(async move {
            let found = self.whole.find_dispatch(dispatch).await?;
            Ok(found.filter(|(entity, _)| *entity == self.entity))
        })
    }
}
