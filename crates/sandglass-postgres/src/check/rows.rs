//! Tables whose rows are checked one by one: each in the order of its key.

use sandglass_journal::{Error, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, SNAPSHOT_MAX_BYTES};
use sandglass_model::{EntityRef, Partition};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::{CheckedPage, Flaw};
use crate::entities;
use crate::link::Parameter;
use crate::page::range_checksum;
use crate::reader::{Reader, recording_checksum, snapshot_checksum};
use crate::row::{partition_of, position};

/// The key of a row: a partition, and a position in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    partition: i16,
    position: i64,
}

impl Place {
    /// Before all rows.
    pub(super) const FIRST: Self = Self { partition: i16::MIN, position: i64::MIN };
}

/// A page, and behind what the next one begins; `None` if the table has no more rows.
type Checked = Result<(CheckedPage, Option<Place>), Error>;

/// The rows of partitions: each is there, and none has an epoch from before its last record.
pub(super) async fn partitions(reader: &Reader) -> Result<CheckedPage, Error> {
    let sql = "SELECT p.partition, r.epoch > p.epoch FROM sandglass.partitions p \
         LEFT JOIN LATERAL (SELECT epoch FROM sandglass.records WHERE partition = p.partition \
           ORDER BY position DESC LIMIT 1) r ON true ORDER BY p.partition LIMIT 1000";
    let rows = reader.query(sql, &[]).await?;
    let mut page = CheckedPage { table: "partitions", ..CheckedPage::default() };
    page.rows = u64::try_from(rows.len()).unwrap_or(u64::MAX);
    let mut found = Vec::with_capacity(rows.len());
    let mut flaw = |partition, what: &str| {
        let what = what.to_owned();
        page.flaws.push(Flaw { table: "partitions", partition, position: None, what });
    };
    for row in &rows {
        // `membership_flaws` reports a row of no partition.
        let Some(partition) = partition_of(row) else { continue };
        found.push(partition);
        if row.try_get(1).ok().flatten() == Some(true) {
            flaw(Some(partition), "its epoch is before that of the partition's last record");
        }
    }
    if found.is_empty() {
        flaw(None, "the rows of all partitions are missing");
        return Ok(page);
    }
    for partition in Partition::all().filter(|partition| !found.contains(partition)) {
        flaw(Some(partition), "the row of the partition is missing");
    }
    Ok(page)
}

/// The ranges of pruned positions.
pub(super) async fn pruned(reader: &Reader, after: Place) -> Checked {
    let sql = "SELECT p.partition, p.first, p.last, p.checksum, \
           EXISTS (SELECT 1 FROM sandglass.records r WHERE r.partition = p.partition \
             AND r.position BETWEEN p.first AND p.last), \
           p.last > greatest(o.floor, l.position) \
         FROM (SELECT * FROM sandglass.pruned WHERE (partition, first) > ($1, $2) \
           ORDER BY partition, first LIMIT $3) p \
         LEFT JOIN sandglass.partitions o ON o.partition = p.partition \
         LEFT JOIN LATERAL (SELECT position FROM sandglass.records WHERE partition = p.partition \
           ORDER BY position DESC LIMIT 1) l ON true ORDER BY p.partition, p.first";
    check(reader, ("pruned", 1), sql, after, |partition, row| {
        let read = || -> Option<(i64, i64, &[u8])> {
            Some((row.try_get(1).ok()?, row.try_get(2).ok()?, row.try_get(3).ok()?))
        };
        let is_whole = read().is_some_and(|(first, last, checksum)| {
            checksum == range_checksum(partition, first, last)
        });
        if !is_whole {
            Some("its checksum does not match".to_owned())
        } else if row.try_get(4).ok() == Some(true) {
            Some("there is a record where all were pruned".to_owned())
        } else {
            let is_behind = row.try_get(5).ok().flatten() == Some(true);
            is_behind.then(|| "more was pruned than there was".to_owned())
        }
    })
    .await
}

/// The table of entities, compared with the last record of each. A row may show that records are lost,
/// which are flaws of the table `records`.
pub(super) async fn entities(reader: &Reader, after: Place) -> Checked {
    let (sql, mut lost) = (entities::checked(), Vec::new());
    let key = ("entities", entities::CHECKED_KEY);
    let (mut page, next) = check(reader, key, &sql, after, |partition, row| {
        let Some((at, what)) = entities::find_lost(partition, row) else {
            return entities::find_flaw(partition, row);
        };
        let (partition, position) = (Some(partition), Some(position(at)));
        lost.push(Flaw { table: "records", partition, position, what });
        None
    })
    .await?;
    page.flaws.extend(lost);
    Ok((page, next))
}

