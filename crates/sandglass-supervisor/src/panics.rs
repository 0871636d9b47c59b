//! Code of the embedder that may panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

/// Returns the result of `future`; `None` if it panics.
pub async fn catch_panic<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
    std::future::poll_fn(|context| {
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    })
    .await
}
