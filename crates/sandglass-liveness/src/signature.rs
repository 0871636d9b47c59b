//! The shape of a failure: what two failures have in common that are the same one
//! again. Never what was passed, and never a text.

use std::fmt;

use sandglass_model::{Dispatched, Ended, EntityRef};
use serde::Serialize;

/// What a handler failed by: the handler, what was running, and the kind of the error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Signature {
    /// The type of the entity.
    pub entity_type: String,
    /// The action that triggered the handler.
    pub action: String,
    /// The integration.
    pub integration: String,
    /// What was running when it ended: a host function, the guest's own code, its
    /// instantiation or an ask; none where it ended by itself, or never ran.
    pub dying_span: Option<String>,
    /// The kind of the error, as reports spell it.
    pub error: String,
}

impl Signature {
    /// The signature of a handler of `entity` that ended so; none of one that completed.
    #[must_use]
    pub fn of(entity: &EntityRef, dispatched: &Dispatched, ended: &Ended) -> Option<Self> {
        let (error, _) = ended.outcome.error()?;
        Some(Self {
            entity_type: entity.entity_type().to_owned(),
            action: dispatched.action.clone(),
            integration: dispatched.integration.clone(),
            dying_span: ended.dying_span.clone(),
            error,
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entity_type, action, integration, dying_span, error } = self;
        write!(f, "{entity_type}.{action} {integration} {error}")?;
        match dying_span {
            Some(span) => write!(f, " in {span}"),
            None => Ok(()),
        }
    }
}
