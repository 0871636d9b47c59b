//! The table of entities: which are awake, and how the others rest. It is an index, so each of its
//! rows is compared with the records when it is read. A row that does not match them stands for an
//! entity that is awake: a runtime reads that one completely.

use rusqlite::{Connection, OptionalExtension, Row, Transaction, params};
use sandglass_model::{EntityRef, Position, Sequence, SpecDigest, WallTime};

use super::{file, reader, row};
use crate::entities::page_size;
use crate::{EntityEntry, LastRecord, Rest, Resting, Select, Selected, SelectedPlace};

/// `due` of entities that are awake or listed.
const FIRST: i64 = SelectedPlace::FIRST;

/// The columns that [`decode`] reads, with a key of their order before them.
const COLUMNS: &str = "entity_type, entity_id, rests_at, wake_at, is_listed, spec, checksum";

/// Enters an entity whose first records were just appended, or clears the rest of one that has new
/// records. If it is awake, nothing is written.
pub(super) fn wake(
    transaction: &Transaction<'_>,
    entity: &EntityRef,
    is_new: bool,
) -> rusqlite::Result<()> {
    let sql = if is_new {
        "INSERT OR REPLACE INTO entities (entity_type, entity_id, due) VALUES (?1, ?2, ?3)"
    } else {
        "UPDATE entities SET rests_at = NULL, due = ?3 \
         WHERE entity_type = ?1 AND entity_id = ?2 AND rests_at IS NOT NULL"
    };
    let mut statement = transaction.prepare_cached(sql)?;
    statement.execute(params![entity.entity_type(), entity.id(), FIRST])?;
    Ok(())
}

/// Notes that an entity rests, unless it has another last record by now.
pub(super) fn rest(transaction: &Transaction<'_>, resting: &Resting) -> rusqlite::Result<()> {
    let Resting { entity, last, rest } = resting;
    let found = last_record(transaction, entity)?;
    if found.is_none_or(|found| found.position != *last) {
        return Ok(());
    }
    let (of_type, id) = (entity.entity_type(), entity.id());
    let rests_at = i64::try_from(last.0).unwrap_or(i64::MAX);
    let wake_at = rest.wake_at.map(WallTime::as_millis);
    let spec = rest.spec.as_ref().map(SpecDigest::as_bytes);
    let checksum = checksum((of_type, id), rests_at, rest);
    let due = rest.due_key();
    // The index by specs stays as it is while an entity obeys the same spec.
    let mut again = transaction.prepare_cached(
        "UPDATE entities \
         SET rests_at = ?3, wake_at = ?4, is_listed = ?5, due = ?7, checksum = ?8 \
         WHERE entity_type = ?1 AND entity_id = ?2 AND spec IS ?6",
    )?;
    let values = params![of_type, id, rests_at, wake_at, rest.is_listed, spec, due, checksum];
    if again.execute(values)? == 0 {
        let mut replace = transaction.prepare_cached(
            "INSERT OR REPLACE INTO entities \
             (entity_type, entity_id, rests_at, wake_at, is_listed, spec, due, checksum) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
        )?;
        replace.execute(values)?;
    }
    Ok(())
}

/// Removes an entity whose records were removed.
pub(super) fn remove(transaction: &Transaction<'_>, entity: [&str; 2]) -> rusqlite::Result<()> {
    let mut delete = transaction
        .prepare_cached("DELETE FROM entities WHERE entity_type = ?1 AND entity_id = ?2")?;
    delete.execute(entity)?;
    Ok(())
}

/// The last record of an entity.
pub(super) fn last_record(
    snapshot: &Connection,
    entity: &EntityRef,
) -> rusqlite::Result<Option<LastRecord>> {
    let mut statement = snapshot.prepare_cached(
        "SELECT position, sequence FROM records WHERE entity_type = ?1 AND entity_id = ?2 \
         ORDER BY position DESC LIMIT 1",
    )?;
    let found = statement.query_row([entity.entity_type(), entity.id()], |row| {
        let sequence = u64::try_from(row.get::<_, i64>(1)?).unwrap_or_default();
        Ok(LastRecord { position: reader::position(row.get(0)?), sequence: Sequence(sequence) })
    });
    found.optional()
}

