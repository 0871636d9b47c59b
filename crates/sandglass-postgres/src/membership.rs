//! What the members of a cluster see of each other: beats, declarations of death, and who owns what. A
//! beat and a declaration change the same row, so one of them loses; the id of a dead process is never
//! used again.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{
    Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Partition,
};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::fault::Fate;
use crate::hosts::query;
use crate::link::Parameter;
use crate::shared::Shared;
use crate::skew::TIME;

/// All hosts, all partitions and what was agreed on, in one snapshot.
const MEMBERSHIP: &str = "SELECT host, name, url, version, reads_format, draining, beats, dead, \
         NULL::smallint, NULL::bigint, ttl_ms, generation, trouble FROM sandglass.hosts \
     UNION ALL SELECT owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, partition, epoch, NULL, NULL, NULL \
         FROM sandglass.partitions \
     UNION ALL SELECT NULL, NULL, NULL, NULL, writes_format, NULL, changes, NULL, NULL, NULL, NULL, \
         generation, NULL FROM sandglass.agreed";

const TROUBLE_MAX_CHARS: usize = 1_000;

/// A number as the database has it.
pub(crate) fn number_of(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Database {
    /// Shows the other members that this process is alive, and then reads the state of all. `None` if it
    /// was declared dead: other members may claim its partitions, and it has to enter again
    /// ([`Database::rejoin`]). To be called every second.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not respond within the time limit for connecting.
    pub async fn beat_as_member(&self) -> Result<Option<Membership>, Error> {
        let shared = self.shared();
        let beaten = beat(shared).await;
        shared.reachable.note(beaten.as_ref().err().map(ToString::to_string));
        beaten
    }

    /// Sets what this process runs, as its next beats report it. The reason why it cannot run the active
    /// generation is cut to 1,000 characters.
    pub fn set_deployed(&self, deployed: DeploymentStatus) {
        let trouble = deployed.trouble.map(|why| why.chars().take(TROUBLE_MAX_CHARS).collect());
        self.shared().set_deployed(DeploymentStatus { trouble, ..deployed });
    }

    /// Reads which processes there are, and which of them owns each partition.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn membership(&self) -> Result<Membership, Error> {
        let reader = self.reader();
        Ok(read(self.shared(), &reader.query(MEMBERSHIP, &[]).await?))
    }

    /// Declares a process dead whose count of beats is still `beats`. Returns whether this call did so.
    /// From then on the process does not own its partitions safely: the next that claims one shuts it
    /// out.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; it may be declared dead nevertheless.
    pub async fn declare_dead(&self, host: &HostId, beats: u64) -> Result<bool, Error> {
        let sql = "UPDATE sandglass.hosts SET dead = true \
                   WHERE host = $1 AND beats = $2 AND NOT dead RETURNING host";
        let (host, beats) = (host.to_string(), i64::try_from(beats).unwrap_or(i64::MAX));
        let inner = Arc::clone(self.inner());
        self.run(async move {
            change_host(&inner.shared, sql, &[(&host, Type::TEXT), (&beats, Type::INT8)]).await
        })
        .await
    }

    /// Notes that a process gives its partitions away and gets no others, or that it does not any more.
    /// Returns whether there is such a process that is not dead.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; it may be noted nevertheless.
    pub async fn set_draining(&self, host: &HostId, is_draining: bool) -> Result<bool, Error> {
        let sql = "UPDATE sandglass.hosts SET draining = $2 \
                   WHERE host = $1 AND NOT dead RETURNING host";
        let (host, inner) = (host.to_string(), Arc::clone(self.inner()));
        self.run(async move {
            change_host(&inner.shared, sql, &[(&host, Type::TEXT), (&is_draining, Type::BOOL)])
                .await
        })
        .await
    }
}

