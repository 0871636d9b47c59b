//! The signature of a failure: equal for repetitions of one failure. It contains no arguments and
//! no messages.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ended::Ended;
use crate::id::{EntityRef, NAME_MAX_BYTES, check_name};
use crate::record::Dispatched;

/// The parameter of an action by which the caller states what its handlers are about: a name of at
/// most [`NAME_MAX_BYTES`]. Failures of different shapes count as different.
pub const SHAPE_PARAM: &str = "shape_key";

/// The error kind of a passed deadline in reports.
pub const TIMED_OUT: &str = "handler_deadline_exceeded";

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
    /// ask. `None` if it ended by itself, or never ran.
    pub dying_span: Option<String>,
    /// The kind of the error in reports.
    pub error: String,
    /// The action's [`SHAPE_PARAM`], if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
}

impl Signature {
    /// Returns the signature of a handler of `entity`; `None` if it completed.
    #[must_use]
    pub fn of(entity: &EntityRef, dispatched: &Dispatched, ended: &Ended) -> Option<Self> {
        let (error, _) = ended.outcome.error()?;
        let shape = dispatched.params.get(SHAPE_PARAM).and_then(serde_json::Value::as_str);
        let shape = shape.filter(|shape| check_name("shape", shape, NAME_MAX_BYTES).is_ok());
        Some(Self {
            entity_type: entity.entity_type().to_owned(),
            integration: dispatched.integration.clone(),
            dying_span: ended.dying_span.clone(),
            error,
            shape: shape.map(str::to_owned),
        })
    }
}

impl Signature {
    /// Whether the deadline passed.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        self.error == TIMED_OUT
    }
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
