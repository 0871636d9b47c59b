//! The stream of records for any number of readers. Each reads from the journal at its own pace and
//! holds one record at a time, so that a slow reader misses nothing and costs no more memory than a
//! record and its text. A reader of a journal with partitions holds a page instead, because each page
//! takes statements over all partitions.
//!
//! A reader of one format has the journal pass over all other kinds of records, and is woken only by
//! a record that has a form in that format. It holds a page of its kinds, because most of them may
//! have none.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use sandglass_http::timer::{pause, within};
use sandglass_insight::projection::Shape;
use sandglass_journal::{self as journal, Entry, Journals};
use sandglass_model::{Cursor, Partition};
use sandglass_runtime::{Event, Runtime};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::recent_kills::RecentKills;

/// Entries that a reader holds. Each may have [`sandglass_journal::RECORD_MAX_BYTES`], and there are
/// many readers.
const HELD_ENTRIES: usize = 1;

/// Entries that a reader of one format, or of several partitions, searches at once; together they have
/// [`sandglass_journal::PAGE_MAX_BYTES`], unless the last one is larger.
const SEARCHED_ENTRIES: usize = 64;

/// How often to look for records of other hosts: a reader waits half of it on average, and a look is one
/// small statement.
const LOOK_EVERY: Duration = Duration::from_millis(80);
/// How long a look may take before it is made again.
const LOOK_MAX: Duration = Duration::from_secs(5);

/// Wakes readers when something is recorded.
#[derive(Debug)]
pub(crate) struct Feed {
    wake: Arc<Wake>,
    waking: JoinHandle<()>,
    /// What other hosts record in, and the task that looks there, while there are readers.
    others: Option<(Journals, Mutex<Weak<Looking>>)>,
}

/// What readers wait for: any record, or one that has a form in another format.
#[derive(Debug, Default)]
struct Wake {
    recorded: watch::Sender<()>,
    projected: watch::Sender<()>,
}

/// A task that looks for records of other hosts, until the last reader drops it.
#[derive(Debug)]
struct Looking(JoinHandle<()>);

impl Drop for Looking {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a reader reads.
pub(crate) struct Extent {
    /// The records behind this cursor.
    pub(crate) after: Cursor,
    /// Up to this one; `None` to continue with each record that is written.
    pub(crate) until: Option<Cursor>,
    /// Only records that have a form in this format.
    pub(crate) shape: Option<Shape>,
}

/// An entry of the stream.
pub(crate) struct Found {
    pub(crate) entry: Entry,
    /// Its partition; `None` if the store has only one journal.
    pub(crate) partition: Option<Partition>,
    /// The cursor behind it.
    pub(crate) cursor: Cursor,
}

/// What a reader finds.
#[expect(clippy::large_enum_variant, reason = "nearly every one is an entry")]
pub(crate) enum Item {
    Entry(Found),
    /// Everything of the extent was read.
    End,
}

impl Feed {
    /// Follows the records of `runtime`, and notes those about kills in `kills`. If other hosts record in
    /// the same journals, these are `others`.
    pub(crate) fn new(
        runtime: &Runtime,
        kills: Arc<RecentKills>,
        others: Option<Journals>,
    ) -> Self {
        let wake = Arc::new(Wake::default());
        let woken = Arc::clone(&wake);
        let mut events = runtime.subscribe();
        let waking = tokio::spawn(async move {
            while let Some(event) = events.next().await {
                // If events were missed, a record of any kind may have been among them.
                let (is_record, is_projected) = match &event {
                    Ok(Event::Recorded(record)) => {
                        kills.note(record);
                        let has_form = |shape: &Shape| shape.needs(&record.event).is_some();
                        (true, Shape::ALL.iter().any(has_form))
                    }
                    Ok(_) => (false, false),
                    Err(_) => (true, true),
                };
                if is_record {
                    woken.recorded.send_replace(());
                }
                if is_projected {
                    woken.projected.send_replace(());
                }
            }
        });
        let others = others.map(|journals| (journals, Mutex::default()));
        Self { wake, waking, others }
    }

    /// The task that looks for records of other hosts, if there are any.
    fn look(&self) -> Option<Arc<Looking>> {
        let (journals, looking) = self.others.as_ref()?;
        let mut looking = looking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(present) = looking.upgrade() {
            return Some(present);
        }
        let task = tokio::spawn(look(journals.clone(), Arc::clone(&self.wake)));
        let new = Arc::new(Looking(task));
        *looking = Arc::downgrade(&new);
        Some(new)
    }

    /// A channel that changes when something is recorded.
    pub(crate) fn recorded(&self) -> watch::Receiver<()> {
        self.wake.recorded.subscribe()
    }

