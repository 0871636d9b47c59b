//! Waiting in real time: the database and the other hosts are waited for, not the runtime's clock.

#![allow(clippy::disallowed_methods, reason = "other processes are waited for in real time")]

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior};

/// The result of `work`, or `None` if it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout(limit, work).await.ok()
}

/// The moment when `length` will have passed.
pub(crate) fn after(length: Duration) -> Instant {
    Instant::now() + length
}

/// The result of `work`, or `None` if it is not there at `deadline`.
pub(crate) async fn until<T>(deadline: Instant, work: impl Future<Output = T>) -> Option<T> {
    tokio::time::timeout_at(deadline, work).await.ok()
}

/// Waits before an attempt is repeated.
pub(crate) async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

/// Ticks now, and then each time `length` has passed since the last tick was taken.
pub(crate) fn every(length: Duration) -> Interval {
    let mut ticks = tokio::time::interval(length);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}
