//! Appends the records of another journal: the records of a decision in one batch, and all records of a
//! partition in their order.

use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::Poll;

use sandglass_journal::{
    BATCH_MAX_BYTES, BATCH_MAX_RECORDS, Batch, Error, Expected, Journal, Journals,
    QUEUE_MAX_BATCHES, RECORDING_MAX_BYTES, Recording,
};
use sandglass_model::{EntityRef, Record};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::threads;

/// Batches that wait to be appended: so few that all of them fit into the queue of a journal, which
/// then keeps their order.
const WAITING_MAX: usize = QUEUE_MAX_BATCHES / 2;
/// Their bytes, below the bound of a queue.
const WAITING_MAX_BYTES: usize = BATCH_MAX_BYTES / 2;

/// What was copied.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    /// Records, each spec once.
    pub(super) records: u64,
    pub(super) recordings: u64,
}

/// The journals that are appended to.
pub(super) struct Appending {
    threads: Runtime,
    journals: Journals,
    /// The batch that the next record may belong to, and its size.
    open: Option<(Batch, usize)>,
    /// For each journal, the batches that are appended next.
    waiting: Vec<Vec<Batch>>,
    batches: usize,
    bytes: usize,
    copied: Copied,
    appended: u64,
}

impl Appending {
    pub(super) fn new(journals: Journals) -> anyhow::Result<Self> {
        let waiting = vec![Vec::new(); journals.all().len()];
        let (copied, threads) = (Copied::default(), threads::start(Some(1))?);
        let (open, batches, bytes, appended) = (None, 0, 0, 0);
        Ok(Self { threads, journals, open, waiting, batches, bytes, copied, appended })
    }

    pub(super) const fn copied(&self) -> Copied {
        self.copied
    }

    /// How many records were sent to the journals, in which each spec may be several times.
    pub(super) const fn appended(&self) -> u64 {
        self.appended
    }

    /// Adds a record, and the recording of the handler that it ends.
    ///
    /// # Errors
    /// As [`Appending::flush`].
    pub(super) fn add(
        &mut self,
        record: Record,
        recording: Option<Recording>,
    ) -> anyhow::Result<()> {
        let recorded = recording.as_ref().map_or(0, |recording| recording.body.len());
        let size = serde_json::to_string(&record.event)?.len();
        self.copied.records += 1;
        self.copied.recordings += u64::from(recording.is_some());
        let Some(entity) = &record.entity else { return self.add_to_all(&record) };
        if !self.open.as_ref().is_some_and(|open| belongs(open, entity, &record, size, recorded)) {
            self.end_batch();
            let batch = Batch::new(entity.clone(), Expected::Any, record.at, Vec::new());
            self.open = Some((batch, 0));
        }
        if let Some((batch, bytes)) = &mut self.open {
            batch.records.push((record.sequence, record.event));
            batch.recordings.extend(recording);
            *bytes += size + recorded;
        }
        if self.batches >= WAITING_MAX || self.bytes >= WAITING_MAX_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    /// Appends a record about no entity to each journal, behind the records before it.
    fn add_to_all(&mut self, record: &Record) -> anyhow::Result<()> {
        self.finish()?;
        let records = vec![(record.sequence, record.event.clone())];
        let batch = Batch::new(None, Expected::Any, record.at, records);
        self.waiting.iter_mut().for_each(|waiting| waiting.push(batch.clone()));
        self.flush()
    }

    /// Appends all records so far.
    ///
    /// # Errors
    /// As [`Appending::flush`].
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        self.end_batch();
        self.flush()
    }

    fn end_batch(&mut self) {
        let Some((batch, bytes)) = self.open.take() else { return };
        let Some(entity) = &batch.entity else { return };
        let index = self.journals.index_of(entity);
        self.batches += 1;
        self.bytes += bytes;
        self.waiting[index].push(batch);
    }

    /// Appends the batches that are complete.
    ///
    /// # Errors
    /// Errors if a journal fails; batches of all journals may have been appended then.
    pub(super) fn flush(&mut self) -> anyhow::Result<()> {
        (self.batches, self.bytes) = (0, 0);
        let mut appending = JoinSet::new();
        for (waiting, journal) in self.waiting.iter_mut().zip(self.journals.all()) {
            let batches = take(waiting);
            let records = batches.iter().map(|batch| batch.records.len() as u64);
            self.appended += records.sum::<u64>();
            if !batches.is_empty() {
                let work = append_in_order(Arc::clone(journal), batches);
                appending.spawn_on(work, self.threads.handle());
            }
        }
        self.threads.block_on(async {
            while let Some(appended) = appending.join_next().await {
                appended??;
            }
            Ok(())
        })
    }

    /// Closes the journals.
    pub(super) fn close(self) {
        self.threads.block_on(self.journals.close());
    }
}

/// Whether a record is of the same decision as the batch, and fits into it.
fn belongs(
    (batch, bytes): &(Batch, usize),
    entity: &EntityRef,
    record: &Record,
    size: usize,
    recorded: usize,
) -> bool {
    let recordings: usize = batch.recordings.iter().map(|one| one.body.len()).sum();
    batch.entity.as_ref() == Some(entity)
        && batch.at == record.at
        && batch.records.len() < BATCH_MAX_RECORDS
        && bytes - recordings + size <= BATCH_MAX_BYTES
        && recordings + recorded <= RECORDING_MAX_BYTES
}

/// Appends batches one after the other. Those without recordings are in the queue of the journal as
/// soon as they were polled once, because it is not full, so the next one need not wait for them.
async fn append_in_order(journal: Arc<dyn Journal>, batches: Vec<Batch>) -> Result<(), Error> {
    let mut queued = Vec::new();
    for batch in batches {
        let is_recorded = !batch.recordings.is_empty();
        let mut append = journal.append(batch);
        match poll_fn(|context| Poll::Ready(append.as_mut().poll(context))).await {
            Poll::Ready(appended) => drop(appended?),
            Poll::Pending if is_recorded => drop(append.await?),
            Poll::Pending => queued.push(append),
        }
    }
    for append in queued {
        append.await?;
    }
    Ok(())
}
