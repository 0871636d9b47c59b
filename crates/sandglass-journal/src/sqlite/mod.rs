//! The journal in one SQLite file: a writer thread with group commit, a reader thread, and the
//! checks at its opening.

mod awake;
mod backup;
mod check;
mod defense;
mod entities;
mod fault;
mod file;
mod groups;
mod in_use;
mod log;
mod place;
mod pruned;
mod reader;
mod recording;
mod row;
mod salvage;
mod snapshot;
mod tail;
mod writer;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rusqlite::Connection;
use sandglass_model::{DispatchId, EntityRef, Position};
use tokio::sync::{Semaphore, mpsc, oneshot};

pub use backup::{BackedUp, Copied};
pub use check::CheckProgress;
pub use file::{APPLICATION_ID, FORMAT};
pub use groups::GroupSizes;
pub use reader::SqliteReader;
pub use salvage::{Found, Salvage};
pub use tail::TornRecord;

use crate::store::{Failing, Failures};
use crate::{
    Answer, BATCH_MAX_BYTES, BATCH_MAX_RECORDS, Batch, ByEntity, EntityEntry, Error, Health,
    Journal, OfKinds, Page, Pending, Place, Positions, RECORDING_MAX_BYTES, Resting,
    SNAPSHOT_MAX_BYTES, Select, Selected, SelectedPlace, Snapshot,
};
use awake::Awake;
use writer::{Job, NoteRest, Prune, Request, Writer};

/// Most batches in the writer's queue; further callers wait outside. Several full groups, so that
/// the writer never waits for its callers.
pub const QUEUE_MAX_BATCHES: usize = 1024;
/// Most bytes in the writer's queue: two batches of the largest records, or one with the largest
/// recordings, too.
pub const QUEUE_MAX_BYTES: usize = 2 * BATCH_MAX_BYTES;
const _: () = assert!(
    BATCH_MAX_BYTES + RECORDING_MAX_BYTES + SNAPSHOT_MAX_BYTES <= QUEUE_MAX_BYTES,
    "every batch fits"
);
/// Most records of one transaction, and so the most that one write can tear. In a longer group, the
/// share of each record in the sync is no longer noticeable.
pub const GROUP_MAX_RECORDS: usize = 4 * BATCH_MAX_RECORDS;
/// Most reads in the reader's queue; further callers wait outside.
const QUEUE_MAX_READS: usize = 64;

/// How a journal is stored.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Settings {
    /// Largest size of the file, in bytes; appends beyond it return [`Error::Unavailable`]. `None`
    /// leaves it to the disk.
    pub max_bytes: Option<u64>,
    /// How much of it is read when it is opened.
    pub checking: Checking,
}

/// When a journal is checked completely, which reads all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checking {
    /// When it is opened: a damaged journal is refused.
    #[default]
    AtOpening,
    /// Later, by [`SqliteJournal::check`]: opening reads only the end, which alone can be torn. A
    /// journal of an earlier format is read completely nevertheless, before it is converted.
    Later,
}

impl Settings {
    /// Settings with a largest size of the file, in bytes.
    #[must_use]
    pub fn max_bytes(self, bytes: u64) -> Self {
        Self { max_bytes: Some(bytes), ..self }
    }
}

impl Settings {
    /// Settings with a time of the complete check.
    #[must_use]
    pub fn checking(self, checking: Checking) -> Self {
        Self { checking, ..self }
    }
}

/// An opened journal, and what was found at its end.
#[derive(Debug)]
pub struct Opened {
    /// The journal.
    pub journal: SqliteJournal,
    /// Records that were incomplete and set aside; usually none.
    pub recovered: Vec<TornRecord>,
}

/// A journal in an SQLite file, which no other process can write meanwhile.
///
/// If it is dropped without [`Journal::close`], it finishes the calls so far, and waits for its
/// thread.
#[derive(Debug)]
pub struct SqliteJournal {
    // Before the writer, so that the reader has released the file when the writer closes it, and
    // nothing but the one file is left.
    reader: Lane<ReadRequest>,
    writer: Lane<Request>,
    room: Arc<Semaphore>,
    failing: Failing,
    groups: Arc<groups::Counters>,
    closed: AtomicBool,
    path: PathBuf,
}

impl SqliteJournal {
    /// Whether another process has the journal at `path` open for writing; `None` if that cannot be
    /// determined: on systems other than Linux, and for processes that are not visible here.
    #[must_use]
    pub fn has_writer(path: impl AsRef<Path>) -> Option<bool> {
        in_use::has_writer(&path.as_ref().canonicalize().ok()?)
    }

