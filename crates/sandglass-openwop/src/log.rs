//! The log of one run: its records are read and projected to events once for all readers, and each
//! reader follows it at its own pace.

use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use sandglass_http::timer::within;
use sandglass_journal::{Journals, PAGE_MAX_ENTRIES};
use sandglass_model::{EntityRef, Event, Position, WallTime};
use tokio::sync::{Mutex, Notify, watch};

use sandglass_workflow::definition::Definition;
use sandglass_workflow::event::{Causes, Entry, RunEvent};
use sandglass_workflow::projection::{Projection, Unreadable};
use sandglass_workflow::state::RunState;

/// How long after a failure the records are read again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Why the state of a run cannot be computed from its records.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the run's records can't be read: {0}")]
    Journal(#[from] sandglass_journal::Error),
    #[error(transparent)]
    Record(#[from] Unreadable),
    #[error("the run's first record can't be read")]
    NoBeginning,
    #[error("the run was removed while it was read, and its id is used again")]
    IdReused,
    #[error("the definition {digest} of workflow `{workflow}` isn't in the journal")]
    NoDefinition { workflow: String, digest: String },
}

impl ReadError {
    /// Whether another attempt may succeed.
    pub(crate) const fn is_temporary(&self) -> bool {
        matches!(self, Self::Journal(sandglass_journal::Error::Unavailable { .. }))
    }
}

/// What the records of a run say, up to one of them.
#[derive(Clone, Debug)]
pub(crate) struct Folded {
    pub(crate) projection: Projection,
    /// How many events there are.
    pub(crate) events: u64,
    /// When its first and its last event were recorded.
    pub(crate) started_at: Option<WallTime>,
    /// The time of its first event, which a fork can have from its source.
    pub(crate) first_at: Option<WallTime>,
    pub(crate) last_at: Option<WallTime>,
    causes: Causes,
    next: Position,
}

impl Default for Folded {
    fn default() -> Self {
        Self {
            projection: Projection::default(),
            events: 0,
            started_at: None,
            first_at: None,
            last_at: None,
            causes: Causes::default(),
            next: Position(1),
        }
    }
}

impl Folded {
    /// Reads to the end of what `journal` has of `run`, and passes each event to `take`.
    pub(crate) async fn read_on(
        &mut self,
        journals: &Journals,
        run: &EntityRef,
        mut take: impl FnMut(Entry),
    ) -> Result<(), ReadError> {
        loop {
            let page = journals.read_entity(run.clone(), self.next, PAGE_MAX_ENTRIES).await?;
            let next = page.next;
            for record in page.into_records()? {
                let is_first = self.next == Position(1);
                if !is_first && matches!(record.event, Event::Created { .. }) {
                    return Err(ReadError::IdReused);
                }
                for event in self.projection.apply(&record)? {
                    self.started_at.get_or_insert(record.at);
                    self.last_at = Some(record.at);
                    let at = event.copied_at.unwrap_or(record.at);
                    self.first_at.get_or_insert(at);
                    let sequence = self.events;
                    let cause = self.causes.next(sequence, &event);
                    take(Entry { sequence, cause, at, event });
                    self.events += 1;
                }
                self.next = Position(record.position.0.saturating_add(1));
            }
            if next.is_none() {
                return Ok(());
            }
        }
    }
}

/// The state of a run, and what led to it.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    pub(crate) folded: Folded,
    pub(crate) definition: Arc<Definition>,
    pub(crate) state: RunState,
}

impl Standing {
    /// Folds in the next event.
    pub(crate) fn apply(&mut self, entry: &Entry) {
        self.state.apply(&self.definition, &entry.event);
        self.folded.last_at = Some(entry.at);
    }
}

/// Whether there will be more in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// The run continues here.
    Open,
    /// The run is over, and the log has all of it.
    Complete,
    /// Another host owns the run now, and its log continues there.
    Elsewhere,
}

/// The log of one run, shared by those who read it.
#[derive(Debug)]
pub(crate) struct RunLog {
    pub(crate) run: EntityRef,
    entries: RwLock<Vec<Arc<Line>>>,
    reading: Mutex<Reading>,
    /// Changes when there is more.
    more: watch::Sender<Stage>,
    /// Whether the run has ended, or may have: if so, the log is not kept for later readers.
    is_released: AtomicBool,
    /// Notified after a record of the run.
    recorded: Arc<Notify>,
    held: Held,
}

/// How far the records of a run were read.
#[derive(Debug, Default)]
struct Reading {
    folded: Folded,
    /// Of how many events the watchers know.
    announced: u64,
}

/// What a log takes in memory, and what all do together.
#[derive(Debug)]
struct Held {
    own: AtomicUsize,
    all: Arc<AtomicUsize>,
}

