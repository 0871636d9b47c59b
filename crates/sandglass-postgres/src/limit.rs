//! Time limits on a real server, which is waited for in real time.

use std::time::Duration;

/// The result of `work`, or `None` if it takes longer than `limit`.
#[allow(clippy::disallowed_methods, reason = "a server is waited for in real time")]
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

/// Waits between two attempts to reach the server.
#[allow(clippy::disallowed_methods, reason = "a server is waited for in real time")]
pub(crate) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}
