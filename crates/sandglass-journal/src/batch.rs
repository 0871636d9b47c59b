//! Batches of records: their shape, their bounds, and whether one may follow the records of its
//! entity. The same for every store.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use sandglass_model::{DispatchId, EntityRef, Event, Position, Sequence, WallTime};
use sandglass_source::json;

use crate::Error;

/// Largest record, as JSON, in bytes: many times the result of a handler (1 MiB unless an
/// integration sets more), and still small enough for memory.
pub const RECORD_MAX_BYTES: usize = 16 << 20;

/// Most values in the body of a record, counted as [`sandglass_source::json::MAX_VALUES`] are. A few
/// bytes of JSON can occupy a hundred in memory, even in a forged journal. The largest variables
/// that a spec may have (1 MiB) have 1.5 million values.
pub(crate) const RECORD_MAX_VALUES: u32 = 2 << 20;

/// Whether a body holds at most [`RECORD_MAX_VALUES`]. Bodies too short for more are not counted.
pub(crate) fn has_few_values(body: &str) -> bool {
    const BOUNDS: json::Bounds =
        json::Bounds { max_values: RECORD_MAX_VALUES, ..json::Bounds::DEFAULT };
    /// The densest JSON, a list of `{"":0}`, has ten values in seven bytes.
    const UNCOUNTED_BYTES: usize = (RECORD_MAX_VALUES / 10) as usize * 7;
    body.len() <= UNCOUNTED_BYTES || json::check(body, BOUNDS).is_ok()
}
/// Most records of one batch: a transition starts a few handlers and ends a few.
pub const BATCH_MAX_RECORDS: usize = 256;
/// Largest batch, as JSON, in bytes: two of the largest records.
pub const BATCH_MAX_BYTES: usize = 2 * RECORD_MAX_BYTES;

/// Most bytes of the recordings of one batch together: the 16 MiB that are recorded of one
/// handler's calls at most, and their framing.
pub const RECORDING_MAX_BYTES: usize = 24 << 20;

/// Largest snapshot of an entity, in bytes: the largest variables that a spec may have (1 MiB), and
/// as much again for its other fields.
pub const SNAPSHOT_MAX_BYTES: usize = 2 << 20;

/// Most entities that are removed at once: other writers wait meanwhile.
pub const PRUNE_MAX_ENTITIES: usize = 64;

/// Records that are appended together or not at all, made by [`Batch::new`].
#[derive(Clone, Debug, PartialEq)]
pub struct Batch {
    /// The entity that they are about; `None` for a spec.
    pub entity: Option<EntityRef>,
    /// What the journal has to contain of the entity for the batch to be appended.
    pub expected: Expected,
    /// When they were decided.
    pub at: WallTime,
    /// The records, each with the entity's sequence once it holds: from 1 to
    /// [`BATCH_MAX_RECORDS`].
    pub records: Vec<(Sequence, Event)>,
    /// Recordings of handlers whose ends are among `records`: at most one of each, and
    /// [`RECORDING_MAX_BYTES`] together.
    pub recordings: Vec<Recording>,
    /// The entity with these records folded in, as text of at most [`SNAPSHOT_MAX_BYTES`]. It
    /// replaces an earlier snapshot.
    pub snapshot: Option<String>,
}

/// A folded entity, which replaces reading its records up to one of them. Its text means nothing to
/// the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// The entity.
    pub entity: EntityRef,
    /// The last record that is folded in.
    pub position: Position,
    /// The text that was appended.
    pub body: String,
}

/// The recording of one handler, for its replay. Its bytes mean nothing to the journal.
#[derive(Clone, PartialEq, Eq)]
pub struct Recording {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// Which attempt.
    pub attempt: u32,
    /// The recording.
    pub body: Arc<[u8]>,
}

impl fmt::Debug for Recording {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { dispatch, attempt, body } = self;
        write!(f, "Recording {{ {dispatch}, attempt {attempt}, {} bytes }}", body.len())
    }
}

/// What the journal has to contain of an entity for a batch to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// No record: it must not exist yet.
    None,
    /// Its last record must be the one at this position. The position of a durable record is not
    /// assigned again, so a writer that does not know the last record is refused, even if that
    /// record did not advance the sequence. The journal knows the sequence of the record at this
    /// position, and checks those of the batch against it.
    At(Position),
    /// Anything. For records about no entity, and for a copy of a journal, which has one writer.
    Any,
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("no record of it"),
            Self::At(position) => write!(f, "its last record at position {position}"),
            Self::Any => f.write_str("any records of it"),
        }
    }
}

/// The last record of an entity, on which the next batch has to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastRecord {
    /// Its position.
    pub position: Position,
    /// The entity's sequence with it.
    pub sequence: Sequence,
}

/// The positions of a batch: without gaps, from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Positions {
    /// Its first record.
    pub first: Position,
    /// Its last record.
    pub last: Position,
}

/// A record as text.
#[derive(Debug)]
pub struct Line {
    /// The entity's sequence with it.
    pub sequence: Sequence,
    /// Its kind.
    pub kind: &'static str,
    /// Its JSON.
    pub body: String,
}

impl Batch {
    /// Records without recordings and a snapshot.
    #[must_use]
    pub fn new(
        entity: impl Into<Option<EntityRef>>,
        expected: Expected,
        at: WallTime,
        records: Vec<(Sequence, Event)>,
    ) -> Self {
        let entity = entity.into();
        Self { entity, expected, at, records, recordings: Vec::new(), snapshot: None }
    }

