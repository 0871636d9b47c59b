//! A value that one side changes and others watch. Watchers are woken in the order in which they
//! subscribed. (Tokio wakes its watchers in a random order, which no simulation could repeat.)

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The side that changes the value.
pub(crate) struct Sender<T>(Arc<Shared<T>>);

/// A watcher.
pub(crate) struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The version of the value that it has seen.
    seen: u64,
}

/// The side that changes the value is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gone;

struct Shared<T> {
    state: Mutex<State<T>>,
    changed: Notify,
    unwatched: Notify,
}

struct State<T> {
    value: T,
    version: u64,
    receivers: usize,
    is_gone: bool,
}

/// The value, which cannot change while this is held.
pub(crate) struct Ref<'a, T>(MutexGuard<'a, State<T>>);

impl<T> Deref for Ref<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> Shared<T> {
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // No code between two changes of one critical section can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both sides of a value.
pub(crate) fn channel<T>(value: T) -> (Sender<T>, Receiver<T>) {
    let sender = Sender::new(value);
    let receiver = sender.subscribe();
    (sender, receiver)
}

impl<T> Sender<T> {
    /// A value without watchers.
    pub(crate) fn new(value: T) -> Self {
        let state = State { value, version: 0, receivers: 0, is_gone: false };
        let (changed, unwatched) = Default::default();
        Self(Arc::new(Shared { state: Mutex::new(state), changed, unwatched }))
    }

    /// Adds a watcher, which has seen the present value.
    pub(crate) fn subscribe(&self) -> Receiver<T> {
        let mut state = self.0.lock();
        state.receivers += 1;
        Receiver { shared: Arc::clone(&self.0), seen: state.version }
    }

    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        Ref(self.0.lock())
    }

    /// Replaces the value, and returns the previous one.
    pub(crate) fn send_replace(&self, value: T) -> T {
        let before = {
            let mut state = self.0.lock();
            state.version += 1;
            std::mem::replace(&mut state.value, value)
        };
        self.0.changed.notify_waiters();
        before
    }

    /// Changes the value; watchers are woken if `change` returns true.
    pub(crate) fn send_if_modified(&self, change: impl FnOnce(&mut T) -> bool) {
        {
            let mut state = self.0.lock();
            if !change(&mut state.value) {
                return;
            }
            state.version += 1;
        }
        self.0.changed.notify_waiters();
    }

    /// The number of watchers.
    pub(crate) fn receiver_count(&self) -> usize {
        self.0.lock().receivers
    }

    /// Waits until there are no watchers.
    pub(crate) async fn closed(&self) {
        loop {
            // Registered before the check, so that nothing is missed in between.
            let unwatched = self.0.unwatched.notified();
            if self.receiver_count() == 0 {
                return;
            }
            unwatched.await;
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.lock().is_gone = true;
        self.0.changed.notify_waiters();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn borrow(&self) -> Ref<'_, T> {
        Ref(self.shared.lock())
    }

    /// Whether the value has changed since this watcher has seen it.
    ///
    /// # Errors
    /// The other side is gone, so it never will.
    pub(crate) fn has_changed(&self) -> Result<bool, Gone> {
        let state = self.shared.lock();
        if state.is_gone { Err(Gone) } else { Ok(state.version != self.seen) }
    }

    /// Waits until the value has changed since this watcher has seen it, and marks it as seen.
    ///
    /// # Errors
    /// The other side is gone, so it never will.
    pub(crate) async fn changed(&mut self) -> Result<(), Gone> {
        loop {
            // Registered before the check, so that nothing is missed in between.
            let changed = self.shared.changed.notified();
            {
                let state = self.shared.lock();
                if state.version != self.seen {
                    self.seen = state.version;
                    return Ok(());
                }
                if state.is_gone {
                    return Err(Gone);
                }
            }
            changed.await;
        }
    }
}

impl<T: Clone> Receiver<T> {
    /// Waits until `holds` for the value, which may be at once.
    ///
    /// # Errors
    /// It does not hold, and the other side is gone, so it never will.
    pub(crate) async fn wait_for(&mut self, mut holds: impl FnMut(&T) -> bool) -> Result<T, Gone> {
        loop {
            let changed = self.shared.changed.notified();
            let (value, is_gone) = {
                let state = self.shared.lock();
                self.seen = state.version;
                (state.value.clone(), state.is_gone)
            };
            // Outside of the lock, because it may do anything.
            if holds(&value) {
                return Ok(value);
            }
            if is_gone {
                return Err(Gone);
            }
            changed.await;
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        self.shared.lock().receivers += 1;
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let is_last = {
            let mut state = self.shared.lock();
            state.receivers -= 1;
            state.receivers == 0
        };
        if is_last {
            self.shared.unwatched.notify_waiters();
        }
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("seen", &self.seen).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn watchers_are_woken_in_the_order_in_which_they_came() {
        let sender = Sender::new(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = tokio::task::JoinSet::new();
        for number in 0..50 {
            let (mut receiver, woken) = (sender.subscribe(), Arc::clone(&woken));
            waiting.spawn(async move {
                receiver.changed().await.expect("the sender is there");
                woken.lock().expect("no panic").push(number);
            });
        }
        tokio::task::yield_now().await;
        sender.send_replace(1);
        while waiting.join_next().await.is_some() {}
        assert!(woken.lock().expect("no panic").iter().copied().eq(0..50));
    }

    #[tokio::test]
    async fn a_change_is_seen_once_and_the_last_value_after_the_end() {
        let (sender, mut receiver) = channel(0);
        assert_eq!(receiver.has_changed(), Ok(false));
        assert_eq!((sender.send_replace(1), sender.send_replace(2)), (0, 1));
        assert_eq!(receiver.has_changed(), Ok(true));
        assert_eq!(receiver.changed().await, Ok(()));
        assert_eq!(receiver.has_changed(), Ok(false));
        sender.send_if_modified(|_| false);
        assert_eq!(receiver.has_changed(), Ok(false));
        sender.send_replace(3);
        drop(sender);
        assert_eq!(receiver.has_changed(), Err(Gone));
        assert_eq!(receiver.wait_for(|value| *value == 3).await, Ok(3));
        assert_eq!(receiver.wait_for(|value| *value == 4).await, Err(Gone));
        assert_eq!(receiver.changed().await, Err(Gone));
    }

    #[tokio::test]
    async fn the_last_watcher_to_leave_wakes_the_sender() {
        let (sender, first) = channel(());
        let second = first.clone();
        assert_eq!(sender.receiver_count(), 2);
        let watched = tokio::spawn(async move {
            sender.closed().await;
            sender.receiver_count()
        });
        tokio::task::yield_now().await;
        drop(first);
        tokio::task::yield_now().await;
        assert!(!watched.is_finished());
        drop(second);
        assert_eq!(watched.await.expect("no panic"), 0);
    }
}
