//! A database that this process opened: 64 journals, and what they share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_journal::store::Failures;
use sandglass_journal::{BATCH_MAX_BYTES, Error, Journal, Journals, QUEUE_MAX_BATCHES};
use sandglass_model::{HostId, Partition};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::address::Address;
use crate::fault::Fault;
use crate::heads::{Head, Recent};
use crate::hosts;
use crate::limit::within;
use crate::link::{Connector, Link};
use crate::notes::Notes;
use crate::partition_journal::PartitionJournal;
use crate::reader::Reader;
use crate::requests::{Request, Requests};
use crate::schema;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::takeover::{TAKE_ANY, take};
use crate::tenure::NOT_CLAIMED;
use crate::writer::Writer;

/// Most bytes in the queue of the writer, as in SQLite's.
const QUEUE_MAX_BYTES: usize = 2 * BATCH_MAX_BYTES;

/// A database with the journals of all partitions. This process owns all of them until another one takes
/// them, or, as a member of a cluster, those that it has claimed.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// `None` if it was opened for reading only.
    pub(crate) writer: Option<mpsc::Sender<Request>>,
    pub(crate) room: Arc<Semaphore>,
}

/// What happened since a database was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Statements that append, whether they succeeded or not.
    pub statements: u64,
    /// Batches that were appended.
    pub batches: u64,
    /// Statements of which it was unknown whether they were executed, until it was looked up.
    pub unknown_commits: u64,
    /// Records that were acknowledged and that the database lost.
    pub lost_records: u64,
}

impl Database {
    /// Opens the database and takes all partitions from the process that has them, which appends nothing
    /// from then on. Needs a tokio runtime, and uses it until it is closed.
    ///
    /// # Errors
    /// [`Error::Unavailable`], also if members of a cluster beat: they would go on for a moment, with
    /// leases that are valid; [`Error::Foreign`] and [`Error::Newer`] if its schema is not one that this
    /// version can use.
    pub async fn open(address: &Address, settings: Settings) -> Result<Self, Error> {
        let (shared, link) = enter(address, settings, None).await?;
        drop(link);
        // All at once: of two processes that open it at the same time, one has everything.
        let probes = Partition::all().map(|partition| (partition, 0)).collect();
        let taken = take(&shared, TAKE_ANY, &probes).await;
        let (own, found) = taken.map_err(|fault| fault.unavailable())?;
        // The partitions are taken: what fails from here on must not leave them without a process.
        let link = match hosts::forget_others(&own, &shared).await {
            Ok(()) => Some(own),
            Err(fault) => {
                tracing::warn!(why = %fault.what, "the table of hosts keeps earlier processes");
                None
            }
        };
        let heads = found.into_iter().map(|(partition, found)| (partition, found.head));
        let heads: BTreeMap<Partition, Head> = heads.collect();
        heads.iter().for_each(|(partition, head)| shared.hold(*partition, head.last));
        Ok(Self::start(shared, link, heads))
    }

