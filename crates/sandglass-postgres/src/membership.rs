//! What the members of a cluster see of each other: beats, declarations of death, and who owns what. A
//! beat and a declaration change the same row, so one of them loses; the id of a dead process is never
//! used again.

use std::sync::Arc;

use sandglass_journal::Error;
use sandglass_model::{HostId, Member, Membership, Ownership, Partition};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::fault::Fate;
use crate::hosts::query;
use crate::link::Parameter;
use crate::shared::Shared;
use crate::skew::TIME;

/// All hosts and all partitions in one snapshot.
const MEMBERSHIP: &str = "SELECT host, name, url, version, reads_format, draining, beats, dead, \
         NULL::smallint, NULL::bigint FROM sandglass.hosts \
     UNION ALL SELECT owner, NULL, NULL, NULL, NULL, NULL, NULL, NULL, partition, epoch \
         FROM sandglass.partitions";

impl Database {
    /// Shows the other members that this process is alive, and then reads the state of all. `None` if it
    /// was declared dead: other members may claim its partitions, and it has to enter again
    /// ([`Database::rejoin`]). To be called every second.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the database does not respond within the time limit for connecting;
    /// [`Error::Damaged`] if its rows cannot be read.
    pub async fn beat_as_member(&self) -> Result<Option<Membership>, Error> {
        let shared = self.shared();
        let beaten = beat(shared).await;
        shared.reachable.note(beaten.as_ref().err().map(ToString::to_string));
        beaten
    }

    /// Reads which processes there are, and which of them owns each partition.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; [`Error::Damaged`] if its rows cannot be read.
    pub async fn membership(&self) -> Result<Membership, Error> {
        let reader = self.reader();
        read(self.shared(), &reader.query(MEMBERSHIP, &[]).await?)
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
        "UPDATE sandglass.hosts SET beats = beats + 1 WHERE host = $1 AND NOT dead RETURNING {TIME}"
    );
    let host = shared.host_text();
    let sent = shared.skew.sent();
    let beaten = query(shared, &sql, &[(&host, Type::TEXT)]).await;
    let beaten = beaten.map_err(|fault| fault.unavailable())?;
    if beaten.is_empty() {
        return Ok(None);
    }
    shared.skew.note(sent, beaten.first(), shared.connector.place());
    // Another statement, so that it sees what the first one waited for.
    let rows = query(shared, MEMBERSHIP, &[]).await.map_err(|fault| fault.unavailable())?;
    read(shared, &rows).map(Some)
}

fn read(shared: &Shared, rows: &[Row]) -> Result<Membership, Error> {
    let mut membership = Membership::default();
    for row in rows {
        add(row, &mut membership).map_err(|what| Error::Damaged {
            place: format!("the tables of hosts and partitions of {}", shared.connector.place()),
            what,
        })?;
    }
    Ok(membership)
}

/// Adds what a row of [`MEMBERSHIP`] contains.
fn add(row: &Row, membership: &mut Membership) -> Result<(), String> {
    let unreadable = |error: tokio_postgres::Error| error.to_string();
    let unsigned =
        |number: i64| u64::try_from(number).map_err(|_| format!("the number {number} is negative"));
    let host: Option<&str> = row.try_get(0).map_err(unreadable)?;
    let host = host.map(str::parse::<HostId>).transpose().map_err(|error| error.to_string())?;
    if let Some(number) = row.try_get::<_, Option<i16>>(8).map_err(unreadable)? {
        let partition = u8::try_from(number).ok().and_then(Partition::new);
        let partition = partition.ok_or_else(|| format!("there is no partition {number}"))?;
        let epoch = unsigned(row.try_get(9).map_err(unreadable)?)?;
        membership.partitions.push(Ownership { partition, epoch, owner: host });
        return Ok(());
    }
    let format: i32 = row.try_get(4).map_err(unreadable)?;
    membership.hosts.push(Member {
        host: host.ok_or("a host has no id")?,
        name: row.try_get(1).map_err(unreadable)?,
        url: row.try_get(2).map_err(unreadable)?,
        version: row.try_get(3).map_err(unreadable)?,
        reads_format: u32::try_from(format).unwrap_or_default(),
        is_draining: row.try_get(5).map_err(unreadable)?,
        beats: unsigned(row.try_get(6).map_err(unreadable)?)?,
        is_dead: row.try_get(7).map_err(unreadable)?,
    });
    Ok(())
}
