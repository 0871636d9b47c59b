//! Asks: what a handler wants another entity to do, as a record names it.

use serde::{Deserialize, Serialize};

use crate::id::{DispatchId, EntityRef};

/// When an ask is answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskUntil {
    /// When the action has been taken.
    #[default]
    Transition,
    /// When no handler of the asked entity is in flight any more.
    Settled,
}

impl AskUntil {
    /// The name as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transition => "transition",
            Self::Settled => "settled",
        }
    }
}

/// The handler that asked for an action, and what it can give.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The entity whose handler it is.
    pub by: EntityRef,
    /// The handler.
    pub dispatch: DispatchId,
    /// Which attempt of it.
    pub attempt: u32,
    /// When it is answered.
    pub until: AskUntil,
    /// What its deadline had left, in milliseconds, rounded up.
    pub remaining_ms: u64,
    /// How many asks it lies deep, this one counted.
    pub depth: u32,
}
