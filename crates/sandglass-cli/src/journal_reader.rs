//! Reads a journal, whether it is a file or a database with a journal for each partition.

use std::path::PathBuf;

use sandglass_journal::{
    ByEntity, Entry, Error, Found, Merged, PAGE_MAX_ENTRIES, Page, Place as ByEntityPlace, Salvage,
    SqliteJournal, SqliteReader,
};
use sandglass_model::{Cursor, DispatchId, EntityRef, Partition, Position, Record};
use serde::Serialize;

use crate::journal_place::Place;
use crate::open_database::OpenDatabase;

/// A journal that is read only.
#[derive(Debug)]
pub(crate) enum JournalReader {
    File(SqliteReader),
    Database(OpenDatabase),
}

impl JournalReader {
    /// # Errors
    /// Errors if the place is not valid, and as [`SqliteJournal::open_read_only`] or
    /// [`OpenDatabase::open_read_only`].
    pub(crate) fn open(place: &Place) -> anyhow::Result<Self> {
        match (place.address()?, place) {
            (Some(address), _) => Ok(Self::Database(OpenDatabase::open_read_only(&address)?)),
            (None, place) => Ok(Self::File(SqliteJournal::open_read_only(path_of(place))?)),
        }
    }

    /// The start of all its records.
    pub(crate) fn start(&self) -> Cursor {
        Cursor::start(match self {
            Self::File(_) => 1,
            Self::Database(_) => usize::from(Partition::COUNT),
        })
    }

    /// The last position in each journal, even if it was pruned.
    pub(crate) fn end(&mut self) -> Result<Cursor, Error> {
        match self {
            Self::File(reader) => reader.last().map(Cursor::from),
            Self::Database(database) => database.wait(database.journals().end()),
        }
    }

    /// The partition of the journal with this index.
    pub(crate) fn partition(&self, index: usize) -> Option<Partition> {
        match self {
            Self::File(_) => None,
            Self::Database(_) => Partition::all().nth(index),
        }
    }

    fn index_of(&self, entity: &EntityRef) -> usize {
        match self {
            Self::File(_) => 0,
            Self::Database(database) => database.journals().index_of(entity),
        }
    }

    /// As [`sandglass_journal::Journals::read_behind`].
    pub(crate) fn read_behind(&mut self, after: &Cursor) -> Result<Merged, Error> {
        match self {
            Self::File(reader) => {
                let from = Position(after.at(0).0.saturating_add(1));
                let page = reader.read(from, PAGE_MAX_ENTRIES)?;
                let is_end = page.next.is_none();
                let mut next = after.clone();
                let entries =
                    page.entries.into_iter().inspect(|one| next.advance(0, one.last_position()));
                let entries = entries.map(|entry| (0, entry)).collect();
                Ok(Merged { entries, next, is_end })
            }
            Self::Database(database) => {
                let page = database.journals().read_behind(after.clone(), None, PAGE_MAX_ENTRIES);
                database.wait(page)
            }
        }
    }

    /// As [`JournalReader::read_behind`], of one entity.
    pub(crate) fn read_entity_behind(
        &mut self,
        entity: &EntityRef,
        after: &Cursor,
    ) -> Result<Merged, Error> {
        let index = self.index_of(entity);
        let from = Position(after.at(index).0.saturating_add(1));
        let page = self.read_entity(entity, from)?;
        let (is_end, mut next) = (page.next.is_none(), after.clone());
        let entries =
            page.entries.into_iter().inspect(|one| next.advance(index, one.last_position()));
        let entries = entries.map(|entry| (index, entry)).collect();
        Ok(Merged { entries, next, is_end })
    }

    /// A page of one entity from `from` on, a position of its journal.
    pub(crate) fn read_entity(
        &mut self,
        entity: &EntityRef,
        from: Position,
    ) -> Result<Page, Error> {
        match self {
            Self::File(reader) => reader.read_entity(entity, from, PAGE_MAX_ENTRIES),
            Self::Database(database) => {
                let page = database.journals().read_entity(entity.clone(), from, PAGE_MAX_ENTRIES);
                database.wait(page)
            }
        }
    }