/// Snapshots, at most some of them at once, because they are large.
pub(super) async fn snapshots(reader: &Reader, after: Place) -> Checked {
    let sql = format!(
        "SELECT n.partition, n.entity, n.position, n.checksum, n.type, n.id, n.is_recorded, \
           CASE WHEN octet_length(n.body) <= {SNAPSHOT_MAX_BYTES} THEN n.body END \
         FROM (SELECT s.*, e.type, e.id, EXISTS (SELECT 1 FROM sandglass.records r \
             WHERE r.partition = s.partition AND r.position = s.position AND r.entity = s.entity) \
             AS is_recorded, \
           coalesce(sum(octet_length(s.body)) OVER (ORDER BY s.partition, s.entity \
             ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before \
           FROM (SELECT * FROM sandglass.snapshots WHERE (partition, entity) > ($1, $2) \
             ORDER BY partition, entity LIMIT $3) s \
           LEFT JOIN sandglass.entities e ON e.partition = s.partition AND e.entity = s.entity) n \
         WHERE n.before < {PAGE_MAX_BYTES} ORDER BY n.partition, n.entity"
    );
    check(reader, ("snapshots", 1), &sql, after, |partition, row| {
        let text = |column| row.try_get::<_, &str>(column).ok();
        let Some((of_type, id)) = text(4).zip(text(5)) else {
            return Some("its entity is missing in the table of entities".to_owned());
        };
        let is_whole = || -> Option<bool> {
            let entity = EntityRef::new(of_type, id).ok()?;
            let due = snapshot_checksum(partition, row.try_get(2).ok()?, &entity, text(7)?);
            Some(row.try_get::<_, &[u8]>(3).ok()? == due)
        };
        if is_whole() != Some(true) {
            Some("its checksum does not match, and the records are read instead".to_owned())
        } else {
            let is_recorded = row.try_get(6).ok() == Some(true);
            (!is_recorded).then(|| "its entity has no record at its position".to_owned())
        }
    })
    .await
}

/// Recordings: each is of the handler that ends at its position. The bytes of large ones are checked by
/// themselves, because several recordings may have the same.
pub(super) async fn recordings(reader: &Reader, after: Place) -> Checked {
    let sql = "SELECT n.partition, n.position, n.dispatch, n.attempt, n.hash, n.checksum, \
           r.kind = 'ended' AND strpos(r.body, '\"dispatch\":\"' || n.dispatch || '\"') > 0 \
             AND strpos(r.body, '\"attempt\":' || n.attempt) > 0, \
           CASE WHEN n.bytes IS NULL \
             THEN EXISTS (SELECT 1 FROM sandglass.blobs b WHERE b.hash = n.hash) \
             ELSE sha256(n.bytes) = n.hash END \
         FROM (SELECT * FROM sandglass.recordings WHERE (partition, position) > ($1, $2) \
           ORDER BY partition, position LIMIT $3) n \
         LEFT JOIN sandglass.records r ON r.partition = n.partition AND r.position = n.position \
         ORDER BY n.partition, n.position";
    check(reader, ("recordings", 1), sql, after, |partition, row| {
        let is_whole = || -> Option<bool> {
            let (at, dispatch) = (row.try_get(1).ok()?, row.try_get(2).ok()?);
            let (attempt, hash) = (row.try_get(3).ok()?, row.try_get(4).ok()?);
            let due = recording_checksum(partition, at, dispatch, attempt, hash);
            Some(row.try_get::<_, &[u8]>(5).ok()? == due)
        };
        if is_whole() != Some(true) {
            Some("its checksum does not match".to_owned())
        } else if row.try_get(6).ok().flatten() != Some(true) {
            Some("no handler that it is of ends at its position".to_owned())
        } else {
            let has_bytes = row.try_get(7).ok() == Some(true);
            (!has_bytes).then(|| {
                "its bytes do not match their hash, or are missing in sandglass.blobs".to_owned()
            })
        }
    })
    .await
}

/// Sends a statement that returns rows behind `after`, with the partition in the first column and the
/// position in the column `key`, and collects what `find_flaw` returns.
async fn check(
    reader: &Reader,
    (table, key): (&'static str, usize),
    sql: &str,
    after: Place,
    mut find_flaw: impl FnMut(Partition, &Row) -> Option<String>,
) -> Checked {
    let limit = i64::try_from(PAGE_MAX_ENTRIES).unwrap_or(i64::MAX);
    let parameters: [Parameter<'_>; 3] =
        [(&after.partition, Type::INT2), (&after.position, Type::INT8), (&limit, Type::INT8)];
    let rows = reader.query(sql, &parameters).await?;
    let mut page = CheckedPage { table, ..CheckedPage::default() };
    let mut next = None;
    for row in &rows {
        let read = || -> Result<Place, tokio_postgres::Error> {
            Ok(Place { partition: row.try_get(0)?, position: row.try_get(key)? })
        };
        let place = read().map_err(|error| reader.unreadable(error))?;
        let partition = partition_of(row);
        let what = match partition {
            Some(partition) => find_flaw(partition, row),
            None => Some(NO_PARTITION.to_owned()),
        };
        let position = Some(position(place.position));
        page.flaws.extend(what.map(|what| Flaw { table, partition, position, what }));
        page.rows += 1;
        next = Some(place);
    }
    Ok((page, next))
}

const NO_PARTITION: &str = "there is no partition of its number";