impl Held {
    fn add(&self, bytes: usize) {
        self.own.fetch_add(bytes, Ordering::Relaxed);
        self.all.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.fetch_sub(*self.own.get_mut(), Ordering::Relaxed);
    }
}

/// What an event takes in memory, in bytes, roughly: its payload, that as a text, and the rest.
fn taken_by(event: &RunEvent) -> usize {
    event.payload.json_size().saturating_mul(2).saturating_add(512)
}

/// One event, with its text for streams.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) entry: Entry,
    text: std::sync::OnceLock<bytes::Bytes>,
}

impl Line {
    /// Its text, which `make` renders for the first reader.
    pub(crate) fn text(&self, make: impl FnOnce(&Entry) -> String) -> bytes::Bytes {
        self.text.get_or_init(|| make(&self.entry).into()).clone()
    }
}

impl RunLog {
    /// `held` counts what all logs take in memory, in bytes.
    pub(crate) fn new(run: EntityRef, held: Arc<AtomicUsize>) -> Self {
        Self {
            run,
            held: Held { own: AtomicUsize::new(0), all: held },
            entries: RwLock::default(),
            reading: Mutex::default(),
            more: watch::Sender::new(Stage::Open),
            is_released: AtomicBool::new(false),
            recorded: Arc::default(),
        }
    }

    /// Reads what was recorded since. If the future is dropped, the next call goes on where it was.
    pub(crate) async fn catch_up(&self, journals: &Journals) -> Result<(), ReadError> {
        let mut reading = self.reading.lock().await;
        let read = reading.folded.read_on(journals, &self.run, |entry| self.take(entry)).await;
        let events = reading.folded.events;
        let has_more = events > mem::replace(&mut reading.announced, events);
        let is_over = reading.folded.projection.is_over;
        drop(reading);
        self.more.send_if_modified(|stage| {
            let present = if is_over { Stage::Complete } else { *stage };
            let before = mem::replace(stage, present);
            has_more || present != before
        });
        read
    }

    fn take(&self, entry: Entry) {
        self.held.add(taken_by(&entry.event));
        let line = Arc::new(Line { entry, text: Default::default() });
        self.entries.write().unwrap_or_else(PoisonError::into_inner).push(line);
    }

    pub(crate) fn stage(&self) -> Stage {
        *self.more.borrow()
    }

    /// Notes that another host owns the run: readers have to continue there.
    pub(crate) fn leave(&self) {
        self.more.send_if_modified(|stage| {
            let is_open = *stage == Stage::Open;
            if is_open {
                *stage = Stage::Elsewhere;
            }
            is_open
        });
        // Ends the task that follows the log.
        self.notify();
    }

    /// Marks the log as not to be kept for later readers, because the run has ended or may have.
    pub(crate) fn release(&self) {
        self.is_released.store(true, Ordering::Release);
    }

    /// Whether the log can be kept for later readers.
    pub(crate) fn can_be_kept(&self) -> bool {
        !self.is_released.load(Ordering::Acquire) && self.stage() == Stage::Open
    }

    /// Up to `most` events from number `from` on, and whether those are all that will be.
    pub(crate) fn from(&self, from: u64, most: usize) -> (Vec<Arc<Line>>, bool) {
        // First, so that an end that is recorded in between does not count as read.
        let is_complete = self.stage() == Stage::Complete;
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let from = usize::try_from(from).unwrap_or(usize::MAX).min(entries.len());
        let to = from.saturating_add(most).min(entries.len());
        (entries[from..to].to_vec(), is_complete && to == entries.len())
    }

    /// All events.
    pub(crate) fn all(&self) -> Vec<Arc<Line>> {
        self.from(0, usize::MAX).0
    }

    /// How far the records were read.
    pub(crate) async fn folded(&self) -> Folded {
        self.reading.lock().await.folded.clone()
    }

    /// Announces a record of the run.
    pub(crate) fn notify(&self) {
        self.recorded.notify_one();
    }

    /// Changes when there is more. From now on the log is kept up to date.
    pub(crate) fn watch(&self) -> watch::Receiver<Stage> {
        let more = self.more.subscribe();
        // Nothing may have been read since the log was last caught up.
        self.notify();
        more
    }

    /// What its events take in memory, in bytes.
    pub(crate) fn held_bytes(&self) -> usize {
        self.held.own.load(Ordering::Relaxed)
    }

    /// Counts `bytes` as taken by its events.
    #[cfg(test)]
    pub(crate) fn hold(&self, bytes: usize) {
        self.held.add(bytes);
    }

