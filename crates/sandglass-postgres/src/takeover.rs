//! Taking partitions: the epoch that fences earlier owners and statements that are still on their way,
//! and the end of each log as it is then.

use std::collections::BTreeMap;

use sandglass_model::Partition;
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::fault::{Fate, Fault};
use crate::heads::Head;
use crate::link::{Link, Parameter};
use crate::row::partition_of;
use crate::shared::Shared;

/// What the database contains of a partition.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    /// The end of its log.
    pub(crate) head: Head,
    /// Whether this process owns it now, with the epoch of `head`.
    pub(crate) is_owned: bool,
    /// The name of the process that owns it.
    pub(crate) owner: Option<String>,
    /// The position that was asked for, 0 for none.
    pub(crate) probe: i64,
    /// The checksum of the record there.
    pub(crate) probed: Option<[u8; 16]>,
}

/// Takes these partitions from whatever process has them. Waits for statements that hold their rows,
/// for each row at most for `$3`: otherwise the server would execute it after this process is gone, and
/// take the partitions from their next owner. The time limit is that of this statement
/// alone, also behind a pooler, and is set before the first row is locked.
pub(crate) const TAKE_ANY: &str = "WITH wanted AS (SELECT partition FROM sandglass.partitions \
     WHERE partition = ANY($1) AND (SELECT set_config('lock_timeout', $3, true)) IS NOT NULL \
     ORDER BY partition FOR UPDATE) \
     UPDATE sandglass.partitions p SET epoch = p.epoch + 1, owner = $2 FROM wanted \
     WHERE p.partition = wanted.partition RETURNING p.partition";

/// Takes these partitions again, if this process still has them.
pub(crate) const TAKE_AGAIN: &str = "WITH wanted AS (SELECT partition FROM sandglass.partitions \
     WHERE partition = ANY($1) AND owner = $2 \
     AND (SELECT set_config('lock_timeout', $3, true)) IS NOT NULL \
     ORDER BY partition FOR UPDATE) \
     UPDATE sandglass.partitions p SET epoch = p.epoch + 1 FROM wanted \
     WHERE p.partition = wanted.partition RETURNING p.partition";

/// Read by a second statement, which sees what was committed before the first one.
const HEADS: &str = "SELECT p.partition, p.epoch, coalesce(p.owner = $2, false), p.floor, r.position, \
     r.checksum, n.checksum, h.name, w.probe FROM sandglass.partitions p \
     JOIN unnest($1::smallint[], $3::bigint[]) AS w(partition, probe) ON w.partition = p.partition \
     LEFT JOIN LATERAL (SELECT position, checksum FROM sandglass.records \
         WHERE partition = p.partition ORDER BY position DESC LIMIT 1) r ON true \
     LEFT JOIN sandglass.records n ON n.partition = p.partition AND n.position = w.probe \
     LEFT JOIN sandglass.hosts h ON h.host = p.owner";

/// Takes partitions by `sql` on a new connection, and reads them. `probes` are positions that are of
/// interest, 0 for none. Partitions that are not taken are read, too, if something was acknowledged in them:
/// after a failover, the server may have lost that.
pub(crate) async fn take(
    shared: &Shared,
    sql: &str,
    probes: &BTreeMap<Partition, i64>,
) -> Result<(Link, BTreeMap<Partition, Found>), Fault> {
    let link = shared.connector.connect().await?;
    let limit = shared.settings.statement_limit;
    let (numbers, host) = (numbers_of(probes), shared.host_text());
    // Earlier than the time limit here, so that the reason is known.
    let lock_limit = format!("{}ms", (limit / 2).as_millis().max(1));
    let taking: [Parameter<'_>; 3] =
        [(&numbers, Type::INT2_ARRAY), (&host, Type::TEXT), (&lock_limit, Type::TEXT)];
    link.query_or_cancel(limit, sql, &taking).await?;
    let mut all = probes.clone();
    for (partition, last) in shared.all_acknowledged() {
        all.entry(partition).or_insert(last);
    }
    let found = read_rows(shared, &link, &all).await?;
    require_rows(probes, &found)?;
    Ok((link, found))
}

fn numbers_of(probes: &BTreeMap<Partition, i64>) -> Vec<i16> {
    probes.keys().map(|partition| partition.number().into()).collect()
}

/// Reads the ends of the logs of partitions. `probes` as for [`take`].
pub(crate) async fn read_heads(
    shared: &Shared,
    link: &Link,
    probes: &BTreeMap<Partition, i64>,
) -> Result<BTreeMap<Partition, Found>, Fault> {
    let found = read_rows(shared, link, probes).await?;
    require_rows(probes, &found)?;
    Ok(found)
}

fn require_rows(
    of: &BTreeMap<Partition, i64>,
    found: &BTreeMap<Partition, Found>,
) -> Result<(), Fault> {
    if of.keys().all(|partition| found.contains_key(partition)) {
        return Ok(());
    }
    let what = "the table `sandglass.partitions` lacks rows: restore it from a backup".to_owned();
    Err(Fault { fate: Fate::Refused, what })
}

async fn read_rows(
    shared: &Shared,
    link: &Link,
    probes: &BTreeMap<Partition, i64>,
) -> Result<BTreeMap<Partition, Found>, Fault> {
    let (numbers, host) = (numbers_of(probes), shared.host_text());
    let positions: Vec<i64> = probes.values().copied().collect();
    let parameters: [Parameter<'_>; 3] =
        [(&numbers, Type::INT2_ARRAY), (&host, Type::TEXT), (&positions, Type::INT8_ARRAY)];
    let rows = link.query(shared.settings.statement_limit, HEADS, &parameters).await?;
    let mut found = BTreeMap::new();
    for row in &rows {
        let (partition, state) = read(row).map_err(Fault::from)?;
        found.extend(partition.map(|partition| (partition, state)));
    }
    Ok(found)
}

fn read(row: &Row) -> Result<(Option<Partition>, Found), tokio_postgres::Error> {
    let (floor, position): (i64, Option<i64>) = (row.try_get(3)?, row.try_get(4)?);
    let bytes = |column| -> Result<Option<[u8; 16]>, tokio_postgres::Error> {
        let found: Option<&[u8]> = row.try_get(column)?;
        // One of another length was never written.
        Ok(found.map(|bytes| bytes.try_into().unwrap_or_default()))
    };
    let position = position.unwrap_or_default();
    let checksum = if position >= floor { bytes(5)? } else { None };
    let head = Head { epoch: row.try_get(1)?, last: floor.max(position), checksum };
    let (is_owned, owner) = (row.try_get(2)?, row.try_get(7)?);
    let found = Found { head, is_owned, owner, probe: row.try_get(8)?, probed: bytes(6)? };
    Ok((partition_of(row), found))
}
