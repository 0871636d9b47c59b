//! A view of a journal that shows only the specs and one entity. It hides other entities of the
//! file, so that none of their timers fires, and none of their handlers is ended or dispatched again
//! with a guest of another module.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_journal::{
    Around, Batch, ByEntity, EntityEntry, Entry, Error, Journal, Page, Pending, Place, Positions,
    Select, Selected, SelectedPlace,
};
use sandglass_model::{DispatchId, EntityRef, Position};

use crate::terminal;

#[derive(Debug)]
pub(super) struct OwnJournal {
    inner: Arc<dyn Journal>,
    entity: EntityRef,
    appends: Mutex<Appends>,
}

/// The state of appends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Appends {
    None,
    Succeed,
    Fail,
}

impl OwnJournal {
    pub(super) fn new(inner: Arc<dyn Journal>, entity: EntityRef) -> Self {
        Self { inner, entity, appends: Mutex::new(Appends::None) }
    }

    /// Reports when records of a started handler cannot be appended, and when they can again. If the
    /// first append fails, nothing was started, and the handler is rejected with the error instead.
    fn report(&self, appended: &Result<Positions, Error>) {
        let now = match appended {
            Ok(_) => Appends::Succeed,
            Err(Error::Unavailable { .. } | Error::Damaged { .. }) => Appends::Fail,
            Err(_) => return,
        };
        let mut appends = self.appends.lock().unwrap_or_else(PoisonError::into_inner);
        match (*appends, appended) {
            (Appends::None, Err(_)) => return,
            (Appends::Succeed, Err(error)) => terminal::note(&format!(
                "the journal takes no records: {error}; the handler is recorded and reported when \
                 it takes them again"
            )),
            (Appends::Fail, Ok(_)) => terminal::note("the journal takes records again"),
            _ => {}
        }
        *appends = now;
    }

    /// Shows damage of any entity, so that nothing is appended after it unnoticed.
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
        &*self.inner
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move {
            let appended = self.inner.append(batch).await;
            self.report(&appended);
            appended
        })
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            let mut page = self.inner.read(from, limit).await?;
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
            let mut page = self.inner.read_by_entity(after, limit).await?;
            page.entries.retain(|entry| self.shows(entry));
            Ok(page)
        })
    }

    fn last_of(&self, entity: EntityRef) -> Pending<'_, Result<Option<EntityEntry>, Error>> {
        Box::pin(async move {
            if entity == self.entity { self.inner.last_of(entity).await } else { Ok(None) }
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Pending<'_, Result<Selected, Error>> {
        Box::pin(async move {
            let mut page = self.inner.select(which, after, limit).await?;
            page.entries.retain(|entry| entry.entity == self.entity);
            Ok(page)
        })
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        Box::pin(async move {
            let found = self.inner.find_dispatch(dispatch).await?;
            Ok(found.filter(|(entity, _)| *entity == self.entity))
        })
    }
}
