//! The clock of a kit: the paused time of its tokio runtime, with a wall-clock time that each case sets.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, WallTime};

#[derive(Debug)]
pub(crate) struct PausedClock {
    origin: tokio::time::Instant,
    /// The wall-clock time at the origin, in milliseconds since 1970.
    wall: AtomicI64,
}

impl PausedClock {
    /// Creates a clock of the current tokio runtime.
    pub(crate) fn new() -> Self {
        Self { origin: now(), wall: AtomicI64::new(0) }
    }

    /// Sets the wall-clock time to `wall`.
    pub(crate) fn set_wall(&self, wall: WallTime) {
        let origin = wall.before(self.elapsed());
        self.wall.store(origin.as_millis(), Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.origin)
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Monotonic {
        // Starts at one second, because zero never occurs on a real clock.
        Monotonic::from_nanos(1_000_000_000).after(self.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(self.wall.load(Ordering::Relaxed)).after(self.elapsed())
    }
}

#[allow(clippy::disallowed_methods, reason = "this is virtual time")]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

/// Sleeps in virtual time.
#[allow(clippy::disallowed_methods, reason = "this is virtual time")]
pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}
