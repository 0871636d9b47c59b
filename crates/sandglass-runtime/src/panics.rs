//! Stops the panics of code that the embedder wrote at the call: they become nothing,
//! and whoever called says what that means and tells it in the log.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// What `call` answers; none where it panics.
pub(crate) fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    // Whatever it was changing is the embedder's own, and theirs to keep whole.
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// A future whose panic is its end, with no output.
pub(crate) struct Caught<F: ?Sized>(pub(crate) Pin<Box<F>>);

impl<F: Future + ?Sized> Future for Caught<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match caught(|| self.0.as_mut().poll(cx)) {
            Some(polled) => polled.map(Some),
            None => Poll::Ready(None),
        }
    }
}
