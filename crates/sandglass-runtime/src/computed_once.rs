//! A value that takes long to compute: computed once, on a thread for blocking work, even if many
//! wait for it or all of them stop waiting. A value that is not worth keeping is computed again
//! when it is next needed.

use std::sync::{Mutex, PoisonError};

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct ComputedOnce<T> {
    value: Mutex<Option<watch::Receiver<Option<T>>>>,
    is_kept: fn(&T) -> bool,
}

impl<T: Clone + Send + Sync + 'static> ComputedOnce<T> {
    /// No value yet. One that is computed is kept if `is_kept` returns true.
    pub(crate) const fn new(is_kept: fn(&T) -> bool) -> Self {
        Self { value: Mutex::new(None), is_kept }
    }

    /// The value, if it is computed and kept.
    pub(crate) fn present(&self) -> Option<T> {
        // As below.
        let present = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        let value = present.as_ref()?.borrow();
        value.as_ref().filter(|value| (self.is_kept)(value)).cloned()
    }

    /// The value that the first `make` computes; `None` if that panicked. Dropping this ends the
    /// wait, but not the computation. Needs a tokio runtime.
    pub(crate) async fn value(&self, make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let mut value = self.kept_or_computed(make);
        value.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn kept_or_computed(
        &self,
        make: impl FnOnce() -> T + Send + 'static,
    ) -> watch::Receiver<Option<T>> {
        // No code between two changes of one critical section can panic.
        let mut present = self.value.lock().unwrap_or_else(PoisonError::into_inner);
        // One that is still being computed is waited for, even if it is not kept then.
        let is_kept = |value: &watch::Receiver<Option<T>>| {
            value.borrow().as_ref().is_none_or(|value| (self.is_kept)(value))
        };
        if let Some(value) = present.as_ref().filter(|value| is_kept(value)) {
            return value.clone();
        }
        let (sender, value) = watch::channel(None);
        tokio::task::spawn_blocking(move || sender.send_replace(Some(make())));
        present.insert(value).clone()
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
    async fn a_dropped_wait_does_not_stop_the_computation_for_others() {
        let (made, once) = (Arc::new(AtomicUsize::new(0)), ComputedOnce::new(|_| true));
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
    async fn a_computation_that_panics_is_not_repeated() {
        let once: ComputedOnce<()> = ComputedOnce::new(|()| true);
        assert_eq!(once.value(|| panic!("the compiler gave up")).await, None);
        assert_eq!(once.value(|| ()).await, None);
    }

    #[tokio::test]
    async fn a_value_that_is_not_kept_is_computed_again() {
        let once: ComputedOnce<u32> = ComputedOnce::new(|made| *made > 1);
        assert_eq!(once.value(|| 1).await, Some(1));
        assert_eq!(once.value(|| 2).await, Some(2));
        assert_eq!(once.value(|| 3).await, Some(2));
    }
}
