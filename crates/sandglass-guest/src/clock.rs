//! The wall-clock time. [`deadline`](crate::deadline) has the time that is left.

use crate::backend;

/// The wall-clock time, in milliseconds since 1970-01-01T00:00:00Z. It may jump, so do not measure
/// durations with it.
#[must_use]
pub fn now_ms() -> i64 {
    backend::now_ms()
}
