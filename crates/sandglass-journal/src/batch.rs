//! What is appended: its shape, its bounds, and whether it may follow what is
//! there. The same for every store.

use std::fmt;

use sandglass_model::{EntityRef, Event, Position, Sequence, WallTime};

use crate::Error;

/// Largest record, as JSON, in bytes: a handler's answer (1 MiB unless an
/// integration asks for more) many times over, and still held in memory at ease.
pub const RECORD_MAX_BYTES: usize = 16 << 20;
/// Most records of one batch: a transition starts a few handlers and ends a few.
pub const BATCH_MAX_RECORDS: usize = 256;
/// Largest batch, as JSON, in bytes: two of the largest records.
pub const BATCH_MAX_BYTES: usize = 2 * RECORD_MAX_BYTES;

/// Records that hold together or not at all.
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The entity that they are about; none for a spec.
    pub entity: Option<EntityRef>,
    /// Where the entity has to be.
    pub expected: Expected,
    /// When they were decided.
    pub at: WallTime,
    /// The records, each with the entity's sequence once it holds: from 1 to
    /// [`BATCH_MAX_RECORDS`].
    pub records: Vec<(Sequence, Event)>,
}

/// Where an entity has to be for a batch to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It must not exist yet.
    None,
    /// Its last record must have this sequence.
    At(Sequence),
    /// Anywhere. For records about no entity.
    Any,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("absent"),
            Self::At(sequence) => write!(f, "at sequence {sequence}"),
            Self::Any => f.write_str("anywhere"),
        }
    }
}

/// Where a batch was placed: without gaps, from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Its first record.
    pub first: Position,
    /// Its last record.
    pub last: Position,
}

/// A record as text.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) sequence: Sequence,
    pub(crate) kind: &'static str,
    pub(crate) body: String,
}

impl Batch {
    /// The records as JSON, and the size of all in bytes.
    pub(crate) fn lines(&self) -> Result<(Vec<Line>, usize), Error> {
        let count = self.records.len();
        if count > BATCH_MAX_RECORDS {
            return Err(too_large("batch (in records)", count, BATCH_MAX_RECORDS));
        }
        let mut total = 0;
        let mut lines = Vec::with_capacity(count);
        for (sequence, event) in &self.records {
            let body = serde_json::to_string(event)
                .map_err(|error| invalid(format!("a record can't be written as JSON: {error}")))?;
            if body.len() > RECORD_MAX_BYTES {
                return Err(too_large("record (in bytes)", body.len(), RECORD_MAX_BYTES));
            }
            total += body.len();
            lines.push(Line { sequence: *sequence, kind: event.kind(), body });
        }
        if total > BATCH_MAX_BYTES {
            return Err(too_large("batch (in bytes)", total, BATCH_MAX_BYTES));
        }
        Ok((lines, total))
    }

    /// Whether the batch may be appended where the entity's last record has the
    /// sequence `found`.
    pub(crate) fn admit(&self, found: Option<Sequence>) -> Result<(), Error> {
        if self.records.is_empty() {
            return Err(invalid("it has no records"));
        }
        let Some(entity) = &self.entity else { return self.admit_without_entity() };
        let met = match self.expected {
            Expected::None => found.is_none(),
            Expected::At(sequence) => found == Some(sequence),
            Expected::Any => true,
        };
        if !met {
            let (entity, expected) = (entity.clone(), self.expected);
            return Err(Error::Conflict { entity, expected, found });
        }
        self.records
            .iter()
            .try_fold(found, |at, (sequence, event)| follow(at, *sequence, event).map(Some))?;
        Ok(())
    }

    fn admit_without_entity(&self) -> Result<(), Error> {
        let about_all = |(sequence, event): &(Sequence, Event)| {
            *sequence == Sequence(0) && matches!(event, Event::SpecRegistered { .. })
        };
        if self.expected != Expected::Any {
            Err(invalid("it is about no entity, so it can't expect one anywhere"))
        } else if self.records.iter().all(about_all) {
            Ok(())
        } else {
            Err(invalid("only specs, at sequence 0, are about no entity"))
        }
    }
}

/// The sequence after a record that follows on `at`.
fn follow(at: Option<Sequence>, sequence: Sequence, event: &Event) -> Result<Sequence, Error> {
    let due = match event {
        Event::SpecRegistered { .. } => return Err(invalid("a spec is about no entity")),
        Event::Created { .. } if at.is_some() => {
            return Err(invalid("an entity is created where it exists"));
        }
        Event::Transition { .. } => at.map(Sequence::next),
        _ => Some(at.unwrap_or_default()),
    };
    match due {
        None => Err(invalid("an entity that was not created can't take a transition")),
        Some(due) if due == sequence => Ok(sequence),
        Some(due) => {
            let kind = event.kind();
            Err(invalid(format!("a {kind} record has sequence {sequence} where {due} is due")))
        }
    }
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid { what: what.into() }
}

fn too_large(what: &'static str, size: usize, limit: usize) -> Error {
    Error::TooLarge { what, size, limit }
}
