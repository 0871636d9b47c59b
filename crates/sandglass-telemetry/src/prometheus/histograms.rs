//! The histograms of the table. They count directly in their buckets, so that nothing accumulates between
//! scrapes and threads do not wait for each other. Everything else goes to the inner recorder.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};
use metrics_exporter_prometheus::PrometheusRecorder;

use crate::table::{Kind, Prefix, TABLE};

/// Parts of one series, to which threads are assigned: on most machines more than the threads that
/// observe the same series at the same moment, and a KiB for each series.
const PARTS: usize = 8;

/// Most buckets of a histogram of the table, including the unbounded one.
const BUCKETS_MAX: usize = 15;

const _: () = {
    let mut row = 0;
    while row < TABLE.len() {
        assert!(TABLE[row].buckets.len() < BUCKETS_MAX, "raise BUCKETS_MAX");
        row += 1;
    }
};

/// The recorder of an exporter.
pub(super) struct TableRecorder {
    inner: PrometheusRecorder,
    /// By the full name of each histogram of the table.
    histograms: BTreeMap<String, Family>,
}

struct Family {
    bounds: &'static [f64],
    /// By their labels, as they are written. `metrics/family.rs` bounds their number.
    series: Mutex<BTreeMap<String, Arc<Series>>>,
}

impl TableRecorder {
    /// Records the histograms of the table, whose names begin with `prefix`.
    pub(super) fn new(inner: PrometheusRecorder, prefix: &Prefix) -> Self {
        let histograms = TABLE.iter().filter(|row| row.kind == Kind::Histogram);
        let histograms = histograms.map(|row| {
            let family = Family { bounds: row.buckets, series: Mutex::default() };
            (row.full_name(prefix), family)
        });
        Self { inner, histograms: histograms.collect() }
    }

    /// Adds the lines of the histogram `name` to `text`, in the text format of Prometheus
    /// (0.0.4).
    pub(super) fn write(&self, name: &str, text: &mut String) {
        let Some(family) = self.histograms.get(name) else { return };
        let all = family.series.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for (labels, series) in &all {
            series.write(name, labels, text);
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

impl Recorder for TableRecorder {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_counter(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_gauge(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        // Those of the table are described when they are rendered.
        if !self.histograms.contains_key(name.as_str()) {
            self.inner.describe_histogram(name, unit, help);
        }
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.inner.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        let Some(family) = self.histograms.get(key.name()) else {
            return self.inner.register_histogram(key, metadata);
        };
        let mut all = family.series.lock().unwrap_or_else(PoisonError::into_inner);
        let series = all.entry(labels(key)).or_insert_with(|| Arc::new(Series::new(family.bounds)));
        Histogram::from_arc(Arc::clone(series))
    }
}

/// The observations of one series.
struct Series {
    bounds: &'static [f64],
    parts: [Part; PARTS],
}

/// The part of some threads, on cache lines of its own.
#[derive(Default)]
#[repr(align(128))]
struct Part {
    /// By bucket; the one after the last bound is unbounded.
    counts: [AtomicU64; BUCKETS_MAX],
    /// The bits of the sum of all observations.
    sum: AtomicU64,
}

impl Series {
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
        // Writing to a string cannot fail.
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

impl HistogramFn for Series {
    fn record(&self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound);
        let part = &self.parts[own_part()];
        part.counts[bucket.unwrap_or(self.bounds.len())].fetch_add(1, Ordering::Relaxed);
        let more = |bits: u64| Some((f64::from_bits(bits) + value).to_bits());
        // The update never returns `None`, so it never fails.
        let _ = part.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

/// The part of this thread.
fn own_part() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: usize = NEXT.fetch_add(1, Ordering::Relaxed) % PARTS;
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn observations_of_many_threads_are_all_counted() {
        const EACH: usize = 1000;
        let series = Series::new(&[0.5, 2.0]);
        std::thread::scope(|scope| {
            for _ in 0..2 * PARTS {
                scope.spawn(|| {
                    for _ in 0..EACH {
                        // A value on a bound belongs to its bucket; 7.25 is above the last bound.
                        [0.25, 0.5, 2.0, 7.25].iter().for_each(|value| series.record(*value));
                    }
                });
            }
        });
        let all = 2 * PARTS * EACH;
        let mut text = String::new();
        series.write("x", "a=\"b\"", &mut text);
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
