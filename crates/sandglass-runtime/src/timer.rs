//! The one place where the runtime waits for time to pass.

use std::time::Duration;

use sandglass_model::{Clock, Monotonic, WallTime};

/// Waits until `clock` has reached `at`; pending forever if that is never. If the clock does not wait
/// by itself, tokio's timers do.
#[allow(clippy::disallowed_methods, reason = "waiting happens here, and is checked by the clock")]
pub async fn until(clock: &dyn Clock, at: Monotonic) {
    loop {
        let left = at.since(clock.now());
        if left.is_zero() {
            return;
        }
        match clock.until(at) {
            Some(reached) => reached.await,
            None => tokio::time::sleep(left).await,
        }
    }
}

/// The point `millis` milliseconds after `from`.
pub(crate) fn after_ms(from: Monotonic, millis: u64) -> Monotonic {
    from.after(Duration::from_millis(millis))
}

/// A clock that follows tokio's, also while that is paused: a test that starts with paused time
/// sees days pass in milliseconds.
///
/// It is public so that embedders can test their own specs in this way. Pausing requires tokio's
/// feature `test-util`, which is therefore enabled in every build; without a call that pauses, the
/// feature changes nothing.
#[derive(Clone, Copy, Debug)]
pub struct SimClock {
    origin: tokio::time::Instant,
    wall: WallTime,
}

impl SimClock {
    /// A clock whose wall time is `wall` now. Needs a tokio runtime.
    #[must_use]
    pub fn starting_at(wall: WallTime) -> Self {
        Self { origin: now(), wall }
    }

    fn elapsed(&self) -> Duration {
        now().saturating_duration_since(self.origin)
    }
}

#[allow(clippy::disallowed_methods, reason = "the simulated clock lives here")]
fn now() -> tokio::time::Instant {
    tokio::time::Instant::now()
}

impl Clock for SimClock {
    fn now(&self) -> Monotonic {
        // A second after zero, as the clock of the system, so that no point is zero.
        Monotonic::from_nanos(1_000_000_000).after(self.elapsed())
    }

    fn wall(&self) -> WallTime {
        self.wall.after(self.elapsed())
    }
}
