//! The journals of one store: a single one, or one for each partition of a store that several hosts
//! share. What is about an entity goes to the journal of its partition; records of all partitions are
//! read as one stream, at a [`Cursor`].

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use futures_util::future::{join_all, try_join_all};
use sandglass_model::{Cursor, DispatchId, EntityRef, Partition, Position};

use crate::merged::{self, Merged, Part};
use crate::{
    Answer, Batch, EntityEntry, Error, Health, Journal, Page, Positions, Resting, Select, Selected,
    SelectedPlace, Snapshot, entities,
};

/// The journals of one store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journals {
    /// One, or [`Partition::COUNT`].
    journals: Arc<[Arc<dyn Journal>]>,
    across: Option<Arc<dyn Across>>,
}

/// What a store with partitions reads from all of them at once. Without it, each journal is read by
/// itself.
pub trait Across: Send + Sync + fmt::Debug {
    /// As [`Journals::read_behind`].
    fn read_behind(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Answer<'_, Merged>;

    /// As [`Journals::find_dispatch`].
    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>>;

    /// As [`Journals::end`].
    fn end(&self) -> Answer<'_, Cursor>;

    /// As [`Journals::select`].
    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected>;
}

impl From<Arc<dyn Journal>> for Journals {
    fn from(journal: Arc<dyn Journal>) -> Self {
        Self { journals: [journal].into(), across: None }
    }
}

impl Journals {
    /// One journal for each partition, made by `journal_of`.
    #[must_use]
    pub fn partitioned(journal_of: impl FnMut(Partition) -> Arc<dyn Journal>) -> Self {
        Self { journals: Partition::all().map(journal_of).collect(), across: None }
    }

    /// Sets how all partitions are read at once.
    #[must_use]
    pub fn read_across(self, across: Arc<dyn Across>) -> Self {
        Self { across: Some(across), ..self }
    }

    /// Whether it has [`Partition::COUNT`] journals.
    #[must_use]
    pub fn is_partitioned(&self) -> bool {
        self.journals.len() == usize::from(Partition::COUNT)
    }

    /// All journals, in the order of their partitions.
    #[must_use]
    pub fn all(&self) -> &[Arc<dyn Journal>] {
        &self.journals
    }

    /// The index of the journal that `entity` belongs to.
    #[must_use]
    pub fn index_of(&self, entity: &EntityRef) -> usize {
        if self.is_partitioned() { Partition::of(entity).index() } else { 0 }
    }

    /// The journal that `entity` belongs to.
    #[must_use]
    pub fn of(&self, entity: &EntityRef) -> &dyn Journal {
        &*self.journals[self.index_of(entity)]
    }

    /// [`Journal::append`], for a batch about an entity. A batch about none has to be appended to
    /// each of [`Journals::all`].
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub async fn append(&self, batch: Batch) -> Result<Positions, Error> {
        match (&batch.entity, &*self.journals) {
            (_, [only]) => only.append(batch).await,
            (Some(entity), _) => {
                let index = self.index_of(entity);
                self.journals[index].append(batch).await
            }
            (None, _) => Err(Error::Invalid {
                what: "it is about no entity, so no partition can be chosen".to_owned(),
            }),
        }
    }

    /// [`Journal::read_entity`].
    ///
    /// # Errors
    /// As [`Journal::read_entity`].
    pub async fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Result<Page, Error> {
        let index = self.index_of(&entity);
        self.journals[index].read_entity(entity, from, limit).await
    }

    /// [`Journal::snapshot`].
    ///
    /// # Errors
    /// As [`Journal::snapshot`].
    pub async fn snapshot(&self, entity: EntityRef) -> Result<Option<Snapshot>, Error> {
        let index = self.index_of(&entity);
        self.journals[index].snapshot(entity).await
    }

    /// The entity of `dispatch`, and the position of its first
    /// [`Dispatched`](sandglass_model::Dispatched) record in the journal of that entity; `None` if
    /// there is no such dispatch.
    ///
    /// # Errors
    /// As [`Journal::find_dispatch`].
    pub async fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Result<Option<(EntityRef, Position)>, Error> {
        if let Some(across) = &self.across {
            return across.find_dispatch(dispatch).await;
        }
        let each = self.journals.iter().map(|journal| journal.find_dispatch(dispatch));
        Ok(try_join_all(each).await?.into_iter().flatten().next())
    }

