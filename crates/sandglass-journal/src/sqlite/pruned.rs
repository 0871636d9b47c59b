//! What was removed on purpose: whole entities, and the positions that they leave, which
//! distinguishes these from lost records.

use rusqlite::{Connection, OptionalExtension, Transaction, params};
use sandglass_model::{EntityRef, Position};

use super::{entities, file, reader, row};
use crate::Entry;

/// Removes all records of `entity`, with their recordings and its snapshot, if its last one is at
/// `last`. Returns how many there were; 0 if it was written to since.
pub(super) fn remove(
    transaction: &Transaction<'_>,
    entity: &EntityRef,
    last: Position,
) -> rusqlite::Result<u64> {
    let name = [entity.entity_type(), entity.id()];
    let mut positions = transaction.prepare_cached(
        "SELECT position FROM records WHERE entity_type = ?1 AND entity_id = ?2 ORDER BY position",
    )?;
    let found = positions.query_map(name, |row| row.get(0))?;
    let found = found.collect::<rusqlite::Result<Vec<i64>>>()?;
    if found.last().copied().map(reader::position) != Some(last) {
        return Ok(0);
    }
    for range in found.chunk_by(|one, next| one + 1 == *next) {
        if let (Some(first), Some(last)) = (range.first(), range.last()) {
            for delete in [
                "DELETE FROM recordings WHERE position BETWEEN ?1 AND ?2",
                "DELETE FROM records WHERE position BETWEEN ?1 AND ?2",
            ] {
                transaction.prepare_cached(delete)?.execute([first, last])?;
            }
            note(transaction, *first, *last)?;
        }
    }
    transaction
        .prepare_cached("DELETE FROM snapshots WHERE entity_type = ?1 AND entity_id = ?2")?
        .execute(name)?;
    entities::remove(transaction, name)?;
    Ok(u64::try_from(found.len()).unwrap_or(u64::MAX))
}

/// Notes that the positions from `first` to `last` are free, in one range with adjacent ones.
fn note(transaction: &Transaction<'_>, mut first: i64, mut last: i64) -> rusqlite::Result<()> {
    let range = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
    let mut before = transaction.prepare_cached(
        "SELECT first, last FROM pruned WHERE first < ?1 ORDER BY first DESC LIMIT 1",
    )?;
    if let Some((begin, end)) = before.query_row([first], range).optional()?
        && end + 1 == first
    {
        first = begin;
    }
    let mut behind =
        transaction.prepare_cached("DELETE FROM pruned WHERE first = ?1 RETURNING first, last")?;
    if let Some((_, end)) = behind.query_row([last + 1], range).optional()? {
        last = end;
    }
    transaction
        .prepare_cached(
            "INSERT OR REPLACE INTO pruned (first, last, checksum) VALUES (?1, ?2, ?3)",
        )?
        .execute(params![first, last, checksum(first, last)])?;
    Ok(())
}

/// The entries for the positions from `due` to before `found`, at which there is no record.
pub(super) fn gap(snapshot: &Connection, due: i64, found: i64) -> rusqlite::Result<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut due = due;
    if due < found && file::has_snapshots(snapshot)? {
        let mut ranges = snapshot.prepare_cached(
            "SELECT first, last, checksum FROM pruned WHERE last >= ?1 AND first < ?2 \
             AND first >= coalesce((SELECT max(first) FROM pruned WHERE first <= ?1), 0) \
             ORDER BY first",
        )?;
        let mut rows = ranges.query([due, found])?;
        while let Some(row) = rows.next()? {
            let (first, last): (i64, i64) = (row.get(0)?, row.get(1)?);
            if row.get_ref(2)?.as_blob().ok() != Some(&checksum(first, last)[..]) {
                continue;
            }
            missing(&mut entries, due, first);
            let (from, to) = (first.max(due), last.min(found - 1));
            entries
                .push(Entry::Pruned { first: reader::position(from), last: reader::position(to) });
            due = to + 1;
        }
    }
    missing(&mut entries, due, found);
    Ok(entries)
}

/// How many positions were pruned.
pub(super) fn places(snapshot: &Connection) -> rusqlite::Result<i64> {
    if !file::has_snapshots(snapshot)? {
        return Ok(0);
    }
    // A sum beyond that of any journal overflows into a floating-point number.
    let sum = "SELECT cast(total(last - first + 1) AS INTEGER) FROM pruned";
    snapshot.query_row(sum, [], |row| row.get(0))
}

fn missing(entries: &mut Vec<Entry>, due: i64, found: i64) {
    if due < found {
        let (first, last) = (reader::position(due), reader::position(found - 1));
        entries.push(Entry::Missing { first, last });
    }
}

/// The first impossible range: one with a record in it, behind the end, or not as it was written.
pub(super) fn flaw(snapshot: &Connection) -> rusqlite::Result<Option<(Position, &'static str)>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(None);
    }
    let end = reader::given_out(snapshot)?;
    let mut ranges = snapshot.prepare(
        "SELECT first, last, checksum, \
         EXISTS (SELECT 1 FROM records WHERE position BETWEEN first AND last) \
         FROM pruned ORDER BY first",
    )?;
    let mut rows = ranges.query([])?;
    while let Some(row) = rows.next()? {
        let (first, last): (i64, i64) = (row.get(0)?, row.get(1)?);
        let what = if row.get_ref(2)?.as_blob().ok() != Some(&checksum(first, last)[..]) {
            "the checksum of a pruned range does not match"
        } else if row.get(3)? {
            "there is a record where all were pruned"
        } else if last > end {
            "more was pruned than there was"
        } else {
            continue;
        };
        return Ok(Some((reader::position(first), what)));
    }
    Ok(None)
}

fn checksum(first: i64, last: i64) -> [u8; row::CHECKSUM_BYTES] {
    row::checksum("sandglass pruned 1", &[first, last], &[], &[])
}
