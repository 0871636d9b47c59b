//! Measures what an idle host costs.

use std::time::Duration;

use crate::bench_host::{BenchHost, one_thread};
use crate::figure::{Figure, Unit, rounded};
use crate::guests;
use crate::process::Activity;
use crate::timing::{Samples, nanos_since, now};
use crate::{Effort, Failure};

/// Time until the host has noticed that there is no work left.
const SETTLE: Duration = Duration::from_millis(300);

/// The length of one sample.
const WINDOW: Duration = Duration::from_millis(500);

/// CPU time of all threads except the measuring one, in microseconds per second.
pub(crate) fn measure(effort: Effort) -> Result<Figure, Failure> {
    let host = BenchHost::new(guests::ANSWERS)?;
    one_thread()?.block_on(async {
        for _ in 0..100 {
            host.complete().await?;
        }
        Ok::<_, Failure>(())
    })?;
    pause(SETTLE);
    let mut samples = Samples::default();
    let (begun, first) = (now(), Activity::of_others()?);
    let mut before = first;
    for _ in 0..effort.of(4, 20) {
        let from = now();
        pause(WINDOW);
        let present = Activity::of_others()?;
        let seconds = nanos_since(from) / 1e9;
        samples.push(present.cpu_ns.saturating_sub(before.cpu_ns) as f64 / seconds);
        before = present;
    }
    let seconds = nanos_since(begun) / 1e9;
    let wake_ups = before.sleeps.saturating_sub(first.sleeps) as f64 / seconds;
    drop(host);
    let figure = Figure::of(&samples, Unit::Microseconds).with("wake_ups_per_s", rounded(wake_ups));
    let p99 = figure.p99;
    // 100 us per second are a hundredth of a percent of a core.
    Ok(figure.with_goal("p99", 100.0, p99).with_goal("wake-ups in a second", 1.0, wake_ups))
}

#[allow(clippy::disallowed_methods, reason = "idleness is measured over a span of time")]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}
