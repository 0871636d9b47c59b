//! What time it is. How much of it is left is told by [`deadline`](crate::deadline).

use crate::backend;

/// The wall time, in milliseconds since 1970-01-01T00:00:00Z. It may jump: what is
/// measured or waited for by it can be wrong.
#[must_use]
pub fn now_ms() -> i64 {
    backend::now_ms()
}
