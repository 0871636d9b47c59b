//! Signals of a handler to another entity: notices that are recorded there, and change no state.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::EntityRef;

/// A signal of a handler to another entity.
#[derive(Clone, Debug, PartialEq)]
pub struct EntitySignal {
    /// The entity that records it.
    pub target: EntityRef,
    /// Its name.
    pub name: String,
    /// Its content.
    pub payload: Value,
}

impl EntitySignal {
    /// Largest payload of a signal from elsewhere, in bytes as JSON: a signal is a notice.
    pub const PAYLOAD_MAX_BYTES: u32 = 64 << 10;
    /// Most values of such a payload, where a key counts as one and an object as eight: text of that
    /// size can contain objects that occupy more than 4 MiB, and payloads wait in mailboxes.
    pub const PAYLOAD_MAX_VALUES: u32 = 1_024;
}

/// Why a signal to another entity failed. The guest reads it and goes on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum SignalError {
    /// The request is malformed.
    #[error("{0}")]
    Invalid(String),
    /// The integration may not send this signal.
    #[error("{0} is not among the signals of this integration")]
    NotAllowed(String),
    /// There is no such entity.
    #[error("{0}")]
    UnknownTarget(String),
    /// The entity refused it.
    #[error("{0}")]
    Refused(String),
    /// It was not recorded in time. It may still be.
    #[error("{0}")]
    TimedOut(String),
    /// The call was cut short so that the handler can save its work. The signal may still be
    /// recorded.
    #[error("{0}")]
    CutShort(String),
    /// Temporarily unavailable.
    #[error("{0}")]
    Unavailable(String),
}

impl SignalError {
    /// All kinds.
    pub const KINDS: [&'static str; 7] = [
        "signal_invalid",
        "signal_not_allowed",
        "signal_unknown_target",
        "signal_refused",
        "signal_timed_out",
        "signal_cut_short",
        "signal_unavailable",
    ];

    /// The kind as guests read it: a stable name, before the colon of the message.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        Self::KINDS[match self {
            Self::Invalid(_) => 0,
            Self::NotAllowed(_) => 1,
            Self::UnknownTarget(_) => 2,
            Self::Refused(_) => 3,
            Self::TimedOut(_) => 4,
            Self::CutShort(_) => 5,
            Self::Unavailable(_) => 6,
        }]
    }
}