/// Changes the row of a process, and returns whether there was one to change. On the connection of the
/// claims, so that no beat waits for it.
async fn change_host(
    shared: &Shared,
    sql: &str,
    parameters: &[Parameter<'_>],
) -> Result<bool, Error> {
    let mut claimer = shared.claimer.lock().await;
    let link = shared.connector.renew(&mut claimer).await.map_err(|fault| fault.unavailable())?;
    let changed = link.query_or_cancel(shared.settings.connect_limit, sql, parameters).await;
    if changed.as_ref().is_err_and(|fault| fault.fate == Fate::Unknown) {
        *claimer = None;
    }
    Ok(!changed.map_err(|fault| fault.unavailable())?.is_empty())
}

/// Counts a beat, unless this process was declared dead. A row that is gone is that of a dead process, and
/// is never made again.
async fn beat(shared: &Shared) -> Result<Option<Membership>, Error> {
    let sql = format!(
        "UPDATE sandglass.hosts SET beats = beats + 1, generation = $2, trouble = $3 \
         WHERE host = $1 AND NOT dead RETURNING {TIME}"
    );
    let host = shared.host_text();
    let DeploymentStatus { generation, trouble } = shared.deployed();
    let generation = generation.map(number_of);
    let parameters: [Parameter<'_>; 3] =
        [(&host, Type::TEXT), (&generation, Type::INT8), (&trouble, Type::TEXT)];
    let sent = shared.skew.sent();
    let beaten = query(shared, &sql, &parameters).await;
    let beaten = beaten.map_err(|fault| fault.unavailable())?;
    if beaten.is_empty() {
        return Ok(None);
    }
    shared.skew.note(sent, beaten.first(), shared.connector.place());
    // Another statement, so that it sees what the first one waited for.
    let rows = query(shared, MEMBERSHIP, &[]).await.map_err(|fault| fault.unavailable())?;
    Ok(Some(read(shared, &rows)))
}

/// What these rows contain. One that cannot be read counts as absent, because no host should lose its lease
/// for it, and is logged when it is first seen.
fn read(shared: &Shared, rows: &[Row]) -> Membership {
    let mut membership = Membership::default();
    let unreadable: Vec<RowFlaw> =
        rows.iter().filter_map(|row| add(row, &mut membership).err()).collect();
    shared.unreadable.note(unreadable, shared.connector.place());
    membership
}

/// The rows of hosts and partitions that could not be read, as of the last beat.
#[derive(Debug, Default)]
pub(crate) struct UnreadableRows(Mutex<Vec<RowFlaw>>);

impl UnreadableRows {
    fn note(&self, present: Vec<RowFlaw>, place: &str) {
        let mut before = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for RowFlaw { table, what } in present.iter().filter(|flaw| !before.contains(flaw)) {
            tracing::error!(
                place,
                table,
                "{what}; it was changed by hand, and counts as absent; correct it, or delete it if it is \
                 that of a host that has ended"
            );
        }
        *before = present;
    }
}

/// Adds what a row of [`MEMBERSHIP`] contains, or as much of it as can be read.
fn add(row: &Row, membership: &mut Membership) -> Result<(), RowFlaw> {
    let unreadable = |error: tokio_postgres::Error| error.to_string();
    let foreign = |error| RowFlaw { table: "hosts", what: unreadable(error) };
    let text: Option<&str> = row.try_get(0).map_err(foreign)?;
    if let Some(number) = row.try_get::<_, Option<i16>>(8).map_err(foreign)? {
        let epoch = row.try_get(9).map_err(foreign)?;
        let partition = read_partition(number, epoch);
        let (partition, epoch) = partition.map_err(|what| of_partition(number, &what))?;
        let owner = text.map(read_host).transpose();
        // A partition of no host can be claimed, unless a live one has this text for its id.
        let known = owner.as_ref().ok().copied().flatten();
        membership.partitions.push(Ownership { partition, epoch, owner: known });
        return owner.map(drop).map_err(|what| of_partition(number, &what));
    }
    let Some(text) = text else {
        membership.agreed = read_agreed(row).map_err(of_agreed)?;
        return Ok(());
    };
    let read = || -> Result<Member, String> {
        Ok(Member {
            host: read_host(text)?,
            name: row.try_get(1).map_err(unreadable)?,
            url: row.try_get(2).map_err(unreadable)?,
            version: row.try_get(3).map_err(unreadable)?,
            reads_format: read_format(row)?,
            is_draining: row.try_get(5).map_err(unreadable)?,
            beats: read_count("beats", row.try_get(6).map_err(unreadable)?)?,
            is_dead: row.try_get(7).map_err(unreadable)?,
            ttl: read_ttl(row.try_get(10).map_err(unreadable)?)?,
            deployed: DeploymentStatus {
                generation: read_generation(row)?,
                trouble: row.try_get(12).map_err(unreadable)?,
            },
        })
    };
    membership.hosts.push(read().map_err(|what| of_host(text, &what))?);
    Ok(())
}

/// A row of hosts or partitions that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowFlaw {
    pub(crate) table: &'static str,
    pub(crate) what: String,
}

fn of_partition(number: i16, what: &str) -> RowFlaw {
    RowFlaw { table: "partitions", what: format!("the row of partition {number}: {what}") }
}

fn of_host(host: &str, what: &str) -> RowFlaw {
    RowFlaw { table: "hosts", what: format!("the row of `{}`: {what}", host.escape_debug()) }
}

fn of_agreed(what: String) -> RowFlaw {
    RowFlaw { table: "agreed", what }
}

fn read_agreed(row: &Row) -> Result<Agreement, String> {
    let changes = row.try_get(6).map_err(|error| error.to_string())?;
    let changes = read_count("changes", changes)?;
    Ok(Agreement { generation: read_generation(row)?, changes, writes_format: read_format(row)? })
}

fn read_format(row: &Row) -> Result<u32, String> {
    let format: i32 = row.try_get(4).map_err(|error| error.to_string())?;
    Ok(u32::try_from(format).unwrap_or_default())
}

fn read_generation(row: &Row) -> Result<Option<u64>, String> {
    let generation: Option<i64> = row.try_get(11).map_err(|error| error.to_string())?;
    generation.map(|number| read_count("generation", number)).transpose()
}

fn read_host(text: &str) -> Result<HostId, String> {
    text.parse().map_err(|_| format!("`{}` is no id of a host", text.escape_debug()))
}

fn read_partition(number: i16, epoch: i64) -> Result<(Partition, u64), String> {
    let partition = u8::try_from(number).ok().and_then(Partition::new);
    let partition = partition.ok_or_else(|| format!("there is no partition {number}"))?;
    Ok((partition, read_count("epoch", epoch)?))
}

fn read_count(column: &str, number: i64) -> Result<u64, String> {
    u64::try_from(number).map_err(|_| format!("`{column}` is {number}, which is negative"))
}

/// The TTL that a process states.
fn read_ttl(millis: Option<i64>) -> Result<Option<Duration>, String> {
    let Some(millis) = millis else { return Ok(None) };
    let ttl = u64::try_from(millis).ok().filter(|millis| *millis > 0);
    ttl.map(|millis| Some(Duration::from_millis(millis)))
        .ok_or_else(|| format!("`ttl_ms` is {millis}, which is not positive"))
}

impl Database {
    /// What is wrong with the rows of hosts and partitions.
    pub(crate) async fn membership_flaws(&self) -> Result<Vec<RowFlaw>, Error> {
        let rows = self.reader().query(MEMBERSHIP, &[]).await?;
        let mut membership = Membership::default();
        Ok(rows.iter().filter_map(|row| add(row, &mut membership).err()).collect())
    }
}
