//! Measures how late the host's ticker wakes, while guests that spin occupy every core.

use std::time::Duration;

use sandglass_host::Settings;
use serde_json::json;

use crate::bench_host::{BenchHost, a_thread_for_each_core, cores};
use crate::figure::{Figure, Unit, rounded};
use crate::guests;
use crate::idling::pause;
use crate::recorder::HostMetrics;
use crate::timing::Samples;
use crate::{Effort, Failure};

/// Upper ends of the histogram's buckets, in microseconds; the last is two scheduler slices.
const BUCKETS_US: [u32; 9] = [10, 25, 50, 100, 250, 500, 1000, 2000, 5000];

/// Measures how much later than requested each tick was, in microseconds.
pub(crate) fn gap(effort: Effort) -> Result<Figure, Failure> {
    let reported = HostMetrics::default();
    let spins = BenchHost::with(Settings::default(), reported.telemetry(), guests::SPINS)?;
    let embedder = a_thread_for_each_core()?;
    let _inside = embedder.enter();
    let crowd = spins.keep_busy(cores(), Duration::from_millis(100));
    // The first ticks are those of an idle machine.
    pause(Duration::from_millis(200));
    drop(reported.take_lateness());
    pause(Duration::from_millis(u64::from(effort.of(2000, 20_000))));
    let late = reported.take_lateness();
    drop(crowd);
    let figure = Figure::of(&late, Unit::Microseconds);
    Ok(figure.with("max", rounded(late.quantiles().max / 1e3)).with("histogram", histogram(&late)))
}

/// Counts the ticks by how late they were. Each bucket has its upper end in microseconds; the last
/// bucket is unbounded.
fn histogram(late: &Samples) -> serde_json::Value {
    let mut counts = [0_u64; BUCKETS_US.len() + 1];
    late.each(|nanos| {
        let bucket = BUCKETS_US.iter().position(|end| nanos <= f64::from(*end) * 1e3);
        counts[bucket.unwrap_or(BUCKETS_US.len())] += 1;
    });
    let ends = BUCKETS_US.into_iter().map(Some).chain([None]);
    ends.zip(counts).map(|(end, count)| json!({ "at_most_us": end, "count": count })).collect()
}
