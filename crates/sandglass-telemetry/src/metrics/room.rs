//! How large a scrape may be: each series is charged for its lines before it is made,
//! so that no names, however many and long, make a scrape larger than that.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use ::metrics::Counter;

use crate::table::{Definition, Kind, Prefix};

/// Largest scrape, in bytes, where nothing else is asked for; metrics that guests make
/// up come on top, within bounds of their own. It tells some twenty actions apart in
/// every metric, and is what a scraper reads each few seconds without being noticed.
pub const SCRAPE_MAX_BYTES: usize = 200 * 1024;
/// What a number takes, with the space before it and the line break after: a count of
/// ten thousand million.
const COUNT_BYTES: usize = 13;
/// The same of a number that isn't whole.
const FLOAT_BYTES: usize = 22;

/// The room of one scrape.
#[derive(Debug)]
pub(crate) struct Room {
    max_bytes: usize,
    taken: AtomicUsize,
    folded: OnceLock<Counter>,
}

/// Who asks for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// What is exported in any case: it is charged, and never refused.
    Always,
    /// A series of a counter or gauge.
    Small,
    /// A series of a histogram. They leave a quarter of the room to the small ones, so
    /// that kills are told apart even where times no longer are.
    Large,
}

impl Room {
    pub(super) fn new(max_bytes: usize) -> Self {
        Self { max_bytes, taken: AtomicUsize::new(0), folded: OnceLock::new() }
    }

    /// Whether there is room for `bytes` more, which are taken then.
    pub(super) fn take(&self, bytes: usize, need: Need) -> bool {
        let max = match need {
            Need::Always => usize::MAX,
            Need::Small => self.max_bytes,
            Need::Large => self.max_bytes / 4 * 3,
        };
        let fits = |taken: usize| taken.checked_add(bytes).filter(|sum| *sum <= max);
        self.taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    /// Whether less than half of the room is taken: what may never happen is exported at zero
    /// so long, and leaves the rest to what does.
    pub(super) fn is_half_free(&self) -> bool {
        self.taken.load(Ordering::Relaxed) < self.max_bytes / 2
    }

    /// Has what [`Room::fold`] says counted there.
    pub(super) fn count_folded_in(&self, counter: Counter) {
        // There is one table, so it is said once.
        let _ = self.folded.set(counter);
    }

    /// An observation went under the overflow value.
    pub(super) fn fold(&self) {
        if let Some(folded) = self.folded.get() {
            folded.increment(1);
        }
    }
}

/// What the lines of a metric's series weigh, and where.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weight {
    need: Need,
    lines: usize,
    /// Of all lines together, without the labels that the series has.
    rest: usize,
}

impl Weight {
    pub(super) fn of(definition: &Definition, prefix: &Prefix) -> Self {
        let name = definition.full_name(prefix).len();
        let plain = |suffix: &str, number| name + suffix.len() + "{}".len() + number;
        match definition.kind {
            Kind::Counter => Self { need: Need::Small, lines: 1, rest: plain("", COUNT_BYTES) },
            Kind::Gauge => Self { need: Need::Small, lines: 1, rest: plain("", FLOAT_BYTES) },
            Kind::Histogram => {
                let bound = |text: usize| plain("_bucket", COUNT_BYTES) + ",le=\"\"".len() + text;
                let bounds = definition.buckets.iter().map(|upper| upper.to_string().len());
                let buckets: usize = bounds.chain(["+Inf".len()]).map(bound).sum();
                Self {
                    need: Need::Large,
                    lines: definition.buckets.len() + 3,
                    rest: buckets + plain("_sum", FLOAT_BYTES) + plain("_count", COUNT_BYTES),
                }
            }
        }
    }

    pub(super) fn need(self) -> Need {
        self.need
    }

    /// Of the series with these labels, in bytes.
    pub(super) fn with<'a>(self, labels: impl Iterator<Item = (&'a str, &'a str)>) -> usize {
        // What is escaped takes one more byte.
        let escaped = |value: &str| value.bytes().filter(|byte| b"\\\"\n".contains(byte)).count();
        let one = |(name, value): (&str, &str)| {
            name.len() + "=\"\",".len() + value.len() + escaped(value)
        };
        self.rest + self.lines * labels.map(one).sum::<usize>()
    }
}

/// What the lines before a metric's series weigh.
pub(super) fn header(definition: &Definition, prefix: &Prefix) -> usize {
    let name = definition.full_name(prefix).len();
    let help = "# HELP  \n".len() + name + definition.help.len();
    help + "# TYPE  \n\n".len() + name + definition.kind.as_str().len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::TABLE;

    #[test]
    fn histograms_leave_room_for_what_is_smaller() {
        let room = Room::new(1000);
        assert!(room.take(750, Need::Large) && !room.take(1, Need::Large));
        assert!(room.take(250, Need::Small) && !room.take(1, Need::Small));
        assert!(room.take(1, Need::Always) && !room.take(usize::MAX, Need::Always));
    }

    #[test]
    fn escapes_and_every_line_of_a_series_are_charged() {
        let prefix = Prefix::default();
        let histogram = TABLE.iter().find(|row| row.kind == Kind::Histogram).expect("there is one");
        let weight = Weight::of(histogram, &prefix);
        let plain = weight.with([("a", "bcd")].into_iter());
        assert_eq!(weight.with([("a", "b\"\\")].into_iter()), plain + 2 * weight.lines);
    }
}