    /// Opens the database as a member of a cluster, which other members reach at `url`. It owns nothing
    /// until it claims partitions ([`Database::claim`]). Needs a tokio runtime, and uses it until it is
    /// closed.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub async fn join(address: &Address, settings: Settings, url: &str) -> Result<Self, Error> {
        let (shared, link) = enter(address, settings, Some(url.to_owned())).await?;
        let limit = shared.settings.statement_limit;
        let is_left = hosts::forget_dead(&link, limit).await.is_ok();
        Ok(Self::start(shared, is_left.then_some(link), BTreeMap::new()))
    }

    /// Starts the writer with these partitions.
    fn start(shared: Arc<Shared>, link: Option<Link>, heads: BTreeMap<Partition, Head>) -> Self {
        let (sender, queue) = mpsc::channel(QUEUE_MAX_BATCHES);
        let writer = Writer {
            shared: Arc::clone(&shared),
            link,
            heads,
            recent: Recent::default(),
            failures: Failures::new(shared.failing.clone()),
            requests: Requests::new(queue),
            notes: Notes::default(),
        };
        shared.connector.runtime().spawn(writer.run());
        let room = Arc::new(Semaphore::new(QUEUE_MAX_BYTES));
        Self(Arc::new(Inner { shared, writer: Some(sender), room }))
    }

    /// Opens the database for reading only: it takes no partition from the process that has them, and
    /// changes nothing. It can be a standby. Needs a tokio runtime, and uses it until it is closed.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub async fn open_read_only(address: &Address, settings: Settings) -> Result<Self, Error> {
        let unavailable = |fault: Fault| fault.unavailable();
        let connector =
            Connector::new(&address.for_reading(), settings.connect_limit).map_err(unavailable)?;
        let link = connector.connect().await.map_err(unavailable)?;
        schema::check_readable(&link, &settings, connector.place()).await?;
        drop(link);
        let reader = Reader::new(&connector, &settings)?;
        // It is not in the table of hosts.
        let host = hosts::new_id()?;
        let shared = Arc::new(Shared::new(connector, settings, reader, host, None));
        let room = Arc::new(Semaphore::new(QUEUE_MAX_BYTES));
        Ok(Self(Arc::new(Inner { shared, writer: None, room })))
    }

    /// Reconnects for appends if that connection was lost; returns at once. The partitions are then compared
    /// with what was acknowledged, even if nothing is to be appended: a failover may have lost the record of a
    /// timer, which nothing else would notice. Call it with each beat.
    pub fn check_connection(&self) {
        // If the queue is full, it contains appends, which reconnect as well.
        if let Some(writer) = &self.0.writer {
            let _ = writer.try_send(Request::Connect);
        }
    }

    /// The journal of a partition.
    #[must_use]
    pub fn journal(&self, partition: Partition) -> Arc<dyn Journal> {
        Arc::new(PartitionJournal { inner: Arc::clone(&self.0), partition })
    }

    /// The journals of all partitions, which are read together.
    #[must_use]
    pub fn journals(&self) -> Journals {
        Journals::partitioned(|partition| self.journal(partition))
            .read_across(Arc::new(self.clone()))
    }

    /// The id of this process in the table of hosts; of one that opened the database for reading only, an
    /// id that is not there. [`Database::rejoin`] changes it.
    #[must_use]
    pub fn host(&self) -> HostId {
        self.0.shared.host()
    }

    pub(crate) fn inner(&self) -> &Arc<Inner> {
        &self.0
    }

    pub(crate) fn over(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.0.shared.reader
    }

    pub(crate) fn last_acknowledged(&self, partition: Partition) -> i64 {
        self.0.shared.last_acknowledged(partition)
    }

    /// Runs `work` to its end where the connections are served, whatever runtime the caller uses and
    /// even if it goes away.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.0.shared.connector.runtime().spawn(work).await;
        // A task is only cancelled with its runtime.
        done.map_err(|_| Error::Closed)?
    }

    /// The servers and the database, for messages.
    #[must_use]
    pub fn place(&self) -> &str {
        self.0.shared.connector.place()
    }

    /// What happened since it was opened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.0.shared.counters;
        Counts {
            statements: counters.statements.load(Ordering::Relaxed),
            batches: counters.batches.load(Ordering::Relaxed),
            unknown_commits: counters.unknown.load(Ordering::Relaxed),
            lost_records: counters.lost.load(Ordering::Relaxed),
        }
    }

    /// Examines up to a thousand recordings, and removes those that no record names: appends that failed
    /// leave them behind, and so does pruning. Returns how many were removed. To be called every few
    /// minutes, and then until [`Database::has_swept`]. Of the members of a cluster, only the one that has
    /// the first partition does it, because the recordings of all partitions are beside each other.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn sweep(&self) -> Result<u64, Error> {
        let shared = &self.0.shared;
        if !self.has_to_sweep() {
            return Ok(0);
        }
        shared.sweep.lock().await.next(&shared.reader, &shared.uploads).await
    }

    /// Whether the last [`Database::sweep`] examined the last recording.
    pub async fn has_swept(&self) -> bool {
        !self.has_to_sweep() || self.0.shared.sweep.lock().await.is_at_end()
    }

    fn has_to_sweep(&self) -> bool {
        let shared = &self.0.shared;
        !shared.is_member() || shared.why_disowned(Partition::default()).is_none()
    }

    /// Finishes the calls before this one, and closes all journals and connections. If the database does
    /// not respond, calls whose outcome is unknown return [`Error::Closed`].
    pub async fn close(&self) {
        let shared = &self.0.shared;
        Partition::all().for_each(|partition| shared.close(partition));
        // It ends with its present statement.
        if let Some(mut pruner) =
            within(shared.settings.statement_limit, shared.pruner.lock()).await
        {
            *pruner = None;
        }
        if let Some(mut claimer) =
            within(shared.settings.statement_limit, shared.claimer.lock()).await
        {
            *claimer = None;
        }
        let Some(writer) = &self.0.writer else {
            return shared.reader.close();
        };
        let (ended, end) = oneshot::channel();
        if writer.send(Request::End(ended)).await.is_ok() {
            let _ = end.await;
        }
        hosts::leave(shared).await;
        shared.reader.close();
    }
}

/// Connects, checks the schema, and enters this process into the table of hosts.
async fn enter(
    address: &Address,
    settings: Settings,
    url: Option<String>,
) -> Result<(Arc<Shared>, Link), Error> {
    let unavailable = |fault: Fault| fault.unavailable();
    let connector = Connector::new(address, settings.connect_limit).map_err(unavailable)?;
    let link = connector.connect().await.map_err(unavailable)?;
    schema::check(&link, &settings, connector.place()).await?;
    if url.is_none() {
        hosts::refuse_members(&link, &settings).await?;
    }
    let host = hosts::enter(&link, &settings, url.as_deref(), None).await?;
    let reader = Reader::new(&connector, &settings)?;
    let shared = Arc::new(Shared::new(connector, settings, reader, host, url));
    let what = NOT_CLAIMED;
    Partition::all().for_each(|partition| shared.give_up(partition, what.to_owned()));
    shared.skew.look(&link, &shared.settings, shared.connector.place()).await;
    Ok((shared, link))
}

impl Inner {
    /// The result of a request to the writer.
    pub(crate) async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, Error>>) -> Request,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let writer = self.writer.as_ref().ok_or_else(read_only)?;
        writer.send(request(answer)).await.map_err(|_| Error::Closed)?;
        answered.await.map_err(|_| Error::Closed)?
    }
}

pub(crate) fn read_only() -> Error {
    Error::Unavailable { what: "the database was opened for reading only".to_owned() }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("place", &self.0.shared.connector.place()).finish()
    }
}
