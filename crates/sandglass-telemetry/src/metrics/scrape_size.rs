//! The size limit of a scrape. Each series is charged for its lines before it is created, so that no
//! number or length of names makes a scrape larger.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::metrics::Counter;

use crate::table::{Definition, Kind, Prefix};

/// The default size limit of a scrape, in bytes, without the metrics of guests, which have bounds of
/// their own. It suffices for about twenty actions in every metric, and a scraper can read it every few
/// seconds at negligible cost.
pub const SCRAPE_MAX_BYTES: usize = 200 * 1024;
/// The size of a count up to ten billion, with the space before it and the line break after it.
const COUNT_BYTES: usize = 13;
/// The size of a number with a fraction, likewise.
const FLOAT_BYTES: usize = 22;

/// The size of a scrape: how much is taken, and the limit.
#[derive(Debug)]
pub(crate) struct ScrapeSize {
    max_bytes: usize,
    taken: AtomicUsize,
    folded: OnceLock<Counter>,
}

/// Which part of the limit may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Priority {
    /// For what is exported in any case: it is charged, and never refused.
    Always,
    /// For a series of a counter or gauge.
    Small,
    /// For a series of a histogram. Histograms leave a quarter of the limit to smaller series, so that
    /// kills still have their labels when times no longer do.
    Large,
}

impl ScrapeSize {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, taken: AtomicUsize::new(0), folded: OnceLock::new() }
    }

    /// Takes `bytes`. False if they exceed the limit; nothing is taken then.
    pub(super) fn take(&self, bytes: usize, priority: Priority) -> bool {
        let max = match priority {
            Priority::Always => usize::MAX,
            Priority::Small => self.max_bytes,
            Priority::Large => self.max_bytes / 4 * 3,
        };
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Whether less than half is taken. Only then are events exported at zero that may never happen.
    pub(super) fn is_half_free(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.max_bytes / 2
    }

    /// Sets the counter of [`ScrapeSize::count_folded`].
    pub(super) fn count_folded_in(&self, counter: Counter) {
        // There is only one table, so it is set once.
        let _ = self.folded.set(counter);
    }

    /// Counts an observation that was reported under the overflow value.
    pub(super) fn count_folded(&self) {
        if let Some(folded) = self.folded.get() {
            folded.increment(1);
        }
    }
}

/// The size of the lines of a series of one metric.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeriesSize {
    pub(super) priority: Priority,
    lines: usize,
    /// The size of all lines without the labels.
    rest: usize,
}

impl SeriesSize {
    pub(super) fn of(definition: &Definition, prefix: &Prefix) -> Self {
        let name = definition.full_name(prefix).len();
        let plain = |suffix: &str, number| name + suffix.len() + "{}".len() + number;
        let small = |number| Self { priority: Priority::Small, lines: 1, rest: plain("", number) };
        match definition.kind {
            Kind::Counter => small(COUNT_BYTES),
            Kind::Gauge => small(FLOAT_BYTES),
            Kind::Histogram => {
                let bound = |text: usize| plain("_bucket", COUNT_BYTES) + ",le=\"\"".len() + text;
                let bounds = definition.buckets.iter().map(|upper| upper.to_string().len());
                let buckets: usize = bounds.chain(["+Inf".len()]).map(bound).sum();
                Self {
                    priority: Priority::Large,
                    lines: definition.buckets.len() + 3,
                    rest: buckets + plain("_sum", FLOAT_BYTES) + plain("_count", COUNT_BYTES),
                }
            }
        }
    }

    /// The size of the series with these labels, in bytes.
    pub(super) fn with<'a>(self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
        // An escaped character takes one more byte.
        let escaped = |value: &str| value.bytes().filter(|byte| b"\\\"\n".contains(byte)).count();
        let one = |(name, value): (&str, &str)| {
            name.len() + "=\"\",".len() + value.len() + escaped(value)
        };
        self.rest + self.lines * labels.map(one).sum::<usize>()
    }
}

/// The size of the lines before the series of a metric.
pub(super) fn header_size(definition: &Definition, prefix: &Prefix) -> usize {
    let name = definition.full_name(prefix).len();
    let help = "# HELP  \n".len() + name + definition.help.len();
    help + "# TYPE  \n\n".len() + name + definition.kind.as_str().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TABLE;

    #[test]
    fn histograms_leave_a_quarter_to_smaller_series() {
        let size = ScrapeSize::new(1000);
        assert!(size.take(750, Priority::Large) && !size.take(1, Priority::Large));
        assert!(size.take(250, Priority::Small) && !size.take(1, Priority::Small));
        assert!(size.take(1, Priority::Always) && !size.take(usize::MAX, Priority::Always));
    }

    #[test]
    fn escapes_and_every_line_of_a_series_are_charged() {
        let prefix = Prefix::default();
        let histogram = TABLE.iter().find(|row| row.kind == Kind::Histogram).expect("there is one");
        let series = SeriesSize::of(histogram, &prefix);
        let plain = series.with([("a", "bcd")].into_iter());
        assert_eq!(series.with([("a", "b\"\\")].into_iter()), plain + 2 * series.lines);
    }
}
