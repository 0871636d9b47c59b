//! What can be asked of an entity, and what the answer says.

use std::time::Duration;

use sandglass_liveness::session::LimitSettings;
use sandglass_model::{
    Directive, DispatchId, EntityRef, Object, Position, Sequence, StopCause, TraceContext,
};
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

/// That the run of a session is to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStop {
    /// The run that whoever asks saw; none for whichever goes on.
    pub run_seq: Option<u32>,
    /// Why, and who asks.
    pub cause: StopCause,
}

/// That the run of a session is being stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStopped {
    /// Which run.
    pub run_seq: u32,
    /// What becomes of the session.
    pub directive: Directive,
    /// Whether that is durable. Where it isn't, its handlers are stopped all the same, and the
    /// record follows when the journal takes it.
    pub is_recorded: bool,
}

/// That a session is to go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionResume {
    /// Who asks: at most [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES).
    pub by: String,
    /// Why, for people: at most
    /// [`STOP_REASON_MAX_BYTES`](sandglass_model::session::STOP_REASON_MAX_BYTES).
    pub reason: String,
    /// The run that whoever asks saw stop; none where any will do.
    pub expected_run: Option<u32>,
    /// What is to hold the next run; what isn't said is as the spec has it.
    pub limits: LimitSettings,
}

/// What is said of an entity when it is created.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Birth {
    /// On whose behalf it lives; none for [`sandglass_model::DEFAULT_TENANT`].
    pub tenant: Option<String>,
    /// What is to hold its first run, where it is a session; what isn't said is as the spec
    /// has it.
    pub limits: LimitSettings,
    /// An action that it takes as it is created: it is there with both, or not at all.
    pub first: Option<Request>,
}