    /// Adds recordings of handlers that end in the batch.
    #[must_use]
    pub fn with_recordings(self, recordings: Vec<Recording>) -> Self {
        Self { recordings, ..self }
    }

    /// Adds the entity as it is after the batch.
    #[must_use]
    pub fn with_snapshot(self, snapshot: Option<String>) -> Self {
        Self { snapshot, ..self }
    }

    /// The records as JSON, and the size of the batch in bytes, with recordings and snapshot.
    ///
    /// # Errors
    /// [`Error::TooLarge`]; [`Error::Invalid`] if a record cannot be written as JSON.
    pub fn lines(&self) -> Result<(Vec<Line>, usize), Error> {
        let count = self.records.len();
        at_most("batch (in records)", count, BATCH_MAX_RECORDS)?;
        let mut total = 0;
        let mut lines = Vec::with_capacity(count);
        for (sequence, event) in &self.records {
            let body = serde_json::to_string(event)
                .map_err(|error| invalid(format!("a record cannot be written as JSON: {error}")))?;
            at_most("record (in bytes)", body.len(), RECORD_MAX_BYTES)?;
            if !has_few_values(&body) {
                let most = RECORD_MAX_VALUES as usize;
                at_most("record (in values)", most + 1, most)?;
            }
            total += body.len();
            lines.push(Line { sequence: *sequence, kind: event.kind(), body });
        }
        at_most("batch (in bytes)", total, BATCH_MAX_BYTES)?;
        let recorded = self.recordings.iter().map(|recording| recording.body.len()).sum();
        at_most("recordings (in bytes)", recorded, RECORDING_MAX_BYTES)?;
        let snapshot = self.snapshot.as_ref().map_or(0, String::len);
        at_most("snapshot (in bytes)", snapshot, SNAPSHOT_MAX_BYTES)?;
        Ok((lines, total + recorded + snapshot))
    }

    /// Whether the batch may be appended if the entity's last record is `found`.
    ///
    /// # Errors
    /// [`Error::Conflict`] or [`Error::Invalid`].
    pub fn admit(&self, found: Option<LastRecord>) -> Result<(), Error> {
        if self.records.is_empty() {
            return Err(invalid("it has no records"));
        }
        self.admit_recordings()?;
        let Some(entity) = &self.entity else { return self.admit_without_entity() };
        let met = match self.expected {
            Expected::None => found.is_none(),
            Expected::At(position) => found.is_some_and(|last| last.position == position),
            Expected::Any => true,
        };
        if !met {
            let (entity, expected) = (entity.clone(), self.expected);
            return Err(Error::Conflict { entity, expected, found });
        }
        let sequence = found.map(|last| last.sequence);
        self.records
            .iter()
            .try_fold(sequence, |at, (sequence, event)| follow(at, *sequence, event).map(Some))?;
        Ok(())
    }

    /// Checks that each recording is of a different handler that ends here.
    fn admit_recordings(&self) -> Result<(), Error> {
        let mut named = BTreeSet::new();
        for recording in &self.recordings {
            let Recording { dispatch, attempt, .. } = recording;
            if self.end_of(recording).is_none() || !named.insert((*dispatch, *attempt)) {
                return Err(invalid(format!(
                    "a recording is of attempt {attempt} of dispatch {dispatch}, \
                     and each is to be of one that ends with the batch"
                )));
            }
        }
        Ok(())
    }

    /// The index of the record that ends the recorded handler.
    #[must_use]
    pub fn end_of(&self, recording: &Recording) -> Option<usize> {
        self.records.iter().position(|(_, event)| match event {
            Event::Ended(ended) => {
                (ended.dispatch, ended.attempt) == (recording.dispatch, recording.attempt)
            }
            _ => false,
        })
    }

    fn admit_without_entity(&self) -> Result<(), Error> {
        let about_all = |(sequence, event): &(Sequence, Event)| {
            *sequence == Sequence(0) && matches!(event, Event::SpecRegistered { .. })
        };
        if self.snapshot.is_some() {
            Err(invalid("it is about no entity, so it cannot have a snapshot of one"))
        } else if self.expected != Expected::Any {
            Err(invalid("it is about no entity, so it cannot expect one anywhere"))
        } else if self.records.iter().all(about_all) {
            Ok(())
        } else {
            Err(invalid("only specs, at sequence 0, are about no entity"))
        }
    }
}

/// The sequence that a record must have after one with the sequence `at`.
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
        None => Err(invalid("an entity that was not created cannot take a transition")),
        Some(due) if due == sequence => Ok(sequence),
        Some(due) => {
            let kind = event.kind();
            Err(invalid(format!("a {kind} record has sequence {sequence} where {due} is due")))
        }
    }
}

/// Whether these are at most [`PRUNE_MAX_ENTITIES`].
///
/// # Errors
/// [`Error::TooLarge`].
pub fn few_enough(entities: &[(EntityRef, Position)]) -> Result<(), Error> {
    at_most("pruning (in entities)", entities.len(), PRUNE_MAX_ENTITIES)
}

/// The error about a second recording of one handler.
#[must_use]
pub fn recorded_twice(recording: &Recording) -> Error {
    let Recording { dispatch, attempt, .. } = recording;
    invalid(format!("attempt {attempt} of dispatch {dispatch} was recorded before"))
}

fn invalid(what: impl Into<String>) -> Error {
    Error::Invalid { what: what.into() }
}

pub(crate) fn at_most(what: &'static str, size: usize, limit: usize) -> Result<(), Error> {
    if size > limit { Err(Error::TooLarge { what, size, limit }) } else { Ok(()) }
}