    /// The entries of `extent`. Ends when `closing` becomes true or the journal cannot be read; a
    /// client that reconnects continues where the stream ended. The journal is also read every
    /// `poll_every`.
    pub(crate) fn read(
        &self,
        extent: &Extent,
        journals: Journals,
        closing: watch::Receiver<bool>,
        poll_every: Duration,
    ) -> impl Stream<Item = Item> + use<> {
        let Extent { after, until, shape } = extent;
        let wake = if shape.is_some() { &self.wake.projected } else { &self.wake.recorded };
        let recorded = wake.subscribe();
        // One that ends waits for nothing.
        let looking = if until.is_some() { None } else { self.look() };
        let reader = Reader {
            journals,
            passed: after.clone(),
            searched: after.clone(),
            until: until.clone(),
            shape: *shape,
            found: VecDeque::new(),
            is_over: false,
            recorded,
            closing,
            poll_every,
            _looking: looking,
        };
        unfold(reader, async |mut reader| Some((reader.next_item().await?, reader)))
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.waking.abort();
    }
}

/// Wakes all readers when `journals` have other ends than at the last look.
async fn look(journals: Journals, wake: Arc<Wake>) {
    let mut known = None;
    loop {
        match within(LOOK_MAX, journals.end()).await {
            // At the first look as well, because a reader may have read before it.
            Ok(Ok(end)) if known.as_ref() != Some(&end) => {
                known = Some(end);
                wake.recorded.send_replace(());
                wake.projected.send_replace(());
            }
            Ok(Ok(_)) | Err(_) => {}
            // Readers find out themselves that the database does not respond.
            Ok(Err(error)) => {
                tracing::debug!(%error, "failed to look for records of other hosts");
            }
        }
        pause(LOOK_EVERY).await;
    }
}

struct Reader {
    journals: Journals,
    /// The cursor behind the last entry that was returned.
    passed: Cursor,
    /// The cursor behind all entries that were searched.
    searched: Cursor,
    until: Option<Cursor>,
    shape: Option<Shape>,
    /// Entries up to `searched` that were found and not returned yet, with the indexes of their
    /// journals.
    found: VecDeque<(usize, Entry)>,
    is_over: bool,
    recorded: watch::Receiver<()>,
    closing: watch::Receiver<bool>,
    poll_every: Duration,
    _looking: Option<Arc<Looking>>,
}

impl Reader {
    async fn next_item(&mut self) -> Option<Item> {
        loop {
            if self.is_over || *self.closing.borrow() {
                return None;
            }
            while let Some((journal, entry)) = self.found.pop_front() {
                if self.until.as_ref().is_none_or(|until| entry.position() <= until.at(journal)) {
                    self.passed.advance(journal, entry.last_position());
                    let partition = Partition::all().nth(journal);
                    let partition = partition.filter(|_| self.journals.is_partitioned());
                    return Some(Item::Entry(Found {
                        entry,
                        partition,
                        cursor: self.passed.clone(),
                    }));
                }
            }
            if self.is_at_end() {
                self.is_over = true;
                return Some(Item::End);
            }
            // Before the journal is read: a record that is appended meanwhile still wakes this.
            self.recorded.mark_unchanged();
            match self.search().await {
                Ok(true) => {}
                Ok(false) if self.is_at_end() => {}
                // Records of which the runtime reports nothing are found by polling.
                Ok(false) => {
                    let woken = wake(&mut self.recorded, &mut self.closing);
                    let _ = within(self.poll_every, woken).await;
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to read the journal; a stream of events ends");
                    return None;
                }
            }
        }
    }

    /// Whether everything up to `until` was searched.
    fn is_at_end(&self) -> bool {
        self.until.as_ref().is_some_and(|until| until.is_within(&self.searched))
    }

    /// Reads on in the journals, and returns whether there was anything to read.
    async fn search(&mut self) -> Result<bool, journal::Error> {
        let kinds = self.shape.map(|shape| shape.kinds());
        let limit = match (kinds, self.journals.is_partitioned()) {
            (None, false) => HELD_ENTRIES,
            _ => SEARCHED_ENTRIES,
        };
        let page = self.journals.read_behind(self.searched.clone(), kinds, limit).await?;
        self.searched = page.next;
        let had_entries = !page.entries.is_empty();
        let shape = self.shape;
        self.found.extend(page.entries.into_iter().filter(|(_, entry)| match (entry, shape) {
            (Entry::Record(record), Some(shape)) => shape.needs(&record.event).is_some(),
            (Entry::Record(_), None) => true,
            (other, _) => other.damage().is_some(),
        }));
        Ok(!page.is_end || !self.found.is_empty() || had_entries && shape.is_none())
    }
}

/// Waits until something is recorded, or the daemon is closing.
pub(crate) async fn wake(recorded: &mut watch::Receiver<()>, closing: &mut watch::Receiver<bool>) {
    tokio::select! {
        _ = recorded.changed() => {}
        _ = closing.changed() => {}
    }
}
