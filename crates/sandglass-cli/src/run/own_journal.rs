//! A journal as the run of one entity sees it: the specs, and the records of that
//! entity. Others in the same file are nobody's here: no timer of theirs fires, and
//! none of their handlers is ended or run again with a guest that isn't theirs.

use std::sync::Arc;

use sandglass_journal::{
    Batch, ByEntity, Entry, Error, Health, Journal, Page, Pending, Place, Positions,
};
use sandglass_model::{DispatchId, EntityRef, Position};

#[derive(Debug)]
pub(super) struct OwnJournal {
    whole: Arc<dyn Journal>,
    entity: EntityRef,
}

impl OwnJournal {
    pub(super) fn new(whole: Arc<dyn Journal>, entity: EntityRef) -> Self {
        Self { whole, entity }
    }

    /// Damage is everybody's: nothing is appended behind it unseen.
    fn shows(&self, entry: &Entry) -> bool {
        match entry {
            Entry::Record(record) => {
                record.entity.as_ref().is_none_or(|entity| *entity == self.entity)
            }
            Entry::Damaged { .. } | Entry::Missing { .. } => true,
        }
    }
}

impl Journal for OwnJournal {
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        self.whole.append(batch)
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            let mut page = self.whole.read(from, limit).await?;
            page.entries.retain(|entry| self.shows(entry));
            Ok(page)
        })
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        self.whole.read_entity(entity, from, limit)
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

    fn last(&self) -> Pending<'_, Result<Position, Error>> {
        self.whole.last()
    }

    fn health(&self) -> Health {
        self.whole.health()
    }

    fn close(&self) -> Pending<'_, ()> {
        self.whole.close()
    }
}
