//! Waiting in real time.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

/// Sleeps. Commands wait for people and daemons, which virtual time does not reach.
pub(crate) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "people wait")]
    let wait = tokio::time::sleep(time);
    wait.await;
}

/// Ticks, the first time at once. A late tick delays the next one.
pub(crate) fn every(time: Duration) -> Interval {
    #[expect(clippy::disallowed_methods, reason = "people watch")]
    let mut ticks = tokio::time::interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