    /// As [`JournalReader::read_behind`], only records of these kinds.
    pub(crate) fn read_kinds(
        &mut self,
        kinds: &'static [&'static str],
        after: &Cursor,
    ) -> Result<Merged, Error> {
        match self {
            Self::File(reader) => {
                let from = Position(after.at(0).0.saturating_add(1));
                let found = reader.read_kinds(kinds, from, PAGE_MAX_ENTRIES)?;
                let entries = found.entries.into_iter().map(|entry| (0, entry)).collect();
                let next = Cursor::from(Position(found.next.0.saturating_sub(1)));
                Ok(Merged { entries, next, is_end: found.is_end })
            }
            Self::Database(database) => {
                let (after, journals) = (after.clone(), database.journals());
                database.wait(journals.read_behind(after, Some(kinds), PAGE_MAX_ENTRIES))
            }
        }
    }

    /// A page of the journal with this index, in the order of
    /// [`sandglass_journal::Journal::read_by_entity`].
    pub(crate) fn read_by_entity(
        &mut self,
        index: usize,
        after: Option<&ByEntityPlace>,
    ) -> Result<ByEntity, Error> {
        match self {
            Self::File(reader) => reader.read_by_entity(after, PAGE_MAX_ENTRIES),
            Self::Database(database) => match database.journals().all().get(index) {
                Some(journal) => {
                    database.wait(journal.read_by_entity(after.cloned(), PAGE_MAX_ENTRIES))
                }
                None => Ok(ByEntity::default()),
            },
        }
    }

    /// The records of specs that the entity may obey, and the records of the entity.
    pub(crate) fn specs_of(&mut self, entity: &EntityRef) -> Result<Vec<Record>, Error> {
        let (index, mut specs, mut after) = (self.index_of(entity), Vec::new(), None);
        loop {
            // Records about no entity, which are those of specs, come first.
            let page = self.read_by_entity(index, after.as_ref())?;
            for entry in page.entries {
                let record = entry.into_record()?;
                if record.entity.is_some() {
                    return Ok(specs);
                }
                specs.push(record);
            }
            after = page.next;
            if after.is_none() {
                return Ok(specs);
            }
        }
    }

    /// The first record of a dispatch; `None` if there is none.
    pub(crate) fn first_of(&mut self, dispatch: DispatchId) -> Result<Option<Record>, Error> {
        let page = match self {
            Self::File(reader) => {
                let Some((_, position)) = reader.find_dispatch(dispatch)? else { return Ok(None) };
                reader.read(position, 1)?
            }
            Self::Database(database) => {
                let journals = database.journals();
                let found = database.wait(journals.find_dispatch(dispatch))?;
                let Some((entity, position)) = found else { return Ok(None) };
                database.wait(journals.read_entity(entity, position, 1))?
            }
        };
        page.entries.into_iter().next().map(Entry::into_record).transpose()
    }

    /// The recording of an attempt of a handler of `entity`; `None` if there is none.
    pub(crate) fn recording(
        &mut self,
        entity: Option<&EntityRef>,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Result<Option<Vec<u8>>, Error> {
        match (self, entity) {
            (Self::File(reader), _) => reader.recording(dispatch, attempt),
            (Self::Database(database), Some(entity)) => {
                let journal = database.journals().of(entity);
                database.wait(journal.recording(dispatch, attempt))
            }
            (Self::Database(_), None) => Ok(None),
        }
    }
}

/// The path of a place that is no database.
fn path_of(place: &Place) -> PathBuf {
    match place {
        Place::File(path) => path.clone(),
        other => other.to_string().into(),
    }
}

/// Something that was found, and its partition.
#[derive(Clone, Debug)]
pub(crate) struct Located {
    pub(crate) partition: Option<Partition>,
    pub(crate) found: Found,
}

/// A value with its partition.
#[derive(Debug, Serialize)]
pub(crate) struct InPartition<T> {
    #[serde(flatten)]
    pub(crate) value: T,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) partition: Option<Partition>,
}

/// A position as text: with the partition in front, if there is one.
pub(crate) fn format_position(partition: Option<Partition>, position: Position) -> String {
    match partition {
        Some(partition) => format!("{partition}/{position}"),
        None => position.to_string(),
    }
}

/// All that can be read of a journal, to its present end.
#[derive(Debug)]
pub(crate) enum Pages {
    /// A file, however damaged it is.
    File(Salvage),
    Database {
        reader: JournalReader,
        entity: Option<EntityRef>,
        /// Behind what to continue; `None` at the end.
        after: Option<Cursor>,
    },
}

impl Pages {
    /// Opens a journal, to be read from `from` on; only one entity, if one is given. Missing records do
    /// not show then. Of a database, all records are read, or those of an entity.
    ///
    /// # Errors
    /// As [`Salvage::open`] and [`JournalReader::open`].
    pub(crate) fn open(
        place: &Place,
        entity: Option<EntityRef>,
        from: Position,
    ) -> anyhow::Result<Self> {
        if let Place::File(path) = place {
            return Ok(Self::File(Salvage::open(path, entity, from)?));
        }
        let reader = JournalReader::open(place)?;
        if from > Position(1) && entity.is_none() {
            anyhow::bail!(
                "each partition of a database has positions of its own; name an entity, whose \
                 positions are those of its partition"
            );
        }
        let mut after = reader.start();
        if let Some(entity) = &entity {
            after.advance(reader.index_of(entity), Position(from.0.saturating_sub(1)));
        }
        Ok(Self::Database { reader, entity, after: Some(after) })
    }

    /// The start of all records of the journal.
    pub(crate) fn start(&self) -> Cursor {
        match self {
            Self::File(_) => Cursor::start(1),
            Self::Database { reader, .. } => reader.start(),
        }
    }

    /// The next page; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Unavailable`]; of a database, [`Error::Damaged`] if what surrounds the records is.
    pub(crate) fn page(&mut self) -> Result<Option<Vec<Located>>, Error> {
        match self {
            Self::File(salvage) => {
                let locate = |found| Located { partition: None, found };
                Ok(salvage.page()?.map(|page| page.into_iter().map(locate).collect()))
            }
            Self::Database { reader, entity, after } => {
                let Some(from) = after.take() else { return Ok(None) };
                let page = match entity {
                    None => reader.read_behind(&from)?,
                    Some(entity) => reader.read_entity_behind(entity, &from)?,
                };
                *after = Some(page.next).filter(|_| !page.is_end);
                let entries = page.entries.into_iter();
                let locate = |(index, entry)| Located {
                    partition: reader.partition(index),
                    found: Found::from(entry),
                };
                Ok(Some(entries.map(locate).collect()))
            }
        }
    }
}
