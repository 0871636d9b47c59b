//! What a journal knows of entities without reading their records: which are awake, how the others
//! rest, and when the next timer of each fires. A runtime starts by it, in time proportional to
//! what is in flight.

use sandglass_model::{EntityRef, Position, SpecDigest, WallTime};

use crate::batch::at_most;
use crate::{Error, LastRecord};

/// Most entities whose rest is noted at once: other writers wait meanwhile.
pub const REST_MAX_ENTITIES: usize = 256;

/// Most entities of one page of [`Journal::select`](crate::Journal::select).
pub const SELECTED_MAX: usize = 1_000;

/// How an entity rests, so that a runtime knows without its records when to wake it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rest {
    /// When its next timer fires; `None` if it has none. It may be too early, but never too late.
    pub wake_at: Option<WallTime>,
    /// The spec that it obeys; `None` if it has ended, and so never changes its spec.
    pub spec: Option<SpecDigest>,
    /// Whether it is to be read at every start, for example because it is a session that waits to
    /// be resumed and is counted.
    pub is_listed: bool,
}

/// An entity as a journal knows it without reading its records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntityEntry {
    /// The entity.
    pub entity: EntityRef,
    /// Its last record.
    pub last: LastRecord,
    /// How it rests. `None` while it is awake: since its last record, no rest was noted.
    pub rest: Option<Rest>,
}

/// An entity whose rest is to be noted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resting {
    /// The entity.
    pub entity: EntityRef,
    /// The position of its last record. If it has another one by now, it is awake again, and
    /// nothing is noted.
    pub last: Position,
    /// How it rests.
    pub rest: Rest,
}

/// Which entities to find, and in which order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Select {
    /// All, by name.
    All,
    /// First those that are awake or listed, by name; then those whose next timer fires up to
    /// this time, by that time and their names.
    Due {
        /// The last time.
        until: WallTime,
    },
    /// Those that rest and have ended, by the positions of their last records.
    Ended,
    /// Those of one type that rest and obey another spec, by name.
    OtherSpec {
        /// The type.
        entity_type: String,
        /// The spec that they do not obey.
        spec: SpecDigest,
    },
}

/// A page of entities in the order that [`Select`] states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// The entities.
    pub entries: Vec<EntityEntry>,
    /// Behind what to continue; `None` at the end.
    pub next: Option<SelectedPlace>,
}

/// A place in the order that [`Select`] states.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SelectedPlace {
    /// What the order compares first. For [`Select::Due`], the time in milliseconds, and
    /// [`FIRST`](Self::FIRST) for entities that are awake or listed; for [`Select::Ended`], the
    /// position; otherwise 0.
    pub key: i64,
    /// The entity.
    pub entity: EntityRef,
}

impl Select {
    /// What the order compares first of `entry`, as [`SelectedPlace::key`]; `None` if it is not one
    /// of them.
    #[must_use]
    pub fn key_of(&self, entry: &EntityEntry) -> Option<i64> {
        let rest = entry.rest.as_ref();
        match self {
            Self::All => Some(0),
            Self::Due { until } => {
                let key = rest.map_or(Some(SelectedPlace::FIRST), Rest::due_key)?;
                (key <= until.as_millis()).then_some(key)
            }
            Self::Ended => {
                let position = i64::try_from(entry.last.position.0).unwrap_or(i64::MAX);
                rest?.spec.is_none().then_some(position)
            }
            Self::OtherSpec { entity_type, spec } => {
                let is_other = rest?.spec.is_some_and(|obeyed| obeyed != *spec);
                (is_other && entry.entity.entity_type() == entity_type).then_some(0)
            }
        }
    }
}

impl SelectedPlace {
    /// The key of entities that are awake or listed, in the order of [`Select::Due`].
    pub const FIRST: i64 = i64::MIN;

    /// The place of an entity in the order of names.
    #[must_use]
    pub const fn of_name(entity: EntityRef) -> Self {
        Self { key: 0, entity }
    }
}

impl Rest {
    /// The key of an entity that rests like this in the order of [`Select::Due`]; `None` if it is
    /// never due.
    #[must_use]
    pub fn due_key(&self) -> Option<i64> {
        if self.is_listed {
            return Some(SelectedPlace::FIRST);
        }
        self.wake_at.map(|at| at.as_millis().max(SelectedPlace::FIRST + 1))
    }
}

impl Selected {
    /// The first `limit` of these entities, each with its key, which are in any order. `has_more` if
    /// there are further ones behind all of them: also if these could not be read.
    #[must_use]
    pub fn page(mut found: Vec<(i64, EntityEntry)>, has_more: bool, limit: usize) -> Self {
        found.sort_by(|(key, entry), (other, another)| {
            (key, &entry.entity).cmp(&(other, &another.entity))
        });
        let has_more = has_more || found.len() > limit;
        found.truncate(limit);
        let place = |(key, entry): &(i64, EntityEntry)| SelectedPlace {
            key: *key,
            entity: entry.entity.clone(),
        };
        let next = found.last().filter(|_| has_more).map(place);
        Self { entries: found.into_iter().map(|(_, entry)| entry).collect(), next }
    }
}

/// The number of entities of a page that a caller wants `limit` of.
#[must_use]
pub fn page_size(limit: usize) -> usize {
    limit.clamp(1, SELECTED_MAX)
}

/// Whether these are at most [`REST_MAX_ENTITIES`].
///
/// # Errors
/// [`Error::TooLarge`].
pub fn few_enough(resting: &[Resting]) -> Result<(), Error> {
    at_most("note of rest (in entities)", resting.len(), REST_MAX_ENTITIES)
}