/// What is known of an entity.
pub(super) fn find(
    snapshot: &Connection,
    entity: &EntityRef,
) -> rusqlite::Result<Option<EntityEntry>> {
    let Some(last) = last_record(snapshot, entity)? else { return Ok(None) };
    let sql =
        format!("SELECT 0, {COLUMNS} FROM entities WHERE entity_type = ?1 AND entity_id = ?2");
    let mut statement = snapshot.prepare_cached(&sql)?;
    let noted = statement.query_row([entity.entity_type(), entity.id()], |row| Ok(decode(row)));
    let noted = noted.optional()?.flatten().filter(|(at, _)| *at == last.position);
    let rest = noted.map(|(_, rest)| rest);
    Ok(Some(EntityEntry { entity: entity.clone(), last, rest }))
}

/// A page of the entities that `which` selects.
pub(super) fn select(
    snapshot: &Connection,
    which: &Select,
    after: Option<&SelectedPlace>,
    limit: usize,
) -> rusqlite::Result<Selected> {
    let limit = page_size(limit);
    let fetched = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    // No entity has an empty type, so this is before the first of them.
    let (of_type, id) =
        after.map_or(("", ""), |after| (after.entity.entity_type(), after.entity.id()));
    let key = after.map_or(i64::MIN, |after| after.key);
    let (found, has_more) = match which {
        Select::All => {
            let sql = format!(
                "SELECT 0, {COLUMNS} FROM entities WHERE (entity_type, entity_id) > (?1, ?2) \
                 ORDER BY entity_type, entity_id LIMIT ?3"
            );
            fill(snapshot, &sql, params![of_type, id, fetched], fetched)?
        }
        Select::Due { until } => {
            let sql = format!(
                "SELECT due, {COLUMNS} FROM entities \
                 WHERE due IS NOT NULL AND due <= ?4 \
                 AND (due, entity_type, entity_id) > (?5, ?1, ?2) \
                 ORDER BY due, entity_type, entity_id LIMIT ?3"
            );
            fill(snapshot, &sql, params![of_type, id, fetched, until.as_millis(), key], fetched)?
        }
        Select::Ended => {
            let sql = format!(
                "SELECT rests_at, {COLUMNS} FROM entities \
                 WHERE spec IS NULL AND rests_at IS NOT NULL \
                 AND (rests_at, entity_type, entity_id) > (?4, ?1, ?2) \
                 ORDER BY rests_at, entity_type, entity_id LIMIT ?3"
            );
            fill(snapshot, &sql, params![of_type, id, fetched, key], fetched)?
        }
        Select::OtherSpec { entity_type, spec } => {
            let id = if of_type == entity_type { id } else { "" };
            of_other_specs(snapshot, (entity_type, spec), id, fetched)?
        }
    };
    let mut page = Selected::page(found, has_more, limit);
    // A row that is not as it was written must not end an entity.
    page.entries.retain(|entry| match (which, &entry.rest) {
        (Select::All | Select::Due { .. }, _) => true,
        (Select::Ended, rest) => rest.as_ref().is_some_and(|rest| rest.spec.is_none()),
        (Select::OtherSpec { spec, .. }, rest) => {
            rest.as_ref().and_then(|rest| rest.spec).is_some_and(|obeyed| obeyed != *spec)
        }
    });
    Ok(page)
}

