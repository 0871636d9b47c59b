//! Pages: bounded lists of entries, intact or damaged.

use sandglass_model::{EntityRef, Position, Record};

use crate::Error;

/// Most entries of one page, even if the reader requests more: few enough that no reader keeps a
/// snapshot of the file, and with it the end of the log, for long.
pub const PAGE_MAX_ENTRIES: usize = 1_000;
/// A page ends with the entry that brings it to this many bytes of JSON: a thousand records of the
/// usual size, or a few large ones.
pub const PAGE_MAX_BYTES: usize = 1 << 20;

/// Entries in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where to continue; `None` at the present end.
    pub next: Option<Position>,
}

/// Most positions that one search for kinds of records passes over: some milliseconds of work, in
/// which no other reader is served.
pub const SEARCHED_MAX: u64 = 20_000;

/// Entries of some kinds of records, in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OfKinds {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where to continue: behind all positions that were searched.
    pub next: Position,
    /// Whether the present end was reached.
    pub is_end: bool,
}

/// Entries in the order of [`Journal::read_by_entity`](crate::Journal::read_by_entity).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByEntity {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Behind what to continue; `None` at the present end, and behind a damaged entry.
    pub next: Option<Place>,
}

/// A position in the order of [`Journal::read_by_entity`](crate::Journal::read_by_entity).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The entity; `None` for records about no entity.
    pub entity: Option<EntityRef>,
    /// The position.
    pub position: Position,
}

impl Place {
    /// The place of an entry; `None` if it is damaged, because then its entity is unknown.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let Entry::Record(record) = entry else { return None };
        Some(Self { entity: record.entity.clone(), position: record.position })
    }
}

/// What is at one position of a journal.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every entry is a record")]
pub enum Entry {
    /// A record, as it was written.
    Record(Record),
    /// Something else than the record that was written.
    Damaged {
        /// The position.
        position: Position,
        /// What is wrong.
        what: String,
    },
    /// Records that were removed on purpose.
    Pruned {
        /// The first position.
        first: Position,
        /// The last position.
        last: Position,
    },
    /// Records that were written and are missing.
    Missing {
        /// The first position.
        first: Position,
        /// The last position.
        last: Position,
    },
}

impl Page {
    /// The records, if all of them are intact, without those that were pruned.
    ///
    /// # Errors
    /// [`Error::Damaged`] for the first entry that is not.
    pub fn into_records(self) -> Result<Vec<Record>, Error> {
        let kept = self.entries.into_iter().filter(|entry| !matches!(entry, Entry::Pruned { .. }));
        kept.map(Entry::into_record).collect()
    }
}

impl Entry {
    /// Its position; the first one, if several records are missing.
    #[must_use]
    pub fn position(&self) -> Position {
        match self {
            Self::Record(record) => record.position,
            Self::Damaged { position, .. } => *position,
            Self::Pruned { first, .. } | Self::Missing { first, .. } => *first,
        }
    }

    /// Its last position: [`Entry::position`], unless it stands for several.
    #[must_use]
    pub fn last_position(&self) -> Position {
        Position(self.position().0.saturating_add(self.places()).saturating_sub(1))
    }

    /// How many positions it stands for: one, or as many as are missing or were pruned.
    #[must_use]
    pub fn places(&self) -> u64 {
        match self {
            Self::Record(_) | Self::Damaged { .. } => 1,
            Self::Pruned { first, last } | Self::Missing { first, last } => {
                last.0.saturating_sub(first.0).saturating_add(1)
            }
        }
    }

    /// What is wrong with it; `None` if it is intact.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        match self {
            Self::Record(_) | Self::Pruned { .. } => None,
            Self::Damaged { what, .. } => Some(what.clone()),
            Self::Missing { first, last } if first == last => Some("it is missing".to_owned()),
            Self::Missing { last, .. } => Some(format!("it is missing, as is all up to {last}")),
        }
    }

    /// The record, if it is intact.
    ///
    /// # Errors
    /// [`Error::Damaged`] if it is not.
    pub fn into_record(self) -> Result<Record, Error> {
        match self {
            Self::Record(record) => Ok(record),
            torn => Err(Error::Damaged {
                place: format!("position {}", torn.position()),
                what: torn.damage().unwrap_or_else(|| "it was pruned".to_owned()),
            }),
        }
    }
}
