//! How a run yields its thread to all other work.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use tokio::task;

thread_local! {
    /// Whether this thread runs guests.
    static RUNS_GUESTS: Cell<bool> = const { Cell::new(false) };
}

/// Marks this thread as one that runs guests.
pub(super) fn runs_guests() {
    RUNS_GUESTS.set(true);
}

/// Yields to everything else that is ready. (`tokio::task::yield_now` would yield to new runs only.)
pub async fn give_way() {
    if RUNS_GUESTS.get() {
        behind_all().await;
    } else {
        // The embedder's runtime may check for I/O only when a task yields like this.
        task::yield_now().await;
    }
}

/// Moves the task to the end of the thread's queue. Tokio resumes a task that has called `yield_now`
/// before that queue, so a single such task would starve the others.
async fn behind_all() {
    let mut has_waited = false;
    poll_fn(|context| {
        if has_waited {
            return Poll::Ready(());
        }
        has_waited = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
