//! What has happened in this play so far, according to the journal.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};

use sandglass_journal::{Error, PAGE_MAX_ENTRIES, SqliteJournal, SqliteReader};
use sandglass_model::{EntityRef, Event, Position, Record};

/// Most transitions of an entity that are kept to explain a failure.
const RECENT_MAX: usize = 5;

/// Follows a journal.
#[derive(Debug)]
pub(super) struct JournalFollower {
    path: PathBuf,
    /// Opened when it is first used.
    reader: Option<SqliteReader>,
    /// The first position of this play.
    start: Position,
    next: Position,
    entities: BTreeMap<EntityRef, EntityProgress>,
    /// How many records of each kind this play has.
    kinds: BTreeMap<&'static str, u64>,
}

/// The state of an entity, and how it got there.
#[derive(Clone, Debug, Default)]
pub(super) struct EntityProgress {
    pub(super) state: String,
    pub(super) recent: VecDeque<String>,
}

impl JournalFollower {
    /// Follows the journal at `path` from `start` on.
    pub(super) fn starting_at(path: &Path, start: Position) -> Self {
        let (entities, kinds) = (BTreeMap::new(), BTreeMap::new());
        Self { path: path.to_owned(), reader: None, start, next: start, entities, kinds }
    }

    /// Passes each record from before this play to `each`.
    pub(super) fn read_earlier(&mut self, mut each: impl FnMut(&Record)) -> Result<(), Error> {
        let (start, mut from) = (self.start, Some(Position(1)));
        while let Some(next) = from.filter(|next| *next < start) {
            let page = self.reader()?.read(next, PAGE_MAX_ENTRIES)?;
            from = page.next;
            let records = page.into_records()?;
            records.iter().take_while(|record| record.position < start).for_each(&mut each);
        }
        Ok(())
    }

    /// Closes the journal, which is opened again when it is next used. The writer must be the last to
    /// close it, because then it leaves one file.
    pub(super) fn close(&mut self) {
        self.reader = None;
    }

    /// The records that were appended since the last call.
    pub(super) fn read_appended(&mut self) -> Result<Vec<Record>, Error> {
        let next = self.next;
        let page = self.reader()?.read(next, PAGE_MAX_ENTRIES)?;
        let records = page.into_records()?;
        for record in &records {
            self.next = Position(record.position.0.saturating_add(1));
            self.note(record);
        }
        Ok(records)
    }

    fn note(&mut self, record: &Record) {
        let kind = self.kinds.entry(record.event.kind()).or_default();
        *kind = kind.saturating_add(1);
        let Some(entity) = &record.entity else { return };
        let progress = self.entities.entry(entity.clone()).or_default();
        match &record.event {
            Event::Created { state, .. } => progress.state.clone_from(state),
            Event::Transition { action, from, to, .. } => {
                progress.state.clone_from(to);
                if progress.recent.len() == RECENT_MAX {
                    progress.recent.pop_front();
                }
                progress.recent.push_back(format!("{action} ({from} -> {to})"));
            }
            _ => {}
        }
    }

    /// `None` if this play has no record of the entity.
    pub(super) fn entity(&self, entity: &EntityRef) -> Option<&EntityProgress> {
        self.entities.get(entity)
    }

    /// How many records of each kind this play has.
    pub(super) const fn kinds(&self) -> &BTreeMap<&'static str, u64> {
        &self.kinds
    }

    /// Whether a record of this play passes `test`.
    pub(super) fn any(&mut self, test: impl Fn(&Record) -> bool) -> Result<bool, Error> {
        let mut from = Some(self.start);
        while let Some(start) = from {
            let page = self.reader()?.read(start, PAGE_MAX_ENTRIES)?;
            from = page.next;
            if page.into_records()?.iter().any(&test) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    pub(super) fn reader(&mut self) -> Result<&mut SqliteReader, Error> {
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => SqliteJournal::open_read_only(&self.path)?,
        };
        Ok(self.reader.insert(reader))
    }
}
