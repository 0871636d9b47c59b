//! Waiting in real time.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Waits.
pub(crate) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "people wait")]
    let wait = tokio::time::sleep(time);
    wait.await;
}

/// Ticks, the first time at once; a tick that is late puts off the next.
pub(crate) fn every(time: Duration) -> Interval {
    #[expect(clippy::disallowed_methods, reason = "upkeep of what is in real memory")]
    let mut ticks = tokio::time::interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
