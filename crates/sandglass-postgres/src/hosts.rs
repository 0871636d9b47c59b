//! The table of hosts: this process enters itself, and its beats show the others that it is alive. Beats
//! have a connection of their own, because long reads may occupy all of the pool, and appends the writer.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{HostId, Partition};
use tokio::task::JoinHandle;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::fault::{Fate, Fault};
use crate::limit::{pause, within};
use crate::link::{Connector, Link, Parameter};
use crate::row::partition_of;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::skew::TIME;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The newest format of records that this version reads.
pub const RECORDS_FORMAT: u32 = 1;

/// Rows of dead processes that own nothing, of which more are removed by the next process that joins.
const DEAD_MAX: i64 = 64;

/// The connection of the beats.
pub(crate) type Heart = tokio::sync::Mutex<BeatLink>;

/// The connection of the beats, which is made when it is first needed. Connecting goes on if the beat
/// that waits for it is given up: with several addresses, of which the first does not respond, it takes
/// longer than a beat may.
#[derive(Default)]
pub(crate) struct BeatLink {
    link: Option<Link>,
    connecting: Option<JoinHandle<Result<Link, Fault>>>,
}

impl BeatLink {
    /// Takes the connection out. If it is not put back, the next call makes another one.
    async fn take(&mut self, connector: &Connector) -> Result<Link, Fault> {
        if let Some(link) = self.link.take().filter(|link| !link.is_closed()) {
            return Ok(link);
        }
        let connecting = self.connecting.get_or_insert_with(|| {
            let connector = connector.clone();
            connector.runtime().clone().spawn(async move { connector.connect().await })
        });
        // If this is canceled, the next call waits for the same attempt.
        let connected = connecting.await;
        self.connecting = None;
        // A task is only canceled with its runtime.
        connected.unwrap_or_else(|_| Err(Fault::no_connection()))
    }

    fn close(&mut self) {
        self.link = None;
        if let Some(connecting) = self.connecting.take() {
            connecting.abort();
        }
    }
}

impl Database {
    /// Tells other processes that this one is alive, and returns the partitions that another process
    /// has taken. [`Journal::health`] then states these, and whether the database responds. To be called
    /// every second, because a process that appends nothing would not notice either.
    ///
    /// [`Journal::health`]: sandglass_journal::Journal::health
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not respond within the time limit for connecting.
    pub async fn beat(&self) -> Result<Vec<Partition>, Error> {
        let shared = self.shared();
        let beaten = beat(shared).await.map_err(|fault| fault.unavailable());
        shared.reachable.note(beaten.as_ref().err().map(ToString::to_string));
        let taken = beaten?;
        shared.is_taken.fetch_or(!taken.is_empty(), Ordering::AcqRel);
        let (partitions, owners): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
        let what = |partition: &Partition| (*partition, "another process has taken it".to_owned());
        let owner = owners.iter().flatten().next().map(String::as_str);
        shared.disown_taken(partitions.iter().map(what).collect(), owner);
        Ok(partitions)
    }

    /// Whether a beat has found that another process has taken partitions of this one.
    #[must_use]
    pub fn is_taken(&self) -> bool {
        self.shared().is_taken.load(Ordering::Acquire)
    }

    /// By how many milliseconds the clock of this machine is ahead of the database's; negative if it is
    /// behind. `None` unless the last beat, or opening the database, has shown that it is more than 250,
    /// which is also logged as a warning. Nothing that is written depends on it.
    #[must_use]
    pub fn clock_excess_ms(&self) -> Option<i64> {
        self.shared().skew.excess()
    }
}

