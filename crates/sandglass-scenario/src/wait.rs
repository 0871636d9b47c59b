//! Waiting, by the runtime's time: real time, except in the worker of a scenario in virtual time.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior};

pub(crate) async fn pause(time: Duration) {
    #[expect(clippy::disallowed_methods, reason = "people and scenarios wait")]
    let wait = tokio::time::sleep(time);
    wait.await;
}

/// Ticks, the first time at once. A late tick delays those after it.
pub(crate) fn every(time: Duration) -> Interval {
    #[expect(clippy::disallowed_methods, reason = "upkeep of metrics, which are in real memory")]
    let mut ticks = tokio::time::interval(time);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
