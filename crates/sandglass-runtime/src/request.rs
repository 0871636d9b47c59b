//! What callers send to an entity, and what an accepted request returns.

use std::time::Duration;

use sandglass_liveness::session::LimitSettings;
use sandglass_model::{
    Directive, DispatchId, EntityRef, IdempotencyKey, Object, Position, Sequence, StopCause,
    TraceContext,
};
use serde_json::Value;

/// An action for an entity.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The action.
    pub action: String,
    /// Its parameters.
    pub params: Object,
    /// The caller's span; `None` starts a trace.
    pub trace: Option<TraceContext>,
    /// The sequence that the entity has to be at; `None` for any.
    pub expected: Option<Sequence>,
    /// The key by which the entity recognizes the request if it is sent again; `None` if each one is new.
    pub idempotency_key: Option<IdempotencyKey>,
}

impl Request {
    /// A request for `action`, without parameters.
    pub fn new(action: impl Into<String>) -> Self {
        Self {
            action: action.into(),
            params: Object::new(),
            trace: None,
            expected: None,
            idempotency_key: None,
        }
    }

    /// Sets the parameters.
    #[must_use]
    pub fn params(self, params: Object) -> Self {
        Self { params, ..self }
    }

    /// Makes it part of this trace.
    #[must_use]
    pub fn trace(self, trace: TraceContext) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// Makes it conditional: the entity has to be at `sequence`.
    #[must_use]
    pub fn expecting(self, sequence: Sequence) -> Self {
        Self { expected: Some(sequence), ..self }
    }

    /// Sets the key by which the entity recognizes the request. The same request with the same key, while
    /// it is one of the last [`KEYS_MAX`](sandglass_liveness::entity::KEYS_MAX) that the entity has taken
    /// requests with, changes nothing and returns what the first one did; another request with it is
    /// refused. A request is the same if its action, parameters and expected sequence are. A refused
    /// request uses no key.
    #[must_use]
    pub fn idempotency_key(self, key: IdempotencyKey) -> Self {
        Self { idempotency_key: Some(key), ..self }
    }
}

/// A notice for an entity. It is not an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// Its kind.
    pub name: String,
    /// The entity that sends it; `None` if it comes from outside.
    pub from: Option<EntityRef>,
    /// Its content.
    pub payload: Value,
}

/// A request for one more attempt of a handler that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// Its budget, in whole milliseconds; `None` for that of the last attempt.
    pub budget: Option<Duration>,
    /// The operator's name: at most [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES).
    pub by: String,
    /// The reason, for people: at most
    /// [`REASON_MAX_BYTES`](sandglass_liveness::decide::REASON_MAX_BYTES).
    pub reason: String,
    /// The attempt that the caller saw end; `None` for any. The retry is refused if there is a
    /// later one, so that of two callers who retry at once only one succeeds.
    pub expected_attempt: Option<u32>,
}

/// A durable action or retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The entity's sequence after it.
    pub sequence: Sequence,
    /// Its state after it.
    pub state: String,
    /// The handlers that it started.
    pub dispatches: Vec<DispatchId>,
    /// The position of its record.
    pub position: Position,
}

/// A request to stop the run of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionStop {
    /// The run that the caller saw; `None` for the present one.
    pub run_seq: Option<u32>,
    /// Why, and on whose request.
    pub cause: StopCause,
}

/// The stop of a session's run, under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionStopped {
    /// Which run.
    pub run_seq: u32,
    /// What follows for the session.
    pub directive: Directive,
    /// Whether the stop is durable. If it is not, the handlers are stopped nevertheless, and the
    /// record follows when the journal takes it.
    pub is_recorded: bool,
}

/// A request to resume a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionResume {
    /// The operator's name: at most [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES).
    pub by: String,
    /// The reason, for people: at most
    /// [`STOP_REASON_MAX_BYTES`](sandglass_model::session::STOP_REASON_MAX_BYTES).
    pub reason: String,
    /// The run that the caller saw stop; `None` for any.
    pub expected_run: Option<u32>,
    /// The limits of the next run. The spec fills in those that are not set.
    pub limits: LimitSettings,
}

/// What an entity is created with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NewEntity {
    /// The tenant that it belongs to; `None` for [`sandglass_model::DEFAULT_TENANT`].
    pub tenant: Option<String>,
    /// The limits of its first run, if it is a session. The spec fills in those that are not set.
    pub limits: LimitSettings,
    /// An action that it takes as it is created. If it refuses the action, it is not created.
    pub first: Option<Request>,
}
