//! The one place where these clients wait for time to pass: it is their pace, and bounds what
//! they wait for.

#![allow(clippy::disallowed_methods, reason = "the host under test has the real clock")]

use std::future::Future;
use std::time::Duration;

use sandglass_model::Monotonic;

use crate::Failure;
use crate::timing::now;

/// Longest that anything is waited for that has to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Ends after `time`.
pub(super) async fn pause(time: Duration) {
    tokio::time::sleep(time).await;
}

/// Ends at `moment`.
pub(super) async fn until(moment: Monotonic) {
    let left = moment.since(now());
    if !left.is_zero() {
        pause(left).await;
    }
}

/// What `work` answers, which has to come in time.
pub(super) async fn patiently<T>(
    what: &str,
    work: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(answer) => answer,
        Err(_) => Err(format!("{what}: nothing came in {} s", PATIENCE.as_secs()).into()),
    }
}
