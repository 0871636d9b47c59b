//! Locks that a panic does not take away from the others.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex`, even if a holder of it panicked.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
