//! The only place where these clients wait for time to pass: for their pace, and to bound how long
//! they wait for the host.

#![allow(clippy::disallowed_methods, reason = "the host under test has the real clock")]

use std::future::Future;
use std::time::Duration;

use sandglass_model::Monotonic;

use crate::Failure;
use crate::timing::now;

/// The longest wait for anything that must happen.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

pub(super) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Sleeps until `moment`.
pub(super) async fn until(moment: Monotonic) {
    let left = moment.since(now());
    if !left.is_zero() {
        pause(left).await;
    }
}

/// Returns what `work` returns. Errors if it takes longer than [`PATIENCE`].
pub(super) async fn with_time_limit<T>(
    what: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("{what}: nothing came in {} s", PATIENCE.as_secs()).into()),
    }
}
