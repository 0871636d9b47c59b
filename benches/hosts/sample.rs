//! Durations of one kind.

use std::fmt;
use std::time::Duration;

#[derive(Debug, Default)]
pub(crate) struct Sample(Vec<Duration>);

impl Sample {
    pub(crate) fn add(&mut self, durations: impl IntoIterator<Item = Duration>) {
        self.0.extend(durations);
    }

    /// The time that this part of a thousand does not exceed, in milliseconds.
    pub(crate) fn millis(&self, thousandths: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort();
        let nth = (sorted.len() * thousandths).div_ceil(1000).saturating_sub(1);
        sorted.get(nth).copied().unwrap_or_default().as_secs_f64() * 1_000.0
    }
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (p50, p99, most) = (self.millis(500), self.millis(990), self.millis(1_000));
        write!(
            f,
            "p50 {p50:.2} ms, p99 {p99:.2} ms, at most {most:.2} ms ({} of them)",
            self.0.len()
        )
    }
}
