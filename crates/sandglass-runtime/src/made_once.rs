//! A value that takes long to make: made once, on a thread for blocking work, however
//! many wait for it and however soon they go.

use std::sync::OnceLock;

use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct MadeOnce<T>(OnceLock<watch::Receiver<Option<T>>>);

impl<T: Clone + Send + Sync + 'static> MadeOnce<T> {
    pub(crate) const fn new() -> Self {
        Self(OnceLock::new())
    }

    /// What the first `make` that anybody gives makes; none where that panicked.
    /// Dropping this ends the wait, and not the making. Needs a tokio runtime.
    pub(crate) async fn value(&self, make: impl FnOnce() -> T + Send + 'static) -> Option<T> {
        let made = self.0.get_or_init(|| {
            let (made, value) = watch::channel(None);
            tokio::task::spawn_blocking(move || made.send_replace(Some(make())));
            value
        });
        made.clone().wait_for(Option::is_some).await.ok()?.clone()
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
        let (made, once) = (Arc::new(AtomicUsize::new(0)), MadeOnce::new());
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
        let once: MadeOnce<()> = MadeOnce::new();
        assert_eq!(once.value(|| panic!("the compiler gave up")).await, None);
        assert_eq!(once.value(|| ()).await, None);
    }
}
