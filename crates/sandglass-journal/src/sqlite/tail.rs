//! Handles the end of a journal when it is opened: a last batch that is incomplete is set aside, so
//! that appends continue behind the last complete one. Damage anywhere else refuses the opening.

use std::path::Path;

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use sandglass_model::Position;

use super::{entities, fault, file, pruned, reader, recording, snapshot};
use crate::{Error, PAGE_MAX_ENTRIES};

/// A record at the end that was incomplete when the journal was opened. What was left of it, and of
/// its batch, is kept: in the table `torn_records`, or beside the journal if it never got into it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TornRecord {
    /// Its position, which the next record gets.
    pub position: Position,
    /// What was wrong with it.
    pub what: String,
}

/// Reads the whole journal, and sets aside what is torn at its end.
pub(super) fn recover(connection: &mut Connection, path: &Path) -> Result<Vec<TornRecord>, Error> {
    check_pages(connection, path)?;
    let failed = |error: rusqlite::Error| fault::of(path, "checking", &error);
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let (mut torn, last, cut) = look_at_end(&transaction, path)?;
    if cut <= last || !torn.is_empty() {
        note_whole_ones(&mut torn, cut, last);
        set_aside(&transaction, cut, &torn).map_err(failed)?;
    }
    transaction.commit().map_err(failed)?;
    Ok(torn)
}

/// Reads the whole journal without changing it, and returns its last position if all of it,
/// including its end, is intact.
pub(super) fn check(snapshot: &Connection, path: &Path) -> Result<Position, Error> {
    check_pages(snapshot, path)?;
    let (mut torn, last, cut) = look_at_end(snapshot, path)?;
    note_whole_ones(&mut torn, cut, last);
    if let Some(first) = torn.into_iter().next() {
        return Err(damaged(path, first, ""));
    }
    let failed = |error: rusqlite::Error| fault::of(path, "checking", &error);
    let has_all = file::stamp(snapshot).map_err(failed)?.1 >= file::SINCE_WHERE_WRITES_BEGAN;
    let lost = if has_all { file::lost_indexes(snapshot).map_err(failed)? } else { Vec::new() };
    if let Some(name) = lost.first() {
        let what =
            format!("the index `{name}` is missing; who opens it for writing makes it again");
        return Err(fault::damaged(path, what));
    }
    Ok(reader::position(last))
}

/// The damaged entries at the end, the key of the last record, and the first that cannot stay: all
/// behind what existed before the last write.
fn look_at_end(snapshot: &Connection, path: &Path) -> Result<(Vec<TornRecord>, i64, i64), Error> {
    let failed = |error: rusqlite::Error| fault::of(path, "checking", &error);
    let whole = reader::given_out_before(snapshot).map_err(failed)?;
    let torn = scan(snapshot, path, whole)?;
    let last = reader::last(snapshot).map_err(failed)?;
    let cut = cut(snapshot, &torn, last).map_err(failed)?;
    // The last positions may have been pruned.
    let goes = cut <= last || !torn.is_empty();
    if goes && cut <= whole {
        let what = "the batch that it was appended with is not whole".to_owned();
        return Err(damaged(path, TornRecord { position: reader::position(cut), what }, TOO_MUCH));
    }
    Ok((torn, last, cut))
}

/// Whether SQLite considers the file sound, including its indexes: the last record of an entity is
/// looked up in one.
fn check_pages(connection: &Connection, path: &Path) -> Result<(), Error> {
    let verdict: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| fault::of(path, "checking", &error))?;
    if verdict == "ok" {
        return Ok(());
    }
    let what = format!("{}; keep a copy, and restore a backup", fault::shown(&verdict));
    Err(fault::damaged(path, what))
}

