//! That there is no room for one more dispatch: where, and when to ask again.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Whose bound was met.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyScope {
    /// The whole host's.
    Host,
    /// The integration's.
    Integration,
    /// The tenant's.
    Tenant,
}

impl BusyScope {
    /// The name as it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Integration => "integration",
            Self::Tenant => "tenant",
        }
    }
}

impl fmt::Display for BusyScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Nothing was taken in, and nothing was recorded: as many as may be are there
/// already. Ask again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "the {scope} is busy: {limit} dispatches are in it already; try again in {retry_after_ms} ms"
)]
pub struct Busy {
    /// Whose bound was met.
    pub scope: BusyScope,
    /// The bound: how many may be in it at once.
    pub limit: u64,
    /// When there is likely to be room, in milliseconds from now; never 0.
    pub retry_after_ms: u64,
}