    /// Keeps the log of `weak` up to date while it is watched, until its run is over or nothing holds it.
    pub(crate) async fn follow(weak: Weak<Self>, journals: Journals) {
        let Some(recorded) = weak.upgrade().map(|log| Arc::clone(&log.recorded)) else { return };
        loop {
            let read = {
                let Some(log) = weak.upgrade() else { return };
                let read = match log.more.receiver_count() {
                    0 => Ok(()),
                    _ => log.catch_up(&journals).await,
                };
                if let Err(error) = &read {
                    tracing::warn!(run = %log.run, %error, "the log of a run can't be read on");
                }
                if log.stage() != Stage::Open {
                    return;
                }
                read
            };
            match read {
                Ok(()) => recorded.notified().await,
                // What could not be read may be the last that is recorded.
                Err(_) => drop(within(RETRY_AFTER, recorded.notified()).await),
            }
        }
    }
}

impl Drop for RunLog {
    fn drop(&mut self) {
        // Ends the task that follows it.
        self.recorded.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{Future, poll_fn};
    use std::pin::pin;
    use std::task::Poll;

    use sandglass_journal::conformance::created;
    use sandglass_journal::{
        BATCH_MAX_RECORDS, Batch, Expected, Journal, MemoryJournal, Opened, Settings, SqliteJournal,
    };
    use sandglass_model::{Action, Limit, LimitBreached, Meter, Scope, Sequence};

    use super::*;

    /// How many batches are appended: six pages.
    const BATCHES: usize = 20;

    const EVENTS: u64 = (BATCHES * BATCH_MAX_RECORDS) as u64;

    const AT: WallTime = WallTime::from_millis(1_700_000_000_123);

    fn run() -> EntityRef {
        EntityRef::new(crate::RUN_TYPE, "1").expect("valid")
    }

    fn breach() -> Event {
        Event::LimitBreached(Box::new(LimitBreached {
            session: None,
            run_seq: None,
            scope: Scope::Run,
            limit: Limit::MaxLoopIterations,
            kind: Meter::Count,
            threshold: 1,
            observed: 2,
            at: AT,
            last_signal: None,
            in_flight: None,
            action: Action::Record,
            times: 1,
            dispatch: None,
            signature: None,
        }))
    }

    /// A journal with a run of several pages. It reads on another thread, so a reader waits for each page.
    async fn with_a_run(folder: &std::path::Path) -> Journals {
        let opened = SqliteJournal::open(folder.join("journal.db"), Settings::default());
        let Opened { journal, .. } = opened.expect("a new file");
        let mut expected = Expected::None;
        for _ in 0..BATCHES {
            // A breach does not advance the sequence.
            let records = vec![(Sequence(0), breach()); BATCH_MAX_RECORDS];
            let batch = Batch::new(run(), expected, AT, records);
            expected = Expected::At(journal.append(batch).await.expect("appended").last);
        }
        (Arc::new(journal) as Arc<dyn Journal>).into()
    }

    #[tokio::test]
    async fn readers_that_are_dropped_after_each_page_lose_no_event() {
        let folder = tempfile::tempdir().expect("a folder");
        let journals = with_a_run(folder.path()).await;
        let log = RunLog::new(run(), Arc::default());
        let mut dropped = 0;
        loop {
            let mut reader = pin!(log.catch_up(&journals));
            let mut has_waited = false;
            let read = poll_fn(|context| match reader.as_mut().poll(context) {
                Poll::Ready(read) => Poll::Ready(Some(read)),
                Poll::Pending if mem::replace(&mut has_waited, true) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            match read.await {
                Some(read) => break read.expect("readable"),
                None => dropped += 1,
            }
        }
        assert!(dropped > 0, "no reader was dropped");
        let lines = log.all();
        let sequences = lines.iter().map(|line| line.entry.sequence);
        assert!(sequences.eq(0..EVENTS), "{} events", lines.len());
    }

    #[tokio::test]
    async fn a_log_whose_run_was_removed_does_not_continue_with_the_next_run_of_its_id() {
        let journal = Arc::new(MemoryJournal::new());
        let journals: Journals = (Arc::clone(&journal) as Arc<dyn Journal>).into();
        let begin = || {
            let records = vec![(Sequence(0), created()), (Sequence(0), breach())];
            journal.append(Batch::new(run(), Expected::None, AT, records))
        };
        let first = begin().await.expect("appended");
        let log = RunLog::new(run(), Arc::default());
        log.catch_up(&journals).await.expect("readable");
        let removed = journal.prune(vec![(run(), first.last)]).await.expect("removed");
        assert_eq!(removed, [2]);
        begin().await.expect("appended");
        for _ in 0..2 {
            let read = log.catch_up(&journals).await;
            assert!(matches!(read, Err(ReadError::IdReused)), "{read:?}");
            assert_eq!(log.all().len(), 1);
        }
    }
}
