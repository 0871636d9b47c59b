//! Asks: a handler's requests to other entities, their results, and how a record names the
//! handler that asked.

use serde::{Deserialize, Serialize};

use crate::Object;
use crate::busy::Busy;
use crate::clock::Monotonic;
use crate::id::{DispatchId, EntityRef, Sequence};
use crate::named::named;
use crate::trace::TraceContext;

named! {
    /// When an ask is answered.
    #[derive(Default)]
    AskUntil {
        /// When the action has been taken.
        #[default]
        Transition = "transition",
        /// When no handler of the asked entity is in flight any more.
        Settled = "settled",
    }
}

/// The handler that asked for an action, and the bounds of its ask.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The entity whose handler it is.
    pub by: EntityRef,
    /// The handler.
    pub dispatch: DispatchId,
    /// The attempt of the handler.
    pub attempt: u32,
    /// When it is answered.
    pub until: AskUntil,
    /// How long its deadline was away, in milliseconds, rounded up.
    pub remaining_ms: u64,
    /// How many asks deep it is nested, including this one.
    pub depth: u32,
}

/// One ask: a handler's request that another entity take an action.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// The entity that is to take the action.
    pub target: EntityRef,
    /// The action.
    pub action: String,
    /// The action's parameters.
    pub params: Object,
    /// When the ask is complete.
    pub until: AskUntil,
    /// The asking handler's deadline, on the clock of the runtime that delivers the ask.
    pub not_after: Monotonic,
    /// The span of the ask, in the asking handler's trace.
    pub trace: TraceContext,
}

/// The result of an ask: the asked entity at the moment when the ask was complete.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answered {
    /// Its sequence.
    pub sequence: Sequence,
    /// Its state.
    pub state: String,
    /// Its variables.
    pub fields: Object,
}

/// Why an ask failed. The guest reads it and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum AskError {
    /// The request is malformed.
    #[error("{0}")]
    Invalid(String),
    /// The integration may not ask for this.
    #[error("{0} is not among the ask targets of this integration")]
    NotAllowed(String),
    /// There is no such entity, or it has no such action.
    #[error("{0}")]
    UnknownTarget(String),
    /// The asked entity, directly or through others, waits for the asker to settle.
    #[error("the asked entity waits for the asker itself")]
    Cycle,
    /// Asks are nested too deeply.
    #[error("asks are nested more than {0} deep")]
    TooDeep(u32),
    /// The entity refused the action.
    #[error("{0}")]
    Refused(String),
    /// No capacity is free.
    #[error(transparent)]
    Busy(Busy),
    /// The time limit of the call passed first, or the asker's deadline.
    #[error("{0}")]
    TimedOut(String),
    /// The ask was cancelled so that the asker can save its work.
    #[error("{0}")]
    CutShort(String),
    /// Temporarily unavailable.
    #[error("{0}")]
    Unavailable(String),
}

impl AskError {
    /// All kinds.
    pub const KINDS: [&'static str; 10] = [
        "ask_invalid",
        "ask_not_allowed",
        "ask_unknown_target",
        "ask_cycle",
        "ask_too_deep",
        "ask_refused",
        "ask_busy",
        "ask_timed_out",
        "ask_cut_short",
        "ask_unavailable",
    ];

    /// The kind as guests read it: a stable name, before the colon of the message.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        Self::KINDS[match self {
            Self::Invalid(_) => 0,
            Self::NotAllowed(_) => 1,
            Self::UnknownTarget(_) => 2,
            Self::Cycle => 3,
            Self::TooDeep(_) => 4,
            Self::Refused(_) => 5,
            Self::Busy(_) => 6,
            Self::TimedOut(_) => 7,
            Self::CutShort(_) => 8,
            Self::Unavailable(_) => 9,
        }]
    }
}
