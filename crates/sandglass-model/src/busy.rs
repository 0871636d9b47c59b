//! The refusal of a dispatch because a bound is reached: which bound, and when to try again.

use serde::{Deserialize, Serialize};

use crate::named::named;

named! {
    /// Whose bound is reached.
    BusyScope {
        /// That of the whole host.
        Host = "host",
        /// That of the integration.
        Integration = "integration",
        /// That of the tenant.
        Tenant = "tenant",
    }
}

/// The dispatch was refused because a bound is reached. Nothing was recorded; try again later.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error(
    "the {scope} is busy: {limit} dispatches are in it already; try again in {retry_after_ms} ms"
)]
pub struct Busy {
    /// Whose bound is reached.
    pub scope: BusyScope,
    /// The bound: how many dispatches may be in the scope at once.
    pub limit: u64,
    /// When a retry is likely to succeed, in milliseconds from now; never 0.
    pub retry_after_ms: u64,
}