/// The entities of a type that rest and obey another spec than `spec`, behind `id`. Each spec is
/// looked up by itself, because the index has the entities of each together.
fn of_other_specs(
    snapshot: &Connection,
    (entity_type, spec): (&str, &SpecDigest),
    id: &str,
    fetched: i64,
) -> rusqlite::Result<(Vec<(i64, EntityEntry)>, bool)> {
    let mut next = snapshot.prepare_cached(
        "SELECT min(spec) FROM entities \
         WHERE spec IS NOT NULL AND entity_type = ?1 AND spec > ?2",
    )?;
    let sql = format!(
        "SELECT 0, {COLUMNS} FROM entities \
         WHERE spec IS NOT NULL AND entity_type = ?1 AND spec = ?2 AND entity_id > ?3 \
         AND rests_at IS NOT NULL ORDER BY entity_id LIMIT ?4"
    );
    let (mut found, mut has_more, mut before) = (Vec::new(), false, Vec::new());
    loop {
        let other: Option<Vec<u8>> =
            next.query_row(params![entity_type, before], |row| row.get(0))?;
        let Some(other) = other else { break };
        if other != spec.as_bytes() {
            let (of_spec, is_cut) =
                fill(snapshot, &sql, params![entity_type, other, id, fetched], fetched)?;
            found.extend(of_spec);
            found.sort_by(|(_, one), (_, other)| one.entity.cmp(&other.entity));
            found.truncate(usize::try_from(fetched).unwrap_or(usize::MAX));
            has_more |= is_cut;
        }
        before = other;
    }
    Ok((found, has_more))
}

/// The entities of these rows, with their keys, and whether there are as many rows as were fetched for
/// a full page. Rows without records are skipped: they were left behind by damage.
fn fill(
    snapshot: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
    fetched: i64,
) -> rusqlite::Result<(Vec<(i64, EntityEntry)>, bool)> {
    let mut statement = snapshot.prepare_cached(sql)?;
    let mut rows = statement.query(values)?;
    let (mut found, mut count) = (Vec::new(), 0);
    while let Some(row) = rows.next()? {
        count += 1;
        let key = row.get(0)?;
        let (of_type, id): (String, String) = (row.get(1)?, row.get(2)?);
        let Ok(entity) = EntityRef::new(of_type, id) else { continue };
        let Some(last) = last_record(snapshot, &entity)? else { continue };
        let rest = decode(row).filter(|(at, _)| *at == last.position).map(|(_, rest)| rest);
        found.push((key, EntityEntry { entity, last, rest }));
    }
    Ok((found, count >= fetched))
}

/// How the entity in a row rests, and the position of its last record then; `None` if it is awake,
/// or the row is not as it was written.
fn decode(found: &Row<'_>) -> Option<(Position, Rest)> {
    let text = |column| found.get_ref(column).ok()?.as_str().ok();
    let rests_at: i64 = found.get::<_, Option<i64>>(3).ok()??;
    let wake_at: Option<i64> = found.get(4).ok()?;
    let spec = found.get_ref(6).ok()?.as_blob_or_null().ok()?;
    let spec = match spec {
        Some(bytes) => Some(SpecDigest::from_bytes(bytes.try_into().ok()?)),
        None => None,
    };
    let rest =
        Rest { wake_at: wake_at.map(WallTime::from_millis), spec, is_listed: found.get(5).ok()? };
    let noted = found.get_ref(7).ok()?.as_blob().ok()?;
    let is_whole = noted == checksum((text(1)?, text(2)?), rests_at, &rest);
    is_whole.then(|| (reader::position(rests_at), rest))
}

/// As that of a record: over every column, each text preceded by its length.
fn checksum((of_type, id): (&str, &str), rests_at: i64, rest: &Rest) -> [u8; row::CHECKSUM_BYTES] {
    let numbers = [rests_at, rest.wake_at.unwrap_or_default().as_millis()];
    let flags = [rest.wake_at.is_some(), rest.is_listed, rest.spec.is_some()].map(u8::from);
    let spec = rest.spec.as_ref().map_or(&[][..], |spec| spec.as_bytes());
    row::checksum(
        "sandglass entity 1",
        &numbers,
        &flags,
        &[of_type.as_bytes(), id.as_bytes(), spec],
    )
}

