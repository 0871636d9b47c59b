//! Appends the records of another journal: the records of a decision in one batch, and all records of a
//! partition in their order.

use std::future::poll_fn;
use std::mem::take;
use std::sync::Arc;
use std::task::Poll;

use anyhow::{Context as _, ensure};
use sandglass_journal::{
    BATCH_MAX_BYTES, BATCH_MAX_RECORDS, Batch, Error, Expected, Journal, Journals, Positions,
    QUEUE_MAX_BATCHES, RECORDING_MAX_BYTES, Recording,
};
use sandglass_model::{EntityRef, Position, Record};
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, unconstrained};

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
    /// The position behind the last record of each journal, once it is known.
    next: Vec<Option<Position>>,
    batches: usize,
    bytes: usize,
    copied: Copied,
    appended: u64,
}

impl Appending {
    pub(super) fn new(journals: Journals) -> anyhow::Result<Self> {
        let waiting = vec![Vec::new(); journals.all().len()];
        let next = vec![None; journals.all().len()];
        let (copied, threads) = (Copied::default(), threads::start(Some(1))?);
        let (open, batches, bytes, appended) = (None, 0, 0, 0);
        Ok(Self { threads, journals, open, waiting, next, batches, bytes, copied, appended })
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
        for (index, (waiting, journal)) in
            self.waiting.iter_mut().zip(self.journals.all()).enumerate()
        {
            let batches = take(waiting);
            let records = batches.iter().map(|batch| batch.records.len() as u64);
            self.appended += records.sum::<u64>();
            if !batches.is_empty() {
                let work = append_in_order(Arc::clone(journal), self.next[index], batches);
                let work = async move { work.await.map(|next| (index, next)) };
                appending.spawn_on(work, self.threads.handle());
            }
        }
        let next = &mut self.next;
        self.threads.block_on(async {
            while let Some(appended) = appending.join_next().await {
                let (index, behind) = appended??;
                next[index] = Some(behind);
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

/// Appends batches one after the other; returns the position behind them. They are in the queue of the
/// journal as soon as they were polled once, because it is not full, so the next one need not wait for
/// them. Those with recordings are waited for, because a journal may store these first.
///
/// `next` is the position behind the last record; it is read if it is not known.
async fn append_in_order(
    journal: Arc<dyn Journal>,
    next: Option<Position>,
    batches: Vec<Batch>,
) -> anyhow::Result<Position> {
    let mut next = match next {
        Some(next) => next,
        None => Position(journal.last().await?.0.saturating_add(1)),
    };
    let mut queued = Vec::new();
    for batch in batches {
        let (place, is_recorded) = (Place::of(next, &batch), !batch.recordings.is_empty());
        next = Position(next.0.saturating_add(batch.records.len() as u64));
        // Without the budget of tasks, which lets a poll return before the batch is in the queue.
        let mut append = Box::pin(unconstrained(journal.append(batch)));
        match poll_fn(|context| Poll::Ready(append.as_mut().poll(context))).await {
            Poll::Ready(appended) => place.check(appended)?,
            Poll::Pending if is_recorded => place.check(append.await)?,
            Poll::Pending => queued.push((place, append)),
        }
    }
    for (place, append) in queued {
        place.check(append.await)?;
    }
    Ok(next)
}

/// Where a batch has to be.
struct Place {
    first: Position,
    of: String,
}

impl Place {
    fn of(first: Position, batch: &Batch) -> Self {
        let of = batch.entity.as_ref().map_or_else(|| "no entity".to_owned(), ToString::to_string);
        Self { first, of }
    }

    /// Checks that the batch was appended there.
    fn check(&self, appended: Result<Positions, Error>) -> anyhow::Result<()> {
        let Self { first: Position(first), of } = self;
        let positions = appended
            .with_context(|| format!("appending records of {of} at position {first} failed"))?;
        ensure!(
            positions.first.0 == *first,
            "records of {of} are at position {} instead of {first}: another process may write the \
             target; remove it, and copy again",
            positions.first.0
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use sandglass_journal::conformance::{created, dispatched, ended, recording, session, signal};
    use sandglass_journal::{Settings, SqliteJournal};
    use sandglass_model::{DispatchId, Event, Sequence, WallTime};

    use super::*;

    /// More batches than a task may wait for at once, before one with a recording, which is stored first.
    #[test]
    fn many_batches_before_a_recording_stay_in_order() -> anyhow::Result<()> {
        let folder = tempfile::tempdir()?;
        let opened = SqliteJournal::open(folder.path().join("copy.db"), Settings::default())?;
        let journal: Arc<dyn Journal> = Arc::new(opened.journal);
        let mut appending = Appending::new(Arc::clone(&journal).into())?;
        let (entity, dispatch) = (session("a"), DispatchId::from_bytes([7; 16]));
        let signals = (0..200_u64).map(|number| (signal(number), None));
        let end = (ended(dispatch, 1), Some(recording(dispatch, 1, 100_000)));
        let events: Vec<(Event, Option<Recording>)> =
            [(created(), None), (dispatched(dispatch, 1), None)]
                .into_iter()
                .chain(signals)
                .chain([end])
                .collect();
        for (number, (event, recording)) in (1_i64..).zip(events.iter().cloned()) {
            let position = Position(number.unsigned_abs());
            // Each is a decision of its own.
            let (sequence, at) = (Sequence(0), WallTime::from_millis(number));
            let entity = Some(entity.clone());
            appending.add(Record { position, at, entity, sequence, event }, recording)?;
        }
        appending.finish()?;
        let page = appending.threads.block_on(journal.read(Position(1), 1_000))?;
        let found: Vec<Event> = page
            .entries
            .into_iter()
            .map(|entry| entry.into_record().map(|record| record.event))
            .collect::<Result<_, _>>()?;
        assert_eq!(found, events.into_iter().map(|(event, _)| event).collect::<Vec<_>>());
        appending.close();
        Ok(())
    }
}
