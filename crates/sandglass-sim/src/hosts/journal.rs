//! The journals of one process: one for each partition, over the database that all processes share.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_journal::{
    Across, Answer, Batch, ByEntity, EntityEntry, Error, Health, Journal, Journals, MemoryJournal,
    Merged, OfKinds, Page, Part, Pending, Place, Positions, Resting, Select, Selected,
    SelectedPlace, Snapshot, merge,
};
use sandglass_model::{Cursor, DispatchId, EntityRef, Partition, Position};

use super::database::resolve;
use super::link::{Fate, STATEMENT_LIMIT};
use super::process::Host;
use crate::scene::lock;

/// The journals of `host`.
pub(crate) fn journals(host: &Arc<Host>) -> Journals {
    let journal = |partition| -> Arc<dyn Journal> {
        Arc::new(PartitionJournal { host: Arc::clone(host), partition })
    };
    Journals::partitioned(journal).read_across(Arc::new(All(Arc::clone(host))))
}

/// The journal of one partition, as one process sees it.
pub(crate) struct PartitionJournal {
    host: Arc<Host>,
    partition: Partition,
}

impl fmt::Debug for PartitionJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionJournal").field("partition", &self.partition).finish()
    }
}

impl Host {
    /// Reads the log of a partition.
    pub(crate) async fn read<T: Send + 'static>(
        self: &Arc<Self>,
        at: Partition,
        work: impl FnOnce(&MemoryJournal) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let read = self.statement(STATEMENT_LIMIT, move |_, database| {
            let journal = Arc::clone(&database.row(at).journal);
            work(&journal)
        });
        read.await.map_err(Fate::error)?
    }
}

impl PartitionJournal {
    fn read_by<T: Send + 'static>(
        &self,
        work: impl FnOnce(&MemoryJournal) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        Box::pin(self.host.read(self.partition, work))
    }
}

impl Journal for PartitionJournal {
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Box::pin(async move {
            let lane = &self.host.lanes[self.partition.index()];
            if let Some(error) = lane.disowned() {
                return Err(error);
            }
            if lane.is_settling.load(Ordering::Relaxed) {
                return Err(Fate::Unknown.error());
            }
            // To its end, even if the caller goes away.
            let host = Arc::clone(&self.host);
            let appending = tokio::spawn(host.append(self.partition, batch));
            appending.await.unwrap_or(Err(Error::Closed))
        })
    }

    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        self.read_by(move |journal| resolve(journal.read(from, limit)))
    }

    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        self.read_by(move |journal| resolve(journal.read_entity(entity, from, limit)))
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        self.read_by(move |journal| resolve(journal.read_kinds(kinds, from, limit)))
    }

    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        self.read_by(move |journal| resolve(journal.read_by_entity(after, limit)))
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        self.read_by(move |journal| resolve(journal.find_dispatch(dispatch)))
    }

    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        self.read_by(move |journal| resolve(journal.snapshot(entity)))
    }

    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>> {
        self.read_by(move |journal| resolve(journal.recording(dispatch, attempt)))
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>> {
        // These worlds do not prune.
        Box::pin(async move { Ok(vec![0; entities.len()]) })
    }

    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        self.read_by(move |journal| resolve(journal.last_of(entity)))
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Box::pin(async move {
            let lane = &self.host.lanes[self.partition.index()];
            if let Some(error) = lane.disowned() {
                return Err(error);
            }
            let Some(head) = *lock(&lane.head) else { return Ok(()) };
            let at = self.partition;
            let noting = self.host.statement(STATEMENT_LIMIT, move |_, database| {
                if database.row(at).epoch == head.epoch {
                    let journal = Arc::clone(&database.row(at).journal);
                    return resolve(journal.rest(entities));
                }
                Ok(())
            });
            noting.await.map_err(Fate::error)?
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        self.read_by(move |journal| resolve(journal.select(which, after, limit)))
    }

    fn last(&self) -> Answer<'_, Position> {
        self.read_by(move |journal| resolve(journal.last()))
    }

    fn health(&self) -> Health {
        let lane = &self.host.lanes[self.partition.index()];
        if lane.is_damaged.load(Ordering::Relaxed) {
            let what = "the database has lost records of the partition".to_owned();
            return Health::Disowned { what };
        }
        Health::Working
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// All partitions, read by one statement.
struct All(Arc<Host>);

impl fmt::Debug for All {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("All").finish_non_exhaustive()
    }
}

impl All {
    fn each<T: Send + 'static>(
        &self,
        work: impl Fn(usize, &MemoryJournal) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, Vec<T>> {
        Box::pin(async move {
            let read = self.0.statement(STATEMENT_LIMIT, move |_, database| {
                let rows = database.partitions.iter().enumerate();
                rows.map(|(index, row)| work(index, &row.journal)).collect()
            });
            read.await.map_err(Fate::error)?
        })
    }
}

impl Across for All {
    fn read_behind(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Answer<'_, Merged> {
        Box::pin(async move {
            let from = after.clone();
            let parts = self.each(move |index, journal| {
                let from = Position(from.at(index).0.saturating_add(1));
                resolve(async move {
                    let page = match kinds {
                        Some(kinds) => {
                            let found = journal.read_kinds(kinds, from, limit).await?;
                            let searched = Position(found.next.0.saturating_sub(1));
                            let (entries, is_end) = (found.entries.into(), found.is_end);
                            return Ok(Part { entries, searched, is_end });
                        }
                        None => journal.read(from, limit).await?,
                    };
                    let searched = page.entries.last().map(sandglass_journal::Entry::last_position);
                    let searched = searched.unwrap_or(Position(from.0 - 1));
                    let is_end = page.next.is_none();
                    Ok(Part { entries: page.entries.into(), searched, is_end })
                })
            });
            Ok(merge(after, parts.await?, limit))
        })
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        Box::pin(async move {
            let found =
                self.each(move |_, journal| resolve(journal.find_dispatch(dispatch))).await?;
            Ok(found.into_iter().flatten().next())
        })
    }

    fn end(&self) -> Answer<'_, Cursor> {
        Box::pin(
            async move { Ok(Cursor::new(self.each(|_, journal| resolve(journal.last())).await?)) },
        )
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        Box::pin(async move {
            let (chosen, behind) = (which.clone(), after.clone());
            let pages = self.each(move |_, journal| {
                resolve(journal.select(chosen.clone(), behind.clone(), limit))
            });
            let pages = pages.await?;
            let has_more = pages.iter().any(|page| page.next.is_some());
            let entries = pages.into_iter().flat_map(|page| page.entries);
            let keyed = entries.filter_map(|entry| Some((which.key_of(&entry)?, entry)));
            Ok(Selected::page(keyed.collect(), has_more, limit))
        })
    }
}
