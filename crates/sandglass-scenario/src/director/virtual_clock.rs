//! Virtual time as the director sees it: it stands where the worker last reported it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, WallTime};

/// A clock that stands still until it is set.
#[derive(Debug)]
pub(super) struct VirtualClock {
    start: WallTime,
    elapsed_ms: AtomicU64,
}

impl VirtualClock {
    pub(super) const fn starting_at(start: WallTime) -> Self {
        Self { start, elapsed_ms: AtomicU64::new(0) }
    }

    /// Milliseconds since its start.
    pub(super) fn elapsed_ms(&self) -> u64 {
        self.elapsed_ms.load(Ordering::Relaxed)
    }

    /// Sets the milliseconds since its start; the clock never goes back.
    pub(super) fn set_ms(&self, elapsed_ms: u64) {
        self.elapsed_ms.fetch_max(elapsed_ms, Ordering::Relaxed);
    }

    /// Milliseconds from its start until `at`.
    pub(super) const fn ms_until(at: Monotonic) -> u64 {
        at.as_nanos().div_ceil(1_000_000)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(0).after(Duration::from_millis(self.elapsed_ms()))
    }

    fn wall(&self) -> WallTime {
        self.start.after(Duration::from_millis(self.elapsed_ms()))
    }
}