/// Whether the format has the table.
fn has_table(snapshot: &Connection) -> rusqlite::Result<bool> {
    Ok(file::stamp(snapshot)?.1 >= file::SINCE_ENTITIES)
}

/// Whether a journal of the newest format has lost the table.
pub(super) fn is_lost(snapshot: &Connection) -> rusqlite::Result<bool> {
    let mut known = snapshot
        .prepare("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'entities'")?;
    Ok(has_table(snapshot)? && !known.exists([])?)
}

/// Makes the table again from the records: all entities are awake.
pub(super) fn rebuild(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute("DELETE FROM entities", [])?;
    transaction.execute(
        "INSERT INTO entities (entity_type, entity_id, due) \
         SELECT DISTINCT entity_type, entity_id, ?1 FROM records \
         WHERE entity_type IS NOT NULL AND entity_id IS NOT NULL \
         ORDER BY entity_type, entity_id",
        [FIRST],
    )?;
    Ok(())
}

/// What does not match the records; `None` if the table does, or the format has none. This reads
/// the whole table.
pub(super) fn flaw(snapshot: &Connection) -> rusqlite::Result<Option<String>> {
    if !has_table(snapshot)? {
        return Ok(None);
    }
    if is_lost(snapshot)? {
        return Ok(Some("it is missing".to_owned()));
    }
    let entities: i64 = snapshot.query_row(
        "SELECT count(*) FROM (SELECT DISTINCT entity_type, entity_id FROM records \
         WHERE entity_type IS NOT NULL AND entity_id IS NOT NULL)",
        [],
        |row| row.get(0),
    )?;
    let sql = format!("SELECT due, {COLUMNS} FROM entities");
    let mut statement = snapshot.prepare(&sql)?;
    let mut rows = statement.query([])?;
    let mut count: i64 = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        let due: Option<i64> = row.get(0)?;
        let is_awake = row.get::<_, Option<i64>>(3)?.is_none();
        let (of_type, id): (String, String) = (row.get(1)?, row.get(2)?);
        let named = EntityRef::new(of_type, id);
        let last = named.as_ref().ok().map(|name| last_record(snapshot, name)).transpose()?;
        let is_right = last.flatten().is_some_and(|last| match decode(row) {
            Some((at, rest)) => at == last.position && due == rest.due_key(),
            None => is_awake && due == Some(FIRST),
        });
        if !is_right {
            let name = named.map_or_else(|_| "an entity".to_owned(), |name| name.to_string());
            return Ok(Some(format!("the row of {name} does not match its records")));
        }
    }
    Ok((count != entities).then(|| format!("it has {count} of {entities} entities")))
}

/// The entities that have records from `cut` on.
pub(super) fn from_cut(
    transaction: &Transaction<'_>,
    cut: i64,
) -> rusqlite::Result<Vec<EntityRef>> {
    let mut names = transaction
        .prepare("SELECT DISTINCT entity_type, entity_id FROM records WHERE position >= ?1")?;
    let name = |row: &Row<'_>| {
        let (of_type, id): (Option<String>, Option<String>) = (row.get(0)?, row.get(1)?);
        Ok(of_type.zip(id).and_then(|(of_type, id)| EntityRef::new(of_type, id).ok()))
    };
    let found = names.query_map([cut], name)?;
    found.filter_map(Result::transpose).collect()
}

/// Corrects the rows of entities whose last records were set aside.
pub(super) fn correct(
    transaction: &Transaction<'_>,
    entities: &[EntityRef],
) -> rusqlite::Result<()> {
    if !has_table(transaction)? || is_lost(transaction)? {
        return Ok(());
    }
    for entity in entities {
        match last_record(transaction, entity)? {
            Some(_) => wake(transaction, entity, true)?,
            None => remove(transaction, [entity.entity_type(), entity.id()])?,
        }
    }
    Ok(())
}
