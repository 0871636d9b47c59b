//! The only place where HTTP reads the clock and waits: it bounds real sockets, which no test uses in
//! virtual time.

#![allow(clippy::disallowed_methods, reason = "bounds real sockets")]

use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// The work took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it took too long")]
pub struct TimedOut;

/// Returns the result of `work`.
///
/// # Errors
/// Errors if it takes longer than `time`; `work` is dropped then.
pub async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, TimedOut> {
    tokio::time::timeout(time, work).await.map_err(|_| TimedOut)
}

/// Waits for `time`.
pub fn pause(time: Duration) -> Sleep {
    tokio::time::sleep(time)
}

/// The present moment on the clock of tokio.
pub(crate) fn now() -> Instant {
    Instant::now()
}
