//! What can be asked of an entity, and what the answer says.

use std::time::Duration;

use sandglass_model::{DispatchId, EntityRef, Object, Position, Sequence, TraceContext};
use serde_json::Value;

/// An action that is asked of an entity.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The action.
    pub action: String,
    /// Its parameters.
    pub params: Object,
    /// The span that asks; none starts a trace.
    pub trace: Option<TraceContext>,
    /// Where the entity has to be; none where that doesn't matter.
    pub expected: Option<Sequence>,
}

impl Request {
    /// A request for `action`, without parameters.
    pub fn new(action: impl Into<String>) -> Self {
        Self { action: action.into(), params: Object::new(), trace: None, expected: None }
    }

    /// With these parameters.
    #[must_use]
    pub fn params(self, params: Object) -> Self {
        Self { params, ..self }
    }

    /// As part of this trace.
    #[must_use]
    pub fn trace(self, trace: TraceContext) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// Only if the entity is at `sequence`.
    #[must_use]
    pub fn expecting(self, sequence: Sequence) -> Self {
        Self { expected: Some(sequence), ..self }
    }
}

/// Something that is told to an entity and is no action.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// What kind.
    pub name: String,
    /// The other entity that sends it, if one does.
    pub from: Option<EntityRef>,
    /// What it says.
    pub payload: Value,
}

/// One more attempt that is asked for of a handler that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// For how long it may run, in whole milliseconds; none for as long as the last
    /// attempt.
    pub budget: Option<Duration>,
    /// Who asks for it: at most [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES).
    pub by: String,
    /// Why, for people: at most
    /// [`REASON_MAX_BYTES`](sandglass_liveness::decide::REASON_MAX_BYTES).
    pub reason: String,
    /// The attempt that whoever asks saw end: refused where it isn't the last any more, so
    /// that of two who ask at once only one is heard. None where any will do.
    pub expected_attempt: Option<u32>,
}

/// An action that was taken, or a retry: it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The entity's sequence after it.
    pub sequence: Sequence,
    /// Its state after it.
    pub state: String,
    /// The handlers that it started.
    pub dispatches: Vec<DispatchId>,
    /// The place of its record.
    pub position: Position,
}
