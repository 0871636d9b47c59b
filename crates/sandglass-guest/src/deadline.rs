//! The time that a handler has left.
//!
//! The deadline cannot be caught, moved or survived: see the crate's documentation. A handler that wants
//! to end in its own way has to end before it.

use std::time::Duration;

use crate::backend;

/// The remaining budget by the host's clock, in milliseconds, rounded down.
#[must_use]
pub fn remaining() -> Duration {
    Duration::from_millis(backend::remaining_ms())
}

/// Whether the handler should save its work and return: its soft deadline has passed, so the deadline
/// is near. The integration's manifest sets how near (`soft_deadline`); without that key this is
/// never true.
///
/// If a call (HTTP, secrets, asks) waits when the soft deadline passes, it returns an error, so that a
/// handler gets here in time. A handler that works in steps checks before each step:
///
/// ```
/// # use sandglass_guest::{Failure, deadline};
/// # fn step(_: u32) {}
/// fn work() -> Result<(), Failure> {
///     for number in 0..1000 {
///         if deadline::should_stop() {
///             let done = sandglass_guest::json!({ "steps": number });
///             let failure = Failure::typed("budget", "stopped_in_time").outcome("partial");
///             return Err(failure.retryable().details(done));
///         }
///         step(number);
///     }
///     Ok(())
/// }
/// ```
#[must_use]
pub fn should_stop() -> bool {
    backend::should_stop()
}
