//! Catches panics in code of the embedder, so that they end one call and not the runtime. The
//! caller logs each and decides what it means.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::{Context, Poll};

/// The result of `call`; `None` if it panics.
pub(crate) fn catch_panic<T>(call: impl FnOnce() -> T) -> Option<T> {
    // What it was changing belongs to the embedder, who has to keep it consistent.
    catch_unwind(AssertUnwindSafe(call)).ok()
}

/// A future that ends with `None` if it panics.
pub(crate) struct CatchPanic<F: ?Sized>(pub(crate) Pin<Box<F>>);

impl<F: Future + ?Sized> Future for CatchPanic<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match catch_panic(|| self.0.as_mut().poll(cx)) {
            Some(polled) => polled.map(Some),
            None => Poll::Ready(None),
        }
    }
}
