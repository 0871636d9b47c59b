//! The thread that writes: all waiting batches in one transaction and with one sync, then all
//! results. It alone holds the journal's lock.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, Transaction, TransactionBehavior};
use sandglass_model::{EntityRef, Position};
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::awake::Awake;
use super::file::WriterLock;
use super::groups::Counters;
use super::row::{self, Row};
use super::{GROUP_MAX_RECORDS, entities, fault, pruned, reader, recording, snapshot};
use crate::batch::{Line, recorded_twice};
use crate::store::Failures;
use crate::{Batch, Error, LastRecord, Positions, Resting};

/// A request to the writer.
#[derive(Debug)]
pub(super) enum Request {
    Append(Job),
    Prune(Prune),
    Rest(NoteRest),
    Close(oneshot::Sender<()>),
}

/// Entities to remove, and their last records.
#[derive(Debug)]
pub(super) struct Prune {
    pub(super) entities: Vec<(EntityRef, Position)>,
    pub(super) answer: oneshot::Sender<Result<Vec<u64>, Error>>,
}

/// Entities whose rest is to be noted.
#[derive(Debug)]
pub(super) struct NoteRest {
    pub(super) entities: Vec<Resting>,
    pub(super) answer: oneshot::Sender<Result<(), Error>>,
}

/// A waiting batch.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) batch: Batch,
    pub(super) lines: Vec<Line>,
    pub(super) answer: oneshot::Sender<Result<Positions, Error>>,
    /// Its share of the queue's bytes.
    pub(super) room: OwnedSemaphorePermit,
}

#[derive(Debug)]
pub(super) struct Writer {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) requests: mpsc::Receiver<Request>,
    pub(super) failures: Failures,
    pub(super) groups: Arc<Counters>,
    pub(super) awake: Awake,
    pub(super) lock: WriterLock,
}

impl Writer {
    /// Works until it is requested to close, or until all senders are gone.
    pub(super) fn run(mut self) {
        let mut closing = None;
        while closing.is_none() {
            let Some(request) = self.requests.blocking_recv() else { break };
            let (group, last) = self.gather(request);
            self.write(group);
            match last {
                Some(Request::Close(closed)) => closing = Some(closed),
                Some(Request::Prune(prune)) => {
                    // The caller may have gone away.
                    let _ = prune.answer.send(self.prune(&prune.entities));
                }
                Some(Request::Rest(note)) => {
                    let _ = note.answer.send(self.rest(&note.entities));
                }
                Some(Request::Append(_)) | None => {}
            }
        }
        // Requests behind the one to close are not served: they return that the journal is closed.
        self.requests.close();
        self.finish();
        if let Some(closed) = closing {
            // The caller may have gone away.
            let _ = closed.send(());
        }
    }

    /// The first request, and all others that wait by now, up to one that appends nothing.
    fn gather(&mut self, first: Request) -> (Vec<Job>, Option<Request>) {
        let (mut group, mut records) = (Vec::new(), 0);
        let mut next = Some(first);
        while let Some(request) = next {
            match request {
                Request::Append(job) => {
                    records += job.lines.len();
                    group.push(job);
                }
                last => return (group, Some(last)),
            }
            // A further batch has at most half of a group's records.
            let full = records > GROUP_MAX_RECORDS / 2;
            next = if full { None } else { self.requests.try_recv().ok() };
        }
        (group, None)
    }

    fn write(&mut self, group: Vec<Job>) {
        if group.is_empty() {
            return;
        }
        let written = self.commit(&group);
        if written.is_err() {
            self.awake.forget_all();
        }
        self.failures.note(&written, group.len());
        let answers = match written {
            Ok(answers) => answers,
            Err(error) => vec![Err(error); group.len()],
        };
        for (job, answer) in group.into_iter().zip(answers) {
            // The caller may have gone away; the batch is in the journal nevertheless.
            let _ = job.answer.send(answer);
            drop(job.room);
        }
    }

