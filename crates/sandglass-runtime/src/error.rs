//! Why an entity did not do what a caller requested, and what the caller can do next.

use sandglass_journal as journal;
use sandglass_liveness::Refusal;
use sandglass_model::{Busy, DispatchId, EntityRef, HandlerDeadlineExceeded, Sequence};

/// Why an entity did not do what was requested.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ActorError {
    /// There is no such entity.
    #[error("there is no entity {0}; create it first")]
    UnknownEntity(EntityRef),
    /// An entity of this name exists already.
    #[error("{0} exists already")]
    EntityExists(EntityRef),
    /// The runtime has no spec of this type.
    #[error("there is no spec of the type `{entity_type}`; load its spec file")]
    UnknownType {
        /// The type.
        entity_type: String,
    },
    /// The entity refuses the request, and would refuse it again.
    #[error("{entity} refuses: {refusal}")]
    Refused {
        /// The entity.
        entity: EntityRef,
        /// Why.
        refusal: Refusal,
    },
    /// The entity is not at the sequence that the caller expects: read it again.
    #[error("{entity} is not at sequence {expected}; read it again")]
    Conflict {
        /// The entity.
        entity: EntityRef,
        /// The expected sequence.
        expected: Sequence,
    },
    /// Another process writes this entity's records; this one has given it up.
    #[error("{entity} is written by another process; use that one, or start this one again")]
    Fenced {
        /// The entity.
        entity: EntityRef,
    },
    /// Another host owns the partition of the entity, or takes it over now. Nothing was done: send the
    /// request to that host.
    #[error("{0} is owned by another host; send the request to that host, or try again")]
    Elsewhere(EntityRef),
    /// As many requests wait for the entity as may wait.
    #[error("the mailbox of {0} is full; try again later")]
    MailboxFull(EntityRef),
    /// There are no slots for the handlers that it would start. Nothing was done.
    #[error("{entity} cannot start its handlers: {busy}")]
    Busy {
        /// The entity.
        entity: EntityRef,
        /// Which slots are exhausted, and when to try again.
        busy: Busy,
    },
    /// The journal takes no appends. Nothing was done.
    #[error("journal_unavailable: {what}")]
    JournalUnavailable {
        /// What failed.
        what: String,
    },
    /// The journal will never take this, or cannot be read.
    #[error("the journal refuses: {0}")]
    Journal(journal::Error),
    /// A handler's deadline passed. Its effects may have landed, so the runtime never starts it
    /// again by itself; an operator can, with a larger budget.
    #[error(transparent)]
    HandlerDeadlineExceeded(Box<HandlerDeadlineExceeded>),
    /// The entity never had this dispatch.
    #[error("{entity} has no dispatch {dispatch}")]
    UnknownDispatch {
        /// The entity.
        entity: EntityRef,
        /// The dispatch.
        dispatch: DispatchId,
    },
    /// The caller may not stop and resume sessions.
    #[error("{by:?} may not stop or resume sessions; the runtime names its operators")]
    NotAnOperator {
        /// The name of the caller.
        by: String,
    },
    /// The operating system gives no randomness.
    #[error("the operating system gives no randomness")]
    NoRandomness,
    /// The runtime is shutting down, or gone.
    #[error("the runtime is shutting down")]
    Closed,
}

/// What a caller may do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// The request may succeed later, or with more slots.
    Transient,
    /// The request will fail again.
    Permanent,
}

impl ActorError {
    /// That `entity` refuses a request.
    pub(crate) fn refused(entity: &EntityRef, refusal: Refusal) -> Self {
        let entity = entity.clone();
        match refusal {
            Refusal::NotAtSequence { expected } => Self::Conflict { entity, expected },
            refusal => Self::Refused { entity, refusal },
        }
    }

    /// What the caller may do next.
    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Conflict { .. }
            | Self::Elsewhere(_)
            | Self::MailboxFull(_)
            | Self::Busy { .. }
            | Self::JournalUnavailable { .. }
            | Self::HandlerDeadlineExceeded(_)
            | Self::NoRandomness
            | Self::Refused {
                refusal:
                    Refusal::TooManyInFlight { .. }
                    | Refusal::TooManySchedules { .. }
                    | Refusal::TooManySpawns { .. },
                ..
            } => ErrorClass::Transient,
            Self::UnknownEntity(_)
            | Self::EntityExists(_)
            | Self::UnknownType { .. }
            | Self::Refused { .. }
            | Self::Fenced { .. }
            | Self::Journal(_)
            | Self::UnknownDispatch { .. }
            | Self::NotAnOperator { .. }
            | Self::Closed => ErrorClass::Permanent,
        }
    }
}

impl From<journal::Error> for ActorError {
    fn from(error: journal::Error) -> Self {
        match error {
            journal::Error::Unavailable { what } => Self::JournalUnavailable { what },
            journal::Error::Closed => Self::Closed,
            other => Self::Journal(other),
        }
    }
}
