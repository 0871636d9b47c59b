//! Reads all of a journal that can be read, before and behind damage. It repairs nothing.

use std::path::Path;

use sandglass_model::{EntityRef, Position};

use super::{SqliteReader, file, pruned, reader};
use crate::{Entry, Error, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES};

/// Fewer bytes than any record occupies in the file, so that the size of the file bounds the number
/// of records if nothing else does.
const ROW_MIN_BYTES: u64 = 32;

/// An entry of a journal, or positions that cannot be read.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every one is a record")]
pub enum Found {
    /// What an ordinary read finds, too.
    Entry(Entry),
    /// The part of the file with these positions cannot be read.
    Unreadable {
        /// The first position.
        first: Position,
        /// The last position; `None` if it is unknown.
        last: Option<Position>,
        /// What is wrong with it.
        what: String,
    },
}

impl Found {
    /// Whether something that was written is lost.
    #[must_use]
    pub fn is_gap(&self) -> bool {
        match self {
            Self::Entry(entry) => entry.damage().is_some(),
            Self::Unreadable { .. } => true,
        }
    }
}

impl From<Entry> for Found {
    fn from(entry: Entry) -> Self {
        Self::Entry(entry)
    }
}

/// Reads a journal from one position to its end, however damaged it is. It takes no lock and never
/// writes, and blocks its caller's thread.
#[derive(Debug)]
pub struct Salvage {
    reader: SqliteReader,
    entity: Option<EntityRef>,
    /// Where to continue.
    from: Option<Position>,
    /// What is wrong with the file as a whole, or with SQLite's log: reported last.
    flaw: Option<String>,
    /// Why a page could not be read at once: reported last, if no record is missing because of it.
    broken: Option<String>,
    has_gaps: bool,
    /// The position behind everything that was found.
    end: Position,
}

impl Salvage {
    /// Opens the journal at `path`, to be read from `from` on; only one entity, if one is given.
    /// Missing records do not show then.
    ///
    /// # Errors
    /// As [`SqliteJournal::open_read_only`](crate::SqliteJournal::open_read_only), but a file that
    /// is cut off, or has a damaged log, is read as far as possible.
    pub fn open(
        path: impl AsRef<Path>,
        entity: Option<EntityRef>,
        from: Position,
    ) -> Result<Self, Error> {
        let path = path.as_ref();
        let flaw = match SqliteReader::open(path) {
            Ok(_) => None,
            Err(Error::Damaged { place, what }) => Some(format!("{place}: {what}")),
            Err(other) => return Err(other),
        };
        let mut reader = SqliteReader::open_for_salvage(path)?;
        let flaw = match (flaw, &entity) {
            (None, Some(_)) => unless_damaged(reader.flaw_of_entities())?.flatten(),
            (flaw, _) => flaw,
        };
        let from = Position(from.0.max(1));
        Ok(Self {
            reader,
            entity,
            from: Some(from),
            flaw,
            broken: None,
            has_gaps: false,
            end: from,
        })
    }