    /// Appends all batches of the group that may follow, or none if the disk fails. A batch is
    /// admitted before the first of its rows is written, so one that is refused leaves nothing
    /// behind.
    fn commit(&mut self, group: &[Job]) -> Result<Vec<Result<Positions, Error>>, Error> {
        let Self { connection, path, awake, .. } = self;
        let failed = |error: rusqlite::Error| fault::of(path, "appending to", &error);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let before = reader::given_out(&transaction).map_err(failed)?;
        let (mut last, mut answers) = (before, Vec::with_capacity(group.len()));
        let mut insert = transaction.prepare_cached(row::INSERT).map_err(failed)?;
        for job in group {
            let answer = append((&transaction, &mut insert), awake, job, last).map_err(failed)?;
            if let Ok(positions) = &answer {
                last = i64::try_from(positions.last.0).unwrap_or(i64::MAX);
            }
            answers.push(answer);
        }
        drop(insert);
        if last == before {
            return Ok(answers);
        }
        move_head(&transaction, before, last).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        self.groups.count(group.len());
        Ok(answers)
    }

    /// Removes entities in one transaction; returns how many records each had.
    fn prune(&mut self, entities: &[(EntityRef, Position)]) -> Result<Vec<u64>, Error> {
        entities.iter().for_each(|(entity, _)| self.awake.forget(entity));
        let mut run = || -> rusqlite::Result<Vec<u64>> {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            let remove = |(entity, last): &(EntityRef, Position)| {
                pruned::remove(&transaction, entity, *last)
            };
            let removed = entities.iter().map(remove).collect::<rusqlite::Result<Vec<u64>>>()?;
            transaction.commit()?;
            Ok(removed)
        };
        run().map_err(|error| fault::of(&self.path, "pruning", &error))
    }

    /// Notes in one transaction how entities rest.
    fn rest(&mut self, entities: &[Resting]) -> Result<(), Error> {
        entities.iter().for_each(|resting| self.awake.forget(&resting.entity));
        let mut run = || -> rusqlite::Result<()> {
            let transaction =
                self.connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
            entities.iter().try_for_each(|resting| entities::rest(&transaction, resting))?;
            transaction.commit()
        };
        run().map_err(|error| fault::of(&self.path, "noting which entities rest in", &error))
    }

    /// Moves the log into the file and removes it, so that one file is the whole journal.
    fn finish(self) {
        // Readers are not waited for: what stays in the log is not lost.
        let _ = self.connection.busy_timeout(Duration::ZERO);
        let checkpoint =
            self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = checkpoint {
            tracing::warn!(%error, "moving the journal's log into its file failed; it is kept");
        }
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "closing the journal failed");
        }
        drop(self.lock);
    }
}

/// The inner result is the batch's, the outer one the disk's.
fn append(
    (transaction, insert): (&Transaction<'_>, &mut CachedStatement<'_>),
    awake: &mut Awake,
    job: &Job,
    last: i64,
) -> rusqlite::Result<Result<Positions, Error>> {
    let entity = job.batch.entity.as_ref();
    let known = entity.and_then(|entity| awake.last(entity));
    let found = match (known, entity) {
        (None, Some(entity)) => entities::last_record(transaction, entity)?,
        (known, _) => known,
    };
    if let Err(refused) = job.batch.admit(found) {
        return Ok(Err(refused));
    }
    let end = last.saturating_add(i64::try_from(job.lines.len()).unwrap_or(i64::MAX));
    let rows: Option<Vec<Row<'_>>> = (last + 1..)
        .zip(&job.lines)
        .map(|(position, line)| Row::new((position, end), job.batch.at, entity, line))
        .collect();
    let Some(rows) = rows else {
        return Ok(Err(Error::Invalid { what: "a sequence is out of range".to_owned() }));
    };
    if let Some(known) = recording::insert(transaction, &job.batch, last + 1)? {
        return Ok(Err(recorded_twice(known)));
    }
    rows.iter().try_for_each(|row| row.insert(insert))?;
    if let (Some(entity), Some(last_line)) = (entity, job.lines.last()) {
        if known.is_none() {
            entities::wake(transaction, entity, found.is_none())?;
        }
        let (position, sequence) = (reader::position(end), last_line.sequence);
        awake.append(entity, LastRecord { position, sequence });
        if let Some(body) = &job.batch.snapshot {
            snapshot::put(transaction, entity, end, body)?;
        }
    }
    let place = |key| Position(u64::try_from(key).unwrap_or_default());
    Ok(Ok(Positions { first: place(last + 1), last: place(end) }))
}

/// Notes the last used position, and the one before it.
fn move_head(transaction: &Transaction<'_>, before: i64, last: i64) -> rusqlite::Result<usize> {
    transaction
        .prepare_cached("UPDATE head SET before = ?1, position = ?2")?
        .execute([before, last])
}
