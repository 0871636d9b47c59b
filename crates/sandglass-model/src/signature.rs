//! The shape of a failure: what two failures have in common that are the same one
//! again. Never what was passed, and never a text.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ended::Ended;
use crate::id::{EntityRef, NAME_MAX_BYTES, check_name};
use crate::record::Dispatched;

/// The parameter of an action by which whoever asks for it says what its handlers are
/// about: a name, as long as names may be. Failures of other shapes aren't the same.
pub const SHAPE_PARAM: &str = "shape_key";

/// The kind of error of a deadline that passed, as reports spell it.
pub const TIMED_OUT: &str = "handler_deadline_exceeded";

/// What a handler failed by: the handler, what was running, the kind of the error, and the
/// shape that whoever asked gave it. The action that triggered it is no part of it: a retry by
/// another action meets the same failure.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Signature {
    /// The type of the entity.
    pub entity_type: String,
    /// The integration.
    pub integration: String,
    /// What was running when it ended: a host function, the guest's own code, its
    /// instantiation or an ask; none where it ended by itself, or never ran.
    pub dying_span: Option<String>,
    /// The kind of the error, as reports spell it.
    pub error: String,
    /// The action's [`SHAPE_PARAM`], where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<String>,
}

impl Signature {
    /// The signature of a handler of `entity` that ended so; none of one that completed.
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
    /// Whether it is that of a deadline that passed.
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
