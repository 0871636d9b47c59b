//! Prometheus: a recorder whose state is rendered as text and served over HTTP.

mod histograms;
mod sample;
mod scrape;
mod serve;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use hyper::body::Bytes;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::metrics::{IdleGauges, Metrics, SCRAPE_MAX_BYTES};
use crate::table::{Kind, Prefix, TABLE};

use histograms::TableRecorder;
pub use sample::Sample;
use scrape::Scrapes;
pub use serve::Serving;

/// Collects metrics, and renders them in the text format of Prometheus (0.0.4).
///
/// Observations of guests' histograms accumulate until [`Exporter::render`] or [`Exporter::upkeep`] is
/// called; [`Exporter::serve`] does so.
#[derive(Clone)]
pub struct Exporter {
    recorder: Arc<TableRecorder>,
    handle: PrometheusHandle,
    prefix: Prefix,
    scrape_max_bytes: usize,
    scrapes: Arc<Scrapes>,
}

impl Exporter {
    /// An exporter of all metrics, with names that begin with `prefix`. A scrape has at most
    /// [`SCRAPE_MAX_BYTES`], plus the metrics of guests.
    #[must_use]
    pub fn new(prefix: Prefix) -> Self {
        Self::with_scrape_limit(prefix, SCRAPE_MAX_BYTES)
    }

    /// As [`Exporter::new`], with another limit of a scrape, for hosts with many entity types and
    /// actions.
    #[must_use]
    pub fn with_scrape_limit(prefix: Prefix, scrape_max_bytes: usize) -> Self {
        // Without buckets, histograms of guests would become summaries, which cannot be aggregated.
        let of_guests = Matcher::Prefix(format!("{prefix}_guest_"));
        let builder = PrometheusBuilder::new()
            .set_buckets_for_metric(of_guests, GUEST_BUCKETS)
            .expect("the histograms of guests have buckets");
        let recorder = builder.build_recorder();
        let handle = recorder.handle();
        let recorder = Arc::new(TableRecorder::new(recorder, &prefix));
        let scrapes = Arc::new(Scrapes::default());
        Self { recorder, handle, prefix, scrape_max_bytes, scrapes }
    }

    /// Metrics that report to this exporter. Call it once and clone the result: each call returns metrics
    /// with label bounds of their own over the same series.
    #[must_use]
    pub fn metrics(&self) -> Metrics {
        let recorder = self.recorder.clone();
        // The recorder was built without an idle timeout.
        Metrics::with_recorder(recorder, IdleGauges::Kept, &self.prefix, self.scrape_max_bytes)
    }

    /// All metrics as text. A metric without a value appears with its help and type, so that its name is
    /// visible from the first scrape on.
    #[must_use]
    pub fn render(&self) -> String {
        let mut text = self.handle.render();
        let present: BTreeSet<String> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .map(str::to_owned)
            .collect();
        for row in TABLE {
            let name = row.full_name(&self.prefix);
            if present.contains(&name) {
                continue;
            }
            let (help, kind) = (row.help, row.kind.as_str());
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            if row.kind == Kind::Histogram {
                self.recorder.write(&name, &mut text);
            }
            text.push('\n');
        }
        text
    }

    /// As [`Exporter::render`], for many concurrent clients: those that wait share a rendering.
    pub async fn scrape(&self) -> Bytes {
        self.scrapes.scrape(|| self.render()).await
    }

    /// Aggregates the observations of guests' histograms. Must be called every few seconds if nothing
    /// renders, or memory grows without bound.
    pub fn upkeep(&self) {
        self.handle.run_upkeep();
    }
}

impl std::fmt::Debug for Exporter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Exporter").field("prefix", &self.prefix).finish_non_exhaustive()
    }
}

/// The unit of a guest's histogram is unknown, so the buckets span many orders of magnitude.
const GUEST_BUCKETS: &[f64] =
    &[0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 50.0, 100.0, 500.0, 1000.0, 10_000.0, 100_000.0];
