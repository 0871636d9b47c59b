//! A simulated disk: what is durable on it, what a crash leaves of the batches that are not yet
//! synced, and when it fails.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sandglass_journal::{Batch, Error, Journal as _, MemoryJournal, PAGE_MAX_ENTRIES, Positions};
use sandglass_model::{Position, Record};
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::fault::Fault;

/// Receives the result of a batch.
pub(crate) type Reply = oneshot::Sender<Result<Positions, Error>>;

/// The disk. It appends batches to the journal's own in-memory store, so that the real code checks
/// whether each batch fits.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    journal: Arc<MemoryJournal>,
    /// Batches that are not synced yet: a crash keeps a random number of them, from the first on.
    queue: Vec<(Batch, Reply)>,
    /// The last batch that was refused as not written. If a crash follows before another batch is
    /// written, this batch may turn out to be durable.
    limbo: Option<Batch>,
    /// All durable batches, for the fault that loses the last of them.
    history: Vec<Batch>,
    /// When it takes appends again, in milliseconds of simulated time.
    fails_until_ms: i64,
}

impl Disk {
    pub(crate) fn journal(&self) -> Arc<MemoryJournal> {
        Arc::clone(&self.journal)
    }

    pub(crate) fn fail_until(&mut self, until_ms: i64) {
        self.fails_until_ms = until_ms;
    }

    pub(crate) fn is_failing(&self, now_ms: i64) -> bool {
        now_ms < self.fails_until_ms
    }

    /// Queues a batch to be synced later. Returns the positions that its records get if every
    /// queued batch fits.
    pub(crate) fn give(&mut self, batch: Batch, reply: Reply) -> Positions {
        let before: usize = self.queue.iter().map(|(batch, _)| batch.records.len()).sum();
        let first = self.end().0 + before as u64 + 1;
        let last = first + batch.records.len() as u64 - 1;
        self.queue.push((batch, reply));
        Positions { first: Position(first), last: Position(last) }
    }

    pub(crate) fn has_queue(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Keeps a refused batch, which a crash may find on the disk. It replaces the batch that was
    /// refused before, so that there is at most one.
    pub(crate) fn refuse(&mut self, batch: Batch) {
        self.limbo = Some(batch);
    }

    /// Syncs all queued batches and returns each with its result and its receiver.
    pub(crate) fn sync(&mut self, keeps_history: bool) -> Vec<SyncedBatch> {
        let mut synced = Vec::new();
        for (batch, reply) in std::mem::take(&mut self.queue) {
            let answer = self.put(batch.clone());
            if answer.is_ok() {
                self.limbo = None;
                if keeps_history {
                    self.history.push(batch.clone());
                }
            }
            synced.push(SyncedBatch { batch, answer, reply });
        }
        synced
    }

    fn put(&self, batch: Batch) -> Result<Positions, Error> {
        // Tokio's cooperative budget could make this future pending, although it never waits.
        let answer = tokio::task::coop::unconstrained(self.journal.append(batch)).now_or_never();
        answer.unwrap_or(Err(Error::Closed))
    }

    fn end(&self) -> Position {
        self.journal.last().now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// Simulates a power failure. Returns the queued batches that became durable: the first few or
    /// all, each whole or not at all.
    pub(crate) fn crash(&mut self, dice: &Dice, fault: Option<Fault>) -> Vec<Survivor> {
        let limbo = self.limbo.take();
        let given = std::mem::take(&mut self.queue).into_iter().map(|(batch, _)| batch);
        let mut torn: Vec<Batch> = given.collect();
        if torn.is_empty() {
            // Only if nothing is queued: a batch that is written later overwrites the refused one.
            torn.extend(limbo);
        }
        let left = dice.below(torn.len() + 1);
        let cut = torn.get(left).cloned();
        torn.truncate(left);
        if fault == Some(Fault::TornBatch)
            && let Some(mut batch) = cut.filter(|batch| batch.records.len() > 1)
        {
            batch.records.truncate(1 + dice.below(batch.records.len() - 1));
            torn.push(batch);
        }
        if fault == Some(Fault::FalseSync) {
            self.take_back(1 + dice.below(3));
        }
        let keeps = fault == Some(Fault::FalseSync);
        let found = torn.into_iter().filter_map(|batch| {
            // A refused batch that was retried and written since no longer fits.
            let positions = self.put(batch.clone()).ok()?;
            if keeps {
                self.history.push(batch.clone());
            }
            Some(Survivor { batch, positions })
        });
        found.collect()
    }

    /// Loses the last batches, which were reported as synced.
    fn take_back(&mut self, batches: usize) {
        let left = self.history.len().saturating_sub(batches);
        self.history.truncate(left);
        self.journal = Arc::new(MemoryJournal::new());
        for batch in self.history.clone() {
            // Each batch fit behind the same batches before, so it fits again.
            let _ = self.put(batch);
        }
    }

    /// All durable records.
    pub(crate) fn records(&self) -> Vec<Record> {
        let (mut records, mut next) = (Vec::new(), Some(Position(0)));
        while let Some(from) = next {
            let page = self.journal.read(from, PAGE_MAX_ENTRIES).now_or_never();
            let Some(Ok(page)) = page else { break };
            next = page.next;
            records.extend(page.into_records().unwrap_or_default());
        }
        records
    }
}

/// A batch that was synced.
#[derive(Debug)]
pub(crate) struct SyncedBatch {
    pub(crate) batch: Batch,
    pub(crate) answer: Result<Positions, Error>,
    pub(crate) reply: Reply,
}

/// A batch that a crash left on the disk.
#[derive(Debug)]
pub(crate) struct Survivor {
    pub(crate) batch: Batch,
    pub(crate) positions: Positions,
}

/// The records of a batch that was appended at `positions`.
pub(crate) fn records(batch: &Batch, positions: Positions) -> Vec<Record> {
    let places = (positions.first.0..=positions.last.0).map(Position);
    let records = places.zip(&batch.records).map(|(position, (sequence, event))| Record {
        position,
        at: batch.at,
        entity: batch.entity.clone(),
        sequence: *sequence,
        event: event.clone(),
    });
    records.collect()
}
