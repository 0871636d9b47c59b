//! What is read: a bounded page of entries, whole or damaged.

use sandglass_model::{EntityRef, Position, Record};

use crate::Error;

/// Most entries of one page, whatever the reader asks for: small enough that a
/// reader never holds a snapshot, and so the log's tail, for long.
pub const PAGE_MAX_ENTRIES: usize = 1_000;
/// A page ends with the entry that brings it to this many bytes of JSON: a thousand
/// records of the usual size, and few of those that are large.
pub const PAGE_MAX_BYTES: usize = 1 << 20;

/// Entries in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// The entries.
    pub entries: Vec<Entry>,
    /// Where to go on; none at the end of what there is by now.
    pub next: Option<Position>,
}

/// Entries in the order of [`Journal::read_by_entity`](crate::Journal::read_by_entity).
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByEntity {
    /// The entries.
    pub entries: Vec<Entry>,
    /// What to go on behind; none at the end of what there is by now, and behind an entry
    /// that is damaged.
    pub next: Option<Place>,
}

/// A place in the order of [`Journal::read_by_entity`](crate::Journal::read_by_entity).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The entity; none for what is about none.
    pub entity: Option<EntityRef>,
    /// The position.
    pub position: Position,
}

impl Place {
    /// The place of an entry; none where it is damaged, so that nobody can tell.
    #[must_use]
    pub fn of(entry: &Entry) -> Option<Self> {
        let Entry::Record(record) = entry else { return None };
        Some(Self { entity: record.entity.clone(), position: record.position })
    }
}

/// One place of a journal.
#[derive(Clone, Debug, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "nearly every entry is a record")]
pub enum Entry {
    /// A record, as it was written.
    Record(Record),
    /// What is no record as it was written.
    Damaged {
        /// The place.
        position: Position,
        /// What is wrong.
        what: String,
    },
    /// Records that were removed on purpose.
    Pruned {
        /// The first place.
        first: Position,
        /// The last place.
        last: Position,
    },
    /// Records that were written and are gone.
    Missing {
        /// The first place.
        first: Position,
        /// The last place.
        last: Position,
    },
}

impl Page {
    /// The records, where all of them are whole, without those that were pruned.
    ///
    /// # Errors
    /// [`Error::Damaged`] names the first entry that isn't.
    pub fn into_records(self) -> Result<Vec<Record>, Error> {
        let kept = self.entries.into_iter().filter(|entry| !matches!(entry, Entry::Pruned { .. }));
        kept.map(Entry::into_record).collect()
    }
}

impl Entry {
    /// Its place, the first of several where records are missing.
    #[must_use]
    pub fn position(&self) -> Position {
        match self {
            Self::Record(record) => record.position,
            Self::Damaged { position, .. } => *position,
            Self::Pruned { first, .. } | Self::Missing { first, .. } => *first,
        }
    }

    /// How many places it stands for: one, or as many as are missing or were pruned.
    #[must_use]
    pub fn places(&self) -> u64 {
        match self {
            Self::Record(_) | Self::Damaged { .. } => 1,
            Self::Pruned { first, last } | Self::Missing { first, last } => {
                last.0.saturating_sub(first.0).saturating_add(1)
            }
        }
    }

    /// What is wrong with it; none where it is whole.
    #[must_use]
    pub fn damage(&self) -> Option<String> {
        match self {
            Self::Record(_) | Self::Pruned { .. } => None,
            Self::Damaged { what, .. } => Some(what.clone()),
            Self::Missing { first, last } if first == last => Some("it is missing".to_owned()),
            Self::Missing { last, .. } => Some(format!("it is missing, as is all up to {last}")),
        }
    }

    /// The record, where it is whole.
    ///
    /// # Errors
    /// [`Error::Damaged`] where it isn't.
    pub fn into_record(self) -> Result<Record, Error> {
        match self {
            Self::Record(record) => Ok(record),
            Self::Pruned { first, .. } => Err(Error::Damaged {
                place: format!("position {first}"),
                what: "it was pruned".to_owned(),
            }),
            torn => Err(Error::Damaged {
                place: format!("position {}", torn.position()),
                what: torn.damage().unwrap_or_default(),
            }),
        }
    }
}
