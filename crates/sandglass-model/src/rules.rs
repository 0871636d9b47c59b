//! The version of the rules by which an entity's decisions are made.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The version of the rules by which an entity's decisions are made. A spec is registered with one,
/// and its digest covers it, so that a journal replays under the rules that it was written under.
///
/// A change of what `sandglass_liveness::decide` returns for the same inputs needs a new version;
/// docs/liveness.md, section "Rules versions", lists what each one changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RulesVersion(u32);

impl RulesVersion {
    /// The rules of journals that state no version.
    pub const V1: Self = Self(1);
    /// Decides about outcomes as they are recorded, drops held handlers of states that were left,
    /// gives resumed ones their own budgets, and checks held handlers before a change of the spec.
    pub const V2: Self = Self(2);
    /// Records with each dispatch of a session the shape that an earlier action has stated, lets
    /// signals from outside restart the timer of a state, and warns of inactive handlers of entities
    /// that are not sessions.
    pub const V3: Self = Self(3);
    /// All versions that this build can decide by, the oldest first.
    pub const ALL: [Self; 3] = [Self::V1, Self::V2, Self::V3];
    /// The version that new specs are registered with.
    pub const CURRENT: Self = Self::V3;

    /// Whether this build can decide by this version; false for one of a later build.
    #[must_use]
    pub fn is_known(self) -> bool {
        Self::ALL.contains(&self)
    }

    /// The version of a record that states none.
    pub(crate) const fn unstated() -> Self {
        Self::V1
    }

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
    pub(crate) fn is_unstated(&self) -> bool {
        *self == Self::unstated()
    }

    pub(crate) const fn to_be_bytes(self) -> [u8; 4] {
        self.0.to_be_bytes()
    }
}

impl fmt::Display for RulesVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
