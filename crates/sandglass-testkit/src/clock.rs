//! The clock of a kit: tokio's, which a test's runtime has paused, with a wall time that each
//! case sets.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, WallTime};

#[derive(Debug)]
pub(crate) struct PausedClock {
    origin: tokio::time::Instant,
    /// What the wall shows at the origin, in milliseconds since 1970.
    wall: AtomicI64,
}

impl PausedClock {
    /// A clock of the tokio runtime that this is called in.
    pub(crate) fn new() -> Self {
        Self { origin: now(), wall: AtomicI64::new(0) }
    }

    /// Has the wall show `wall` now.
    pub(crate) fn show(&self, wall: WallTime) {
        let origin = wall.before(self.elapsed());
        self.wall.store(origin.as_millis(), Ordering::Relaxed);
    }

    fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.origin)
    }
}

impl Clock for PausedClock {
    fn now(&self) -> Monotonic {
        // A second off zero, as the system's clock is, so that no point is zero.
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

/// Waits in virtual time.
#[allow(clippy::disallowed_methods, reason = "this is virtual time")]
pub(crate) async fn pass(time: Duration) {
    tokio::time::sleep(time).await;
}