    /// Opens the journal at `path`, or creates it if nothing or an empty file is there. Links are
    /// followed first; a file with several names is refused. Checks it as the settings state, and
    /// converts an earlier format to [`FORMAT`]; blocks meanwhile.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if another process has it open or I/O fails; [`Error::Foreign`] and
    /// [`Error::Newer`] without a change to the file; [`Error::Damaged`] if anything but the last
    /// batches is incomplete.
    pub fn open(path: impl AsRef<Path>, settings: Settings) -> Result<Opened, Error> {
        let path = &place::find_or_new(path.as_ref())?;
        // Checked before the lock file is created, so that a mistyped path leaves nothing behind,
        // and again under the lock, when no other process changes it.
        let held = file::lock_if_made(path)?;
        file::look(path)?;
        let lock = held.map_or_else(|| file::lock(path), Ok)?;
        let present = file::look(path)?;
        file::refuse_rollback(path)?;
        let unfinished = log::unfinished(path)?;
        let opened = open_whole(path, present, &settings);
        let (connection, mut recovered) = opened.inspect_err(|_| file::remove_empty_log(path))?;
        let mut reading = SqliteReader::open(path)?;
        if let Some(what) = unfinished {
            let position = Position(reading.last()?.0.saturating_add(1));
            recovered.push(TornRecord { position, what });
        }
        for torn in &recovered {
            tracing::warn!(position = %torn.position, what = %torn.what, "set a torn record aside");
        }
        let failing = Failing::default();
        let groups = Arc::new(groups::Counters::default());
        let writer = Lane::start("sandglass-journal-writer", QUEUE_MAX_BATCHES, {
            let path = path.to_owned();
            let (failures, groups) = (Failures::new(failing.clone()), Arc::clone(&groups));
            move |requests| {
                let awake = Awake::default();
                Writer { connection, path, requests, failures, groups, awake, lock }.run()
            }
        })?;
        let reader = Lane::start("sandglass-journal-reader", QUEUE_MAX_READS, move |requests| {
            serve_reads(reading, requests);
        })?;
        let room = Arc::new(Semaphore::new(QUEUE_MAX_BYTES));
        let (closed, path) = (AtomicBool::new(false), path.to_owned());
        let journal = Self { reader, writer, room, failing, groups, closed, path };
        Ok(Opened { journal, recovered })
    }

    /// Opens the journal at `path` for reading only: without lock or change, even while another
    /// process writes it.
    ///
    /// # Errors
    /// [`Error::Foreign`], [`Error::Newer`], [`Error::Damaged`] and
    /// [`Error::Unavailable`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<SqliteReader, Error> {
        SqliteReader::open(path.as_ref())
    }

    /// Reads the whole journal, as [`SqliteReader::check`], while it is in use. If it is damaged, the
    /// [health](Journal::health) states that from then on.
    ///
    /// # Errors
    /// As [`SqliteReader::check`].
    pub fn check(&self, progress: &CheckProgress) -> Result<Option<Position>, Error> {
        let checked = SqliteReader::open(&self.path)?.check(progress);
        if let Err(error @ Error::Damaged { .. }) = &checked {
            self.failing.note_damage(error.to_string());
        }
        checked
    }

    /// How many batches its transactions have had since it was opened.
    #[must_use]
    pub fn group_sizes(&self) -> GroupSizes {
        self.groups.read()
    }

    async fn submit(&self, batch: Batch) -> Result<Positions, Error> {
        let (lines, bytes) = batch.lines()?;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let room = Arc::clone(&self.room);
        let room = room.acquire_many_owned(bytes).await.map_err(|_| Error::Closed)?;
        self.writer.ask(|answer| Request::Append(Job { batch, lines, answer, room })).await?
    }

    /// Calls `read` on the reader's thread.
    fn read_by<T: Send + 'static>(
        &self,
        read: impl FnOnce(&mut SqliteReader) -> Result<T, Error> + Send + 'static,
    ) -> Answer<'_, T> {
        let request = |answer: oneshot::Sender<Result<T, Error>>| {
            ReadRequest::Read(Box::new(move |reader| {
                // The caller may have gone away.
                let _ = answer.send(read(reader));
            }))
        };
        Box::pin(async move { self.reader.ask(request).await? })
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }
}