    /// The next page, in the order of positions; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub fn page(&mut self) -> Result<Option<Vec<Found>>, Error> {
        let Some(from) = self.from.take() else {
            let (first, last) = (self.end, None);
            let broken = self.broken.take().filter(|_| !self.has_gaps);
            let flaw = self.flaw.take().or(broken);
            return Ok(flaw.map(|what| vec![Found::Unreadable { first, last, what }]));
        };
        let read = match &self.entity {
            None => self.reader.read(from, PAGE_MAX_ENTRIES),
            Some(entity) => self.reader.read_entity(entity, from, PAGE_MAX_ENTRIES),
        };
        match read {
            Ok(page) => {
                let last = page.entries.last().map(|last| last.position().0 + last.places());
                self.end = Position(last.unwrap_or(from.0));
                self.from = page.next;
                Ok(Some(page.entries.into_iter().map(Found::from).collect()))
            }
            Err(Error::Damaged { what, .. }) => {
                self.broken = Some(what);
                let found = self.one_by_one(from)?;
                self.has_gaps |= found.iter().any(Found::is_gap);
                Ok(Some(found))
            }
            Err(other) => Err(other),
        }
    }

    /// Reads each position alone, up to a page of readable ones.
    fn one_by_one(&mut self, from: Position) -> Result<Vec<Found>, Error> {
        let (last, is_known) = self.last(from)?;
        let mut found = Vec::new();
        let (mut next, mut bytes) = (from.0, 0);
        while next <= last.0 && found.len() < PAGE_MAX_ENTRIES && bytes < PAGE_MAX_BYTES {
            let position = Position(next);
            match self.reader.snapshot(|snapshot| reader::at(snapshot, position)) {
                Ok(Some(decoded)) => {
                    bytes += decoded.bytes;
                    if self.wants(&decoded.entry) {
                        found.push(Found::Entry(decoded.entry));
                    }
                }
                Ok(None) if self.entity.is_some() => {}
                Ok(None) if self.is_pruned(position)? => pruned(&mut found, position),
                Ok(None) => missing(&mut found, position),
                Err(Error::Damaged { what, .. }) => unreadable(&mut found, position, what),
                Err(other) => return Err(other),
            }
            next += 1;
        }
        self.end = Position(next);
        self.from = (next <= last.0).then_some(self.end);
        if !is_known && self.from.is_none() {
            let unknown = || "the end of the journal cannot be read".to_owned();
            let what = self.flaw.take().or(self.broken.take()).unwrap_or_else(unknown);
            let first = without_tail(&mut found).unwrap_or(self.end);
            found.push(Found::Unreadable { first, last: None, what });
        }
        Ok(found)
    }

    fn is_pruned(&mut self, position: Position) -> Result<bool, Error> {
        let key = i64::try_from(position.0).unwrap_or(i64::MAX);
        let looked = self.reader.snapshot(|snapshot| pruned::gap(snapshot, key, key + 1));
        match looked {
            Ok(entries) => Ok(matches!(entries[..], [Entry::Pruned { .. }])),
            // The rest is unknown.
            Err(Error::Damaged { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }

    fn wants(&self, entry: &Entry) -> bool {
        match (entry, &self.entity) {
            (Entry::Record(record), Some(entity)) => record.entity.as_ref() == Some(entity),
            // Its entity is unknown.
            _ => true,
        }
    }

    /// The last possible position, and whether it is known.
    fn last(&mut self, from: Position) -> Result<(Position, bool), Error> {
        let length = |path: &Path| path.metadata().map_or(0, |metadata| metadata.len());
        let path = &self.reader.path;
        let bytes = length(path).saturating_add(length(&file::sidecar(path, "-wal")));
        let most = Position(from.0.saturating_add(bytes / ROW_MIN_BYTES));
        let given_out =
            self.reader.snapshot(|snapshot| Ok(reader::position(reader::given_out(snapshot)?)));
        let last = self.reader.snapshot(|snapshot| Ok(reader::position(reader::last(snapshot)?)));
        match (unless_damaged(given_out)?, unless_damaged(last)?) {
            (Some(given_out), Some(last)) if (last..=most).contains(&given_out) => {
                Ok((given_out, true))
            }
            (Some(given_out), None) if (from..=most).contains(&given_out) => Ok((given_out, true)),
            // At least as many positions were used as there are records.
            (_, Some(last)) => Ok((last.min(most), false)),
            (_, None) => Ok((most, false)),
        }
    }
}

/// `None` for what cannot be read.
fn unless_damaged<T>(read: Result<T, Error>) -> Result<Option<T>, Error> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(Error::Damaged { .. }) => Ok(None),
        Err(other) => Err(other),
    }
}

/// Notes a pruned position; adjacent ones become one entry.
fn pruned(found: &mut Vec<Found>, position: Position) {
    match found.last_mut() {
        Some(Found::Entry(Entry::Pruned { last, .. })) if last.0 + 1 == position.0 => {
            *last = position;
        }
        _ => found.push(Entry::Pruned { first: position, last: position }.into()),
    }
}

/// Notes a missing position; adjacent ones become one entry.
fn missing(found: &mut Vec<Found>, position: Position) {
    match found.last_mut() {
        Some(Found::Entry(Entry::Missing { last, .. })) if last.0 + 1 == position.0 => {
            *last = position;
        }
        _ => found.push(Entry::Missing { first: position, last: position }.into()),
    }
}

/// Notes an unreadable position; adjacent ones become one entry.
fn unreadable(found: &mut Vec<Found>, position: Position, what: String) {
    match found.last_mut() {
        Some(Found::Unreadable { last: Some(last), .. }) if last.0 + 1 == position.0 => {
            *last = position;
        }
        _ => found.push(Found::Unreadable { first: position, last: Some(position), what }),
    }
}

/// Removes what is missing or unreadable at the end, and returns where it began.
fn without_tail(found: &mut Vec<Found>) -> Option<Position> {
    let mut began = None;
    while let Some(Found::Unreadable { first, .. } | Found::Entry(Entry::Missing { first, .. })) =
        found.last()
    {
        began = Some(*first);
        found.pop();
    }
    began
}
