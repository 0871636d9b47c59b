//! The one place where HTTP waits for time to pass: it bounds real sockets and the people
//! behind them, which no test looks at in virtual time.

#![allow(clippy::disallowed_methods, reason = "bounds real sockets")]

use std::time::Duration;

use tokio::time::{Instant, Sleep};

/// That something took longer than it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it took longer than it may")]
pub struct TimedOut;

/// What `work` answers, where it does so in `time`.
///
/// # Errors
/// It doesn't; it is dropped then.
pub async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, TimedOut> {
    tokio::time::timeout(time, work).await.map_err(|_| TimedOut)
}

/// Ends after `time`.
pub fn pause(time: Duration) -> Sleep {
    tokio::time::sleep(time)
}

/// The present moment on the runtime's clock.
pub(crate) fn now() -> Instant {
    Instant::now()
}