    /// [`Journal::recording`].
    ///
    /// # Errors
    /// As [`Journal::recording`].
    pub async fn recording(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Result<Option<Vec<u8>>, Error> {
        if let [only] = &*self.journals {
            return only.recording(dispatch, attempt).await;
        }
        let Some((entity, _)) = self.find_dispatch(dispatch).await? else { return Ok(None) };
        self.of(&entity).recording(dispatch, attempt).await
    }

    /// [`Journal::last_of`].
    ///
    /// # Errors
    /// As [`Journal::last_of`].
    pub async fn last_of(&self, entity: EntityRef) -> Result<Option<EntityEntry>, Error> {
        let index = self.index_of(&entity);
        self.journals[index].last_of(entity).await
    }

    /// [`Journal::rest`].
    ///
    /// # Errors
    /// As [`Journal::rest`]; the rest of entities in other journals may be noted.
    pub async fn rest(&self, entities: Vec<Resting>) -> Result<(), Error> {
        let mut by_journal = vec![Vec::new(); self.journals.len()];
        for resting in entities {
            by_journal[self.index_of(&resting.entity)].push(resting);
        }
        let some = self.journals.iter().zip(by_journal).filter(|(_, resting)| !resting.is_empty());
        try_join_all(some.map(|(journal, resting)| journal.rest(resting))).await?;
        Ok(())
    }

    /// [`Journal::select`], of all journals. In the order of [`Select::Ended`], positions of
    /// different journals are compared as numbers.
    ///
    /// # Errors
    /// As [`Journal::select`].
    pub async fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Result<Selected, Error> {
        if let Some(across) = &self.across {
            return across.select(which, after, limit).await;
        }
        select_each(self.journals.iter(), which, after, limit).await
    }

    /// As [`Journals::select`], of the journals with these indexes, which are in ascending order.
    ///
    /// # Errors
    /// As [`Journal::select`].
    pub async fn select_of(
        &self,
        indexes: &[usize],
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Result<Selected, Error> {
        if indexes.len() == self.journals.len() {
            return self.select(which, after, limit).await;
        }
        let journals = indexes.iter().filter_map(|index| self.journals.get(*index));
        select_each(journals, which, after, limit).await
    }

    /// [`Journal::prune`], one journal after the other.
    ///
    /// # Errors
    /// As [`Journal::prune`]; the entities of other journals may be removed.
    pub async fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Result<Vec<u64>, Error> {
        if let [only] = &*self.journals {
            return only.prune(entities).await;
        }
        let mut counts = vec![0; entities.len()];
        let mut by_journal = BTreeMap::<usize, Vec<(usize, (EntityRef, Position))>>::new();
        for (number, entity) in entities.into_iter().enumerate() {
            by_journal.entry(self.index_of(&entity.0)).or_default().push((number, entity));
        }
        for (index, named) in by_journal {
            let (numbers, named): (Vec<_>, Vec<_>) = named.into_iter().unzip();
            let removed = self.journals[index].prune(named).await?;
            for (number, records) in numbers.into_iter().zip(removed) {
                counts[number] = records;
            }
        }
        Ok(counts)
    }

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`](crate::PAGE_MAX_ENTRIES)) behind `after`
    /// of all journals; if `kinds` is given, only those whose records are of these kinds, as
    /// [`Journal::read_kinds`]. The entries of one journal are in the order of their positions. Those
    /// of different journals are in the order of their times, as far as each journal's times do not
    /// go backwards.
    ///
    /// # Errors
    /// As [`Journal::read`].
    pub async fn read_behind(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Result<Merged, Error> {
        if let Some(across) = &self.across {
            return across.read_behind(after, kinds, limit).await;
        }
        let each = self.journals.iter().enumerate().map(|(index, journal)| {
            let from = Position(after.at(index).0.saturating_add(1));
            Part::read(&**journal, from, kinds, limit)
        });
        let parts = try_join_all(each).await?;
        Ok(merged::merge(after, parts, limit))
    }

    /// The last position of each journal, even if its record was pruned.
    ///
    /// # Errors
    /// As [`Journal::last`].
    pub async fn end(&self) -> Result<Cursor, Error> {
        if let Some(across) = &self.across {
            return across.end().await;
        }
        let each = self.journals.iter().map(|journal| journal.last());
        Ok(Cursor::new(try_join_all(each).await?))
    }

    /// The health of the first journal that does not work, if there is one.
    #[must_use]
    pub fn health(&self) -> Health {
        let mut each = self.journals.iter().map(|journal| journal.health());
        each.find(|health| *health != Health::Working).unwrap_or(Health::Working)
    }

    /// [`Journal::close`], for all journals.
    pub async fn close(&self) {
        join_all(self.journals.iter().map(|journal| journal.close())).await;
    }
}

/// Selects in each of `journals`, and merges what is found.
async fn select_each(
    journals: impl Iterator<Item = &Arc<dyn Journal>>,
    which: Select,
    after: Option<SelectedPlace>,
    limit: usize,
) -> Result<Selected, Error> {
    let limit = entities::page_size(limit);
    let each = journals.map(|journal| journal.select(which.clone(), after.clone(), limit));
    let pages = try_join_all(each).await?;
    let has_more = pages.iter().any(|page| page.next.is_some());
    let entries = pages.into_iter().flat_map(|page| page.entries);
    let keyed = entries.filter_map(|entry| Some((which.key_of(&entry)?, entry)));
    Ok(Selected::page(keyed.collect(), has_more, limit))
}
