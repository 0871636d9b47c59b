//! Counts what the histograms of the table observe, in their buckets and at once: so
//! nothing piles up until somebody scrapes, and threads that observe the same don't wait
//! for each other. All else goes to the recorder behind it.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::table::{Kind, Prefix, TABLE};

/// Parts of one tally, of which each thread has one: more than there are threads that
/// observe the same thing at the same moment on most machines, and a KiB for each series.
const PARTS: usize = 8;

/// Most buckets that a histogram of the table has, with the one that has no bound.
const BUCKETS_MAX: usize = 15;

const _: () = {
    let mut row = 0;
    while row < TABLE.len() {
        assert!(TABLE[row].buckets.len() < BUCKETS_MAX, "raise BUCKETS_MAX");
        row += 1;
    }
};

/// The recorder of an exporter.
pub(super) struct Tallying {
    behind: PrometheusRecorder,
    /// By the full name of each histogram of the table.
    histograms: BTreeMap<String, Series>,
}

struct Series {
    bounds: &'static [f64],
    /// By their labels, as they are written. Those who report bound how many there are.
    tallies: Mutex<BTreeMap<String, Arc<Tally>>>,
}

impl Tallying {
    /// Takes the histograms of the table, whose names begin with `prefix`.
    pub(super) fn new(behind: PrometheusRecorder, prefix: &Prefix) -> Self {
        let histograms = TABLE.iter().filter(|row| row.kind == Kind::Histogram);
        let histograms = histograms.map(|row| {
            let series = Series { bounds: row.buckets, tallies: Mutex::default() };
            (row.full_name(prefix), series)
        });
        Self { behind, histograms: histograms.collect() }
    }

    /// Adds the lines of the histogram `name` to `text`, in the text format of Prometheus
    /// (0.0.4).
    pub(super) fn write(&self, name: &str, text: &mut String) {
        let Some(series) = self.histograms.get(name) else { return };
        let tallies = series.tallies.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (labels, tally) in &tallies {
            tally.write(name, labels, text);
        }
    }
}

/// The labels of `key` as they are written in a line, without the braces.
fn labels(key: &Key) -> String {
    let escaped =
        |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    let labels =
        key.labels().map(|label| format!("{}=\"{}\"", label.key(), escaped(label.value())));
    labels.collect::<Vec<_>>().join(",")
}

impl Recorder for Tallying {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.behind.describe_counter(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.behind.describe_gauge(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        // Those of the table are described where they are rendered.
        if !self.histograms.contains_key(name.as_str()) {
            self.behind.describe_histogram(name, unit, help);
        }
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.behind.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.behind.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let Some(series) = self.histograms.get(key.name()) else {
            return self.behind.register_histogram(key, metadata);
        };
        let mut tallies = series.tallies.lock().unwrap_or_else(PoisonError::into_inner);
        let tally =
            tallies.entry(labels(key)).or_insert_with(|| Arc::new(Tally::new(series.bounds)));
        Histogram::from_arc(Arc::clone(tally))
    }
}

/// What one series has observed.
struct Tally {
    bounds: &'static [f64],
    parts: [Part; PARTS],
}

/// A thread's part, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Part {
    /// By bucket; the one behind the last bound has what is above that.
    counts: [AtomicU64; BUCKETS_MAX],
    /// The bits of the sum of all that was observed.
    sum: AtomicU64,
}

impl Tally {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, parts: Default::default() }
    }

    fn write(&self, name: &str, labels: &str, text: &mut String) {
        let count = |bucket: usize| -> u64 {
            self.parts.iter().map(|part| part.counts[bucket].load(Ordering::Relaxed)).sum()
        };
        let sums = self.parts.iter().map(|part| f64::from_bits(part.sum.load(Ordering::Relaxed)));
        let sum: f64 = sums.sum();
        let comma = if labels.is_empty() { "" } else { "," };
        let mut all = 0;
        // Writing to a string can't fail.
        for (bucket, bound) in self.bounds.iter().enumerate() {
            all += count(bucket);
            let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"{bound}\"}} {all}");
        }
        all += count(self.bounds.len());
        let _ = writeln!(text, "{name}_bucket{{{labels}{comma}le=\"+Inf\"}} {all}");
        let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let _ = writeln!(text, "{name}_sum{labels} {sum}\n{name}_count{labels} {all}");
    }
}

impl HistogramFn for Tally {
    fn record(&self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let part = &self.parts[own_part()];
        part.counts[bucket.unwrap_or(self.bounds.len())].fetch_add(1, Ordering::Relaxed);
        let more = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
        // It is added to whatever is there, so it never fails.
        let _ = part.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

/// Which part is this thread's.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<Option<usize>> = const { Cell::new(None) };
    }
    OWN.with(|own| {
        own.get().unwrap_or_else(|| {
            let part = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
            own.set(Some(part));
            part
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_observe_is_in_its_buckets_and_in_the_sum() {
        const EACH: usize = 1000;
        let tally = Tally::new(&[0.5, 2.0]);
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        // On a bound is below it; nothing is above the last but by itself.
                        [0.25, 0.5, 2.0, 7.25].iter().for_each(|value| tally.record(*value));
                    }
                });
            }
        });
        let all = 2 * PARTS * EACH;
        let mut text = String::new();
        tally.write("x", "a=\"b\"", &mut text);
        let expected = format!(
            "x_bucket{{a=\"b\",le=\"0.5\"}} {}\nx_bucket{{a=\"b\",le=\"2\"}} {}\n\
             x_bucket{{a=\"b\",le=\"+Inf\"}} {}\nx_sum{{a=\"b\"}} {}\nx_count{{a=\"b\"}} {}\n",
            2 * all,
            3 * all,
            4 * all,
            10 * all,
            4 * all
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn labels_are_escaped() {
        let key = Key::from_parts("x", vec![metrics::Label::new("a", "\\ \" \n")]);
        assert_eq!(labels(&key), r#"a="\\ \" \n""#);
    }
}