impl Journal for SqliteJournal {
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Box::pin(async move {
            if self.is_closed() { Err(Error::Closed) } else { self.submit(batch).await }
        })
    }

    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        self.read_by(move |reader| reader.read(from, limit))
    }

    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        self.read_by(move |reader| reader.read_entity(&entity, from, limit))
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        self.read_by(move |reader| reader.read_kinds(kinds, from, limit))
    }

    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        self.read_by(move |reader| reader.read_by_entity(after.as_ref(), limit))
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        self.read_by(move |reader| reader.find_dispatch(dispatch))
    }

    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        self.read_by(move |reader| reader.snapshot_of(&entity))
    }

    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>> {
        self.read_by(move |reader| reader.recording(dispatch, attempt))
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move {
            if self.is_closed() {
                return Err(Error::Closed);
            }
            crate::batch::few_enough(&entities)?;
            self.writer.ask(|answer| Request::Prune(Prune { entities, answer })).await?
        })
    }

    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        self.read_by(move |reader| reader.last_of(&entity))
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Box::pin(async move {
            if self.is_closed() {
                return Err(Error::Closed);
            }
            crate::entities::few_enough(&entities)?;
            self.writer.ask(|answer| Request::Rest(NoteRest { entities, answer })).await?
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        self.read_by(move |reader| reader.select(&which, after.as_ref(), limit))
    }

    fn last(&self) -> Answer<'_, Position> {
        self.read_by(SqliteReader::last)
    }

    fn health(&self) -> Health {
        if self.is_closed() {
            return Health::Closed;
        }
        self.failing.why().map_or(Health::Working, |what| Health::Failing { what })
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.closed.store(true, Ordering::Release);
            // An error means that it is closed already.
            let _ = self.reader.ask(ReadRequest::Close).await;
            let _ = self.writer.ask(Request::Close).await;
        })
    }
}

/// Opens a journal for writing, and refuses it unchanged if it is not intact.
fn open_whole(
    path: &Path,
    present: file::Present,
    settings: &Settings,
) -> Result<(Connection, Vec<TornRecord>), Error> {
    let mut connection = file::open_writer(path, present, settings)?;
    let failed = |error: rusqlite::Error| fault::of(path, "checking", &error);
    let format = file::stamp(&connection).map_err(failed)?.1;
    let checking = if format < FORMAT { Checking::AtOpening } else { settings.checking };
    let recovered = tail::recover(&mut connection, path, checking)?;
    file::begin_writing(&connection, path)?;
    file::upgrade(&mut connection, path)?;
    // The table of a journal that was just converted is new.
    if checking == Checking::AtOpening
        && format == FORMAT
        && let Some(why) = entities::flaw(&connection).map_err(failed)?
    {
        file::rebuild_entities(&mut connection, path, &why).map_err(failed)?;
    }
    Ok((connection, recovered))
}

/// A thread with a bounded queue of requests; ends when dropped.
struct Lane<R> {
    requests: Option<mpsc::Sender<R>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<R> fmt::Debug for Lane<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").finish_non_exhaustive()
    }
}

impl<R: Send + 'static> Lane<R> {
    fn start(
        name: &str,
        queue: usize,
        serve: impl FnOnce(mpsc::Receiver<R>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (requests, receiver) = mpsc::channel(queue);
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || serve(receiver))
            .map_err(|error| Error::Unavailable {
                what: format!("starting the journal's thread failed: {error}"),
            })?;
        Ok(Self { requests: Some(requests), thread: Mutex::new(Some(thread)) })
    }

    /// The answer to the request that `request` makes.
    async fn ask<A>(&self, request: impl FnOnce(oneshot::Sender<A>) -> R) -> Result<A, Error> {
        let (answer, answered) = oneshot::channel();
        let requests = self.requests.as_ref().ok_or(Error::Closed)?;
        requests.send(request(answer)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)
    }
}

impl<R> Drop for Lane<R> {
    fn drop(&mut self) {
        drop(self.requests.take());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // The thread has reported its panic itself.
            let _ = thread.join();
        }
    }
}

enum ReadRequest {
    Read(Box<dyn FnOnce(&mut SqliteReader) + Send>),
    Close(oneshot::Sender<()>),
}

fn serve_reads(mut reader: SqliteReader, mut requests: mpsc::Receiver<ReadRequest>) {
    while let Some(request) = requests.blocking_recv() {
        match request {
            ReadRequest::Read(read) => read(&mut reader),
            ReadRequest::Close(closed) => {
                drop(reader);
                let _ = closed.send(());
                return;
            }
        }
    }
}
