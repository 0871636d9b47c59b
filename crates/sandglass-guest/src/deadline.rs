//! How much of its budget a handler has left.
//!
//! The deadline itself can't be caught, moved or survived: see the crate's
//! documentation. A handler that wants to end in its own way ends before it.

use std::time::Duration;

use crate::backend;

/// What is left of the budget, by the host's own clock, in whole milliseconds, rounded
/// down.
#[must_use]
pub fn remaining() -> Duration {
    Duration::from_millis(backend::remaining_ms())
}

/// Whether the handler should save its work and answer: its soft deadline has passed, so
/// the deadline is near. How near is for the integration's manifest to say
/// (`soft_deadline`); without that it is never true.
///
/// A call to the outside (HTTP, secrets, asks) that waits when the soft deadline passes is
/// ended with an error, so that a handler comes here in time. A handler that works in
/// steps asks before each:
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
