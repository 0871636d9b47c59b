//! Ends that can't be read: what other records still tell of them.

use sandglass_model::{Object, Position, WallTime};
use serde::Serialize;

use super::Taken;

/// That the record of an end can't be read, or that nobody can tell whether there is one,
/// because records behind its dispatch can't be.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unread {
    /// The transition that followed: it has ended then.
    pub transition: Option<Taken>,
    /// When that was taken.
    pub transition_at: Option<WallTime>,
    /// The params of that: of an end that is no success, its cause and its error.
    pub params: Option<Object>,
}

impl Unread {
    /// Whether it has surely ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.transition.is_some()
    }

    /// The position of the last record that tells of it, where there is one.
    pub(super) fn position(&self) -> Option<Position> {
        self.transition.as_ref().map(|taken| taken.position)
    }
}
