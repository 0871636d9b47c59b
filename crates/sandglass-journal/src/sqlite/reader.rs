//! Reading a journal in bounded pages, each from one snapshot.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension, Row, ToSql, Transaction, TransactionBehavior, ffi};
use sandglass_model::{DispatchId, EntityRef, Position};

use super::defense::Steps;
use super::file::{self, Reading};
use super::{GROUP_MAX_RECORDS, entities, fault, log, place, pruned, recording, row, snapshot};
use crate::{
    ByEntity, EntityEntry, Error, OfKinds, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, Page, Place,
    SEARCHED_MAX, Select, Selected, SelectedPlace, Snapshot,
};

/// A journal opened for reading only: it takes no lock, never writes, and works while another
/// process writes the journal. It blocks its caller's thread.
///
/// If no process writes the journal, no file is created beside it either; a writer that comes later
/// is noticed.
#[derive(Debug)]
pub struct SqliteReader {
    pub(super) connection: Connection,
    pub(super) path: PathBuf,
    pub(super) reading: Reading,
    steps: Steps,
}

impl SqliteReader {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let reader = Self::open_by(path, file::open_reader)?;
        file::refuse_rollback(&reader.path)?;
        log::check(&reader.path)?;
        Ok(reader)
    }

    /// As [`SqliteReader::open`], but also opens a file that is cut off, or has a partly damaged
    /// log.
    pub(super) fn open_for_salvage(path: &Path) -> Result<Self, Error> {
        Self::open_by(path, file::open_salvager)
    }

    fn open_by(
        path: &Path,
        open: impl Fn(&Path, Reading) -> Result<Connection, Error>,
    ) -> Result<Self, Error> {
        let Some(path) = &place::find(path)? else {
            return Err(fault::foreign(path, "there is no such file"));
        };
        let reading = if file::has_log(path) { Reading::WithLog } else { Reading::Still };
        let mut connection = open(path, reading)?;
        let steps = Steps::limit(&mut connection, path);
        let steps = steps.map_err(|error| fault::of(path, "opening", &error))?;
        Ok(Self { connection, path: path.to_owned(), reading, steps })
    }

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) from `from` on. Missing records, even
    /// at the end, appear as one [`crate::Entry::Missing`].
    ///
    /// # Errors
    /// [`Error::Damaged`] if the file itself cannot be read further,
    /// [`Error::Unavailable`].
    pub fn read(&mut self, from: Position, limit: usize) -> Result<Page, Error> {
        self.snapshot(|snapshot| all(snapshot, from, limit))
    }

    /// Up to `limit` entries of one entity from `from` on. Missing records do not show here.
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn read_entity(
        &mut self,
        entity: &EntityRef,
        from: Position,
        limit: usize,
    ) -> Result<Page, Error> {
        self.snapshot(|snapshot| of_entity(snapshot, entity, from, limit))
    }

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) of these kinds from `from` on, as
    /// [`crate::Journal::read_kinds`].
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn read_kinds(
        &mut self,
        kinds: &[&str],
        from: Position,
        limit: usize,
    ) -> Result<OfKinds, Error> {
        self.snapshot(|snapshot| of_kinds(snapshot, kinds, from, limit))
    }

    /// Up to `limit` entries (at most [`PAGE_MAX_ENTRIES`]) behind `after`, in the order
    /// of [`crate::Journal::read_by_entity`].
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn read_by_entity(
        &mut self,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<ByEntity, Error> {
        self.snapshot(|snapshot| by_entity(snapshot, after, limit))
    }

    /// The entity of `dispatch`, and the position of its first record; `None` if there is no such
    /// dispatch. In a journal of format 1, which has no index of them, this reads all records.
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn find_dispatch(
        &mut self,
        dispatch: DispatchId,
    ) -> Result<Option<(EntityRef, Position)>, Error> {
        self.snapshot(|snapshot| find_dispatch(snapshot, dispatch))
    }

    /// The last snapshot of `entity`; `None` if it has no intact one.
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn snapshot_of(&mut self, entity: &EntityRef) -> Result<Option<Snapshot>, Error> {
        self.snapshot(|snapshot| snapshot::find(snapshot, entity))
    }

    /// The entities whose snapshots are of positions from `first` to `last`, in that order: at most
    /// as many as there are positions.
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn snapshots(&mut self, first: Position, last: Position) -> Result<Vec<EntityRef>, Error> {
        self.snapshot(|snapshot| snapshot::between(snapshot, key(first), key(last)))
    }

    /// The recording of an attempt; `None` if there is none.
    ///
    /// # Errors
    /// As [`SqliteReader::read`]; [`Error::Damaged`] if it is not as it was appended.
    pub fn recording(
        &mut self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Result<Option<Vec<u8>>, Error> {
        match self.snapshot(|snapshot| recording::find(snapshot, dispatch, attempt))? {
            None => Ok(None),
            Some(Ok(body)) => Ok(Some(body)),
            Some(Err((position, what))) => {
                let place = format!("position {position} of `{}`", self.path.display());
                Err(Error::Damaged { place, what })
            }
        }
    }

    /// What is known of `entity` without reading its records, in a journal of the newest format.
    pub(super) fn last_of(&mut self, entity: &EntityRef) -> Result<Option<EntityEntry>, Error> {
        self.snapshot(|snapshot| entities::find(snapshot, entity))
    }

    /// A page of the entities that `which` selects, in a journal of the newest format.
    pub(super) fn select(
        &mut self,
        which: &Select,
        after: Option<&SelectedPlace>,
        limit: usize,
    ) -> Result<Selected, Error> {
        self.snapshot(|snapshot| entities::select(snapshot, which, after, limit))
    }

    /// The position of the last record, even if it was pruned; 0 if there was none.
    ///
    /// # Errors
    /// As [`SqliteReader::read`].
    pub fn last(&mut self) -> Result<Position, Error> {
        self.snapshot(|snapshot| Ok(position(last(snapshot)?.max(given_out(snapshot)?))))
    }

    /// Why not all records of an entity may be found; usually `None`.
    pub(super) fn flaw_of_entities(&mut self) -> Result<Option<String>, Error> {
        self.snapshot(|snapshot| flaw_of_entities(snapshot))
    }

    pub(super) fn snapshot<T>(
        &mut self,
        read: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        let found = self.attempt(&read);
        if self.reading == Reading::WithLog || !file::has_log(&self.path) {
            return found;
        }
        // A process began to write it meanwhile, so what was read may be a mixture.
        *self = Self::open(&self.path)?;
        self.attempt(&read)
    }

    fn attempt<T>(
        &mut self,
        read: impl Fn(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, Error> {
        self.steps.begin();
        let mut run = || {
            let snapshot =
                self.connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
            read(&snapshot)
        };
        run().map_err(|error| fault::of(&self.path, "reading", &error))
    }
}

/// A page of all records.
pub(super) fn all(snapshot: &Connection, from: Position, limit: usize) -> rusqlite::Result<Page> {
    let from = key(from).max(1);
    let sql = format!(
        "SELECT {} FROM records WHERE position >= ?1 ORDER BY position LIMIT ?2",
        row::columns()
    );
    let mut filling = Filling { due: Some(from), behind: Some(from - 1), ..Filling::new(limit) };
    let more = filling.fill(snapshot, &sql, &[&from, &fetched(limit)])?;
    if !more && let Some(due) = filling.due {
        let end = given_out(snapshot)?.saturating_add(1);
        if filling.page.entries.last().is_some_and(|last| key(last.position()) >= end) {
            return Err(behind_the_end(end - 1));
        }
        filling.missing(snapshot, due, end)?;
    }
    Ok(filling.page)
}

/// What is at `position`, without a check of what surrounds it; `None` if nothing is.
pub(super) fn at(
    snapshot: &Connection,
    position: Position,
) -> rusqlite::Result<Option<row::Decoded>> {
    let sql = format!("SELECT {} FROM records WHERE position = ?1", row::columns());
    snapshot.prepare_cached(&sql)?.query_row([key(position)], row::decode).optional()
}

fn of_entity(
    snapshot: &Connection,
    entity: &EntityRef,
    from: Position,
    limit: usize,
) -> rusqlite::Result<Page> {
    let sql = format!(
        "SELECT {} FROM records WHERE entity_type = ?1 AND entity_id = ?2 AND position >= ?3 \
         ORDER BY position LIMIT ?4",
        row::columns()
    );
    let mut filling = Filling { behind: Some(key(from).max(1) - 1), ..Filling::new(limit) };
    let values: [&dyn ToSql; 4] =
        [&entity.entity_type(), &entity.id(), &key(from), &fetched(limit)];
    filling.fill(snapshot, &sql, &values)?;
    Ok(filling.page)
}

fn of_kinds(
    snapshot: &Connection,
    kinds: &[&str],
    from: Position,
    limit: usize,
) -> rusqlite::Result<OfKinds> {
    let (first, end) = (key(from).max(1), given_out(snapshot)?);
    let searched = i64::try_from(SEARCHED_MAX).unwrap_or(i64::MAX);
    let last = first.saturating_add(searched - 1).min(end);
    let mut filling = Filling { behind: Some(first - 1), ..Filling::new(limit) };
    // `kind` stands before the body, so SQLite does not load the bodies of other records.
    let places = vec!["?"; kinds.len()].join(", ");
    let sql = format!(
        "SELECT {} FROM records WHERE position BETWEEN ? AND ? AND +kind IN ({places}) \
         ORDER BY position LIMIT ?",
        row::columns()
    );
    let fetched = fetched(limit);
    let mut values: Vec<&dyn ToSql> = vec![&first, &last];
    values.extend(kinds.iter().map(|kind| kind as &dyn ToSql));
    values.push(&fetched);
    filling.fill(snapshot, &sql, &values)?;
    let Page { entries, next } = filling.page;
    let next = next.unwrap_or_else(|| position(last.saturating_add(1)).max(from));
    Ok(OfKinds { entries, next, is_end: key(next) > end })
}

/// Checks the index by which the records of one entity are found: it must contain all of them.
fn flaw_of_entities(snapshot: &Connection) -> rusqlite::Result<Option<String>> {
    if file::lost_indexes(snapshot)?.contains(&"records_of_entity") {
        // These are looked up in the table itself.
        return Ok(None);
    }
    let found: i64 = snapshot.query_row(
        "SELECT count(*) FROM records INDEXED BY records_of_entity",
        [],
        |row| row.get(0),
    )?;
    let due = given_out(snapshot)?.saturating_sub(pruned::places(snapshot)?);
    Ok((found != due).then(|| {
        format!("its index of entities has {found} entries for {due} records: some may be missing")
    }))
}

fn by_entity(
    snapshot: &Connection,
    after: Option<&Place>,
    limit: usize,
) -> rusqlite::Result<ByEntity> {
    let position = after.map_or(0, |after| key(after.position));
    let entity = after.and_then(|after| after.entity.as_ref());
    let mut filling = Filling::new(limit);
    let mut is_full = false;
    if entity.is_none() {
        let sql = format!(
            "SELECT {} FROM records \
             WHERE entity_type IS NULL AND entity_id IS NULL AND position > ?1 \
             ORDER BY position LIMIT ?2",
            row::columns()
        );
        is_full = filling.fill(snapshot, &sql, &[&position, &fetched(limit)])?;
    }
    if !is_full {
        let sql = format!(
            "SELECT {} FROM records WHERE (entity_type, entity_id, position) > (?1, ?2, ?3) \
             ORDER BY entity_type, entity_id, position LIMIT ?4",
            row::columns()
        );
        // No entity has an empty type, so this is before the first of them.
        let (of_type, id) = entity.map_or(("", ""), |entity| (entity.entity_type(), entity.id()));
        let values: [&dyn ToSql; 4] = [&of_type, &id, &position, &fetched(limit)];
        is_full = filling.fill(snapshot, &sql, &values)?;
    }
    let mut entries = filling.page.entries;
    if let Some(first) = entries.iter().position(|entry| entry.damage().is_some()) {
        // Its entity is unknown, and so is what comes behind it.
        entries.truncate(first + 1);
    }
    let next = entries.last().filter(|_| is_full).and_then(Place::of);
    if next.as_ref().is_some_and(|next| after.is_some_and(|after| next <= after)) {
        return Err(out_of_order());
    }
    Ok(ByEntity { entries, next })
}

fn find_dispatch(
    snapshot: &Connection,
    dispatch: DispatchId,
) -> rusqlite::Result<Option<(EntityRef, Position)>> {
    // Written like the index in `indexes.sql`, or that of earlier formats, so that SQLite uses it.
    let mut statement = snapshot.prepare_cached(
        "SELECT entity_type, entity_id, position FROM records \
         WHERE kind = 'dispatched' \
         AND iif(json_valid(body), unhex(substr(body ->> '$.dispatch', 17, 16)), NULL) \
             = unhex(substr(?1, 17, 16)) \
         AND iif(json_valid(body), body ->> '$.dispatch', NULL) = ?1 \
         ORDER BY position LIMIT 1",
    )?;
    let found = statement.query_row([dispatch.to_string()], |row| {
        let (of_type, id): (String, String) = (row.get(0)?, row.get(1)?);
        Ok((EntityRef::new(of_type, id).ok(), row.get(2)?))
    });
    let found: Option<(Option<EntityRef>, i64)> = found.optional()?;
    Ok(found.and_then(|(entity, key)| Some((entity?, position(key)))))
}

/// One more than the page holds, to find out whether there is more.
fn fetched(limit: usize) -> i64 {
    i64::try_from(limit.clamp(1, PAGE_MAX_ENTRIES) + 1).unwrap_or(i64::MAX)
}

fn key(position: Position) -> i64 {
    i64::try_from(position.0).unwrap_or(i64::MAX)
}

pub(super) fn position(key: i64) -> Position {
    Position(u64::try_from(key).unwrap_or_default())
}

/// The last position in the table.
pub(super) fn last(snapshot: &Connection) -> rusqlite::Result<i64> {
    snapshot.query_row("SELECT coalesce(max(position), 0) FROM records", [], |row| row.get(0))
}

/// The last position that was used.
pub(super) fn given_out(snapshot: &Connection) -> rusqlite::Result<i64> {
    let mut last = snapshot.prepare_cached("SELECT coalesce(max(position), 0) FROM head")?;
    last.query_row([], |row| row.get(0))
}

/// The last position that was used before the last write, which alone can be torn.
pub(super) fn given_out_before(snapshot: &Connection) -> rusqlite::Result<i64> {
    let widest = i64::try_from(GROUP_MAX_RECORDS).unwrap_or(i64::MAX);
    let before = given_out(snapshot)?.saturating_sub(widest);
    if file::stamp(snapshot)?.1 < file::SINCE_WHERE_WRITES_BEGAN {
        return Ok(before);
    }
    let kept: i64 =
        snapshot.query_row("SELECT coalesce(max(before), 0) FROM head", [], |row| row.get(0))?;
    Ok(before.max(kept))
}

/// Taken as it is, it would make a reader read forever.
fn out_of_order() -> rusqlite::Error {
    corrupt("its pages are not in the order of positions".to_owned())
}

/// An append would use the position of one of them again.
fn behind_the_end(last: i64) -> rusqlite::Error {
    corrupt(format!("there are records behind position {last}, the last that was given out"))
}

fn corrupt(what: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_CORRUPT), Some(what))
}

/// A page that is being filled.
#[derive(Debug)]
struct Filling {
    page: Page,
    limit: usize,
    bytes: usize,
    /// The next position, if none may be left out.
    due: Option<i64>,
    /// The position that everything else is behind, as SQL expects it.
    behind: Option<i64>,
}

impl Filling {
    fn new(limit: usize) -> Self {
        let (page, limit) = (Page::default(), limit.clamp(1, PAGE_MAX_ENTRIES));
        Self { page, limit, bytes: 0, due: None, behind: None }
    }

    /// Whether there is more than the page holds.
    fn fill(
        &mut self,
        snapshot: &Connection,
        sql: &str,
        values: &[&dyn ToSql],
    ) -> rusqlite::Result<bool> {
        let mut statement = snapshot.prepare_cached(sql)?;
        let mut rows = statement.query(values)?;
        while let Some(found) = rows.next()? {
            if !self.take(snapshot, found)? {
                self.page.next = Some(position(found.get(0)?));
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the row fit.
    fn take(&mut self, snapshot: &Connection, found: &Row<'_>) -> rusqlite::Result<bool> {
        let key: i64 = found.get(0)?;
        if let Some(behind) = &mut self.behind {
            // SQLite relies on the file for the order of its pages.
            if key <= *behind {
                return Err(out_of_order());
            }
            *behind = key;
        }
        if let Some(due) = self.due {
            self.missing(snapshot, due, key)?;
            self.due = Some(key.saturating_add(1));
        }
        if self.page.entries.len() >= self.limit || self.bytes >= PAGE_MAX_BYTES {
            return Ok(false);
        }
        let decoded = row::decode(found)?;
        self.bytes += decoded.bytes;
        self.page.entries.push(decoded.entry);
        Ok(true)
    }

    /// Adds the entries for the positions from `due` to before `found`.
    fn missing(&mut self, snapshot: &Connection, due: i64, found: i64) -> rusqlite::Result<()> {
        self.page.entries.extend(pruned::gap(snapshot, due, found)?);
        Ok(())
    }
}
