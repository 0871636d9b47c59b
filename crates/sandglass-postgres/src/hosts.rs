//! The table of hosts: this process enters itself, and its beats show the others that it is alive. Beats
//! have a connection of their own, because long reads may occupy all of the pool, and appends the writer.

use std::sync::atomic::Ordering;

use sandglass_journal::Error;
use sandglass_model::{Entropy, Partition, SystemEntropy};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::fault::{Fate, Fault};
use crate::limit::within;
use crate::link::{Link, Parameter};
use crate::row::partition_of;
use crate::settings::Settings;
use crate::shared::Shared;
use crate::skew::TIME;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The connection of the beats, which is made when it is first needed.
pub(crate) type Heart = tokio::sync::Mutex<Option<Link>>;

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
    let (host, name, version) = (&shared.host, process_name(), VERSION);
    let parameters: [Parameter<'_>; 3] =
        [(host, Type::TEXT), (&name, Type::TEXT), (&version, Type::TEXT)];
    let sent = shared.skew.sent();
    let rows = query(shared, &beat, &parameters).await?;
    shared.skew.note(sent, rows.first(), shared.connector.place());
    // Another statement, so that it sees takeovers that the first one waited for.
    let lost = "SELECT p.partition, h.name FROM sandglass.partitions p \
                LEFT JOIN sandglass.hosts h ON h.host = p.owner \
                WHERE p.owner IS DISTINCT FROM $1 ORDER BY p.partition";
    let rows = query(shared, lost, &[(host, Type::TEXT)]).await?;
    let name = |row: &Row| row.try_get::<_, Option<String>>(1).ok().flatten();
    let read = |row: &Row| Some((partition_of(row)?, name(row)));
    Ok(rows.iter().filter_map(read).collect())
}

/// Sends one statement on the connection of the beats, and cancels it if it takes too long: the next
/// beat has another connection, and the server must not keep one for each beat that waits.
async fn query(
    shared: &Shared,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<Vec<Row>, Fault> {
    let mut heart = shared.heart.lock().await;
    // If this is canceled, the connection is not used again.
    let link = match heart.take().filter(|link| !link.is_closed()) {
        Some(link) => link,
        None => shared.connector.connect().await?,
    };
    let rows = link.query_or_cancel(shared.settings.connect_limit, sql, parameters).await;
    if rows.as_ref().err().is_none_or(|fault| fault.fate != Fate::Unknown) {
        *heart = Some(link);
    }
    rows
}

/// Enters this process into the table; returns its id.
pub(crate) async fn enter(link: &Link, settings: &Settings) -> Result<String, Error> {
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

/// This process, for people.
fn process_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{} {}", name.trim(), std::process::id())
}

/// Removes the other processes from the table, which own nothing any more.
pub(crate) async fn forget_others(link: &Link, shared: &Shared) -> Result<(), Fault> {
    let sql = "DELETE FROM sandglass.hosts h WHERE h.host <> $1 \
               AND NOT EXISTS (SELECT 1 FROM sandglass.partitions WHERE owner = h.host)";
    let parameters: [Parameter<'_>; 1] = [(&shared.host, Type::TEXT)];
    link.query(shared.settings.statement_limit, sql, &parameters).await?;
    Ok(())
}

/// Notes that this process has closed the journal, and ends the connection of its beats.
pub(crate) async fn leave(shared: &Shared) {
    let sql = "UPDATE sandglass.hosts SET dead = true WHERE host = $1";
    // Of use to people only.
    let parameters: [Parameter<'_>; 1] = [(&shared.host, Type::TEXT)];
    let limit = shared.settings.connect_limit;
    let _ = within(limit, query(shared, sql, &parameters)).await;
    if let Some(mut heart) = within(limit, shared.heart.lock()).await {
        *heart = None;
    }
}
