//! A group of batches that one statement appends: which of them may follow, and at which positions.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_journal::store::{Line, recorded_twice};
use sandglass_journal::{Batch, Error, LastRecord, Positions};
use sandglass_model::{DispatchId, EntityRef, Partition, Sequence};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::blobs::Named;
use crate::heads::{Head, Known};
use crate::row::{position, sequence};

/// A waiting batch.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) partition: Partition,
    pub(crate) batch: Batch,
    pub(crate) lines: Vec<Line>,
    pub(crate) bytes: usize,
    /// Its recordings as they are named, in their order.
    pub(crate) named: Vec<Named>,
    pub(crate) answer: oneshot::Sender<Result<Positions, Error>>,
    /// Its share of the queue's bytes.
    pub(crate) room: OwnedSemaphorePermit,
}

impl Job {
    pub(crate) fn answer(self, result: Result<Positions, Error>) {
        // The caller may have gone away; what is in the journal stays there.
        let _ = self.answer.send(result);
        drop(self.room);
    }
}

/// A batch with its positions.
#[derive(Debug)]
pub(crate) struct Placed {
    pub(crate) job: Job,
    pub(crate) first: i64,
    pub(crate) last: i64,
    /// The position of its entity's first record.
    pub(crate) key: Option<i64>,
    /// Whether the table of entities has to be written: the entity is new or rested.
    pub(crate) wakes: bool,
}

impl Placed {
    pub(crate) fn positions(&self) -> Positions {
        Positions { first: position(self.first), last: position(self.last) }
    }

    /// What is known of its entity once it is appended.
    pub(crate) fn known(&self) -> Option<(EntityRef, Known)> {
        let (entity, key) = self.job.batch.entity.clone().zip(self.key)?;
        let sequence = self.job.lines.last().map_or(Sequence(0), |line| line.sequence);
        let last = LastRecord { position: position(self.last), sequence };
        Some((entity, Known { key, last, rests: false }))
    }
}

/// What the database contains of the entities of a group, and of its recordings as far as they were
/// looked up.
#[derive(Debug, Default)]
pub(crate) struct Present {
    pub(crate) entities: BTreeMap<(Partition, EntityRef), Known>,
    pub(crate) recordings: BTreeSet<(Partition, DispatchId, u32)>,
}

/// Batches that may be appended together, and those that are refused if the others are appended.
#[derive(Debug, Default)]
pub(crate) struct Group {
    pub(crate) placed: Vec<Placed>,
    pub(crate) refused: Vec<(Job, Error)>,
}

impl Group {
    /// Gives positions to the batches that may follow, each after the ones before it.
    pub(crate) fn new(
        jobs: Vec<Job>,
        heads: &BTreeMap<Partition, Head>,
        mut present: Present,
    ) -> Self {
        let mut group = Self::default();
        let mut ends: BTreeMap<Partition, i64> = BTreeMap::new();
        for job in jobs {
            let partition = job.partition;
            let end = *ends
                .entry(partition)
                .or_insert_with(|| heads.get(&partition).map_or(0, |head| head.last));
            match admit(&job, &present) {
                Err(error) => group.refused.push((job, error)),
                Ok(found) => {
                    let count = i64::try_from(job.lines.len()).unwrap_or(i64::MAX);
                    let (first, last) = (end + 1, end.saturating_add(count));
                    let key = job.batch.entity.as_ref().map(|_| found.map_or(first, |it| it.key));
                    let wakes = found.is_none_or(|known| known.rests) && key.is_some();
                    let placed = Placed { job, first, last, key, wakes };
                    ends.insert(partition, last);
                    present.follow(&placed);
                    group.placed.push(placed);
                }
            }
        }
        group
    }
}

impl Present {
    fn follow(&mut self, placed: &Placed) {
        let partition = placed.job.partition;
        if let Some((entity, known)) = placed.known() {
            self.entities.insert((partition, entity), known);
        }
        for recording in &placed.job.batch.recordings {
            self.recordings.insert((partition, recording.dispatch, recording.attempt));
        }
    }
}

/// What is known of the entity of a batch that may be appended.
fn admit(job: &Job, present: &Present) -> Result<Option<Known>, Error> {
    let Job { partition, batch, lines, .. } = job;
    let invalid = |what: &str| Error::Invalid { what: what.to_owned() };
    let entity = batch.entity.as_ref();
    let known = entity.and_then(|it| present.entities.get(&(*partition, it.clone())).copied());
    batch.admit(known.map(|known| known.last))?;
    if lines.iter().any(|line| sequence(line).is_none()) {
        return Err(invalid("a sequence is out of range"));
    }
    if batch.snapshot.as_ref().is_some_and(|body| body.contains('\0')) {
        return Err(invalid("its snapshot contains a zero byte"));
    }
    let is_recorded = |one: &&sandglass_journal::Recording| {
        present.recordings.contains(&(*partition, one.dispatch, one.attempt))
    };
    match batch.recordings.iter().find(is_recorded) {
        Some(recording) => Err(recorded_twice(recording)),
        None => Ok(known),
    }
}
