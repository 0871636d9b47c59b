//! Snapshots of entities, as rows. The records contain everything that they do, so one that is not
//! intact is skipped.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use sandglass_model::{EntityRef, Position};

use super::{file, reader, row};
use crate::{SNAPSHOT_MAX_BYTES, Snapshot};

/// Replaces the entity's snapshot by `body`.
pub(super) fn put(
    transaction: &Transaction<'_>,
    entity: &EntityRef,
    position: i64,
    body: &str,
) -> rusqlite::Result<()> {
    let mut put = transaction.prepare_cached(
        "INSERT OR REPLACE INTO snapshots (entity_type, entity_id, position, body, checksum) \
         VALUES (?1, ?2, ?3, ?4, ?5)",
    )?;
    let (of_type, id) = (entity.entity_type(), entity.id());
    put.execute(params![of_type, id, position, body, checksum(position, of_type, id, body)])?;
    Ok(())
}

/// The entity's snapshot.
pub(super) fn find(
    snapshot: &Connection,
    entity: &EntityRef,
) -> rusqlite::Result<Option<Snapshot>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(None);
    }
    let sql =
        format!("SELECT {} FROM snapshots WHERE entity_type = ?1 AND entity_id = ?2", columns());
    let mut statement = snapshot.prepare_cached(&sql)?;
    let found = statement.query_row([entity.entity_type(), entity.id()], |row| Ok(decode(row)));
    let found = found.optional()?;
    if found == Some(None) {
        tracing::warn!(%entity, "a snapshot is damaged; the records are read instead");
    }
    Ok(found.flatten())
}

/// The entities with snapshots of positions from `first` to `last`, in that order.
pub(super) fn between(
    snapshot: &Connection,
    first: i64,
    last: i64,
) -> rusqlite::Result<Vec<EntityRef>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(Vec::new());
    }
    let mut statement = snapshot.prepare_cached(
        "SELECT entity_type, entity_id FROM snapshots WHERE position BETWEEN ?1 AND ?2 \
         ORDER BY position",
    )?;
    let text = |row: &Row<'_>, column| Some(row.get_ref(column).ok()?.as_str().ok()?.to_owned());
    let found = statement.query_map([first, last], |row| Ok(text(row, 0).zip(text(row, 1))))?;
    let names = found.filter_map(Result::transpose);
    names.filter_map(|name| name.map(|(of, id)| EntityRef::new(of, id).ok()).transpose()).collect()
}

/// The position of the first snapshot that is not as it was written or that no record of its entity
/// led to, and what is wrong with it.
pub(super) fn flaw(snapshot: &Connection) -> rusqlite::Result<Option<(Position, &'static str)>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(None);
    }
    let sql = format!(
        "SELECT {}, EXISTS (SELECT 1 FROM records WHERE records.position = snapshots.position \
         AND records.entity_type = snapshots.entity_type \
         AND records.entity_id = snapshots.entity_id) FROM snapshots",
        columns()
    );
    let mut statement = snapshot.prepare(&sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let what = match decode(row) {
            None => "the checksum of a snapshot does not match",
            Some(_) if row.get(5)? => continue,
            Some(_) => "there is a snapshot without a record of its entity",
        };
        return Ok(Some((reader::position(row.get(0).unwrap_or_default()), what)));
    }
    Ok(None)
}

/// Removes the snapshots from `cut` on, which the records before it do not lead to.
pub(super) fn remove_from(transaction: &Transaction<'_>, cut: i64) -> rusqlite::Result<()> {
    if file::has_snapshots(transaction)? {
        transaction.execute("DELETE FROM snapshots WHERE position >= ?1", [cut])?;
    }
    Ok(())
}

/// A body that is larger than any journal writes is not even loaded.
fn columns() -> String {
    format!(
        "position, entity_type, entity_id, \
         iif(octet_length(body) <= {SNAPSHOT_MAX_BYTES}, body, NULL), checksum"
    )
}

/// The snapshot in a row of [`columns`]; `None` if it is not intact.
fn decode(found: &Row<'_>) -> Option<Snapshot> {
    let text = |column| found.get_ref(column).ok()?.as_str().ok();
    let (position, of_type, id, body) = (found.get(0).ok()?, text(1)?, text(2)?, text(3)?);
    let kept = found.get_ref(4).ok()?.as_blob().ok()?;
    let is_whole = kept == checksum(position, of_type, id, body);
    let entity = is_whole.then(|| EntityRef::new(of_type, id).ok()).flatten()?;
    Some(Snapshot { entity, position: reader::position(position), body: body.to_owned() })
}

/// As that of a record: over every column, each text preceded by its length.
fn checksum(position: i64, of_type: &str, id: &str, body: &str) -> [u8; row::CHECKSUM_BYTES] {
    let texts = [of_type, id, body].map(str::as_bytes);
    row::checksum("sandglass snapshot 1", &[position], &[], &texts)
}
