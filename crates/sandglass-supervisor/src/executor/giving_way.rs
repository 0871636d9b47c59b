//! How a run that goes on lets others go first.

use std::cell::Cell;
use std::future::poll_fn;
use std::task::Poll;

use tokio::task;

thread_local! {
    /// Whether this thread is one of those that run guests.
    static RUNS_GUESTS: Cell<bool> = const { Cell::new(false) };
}

/// From now on this thread runs guests.
pub(super) fn runs_guests() {
    RUNS_GUESTS.set(true);
}

/// Has everything else that is ready go first, once. (A task that yields in tokio's own way
/// has only new runs go first.)
pub async fn give_way() {
    if RUNS_GUESTS.get() {
        behind_all().await;
    } else {
        // The embedder's runtime may look for I/O only where a task yields like this.
        task::yield_now().await;
    }
}

/// Goes to the end of the thread's queue. A task that yields in tokio's own way is taken up
/// again before that queue: alone it would leave those that wait there nothing.
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
