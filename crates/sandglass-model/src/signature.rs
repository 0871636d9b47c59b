//! The signature of a failure: equal for repetitions of one failure. It contains no arguments and
//! no messages.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::Object;
use crate::ended::Ended;
use crate::id::{EntityRef, NAME_MAX_BYTES, check_name};
use crate::record::Dispatched;

/// The parameter of an action by which the caller states what its handlers are about: a name of at
/// most [`NAME_MAX_BYTES`]. Failures of different shapes count as different.
pub const SHAPE_PARAM: &str = "shape_key";

/// The error kind of a passed deadline in reports.
pub const TIMED_OUT: &str = "handler_deadline_exceeded";

/// The error kind of host calls that their own time limit ended.
pub const CALL_TIMED_OUT: &str = "host_call_timeout";

/// The error kind of host calls that failed.
pub const CALL_FAILED: &str = "host_call_failed";

/// The error kind of a lost host in reports.
pub const INTERRUPTED: &str = "interrupted";

/// What a handler failed with: the handler, what was running, the kind of the error, and the shape
/// that the caller named. The triggering action is not part of it, because a retry by another action
/// meets the same failure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// The type of the entity.
    pub entity_type: String,
    /// The integration.
    pub integration: String,
    /// What was running when it ended: a host function, the guest's own code, its instantiation or an
    /// ask; for failed host calls, their function. `None` if it ended by itself, or never ran.
    pub dying_span: Option<String>,
    /// The kind of the error in reports.
    pub error: String,
    /// The action's [`SHAPE_PARAM`], or that of an earlier action of the session, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
}

impl Signature {
    /// Returns the signature of a handler of `entity`; `None` if it completed.
    #[must_use]
    pub fn of(entity: &EntityRef, dispatched: &Dispatched, ended: &Ended) -> Option<Self> {
        let (error, _) = ended.outcome.error()?;
        Some(Self::new(entity, dispatched, ended.dying_span.clone(), error))
    }

    /// Returns the signature of calls of `host_call` by a handler of `entity` that failed with
    /// `error`, [`CALL_TIMED_OUT`] or [`CALL_FAILED`].
    #[must_use]
    pub fn of_calls(
        entity: &EntityRef,
        dispatched: &Dispatched,
        host_call: &str,
        error: &str,
    ) -> Self {
        Self::new(entity, dispatched, Some(host_call.to_owned()), error.to_owned())
    }

    /// Returns the signature of a handler of `entity` whose host was lost.
    #[must_use]
    pub fn interrupted(entity: &EntityRef, dispatched: &Dispatched) -> Self {
        Self::new(entity, dispatched, None, INTERRUPTED.to_owned())
    }

    fn new(
        entity: &EntityRef,
        dispatched: &Dispatched,
        dying_span: Option<String>,
        error: String,
    ) -> Self {
        let shape = stated_shape(&dispatched.params).or(dispatched.shape.as_deref());
        Self {
            entity_type: entity.entity_type().to_owned(),
            integration: dispatched.integration.clone(),
            dying_span,
            error,
            shape: shape.map(str::to_owned),
        }
    }

    /// Whether the deadline passed, or the time limit of host calls.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.error == TIMED_OUT || self.error == CALL_TIMED_OUT
    }
}

/// The shape that the parameters of an action state; `None` if they state no name.
#[must_use]
pub fn stated_shape(params: &Object) -> Option<&str> {
    let shape = params.get(SHAPE_PARAM)?.as_str()?;
    check_name("shape", shape, NAME_MAX_BYTES).is_ok().then_some(shape)
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity_type, integration, dying_span, error, shape } = self;
        write!(f, "{entity_type} {integration} {error}")?;
        if let Some(span) = dying_span {
            write!(f, " in {span}")?;
        }
        match shape {
            Some(shape) => write!(f, " ({shape})"),
            None => Ok(()),
        }
    }
}
