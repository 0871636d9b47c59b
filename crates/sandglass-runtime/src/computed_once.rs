//! A value that takes long to make: made once, on a thread for blocking work, however
//! many wait for it and however soon they go. One that isn't worth keeping is made again
//! when it is next asked for.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct MadeOnce<T> {
    made: Mutex<Option<watch::Receiver<Option<T>>>>,
    is_kept: fn(&T) -> bool,
}

impl<T: Clone + Send + Sync + 'static> MadeOnce<T> {
    /// Nothing yet; what will be made is kept where `is_kept` says so.
    pub(crate) const fn new(is_kept: fn(&T) -> bool) -> Self {
        Self { made: Mutex::new(None), is_kept }
    }

    /// What the first `make` that anybody gives makes; none where that panicked.
    /// Dropping this ends the wait, and not the making. Needs a tokio runtime.
    pub(crate) async fn value(&self, make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut value = self.kept_or_made(make);
        value.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn kept_or_made(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> watch::Receiver<Option<T>> {
        // Each change is made whole before anything can panic.
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is still being made is waited for, whatever comes of it.
        let is_kept = |value: &watch::Receiver<Option<T>>| {
            value.borrow().as_ref().is_none_or(|value| (self.is_kept)(value))
        };
        if let Some(value) = made.as_ref().filter(|value| is_kept(value)) {
            return value.clone();
        }
        let (teller, value) = watch::channel(None);
        tokio::task::spawn_blocking(move || teller.send_replace(Some(make())));
        made.insert(value).clone()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn one_who_waits_no_longer_leaves_the_making_to_the_others() {
        let (made, once) = (Arc::new(AtomicUsize::new(0)), MadeOnce::new(|_| true));
        let (open, gate) = mpsc::channel::<()>();
        let make = |gate: Option<mpsc::Receiver<()>>| {
            let made = Arc::clone(&made);
            move || {
                made.fetch_add(1, Ordering::SeqCst);
                gate.map(|gate| gate.recv());
                "made"
            }
        };
        {
            let mut impatient = pin!(once.value(make(Some(gate))));
            let first = std::future::poll_fn(|cx| {
                std::task::Poll::Ready(impatient.as_mut().poll(cx).is_ready())
            });
            assert!(!first.await, "it takes long");
        }
        let patient = async {
            open.send(()).expect("it is still being made");
            once.value(make(None)).await
        };
        assert_eq!(patient.await, Some("made"));
        assert_eq!(once.value(make(None)).await, Some("made"));
        assert_eq!(made.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_making_that_panics_is_not_tried_again() {
        let once: MadeOnce<()> = MadeOnce::new(|()| true);
        assert_eq!(once.value(|| panic!("the compiler gave up")).await, None);
        assert_eq!(once.value(|| ()).await, None);
    }

    #[tokio::test]
    async fn what_is_not_worth_keeping_is_made_again_when_it_is_next_asked_for() {
        let once: MadeOnce<u32> = MadeOnce::new(|made| *made > 1);
        assert_eq!(once.value(|| 1).await, Some(1));
        assert_eq!(once.value(|| 2).await, Some(2));
        assert_eq!(once.value(|| 3).await, Some(2));
    }
}
