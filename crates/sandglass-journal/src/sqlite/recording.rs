//! Recordings of handlers, as rows: their checksums, and how they are found and checked.

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use sandglass_model::{DispatchId, Position};

use super::{GROUP_MAX_RECORDS, file, reader, row};
use crate::{Batch, RECORDING_MAX_BYTES, Recording};

/// What is wrong with recordings, by the positions of their handlers' ends.
pub(super) type Flaws = BTreeMap<Position, String>;

/// Selects the recording of a dispatch and an attempt, written like the index in `indexes.sql`, so that
/// SQLite uses it. Files that no host has opened since that index changed have one by `dispatch` and
/// `attempt`, which the first two terms use.
const OF_DISPATCH: &str = "dispatch = ?1 AND attempt = ?2 \
     AND unhex(substr(dispatch, 17, 16)) = unhex(substr(?1, 17, 16)) \
     AND unhex(substr(dispatch, 1, 16)) = unhex(substr(?1, 1, 16))";

/// Inserts the recordings of `batch`, whose first record has the position `first`. If a handler was
/// recorded before, nothing is inserted, and its recording is returned.
pub(super) fn insert<'a>(
    transaction: &Transaction<'_>,
    batch: &'a Batch,
    first: i64,
) -> rusqlite::Result<Option<&'a Recording>> {
    // If there is only one, the unique index refuses a duplicate.
    if batch.recordings.len() > 1
        && let Some(known) = known(transaction, batch)?
    {
        return Ok(Some(known));
    }
    for recording in &batch.recordings {
        let Recording { attempt, body, .. } = recording;
        let dispatch = recording.dispatch.to_string();
        let end = batch.end_of(recording).and_then(|end| i64::try_from(end).ok());
        let position = first.saturating_add(end.unwrap_or_default());
        let checksum = checksum(position, &dispatch, (*attempt).into(), body);
        let mut insert = transaction.prepare_cached(
            "INSERT INTO recordings (position, dispatch, attempt, body, checksum) \
             VALUES (?1, ?2, ?3, ?4, ?5) \
             ON CONFLICT (unhex(substr(dispatch, 17, 16)), unhex(substr(dispatch, 1, 16)), attempt) \
             DO NOTHING",
        )?;
        if insert.execute(params![position, dispatch, attempt, body, checksum])? == 0 {
            return Ok(Some(recording));
        }
    }
    Ok(None)
}

/// The first recording in `batch` of a handler that was recorded before.
fn known<'a>(
    transaction: &Transaction<'_>,
    batch: &'a Batch,
) -> rusqlite::Result<Option<&'a Recording>> {
    for recording in &batch.recordings {
        let sql = format!("SELECT 1 FROM recordings WHERE {OF_DISPATCH}");
        let mut known = transaction.prepare_cached(&sql)?;
        if known.exists(params![recording.dispatch.to_string(), recording.attempt])? {
            return Ok(Some(recording));
        }
    }
    Ok(None)
}

/// What is wrong with a recording, and the position of its handler's end.
pub(super) type Flaw = (Position, String);

/// The recording of a handler, or what is wrong with it; `None` if there is none.
pub(super) fn find(
    snapshot: &Connection,
    dispatch: DispatchId,
    attempt: u32,
) -> rusqlite::Result<Option<Result<Vec<u8>, Flaw>>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(None);
    }
    let sql = format!("SELECT {} FROM recordings WHERE {OF_DISPATCH}", columns());
    let mut statement = snapshot.prepare_cached(&sql)?;
    let decode = |found: &Row<'_>| {
        let position = reader::position(found.get(0)?);
        Ok(body(found).map(<[u8]>::to_vec).map_err(|what| (position, what)))
    };
    statement.query_row(params![dispatch.to_string(), attempt], decode).optional()
}

/// Reads all recordings from the position `first` on, and returns those that are not intact or whose
/// handler does not end at their position: all of them if they are few, otherwise more than one write
/// can tear.
pub(super) fn flaws(snapshot: &Connection, first: i64) -> rusqlite::Result<Flaws> {
    let mut flaws = Flaws::new();
    if !file::has_snapshots(snapshot)? {
        return Ok(flaws);
    }
    let sql = format!(
        "SELECT {}, EXISTS (SELECT 1 FROM records WHERE records.position = recordings.position \
         AND kind = 'ended' AND iif(json_valid(records.body), \
         records.body ->> '$.dispatch' = dispatch AND records.body ->> '$.attempt' = attempt, 0)) \
         FROM recordings WHERE position >= ?1 ORDER BY position",
        columns()
    );
    let mut statement = snapshot.prepare(&sql)?;
    let mut rows = statement.query([first])?;
    while let Some(found) = rows.next()?
        && flaws.len() <= GROUP_MAX_RECORDS
    {
        let flaw = match body(found) {
            Err(what) => what,
            Ok(_) if found.get(5)? => continue,
            Ok(_) => "its recording is of another run".to_owned(),
        };
        flaws.insert(reader::position(found.get(0)?), flaw);
    }
    Ok(flaws)
}

/// The position of the first record that states a recording which is missing.
pub(super) fn missing(snapshot: &Connection) -> rusqlite::Result<Option<Position>> {
    if !file::has_snapshots(snapshot)? {
        return Ok(None);
    }
    let mut missing = snapshot.prepare(
        "SELECT position FROM records WHERE kind = 'ended' \
         AND iif(json_valid(body), json_type(body, '$.recording.bytes') = 'integer', 0) \
         AND NOT EXISTS (SELECT 1 FROM recordings WHERE recordings.position = records.position) \
         ORDER BY position LIMIT 1",
    )?;
    missing.query_row([], |row| Ok(reader::position(row.get(0)?))).optional()
}

/// A body that is larger than any journal writes is not even loaded.
fn columns() -> String {
    format!(
        "position, dispatch, attempt, \
         iif(octet_length(body) <= {RECORDING_MAX_BYTES}, body, NULL), checksum"
    )
}

/// The body in a row of [`columns`], or what is wrong with the row.
fn body<'a>(found: &'a Row<'_>) -> Result<&'a [u8], String> {
    let read = || {
        let dispatch = found.get_ref(1).ok()?.as_str().ok()?;
        let body = found.get_ref(3).ok()?.as_blob().ok()?;
        let checksum = checksum(found.get(0).ok()?, dispatch, found.get(2).ok()?, body);
        Some((body, found.get_ref(4).ok()?.as_blob().ok()? == checksum))
    };
    match read() {
        Some((body, true)) => Ok(body),
        Some((_, false)) => Err("the checksum of its recording does not match".to_owned()),
        None => Err("its recording is none, or larger than any".to_owned()),
    }
}

/// As that of a record: over every column, each text preceded by its length.
fn checksum(position: i64, dispatch: &str, attempt: i64, body: &[u8]) -> [u8; row::CHECKSUM_BYTES] {
    let texts = [dispatch.as_bytes(), body];
    row::checksum("sandglass recording 1", &[position, attempt], &[], &texts)
}

/// Sets aside the recordings from `cut` on.
pub(super) fn set_aside(transaction: &Transaction<'_>, cut: i64) -> rusqlite::Result<()> {
    if !file::has_snapshots(transaction)? {
        return Ok(());
    }
    transaction.execute(
        "INSERT INTO torn_records (why, position, sequence, kind, body, checksum) \
         SELECT 'a recording of ' || dispatch, position, attempt, 'recording', body, checksum \
         FROM recordings WHERE position >= ?1",
        [cut],
    )?;
    transaction.execute("DELETE FROM recordings WHERE position >= ?1", [cut])?;
    Ok(())
}