/// The damaged entries at the end, behind the position `whole`. An entry with a damaged recording
/// is damaged, too.
fn scan(snapshot: &Connection, path: &Path, whole: i64) -> Result<Vec<TornRecord>, Error> {
    let mut torn: Vec<TornRecord> = Vec::new();
    let failed = |error: rusqlite::Error| fault::of(path, "checking", &error);
    let mut flaws = recording::flaws(snapshot).map_err(failed)?;
    let mut end = Position(1);
    let flaw = pruned::flaw(snapshot).map_err(failed)?;
    if let Some((position, what)) = flaw {
        return Err(damaged(path, TornRecord { position, what: what.to_owned() }, ""));
    }
    let mut from = Some(Position(1));
    while let Some(start) = from {
        let page = reader::all(snapshot, start, PAGE_MAX_ENTRIES).map_err(failed)?;
        for entry in page.entries {
            let position = entry.position();
            end = Position(position.0.saturating_add(entry.places()));
            let flaw = flaws.remove(&position);
            match entry.damage().or(flaw) {
                Some(what) if position <= reader::position(whole) => {
                    return Err(damaged(path, TornRecord { position, what }, TOO_MUCH));
                }
                Some(what) => torn.push(TornRecord { position, what }),
                None if torn.is_empty() => {}
                None => return Err(damaged(path, torn.swap_remove(0), "")),
            }
        }
        from = page.next;
    }
    if torn.is_empty() && flaws.range(end..).next().is_some() {
        let what = "there is a recording of a run whose end is gone".to_owned();
        torn.push(TornRecord { position: end, what });
    }
    Ok(torn)
}

/// Why the damage is not a torn end.
const TOO_MUCH: &str = ", and it was there before the last write, which alone can be torn";

fn damaged(path: &Path, first: TornRecord, more: &str) -> Error {
    Error::Damaged {
        place: format!("position {} of `{}`", first.position, path.display()),
        what: format!("{}{more}; keep a copy, and restore a backup", first.what),
    }
}

/// The first position that cannot stay: of the first torn record, or of the first record of a batch
/// that lost its end.
fn cut(snapshot: &Connection, torn: &[TornRecord], last: i64) -> rusqlite::Result<i64> {
    let mut cut = first_torn(torn, last);
    let mut batch_at =
        snapshot.prepare("SELECT batch FROM records WHERE position = ?1 AND batch >= ?2")?;
    while batch_at.exists(params![cut - 1, cut])? {
        cut -= 1;
    }
    Ok(cut)
}

/// The first torn position; the one behind `last` if none is.
fn first_torn(torn: &[TornRecord], last: i64) -> i64 {
    let first = torn.first().and_then(|first| i64::try_from(first.position.0).ok());
    first.unwrap_or(last.saturating_add(1))
}

/// Intact records of an incomplete batch: they are removed, too, and reported.
fn note_whole_ones(torn: &mut Vec<TornRecord>, cut: i64, last: i64) {
    let whole =
        (cut..first_torn(torn, last)).filter_map(|key| u64::try_from(key).ok()).map(|key| {
            let what = "the batch that it was appended with is not whole".to_owned();
            TornRecord { position: Position(key), what }
        });
    torn.splice(0..0, whole);
}

fn set_aside(transaction: &Transaction<'_>, cut: i64, torn: &[TornRecord]) -> rusqlite::Result<()> {
    let mut keep = transaction.prepare(
        "INSERT INTO torn_records \
         (why, position, batch, at_ms, entity_type, entity_id, sequence, kind, body, checksum) \
         SELECT ?1, position, batch, at_ms, entity_type, entity_id, sequence, kind, body, checksum \
         FROM records WHERE position = ?2",
    )?;
    let mut note =
        transaction.prepare("INSERT INTO torn_records (why, position) VALUES (?1, ?2)")?;
    for record in torn {
        let key = i64::try_from(record.position.0).unwrap_or_default();
        if keep.execute(params![record.what, key])? == 0 {
            note.execute(params![record.what, key])?;
        }
    }
    recording::set_aside(transaction, cut)?;
    snapshot::remove_from(transaction, cut)?;
    let shortened = entities::from_cut(transaction, cut)?;
    transaction.execute("DELETE FROM records WHERE position >= ?1", [cut])?;
    entities::correct(transaction, &shortened)?;
    transaction.execute("UPDATE head SET position = ?1", [cut - 1])?;
    if file::stamp(transaction)?.1 >= file::SINCE_WHERE_WRITES_BEGAN {
        // Nothing that is left can be torn.
        transaction.execute("UPDATE head SET before = position", [])?;
    }
    Ok(())
}
