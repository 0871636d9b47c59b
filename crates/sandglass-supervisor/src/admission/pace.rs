//! Estimates when a refused dispatch should retry, from how long recent runs took.

use std::time::Duration;

/// The weight of earlier runs against a new one: about ten runs determine the average.
const WEIGHT: u32 = 8;

/// The assumed time of a run before any has ended.
const UNKNOWN: Duration = Duration::from_secs(1);

/// The shortest wait before a retry: a shorter one costs both sides work.
const SOONEST: Duration = Duration::from_millis(50);

/// The longest wait before a retry: within a minute everything may have changed.
const LATEST: Duration = Duration::from_secs(60);

/// A moving average of the time of runs.
#[derive(Debug, Default)]
pub(crate) struct Pace(Option<Duration>);

impl Pace {
    pub(crate) fn note_run(&mut self, time: Duration) {
        let time = time.min(LATEST);
        self.0 = Some(match self.0 {
            Some(pace) => (pace * (WEIGHT - 1) + time) / WEIGHT,
            None => time,
        });
    }

    /// How long a dispatch should wait before a retry, if `queued` wait and `at_once` may run at a time;
    /// in milliseconds, never 0.
    pub(crate) fn retry_after_ms(&self, queued: u64, at_once: u64) -> u64 {
        let rounds = queued.saturating_add(1).div_ceil(at_once.max(1));
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        let wait = self.0.unwrap_or(UNKNOWN).saturating_mul(rounds);
        u64::try_from(wait.clamp(SOONEST, LATEST).as_millis()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_follows_how_long_runs_take_and_how_many_wait() {
        let mut pace = Pace::default();
        assert_eq!(pace.retry_after_ms(0, 1), 1000, "nothing is known yet");
        pace.note_run(Duration::from_millis(200));
        assert_eq!(pace.retry_after_ms(0, 1), 200);
        assert_eq!(pace.retry_after_ms(9, 1), 2000);
        assert_eq!(pace.retry_after_ms(9, 5), 400);
        for _ in 0..100 {
            pace.note_run(Duration::from_millis(1000));
        }
        assert!(pace.retry_after_ms(0, 1) > 900, "the last runs count most");
    }

    #[test]
    fn the_hint_is_never_nothing_and_never_more_than_a_minute() {
        let mut pace = Pace::default();
        pace.note_run(Duration::ZERO);
        assert_eq!(pace.retry_after_ms(0, u64::MAX), 50);
        pace.note_run(Duration::MAX);
        assert_eq!(pace.retry_after_ms(u64::MAX, 0), 60_000);
    }
}
