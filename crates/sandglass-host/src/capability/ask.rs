//! Asks: what one handler wants another entity to do, and hears of it.

use std::fmt;

use sandglass_model::{Busy, EntityRef, Monotonic, Object, Sequence, TraceContext};

use crate::secret::Answer;

/// Takes the asks of one dispatch. Made by whoever runs entities; it knows who
/// asks.
pub trait Asks: Send + Sync + fmt::Debug {
    /// Whether there is such an action. It bounds the names that spans and labels
    /// carry, so it must know finitely many.
    fn knows(&self, entity_type: &str, action: &str) -> bool;

    /// Carries out one ask. The future is dropped where the asker's run ends
    /// first.
    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>>;
}

/// One ask.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// Who is asked.
    pub target: EntityRef,
    /// The action that it is asked to take.
    pub action: String,
    /// The action's parameters.
    pub params: Object,
    /// When it is answered.
    pub until: AskUntil,
    /// The asker's deadline, on the host's clock.
    pub not_after: Monotonic,
    /// The span of the ask, in the asker's trace.
    pub trace: TraceContext,
}

/// When an ask is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskUntil {
    /// When the action has been taken.
    Transition,
    /// When no handler of the asked entity is in flight any more.
    Settled,
}

/// What an ask came to.
#[derive(Clone, Debug, PartialEq)]
pub struct Answered {
    /// The entity's sequence then.
    pub sequence: Sequence,
    /// Its state then.
    pub state: String,
    /// Its variables then.
    pub fields: Object,
}

/// Why an ask failed. The guest reads it and goes on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// The integration may not ask this.
    #[error("{0} is not among the ask targets of this integration")]
    NotAllowed(String),
    /// There is no such entity, or it has no such action.
    #[error("{0}")]
    UnknownTarget(String),
    /// It would wait for itself: the asked entity, or one that it waits for, is
    /// waiting for the asker to settle.
    #[error("the asked entity waits for the asker itself")]
    Cycle,
    /// Asks are nested too deeply.
    #[error("asks are nested more than {0} deep")]
    TooDeep(u32),
    /// The entity doesn't take the action now.
    #[error("{0}")]
    Refused(String),
    /// There is no room for it now.
    #[error(transparent)]
    Busy(Busy),
    /// It took longer than the asker has.
    #[error("the answer did not come in time")]
    TimedOut,
    /// Nobody can be asked at present.
    #[error("{0}")]
    Unavailable(String),
}

impl AskError {
    /// The kind as guests read it: a stable name, before the colon of the message.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::NotAllowed(_) => "ask_not_allowed",
            Self::UnknownTarget(_) => "ask_unknown_target",
            Self::Cycle => "ask_cycle",
            Self::TooDeep(_) => "ask_too_deep",
            Self::Refused(_) => "ask_refused",
            Self::Busy(_) => "ask_busy",
            Self::TimedOut => "ask_timed_out",
            Self::Unavailable(_) => "ask_unavailable",
        }
    }
}
