//! The wall time, as guests read it, and waiting.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use sandglass_model::{Monotonic, WallTime};

use crate::supervision::Supervision;

/// A wait of `run` for `duration`, and when it ends. The ticker wakes the run then; the caller polls
/// the wait.
pub fn sleep(
    run: &Supervision,
    duration: Duration,
) -> (Monotonic, impl Future<Output = ()> + Send + use<>) {
    let at = run.watch.checked_at.after(duration);
    let (shared, clock) = (Arc::clone(run.run()), Arc::clone(run.clock().shared()));
    let ticker = run.watch.ticker.clone();
    let mut armed = None;
    let wait = std::future::poll_fn(move |_| {
        if clock.now() > at {
            return Poll::Ready(());
        }
        // A wait beyond the deadline never ends.
        if let Some(ticker) = ticker.as_ref().filter(|_| at < shared.deadline()) {
            armed.get_or_insert_with(|| ticker.arm_at(&shared, at));
        }
        Poll::Pending
    });
    (at, wait)
}

/// Formats `wall` as `YYYYMMDDTHHMMSSZ` (ISO 8601 basic format, as request signatures require);
/// `None` outside of the years 0 to 9999.
pub fn compact_utc(wall: WallTime) -> Option<String> {
    let moment = jiff::Timestamp::from_millisecond(wall.as_millis()).ok()?;
    let civil = moment.to_zoned(jiff::tz::TimeZone::UTC).datetime();
    (0..=9999).contains(&civil.year()).then(|| civil.strftime("%Y%m%dT%H%M%SZ").to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_formatted_as_request_signatures_require() {
        let moment = WallTime::from_millis(1_795_219_199_999);
        assert_eq!(compact_utc(moment).as_deref(), Some("20261120T235959Z"));
        assert_eq!(compact_utc(WallTime::from_millis(i64::MAX)), None);
    }
}
