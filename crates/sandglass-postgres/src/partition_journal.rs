//! The journal of one partition of a database.

use std::fmt;
use std::sync::Arc;

use sandglass_journal::store::{few_enough, few_resting};
use sandglass_journal::{
    Answer, Batch, ByEntity, EntityEntry, Error, Health, Journal, OfKinds, Page, Pending, Place,
    Positions, Resting, Select, Selected, SelectedPlace, Snapshot,
};
use sandglass_model::{DispatchId, EntityRef, Partition, Position};
use tokio::sync::oneshot;

use crate::database::{Database, Inner, read_only};
use crate::group::Job;
use crate::limit::within;
use crate::requests::{NoteRest, Request};
use crate::shared::Shared;
use crate::{blobs, entities, pruning};

/// The journal of one partition.
pub(crate) struct PartitionJournal {
    pub(crate) inner: Arc<Inner>,
    pub(crate) partition: Partition,
}

impl fmt::Debug for PartitionJournal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionJournal").field("partition", &self.partition).finish()
    }
}

impl PartitionJournal {
    fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    async fn submit(&self, batch: Batch) -> Result<Positions, Error> {
        let shared = self.shared();
        let partition = self.partition;
        shared.check_owned(partition)?;
        let (lines, bytes) = batch.lines()?;
        let are_small = batch.recordings.iter().all(blobs::is_small);
        let size = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.inner.room);
        let room = room.acquire_many_owned(size).await.map_err(|_| Error::Closed)?;
        let prepared = Arc::clone(shared);
        let naming = async move {
            let named = blobs::name(&prepared.reader, &prepared.uploads, &batch.recordings).await;
            named.map(|named| (batch, named))
        };
        // Only large recordings need a connection.
        let (batch, named) = if are_small { naming.await? } else { self.read(naming).await? };
        let request =
            |answer| Request::Append(Job { partition, batch, lines, bytes, named, answer, room });
        self.inner.ask(request).await
    }

    /// As [`Database::run`], unless the journal is closed.
    async fn read<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        self.shared().check_open(self.partition)?;
        Database::over(Arc::clone(&self.inner)).run(work).await
    }
}

impl Journal for PartitionJournal {
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Box::pin(self.submit(batch))
    }

    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        let acknowledged = shared.last_acknowledged(partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.read(partition, from, limit, acknowledged).await
        }))
    }

    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.read_entity(partition, &entity, from, limit).await
        }))
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.read_kinds(partition, kinds, from, limit).await
        }))
    }

    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.read_by_entity(partition, after.as_ref(), limit).await
        }))
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.find_dispatch(&[partition], dispatch).await
        }))
    }

    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.snapshot(partition, &entity).await
        }))
    }

    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            shared.reader.recording(partition, dispatch, attempt).await
        }))
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move {
            let partition = self.partition;
            self.shared().check_owned(partition)?;
            few_enough(&entities)?;
            if self.inner.writer.is_none() {
                return Err(read_only());
            }
            let inner = Arc::clone(&self.inner);
            // To its end, even if the caller goes away.
            PartitionJournal::read(self, pruning::prune(inner, partition, entities)).await
        })
    }

    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            entities::find(&shared.reader, partition, &entity).await
        }))
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Box::pin(async move {
            let partition = self.partition;
            self.shared().check_owned(partition)?;
            few_resting(&entities)?;
            self.inner.ask(|answer| Request::Rest(NoteRest { partition, entities, answer })).await
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move {
            entities::select(&shared.reader, &[partition], &which, after.as_ref(), limit).await
        }))
    }

    fn last(&self) -> Answer<'_, Position> {
        let (shared, partition) = (Arc::clone(self.shared()), self.partition);
        Box::pin(PartitionJournal::read(self, async move { shared.reader.last(partition).await }))
    }

    fn health(&self) -> Health {
        self.shared().health(self.partition)
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.shared().close(self.partition);
            let (done, finished) = oneshot::channel();
            let Some(writer) = &self.inner.writer else { return };
            if writer.send(Request::Barrier(done)).await.is_ok() {
                // If the database does not respond, its calls wait for it on.
                let limit = self.shared().settings.statement_limit;
                let _ = self.shared().connector.runtime().spawn(within(limit, finished)).await;
            }
        })
    }
}