/// Counts a beat, and returns the partitions that this process does not own any more, each with the name
/// of the process that has it.
async fn beat(shared: &Shared) -> Result<Vec<(Partition, Option<String>)>, Fault> {
    // Entered again if another process found it without a partition yet, and removed it.
    let beat = format!(
        "INSERT INTO sandglass.hosts (host, name, version, beats, dead) \
         VALUES ($1, $2, $3, 1, false) \
         ON CONFLICT (host) DO UPDATE SET beats = hosts.beats + 1 RETURNING {TIME}"
    );
    let (host, name, version) = (shared.host_text(), process_name(), VERSION);
    let parameters: [Parameter<'_>; 3] =
        [(&host, Type::TEXT), (&name, Type::TEXT), (&version, Type::TEXT)];
    let sent = shared.skew.sent();
    let rows = query(shared, &beat, &parameters).await?;
    shared.skew.note(sent, rows.first(), shared.connector.place());
    // Another statement, so that it sees takeovers that the first one waited for.
    let lost = "SELECT p.partition, h.name FROM sandglass.partitions p \
                LEFT JOIN sandglass.hosts h ON h.host = p.owner \
                WHERE p.owner IS DISTINCT FROM $1 ORDER BY p.partition";
    let rows = query(shared, lost, &[(&host, Type::TEXT)]).await?;
    let name = |row: &Row| row.try_get::<_, Option<String>>(1).ok().flatten();
    let read = |row: &Row| Some((partition_of(row)?, name(row)));
    Ok(rows.iter().filter_map(read).collect())
}

/// Sends one statement on the connection of the beats, and cancels it if it takes too long: the next
/// beat has another connection, and the server must not keep one for each beat that waits. Only for beats,
/// and for statements behind the last one: no beat must wait for anything else.
pub(crate) async fn query(
    shared: &Shared,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Fault> {
    let mut heart = shared.heart.lock().await;
    // If this is canceled from here on, the connection is not used again.
    let link = heart.take(&shared.connector).await?;
    let rows = link.query_or_cancel(shared.settings.connect_limit, sql, parameters).await;
    if rows.as_ref().err().is_none_or(|fault| fault.fate != Fate::Unknown) {
        heart.link = Some(link);
    }
    rows
}

/// An id for a process.
pub(crate) fn new_id() -> Result<HostId, Error> {
    HostId::random().map_err(|error| Error::Unavailable { what: error.to_string() })
}

/// Enters this process into the table with a new id, and where other members of the cluster reach it if
/// it is one. If it was there before under the id `former`, it is draining if it was then. Returns the id.
pub(crate) async fn enter(
    link: &Link,
    settings: &Settings,
    url: Option<&str>,
    former: Option<HostId>,
) -> Result<HostId, Error> {
    let host = new_id()?;
    let sql = "INSERT INTO sandglass.hosts \
                 (host, name, version, beats, dead, url, reads_format, draining, ttl_ms) \
               VALUES ($1, $2, $3, 0, false, $4, $5, \
                 coalesce((SELECT draining FROM sandglass.hosts WHERE host = $6), false), $7) \
               RETURNING host";
    let (text, name, format) = (host.to_string(), process_name(), i64::from(RECORDS_FORMAT));
    let former = former.map(|host| host.to_string());
    let ttl = url.map(|_| i64::try_from(settings.ttl.as_millis()).unwrap_or(i64::MAX));
    let parameters: [Parameter<'_>; 7] = [
        (&text, Type::TEXT),
        (&name, Type::TEXT),
        (&VERSION, Type::TEXT),
        (&url, Type::TEXT),
        (&format, Type::INT8),
        (&former, Type::TEXT),
        (&ttl, Type::INT8),
    ];
    let entered = link.query(settings.statement_limit, sql, &parameters).await;
    entered.map_err(|fault| fault.unavailable())?;
    Ok(host)
}

/// This process, for people.
fn process_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", name.trim(), std::process::id())
}

/// Removes the other processes from the table, which own nothing any more.
pub(crate) async fn forget_others(link: &Link, shared: &Shared) -> Result<(), Fault> {
    let sql = "DELETE FROM sandglass.hosts h WHERE h.host <> $1 \
               AND NOT EXISTS (SELECT 1 FROM sandglass.partitions WHERE owner = h.host)";
    let host = shared.host_text();
    link.query(shared.settings.statement_limit, sql, &[(&host, Type::TEXT)]).await?;
    Ok(())
}

/// How long members are watched for a beat: longer than twice the interval of beats.
const WATCH_MEMBERS: Duration = Duration::from_millis(2500);

/// Checks that no member of a cluster beats, because this process is to have the database alone.
pub(crate) async fn refuse_members(link: &Link, settings: &Settings) -> Result<(), Error> {
    let sql = "SELECT host, beats, name, url FROM sandglass.hosts \
               WHERE url IS NOT NULL AND NOT dead ORDER BY host";
    let read = |row: &Row| -> Option<(String, i64, String, String)> {
        Some((
            row.try_get(0).ok()?,
            row.try_get(1).ok()?,
            row.try_get(2).ok()?,
            row.try_get(3).ok()?,
        ))
    };
    let members = async || {
        let rows = link.query(settings.statement_limit, sql, &[]).await;
        rows.map_err(|fault| fault.unavailable())
    };
    let before = members().await?;
    if before.is_empty() {
        return Ok(());
    }
    pause(WATCH_MEMBERS).await;
    let before: BTreeMap<_, _> =
        before.iter().filter_map(read).map(|(host, beats, ..)| (host, beats)).collect();
    let after = members().await?;
    let alive = after.iter().filter_map(read);
    let mut alive = alive.filter(|(host, beats, ..)| before.get(host) != Some(beats));
    let Some((_, _, name, url)) = alive.next() else { return Ok(()) };
    let others = match alive.count() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Err(Error::Unavailable {
        what: format!(
            "hosts of a cluster use it: {name} at {url}{others}; stop all of them first, or, if this \
             process is to be a host of the cluster, start it with --advertise"
        ),
    })
}

/// Removes dead processes that own nothing if there are many. One that runs nevertheless takes its absence
/// for its death.
pub(crate) async fn forget_dead(link: &Link, limit: Duration) -> Result<(), Fault> {
    let sql = "DELETE FROM sandglass.hosts h WHERE h.dead \
               AND NOT EXISTS (SELECT 1 FROM sandglass.partitions WHERE owner = h.host) \
               AND (SELECT count(*) FROM sandglass.hosts WHERE dead) > $1";
    let forgotten = link.query(limit, sql, &[(&DEAD_MAX, Type::INT8)]).await;
    if let Err(fault) = &forgotten {
        tracing::warn!(why = %fault.what, "the table of hosts keeps dead processes");
    }
    forgotten.map(drop)
}

/// Notes that this process has closed the journal, and ends the connection of its beats.
pub(crate) async fn leave(shared: &Shared) {
    let sql = "UPDATE sandglass.hosts SET dead = true WHERE host = $1";
    // If it fails, the other members of a cluster wait until they have declared it dead.
    let (host, limit) = (shared.host_text(), shared.settings.connect_limit);
    let _ = within(limit, query(shared, sql, &[(&host, Type::TEXT)])).await;
    if let Some(mut heart) = within(limit, shared.heart.lock()).await {
        heart.close();
    }
}
