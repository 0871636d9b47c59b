//! A simulated disk: what is on it for good, what a crash may leave of what it was given,
//! and when it fails.

use std::sync::Arc;

use futures_util::FutureExt as _;
use sandglass_journal::{Batch, Error, Journal as _, MemoryJournal, PAGE_MAX_ENTRIES, Positions};
use sandglass_model::{Position, Record};
use tokio::sync::oneshot;

use crate::dice::Dice;
use crate::fault::Fault;

/// Who waits for a batch.
pub(crate) type Reply = oneshot::Sender<Result<Positions, Error>>;

/// The disk. Its batches are appended to the journal's own store in memory, so that what
/// may follow what is decided there.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    journal: Arc<MemoryJournal>,
    /// Given to it and not synced: a crash leaves as many of the first ones as it likes.
    queue: Vec<(Batch, Reply)>,
    /// The last one that was answered as not written: where a crash comes before the disk has
    /// taken anything since, it may be there all the same.
    limbo: Option<Batch>,
    /// All that is durable, batch by batch, for a fault that takes it back.
    history: Vec<Batch>,
    /// Until when it takes no appends, in milliseconds of the story.
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

    /// Gives it a batch to sync later; answers where its records will be, if it is the next.
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

    /// Refuses a batch, which a crash may find all the same. It stands where the one that was
    /// refused before it stood, so that there is never more than one.
    pub(crate) fn refuse(&mut self, batch: Batch) {
        self.limbo = Some(batch);
    }

    /// Syncs all that it was given: each batch, what came of it, and who waits.
    pub(crate) fn sync(&mut self, keeps_history: bool) -> Vec<Synced> {
        let mut synced = Vec::new();
        for (batch, reply) in std::mem::take(&mut self.queue) {
            let answer = self.put(batch.clone());
            if answer.is_ok() {
                self.limbo = None;
                if keeps_history {
                    self.history.push(batch.clone());
                }
            }
            synced.push(Synced { batch, answer, reply });
        }
        synced
    }

    fn put(&self, batch: Batch) -> Result<Positions, Error> {
        // Without tokio's budget, which makes a future wait that needn't.
        let answer = tokio::task::coop::unconstrained(self.journal.append(batch)).now_or_never();
        answer.unwrap_or(Err(Error::Closed))
    }

    fn end(&self) -> Position {
        self.journal.last().now_or_never().and_then(Result::ok).unwrap_or_default()
    }

    /// The power goes: the batches that turn out to be there besides, all or a first part of
    /// what it was given, each whole or not at all.
    pub(crate) fn crash(&mut self, dice: &Dice, fault: Option<Fault>) -> Vec<Survivor> {
        let limbo = self.limbo.take();
        let given = std::mem::take(&mut self.queue).into_iter().map(|(batch, _)| batch);
        let mut torn: Vec<Batch> = given.collect();
        if torn.is_empty() {
            // What is written next goes over it.
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
            // One that was tried again, and is there by now, doesn't fit.
            let positions = self.put(batch.clone()).ok()?;
            if keeps {
                self.history.push(batch.clone());
            }
            Some(Survivor { batch, positions })
        });
        found.collect()
    }

    /// Loses the last batches, which it said it had.
    fn take_back(&mut self, batches: usize) {
        let left = self.history.len().saturating_sub(batches);
        self.history.truncate(left);
        self.journal = Arc::new(MemoryJournal::new());
        for batch in self.history.clone() {
            // It was there, behind the same ones.
            let _ = self.put(batch);
        }
    }

    /// All that is on it.
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
pub(crate) struct Synced {
    pub(crate) batch: Batch,
    pub(crate) answer: Result<Positions, Error>,
    pub(crate) reply: Reply,
}

/// A batch that a crash has left.
#[derive(Debug)]
pub(crate) struct Survivor {
    pub(crate) batch: Batch,
    pub(crate) positions: Positions,
}

/// The records of a batch that was put there.
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
