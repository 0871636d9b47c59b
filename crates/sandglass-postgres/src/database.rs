//! A database that this process opened: 64 journals, and what they share.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_journal::store::Failures;
use sandglass_journal::{BATCH_MAX_BYTES, Error, Journal, Journals, QUEUE_MAX_BATCHES};
use sandglass_model::{Entropy, Partition, SystemEntropy};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::address::Address;
use crate::fault::Fault;
use crate::heads::{Head, Recent};
use crate::lane::Lane;
use crate::limit::within;
use crate::link::{Connector, Link, Parameter};
use crate::partition_journal::PartitionJournal;
use crate::reader::Reader;
use crate::requests::{Request, Requests};
use crate::schema;
use crate::settings::Settings;
use crate::shared::{Shared, lane_of};
use crate::skew::TIME;
use crate::takeover::{TAKE_ANY, take};

/// Most bytes in the queue of a lane, as in SQLite's.
const QUEUE_MAX_BYTES: usize = 2 * BATCH_MAX_BYTES;

/// A database with the journals of all partitions. This process owns them until another one takes them.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// `None` if it was opened for reading only.
    pub(crate) lanes: Option<[mpsc::Sender<Request>; 2]>,
    pub(crate) room: [Arc<Semaphore>; 2],
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
    /// [`Error::Unavailable`]; [`Error::Foreign`] and [`Error::Newer`] if its schema is not one that this
    /// version can use.
    pub async fn open(address: &Address, settings: Settings) -> Result<Self, Error> {
        let unavailable = |fault: Fault| fault.unavailable();
        let connector = Connector::new(address, settings.connect_limit).map_err(unavailable)?;
        let link = connector.connect().await.map_err(unavailable)?;
        schema::check(&link, &settings, connector.place()).await?;
        let host = new_host(&link, &settings).await?;
        let reader = Reader::new(&connector, &settings)?;
        let runtime = connector.runtime().clone();
        let shared = Arc::new(Shared::new(connector, settings, reader, host));
        shared.skew.look(&link, &shared.settings, shared.connector.place()).await;
        drop(link);
        let room = [(); 2].map(|()| Arc::new(Semaphore::new(QUEUE_MAX_BYTES)));
        let (mut senders, mut ready) = (Vec::new(), Vec::new());
        for number in 0..2 {
            let probes: BTreeMap<Partition, i64> = Partition::all()
                .filter(|partition| lane_of(*partition) == number)
                .map(|partition| (partition, 0))
                .collect();
            let (link, found) = take(&shared, TAKE_ANY, &probes).await.map_err(unavailable)?;
            let heads = found.into_iter().map(|(partition, found)| (partition, found.head));
            let heads: BTreeMap<Partition, Head> = heads.collect();
            heads.iter().for_each(|(partition, head)| shared.acknowledge(*partition, head.last));
            let (sender, queue) = mpsc::channel(QUEUE_MAX_BATCHES);
            senders.push(sender);
            ready.push(Lane {
                shared: Arc::clone(&shared),
                link: Some(link),
                heads,
                recent: Recent::default(),
                failures: Failures::new(shared.failing[number].clone()),
                requests: Requests::new(queue),
            });
        }
        forget_hosts(&shared).await?;
        for lane in ready {
            runtime.spawn(lane.run());
        }
        let lanes: [mpsc::Sender<Request>; 2] = senders.try_into().map_err(|_| Error::Closed)?;
        Ok(Self(Arc::new(Inner { shared, lanes: Some(lanes), room })))
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
        let shared = Arc::new(Shared::new(connector, settings, reader, String::new()));
        let room = [(); 2].map(|()| Arc::new(Semaphore::new(QUEUE_MAX_BYTES)));
        Ok(Self(Arc::new(Inner { shared, lanes: None, room })))
    }

    /// Tells other processes that this one is alive, and returns the partitions that another process
    /// has taken. [`Journal::health`] then states these, and whether the database responds. To be called
    /// every second, because a process that appends nothing would not notice either.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not respond within the time limit for connecting.
    pub async fn beat(&self) -> Result<Vec<Partition>, Error> {
        let shared = &self.0.shared;
        let limit = shared.settings.connect_limit;
        let beaten = within(limit, self.lost_partitions()).await.unwrap_or_else(|| {
            Err(Error::Unavailable {
                what: format!("{} did not respond within {limit:?}", shared.connector.place()),
            })
        });
        shared.reachable.note(beaten.as_ref().err().map(ToString::to_string));
        let taken = beaten?;
        shared.is_taken.fetch_or(!taken.is_empty(), Ordering::AcqRel);
        for partition in &taken {
            if shared.disowned(*partition).is_none() {
                shared.disown(*partition, "another process has taken it".to_owned());
            }
        }
        Ok(taken)
    }

    /// Whether a beat has found that another process has taken partitions of this one.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.0.shared.is_taken.load(Ordering::Acquire)
    }

    /// By how many milliseconds the clock of this machine is ahead of the database's; negative if it is
    /// behind. `None` unless the last beat, or opening the database, has shown that it is more than 250,
    /// which is also logged as a warning. Nothing that is written depends on it.
    #[must_use]
    pub fn clock_excess_ms(&self) -> Option<i64> {
        self.0.shared.skew.excess()
    }

    /// Counts a beat, and returns the partitions that this process does not own any more.
    async fn lost_partitions(&self) -> Result<Vec<Partition>, Error> {
        let (reader, shared) = (self.reader(), &self.0.shared);
        let host = &shared.host;
        // Entered again if another process found it without a partition yet, and removed it.
        let beat = format!(
            "INSERT INTO sandglass.hosts (host, name, version, beats, dead) \
             VALUES ($1, $2, $3, 1, false) \
             ON CONFLICT (host) DO UPDATE SET beats = hosts.beats + 1 RETURNING {TIME}"
        );
        let (name, version) = (process_name(), VERSION);
        let parameters: [Parameter<'_>; 3] =
            [(host, Type::TEXT), (&name, Type::TEXT), (&version, Type::TEXT)];
        let sent = shared.skew.sent();
        let rows = reader.query(&beat, &parameters).await?;
        shared.skew.note(sent, rows.first(), shared.connector.place());
        // Another statement, so that it sees takeovers that the first one waited for.
        let lost = "SELECT partition FROM sandglass.partitions WHERE owner IS DISTINCT FROM $1";
        let rows = reader.query(lost, &[(host, Type::TEXT)]).await?;
        let number = |row: &Row| u8::try_from(row.try_get::<_, i16>(0).ok()?).ok();
        Ok(rows.iter().filter_map(|row| Partition::new(number(row)?)).collect())
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

    pub(crate) fn over(inner: Arc<Inner>) -> Self {
        Self(inner)
    }

    pub(crate) fn reader(&self) -> &Reader {
        &self.0.shared.reader
    }

    pub(crate) fn acknowledged(&self, partition: Partition) -> i64 {
        self.0.shared.acknowledged(partition)
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
    /// minutes, and then until [`Database::has_swept`].
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn sweep(&self) -> Result<u64, Error> {
        let shared = &self.0.shared;
        shared.sweep.lock().await.next(&shared.reader, &shared.uploads).await
    }

    /// Whether the last [`Database::sweep`] examined the last recording.
    pub async fn has_swept(&self) -> bool {
        self.0.shared.sweep.lock().await.is_at_end()
    }

    /// Finishes the calls before this one, and closes all journals and connections. If the database does
    /// not respond, calls whose outcome is unknown return [`Error::Closed`].
    pub async fn close(&self) {
        let shared = &self.0.shared;
        Partition::all().for_each(|partition| shared.close(partition));
        for lane in self.0.lanes.iter().flatten() {
            let (ended, end) = oneshot::channel();
            if lane.send(Request::End(ended)).await.is_ok() {
                let _ = end.await;
            }
        }
        if self.0.lanes.is_none() {
            return shared.reader.close();
        }
        let sql = "UPDATE sandglass.hosts SET dead = true WHERE host = $1";
        // Of use to people only.
        let _ = within(
            shared.settings.connect_limit,
            shared.reader.query(sql, &[(&shared.host, Type::TEXT)]),
        )
        .await;
        shared.reader.close();
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Database").field("place", &self.0.shared.connector.place()).finish()
    }
}

/// Enters this process into the table of hosts; returns its id.
async fn new_host(link: &Link, settings: &Settings) -> Result<String, Error> {
    let mut id = [0; 16];
    let random = SystemEntropy.fill(&mut id);
    random.map_err(|error| Error::Unavailable { what: error.to_string() })?;
    let host: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
    let (name, version) = (process_name(), VERSION);
    let sql = "INSERT INTO sandglass.hosts (host, name, version, beats, dead) \
               VALUES ($1, $2, $3, 0, false) RETURNING host";
    let parameters: [Parameter<'_>; 3] =
        [(&host, Type::TEXT), (&name, Type::TEXT), (&version, Type::TEXT)];
    let entered = link.query(settings.statement_limit, sql, &parameters).await;
    entered.map_err(|fault| fault.unavailable())?;
    Ok(host)
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// This process, for people.
fn process_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", name.trim(), std::process::id())
}

/// Removes the other processes from the table of hosts, which own nothing any more.
async fn forget_hosts(shared: &Shared) -> Result<(), Error> {
    let sql = "DELETE FROM sandglass.hosts h WHERE h.host <> $1 \
               AND NOT EXISTS (SELECT 1 FROM sandglass.partitions WHERE owner = h.host)";
    shared.reader.query(sql, &[(&shared.host, Type::TEXT)]).await?;
    Ok(())
}
