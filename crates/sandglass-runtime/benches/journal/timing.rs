//! Durations and what is said of them.

use std::fmt;
use std::time::Duration;

/// The median, the 99th percentile and the maximum.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quantiles {
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    pub(crate) max: Duration,
}

impl Quantiles {
    /// Of at least one duration.
    pub(crate) fn of(mut all: Vec<Duration>) -> Self {
        all.sort_unstable();
        let at = |percent: usize| all[(all.len() - 1) * percent / 100];
        Self { p50: at(50), p99: at(99), max: at(100) }
    }
}

impl fmt::Display for Quantiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let (p50, p99, max) = (ms(self.p50), ms(self.p99), ms(self.max));
        write!(f, "p50 {p50:.2} ms, p99 {p99:.2} ms, max {max:.2} ms")
    }
}

/// How many there were in a second.
pub(crate) fn rate(many: u64, took: Duration) -> f64 {
    many as f64 / took.as_secs_f64()
}
