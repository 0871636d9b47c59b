//! Waiting for a time.

use std::time::Duration;

use crate::backend;

/// Waits for this time, rounded up to milliseconds. The soft deadline does not cut it short; at the
/// deadline the handler is killed. With the feature `async`, other tasks of the handler go on.
///
/// It does not exist for `wasm32-unknown-unknown` without the feature `async`, because the ABI of core
/// modules has no timer. In a unit test, it returns at once.
pub async fn sleep(duration: Duration) {
    backend::sleep(duration).await;
}
