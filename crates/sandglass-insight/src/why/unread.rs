//! What other records show about an end whose own record cannot be read.

use sandglass_model::{Object, WallTime};
use serde::Serialize;

use super::Taken;

/// The record of an end cannot be read, or records after the dispatch cannot be read, so that it is
/// unknown whether one of them is the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Unread {
    /// The transition that followed; if there is one, the handler has certainly ended.
    pub transition: Option<Taken>,
    /// When that transition was taken.
    pub transition_at: Option<WallTime>,
    /// The params of that transition. If the handler did not succeed, they have its cause and
    /// error.
    pub params: Option<Object>,
}

impl Unread {
    /// Whether the handler has certainly ended.
    #[must_use]
    pub const fn has_ended(&self) -> bool {
        self.transition.is_some()
    }
}
