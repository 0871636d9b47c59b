//! Measures how others are delayed while guests spin, twice as many as there are cores: short
//! handlers of the same host, and the embedder's own tasks.

#![allow(
    clippy::disallowed_methods,
    reason = "how late a timer of the embedder's comes is what is measured"
)]

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::bench_host::{BenchHost, a_thread_for_each_core, cores};
use crate::figure::{Figure, Unit, rounded};
use crate::guests;
use crate::timing::{Samples, nanos_since, now};
use crate::{Effort, Failure};

/// The budget of the guests that spin.
const SPINNERS: Duration = Duration::from_millis(100);

/// How long a short handler works, in nanoseconds.
const WORK_NS: f64 = 1e6;

/// The pause between two short handlers: long enough that the crowd recovers from the previous one.
const PAUSE: Duration = Duration::from_millis(3);

/// How long the embedder's tasks sleep.
const SLEEP: Duration = Duration::from_millis(2);

/// Measures how much longer a short handler takes than it does alone.
pub(crate) fn handlers(effort: Effort) -> Result<Figure, Failure> {
    let spins = BenchHost::new(guests::SPINS)?;
    let embedder = a_thread_for_each_core()?;
    let work = embedder.block_on(work_of(&spins))?;
    let count = effort.of(200, 2000);
    let (alone, crowded) = embedder.block_on(async {
        let alone = short_handlers(&work, count / 4).await?;
        let crowd = spins.keep_busy(2 * cores(), SPINNERS);
        let crowded = short_handlers(&work, count).await?;
        drop(crowd);
        Ok::<_, Failure>((alone.quantiles().p50, crowded))
    })?;
    let mut added = Samples::default();
    crowded.each(|nanos| added.push((nanos - alone).max(0.0)));
    let figure = Figure::of(&added, Unit::Milliseconds);
    let (p99, longest) = (figure.p99, added.quantiles().max / 1e6);
    Ok(figure
        .with("alone", rounded(alone / 1e6))
        .with("max", rounded(longest))
        .with_goal("p99", 5.0, p99)
        // A handler that waits for longer than a spinner may execute is starved by the spinners.
        .with_goal("ms that the last one waited", SPINNERS.as_millis() as f64, longest))
}

/// Creates a guest that works for [`WORK_NS`] on this machine.
async fn work_of(host: &BenchHost) -> Result<BenchHost, Failure> {
    /// Steps of a trial, which takes some hundred microseconds.
    const TRIAL: f64 = 200_000.0;
    let trial = host.with_guest(&guests::works(TRIAL))?;
    let took = short_handlers(&trial, 20).await?.quantiles().p50;
    host.with_guest(&guests::works(TRIAL * WORK_NS / took))
}

async fn short_handlers(work: &BenchHost, count: u32) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    for _ in 0..count {
        sleep(PAUSE).await;
        let begun = now();
        work.complete().await?;
        samples.push(nanos_since(begun));
    }
    Ok(samples)
}

/// Measures how late the embedder's timers are with the crowd and, by turns, without it.
pub(crate) fn embedder(effort: Effort) -> Result<Figure, Failure> {
    let spins = BenchHost::new(guests::SPINS)?;
    let (mut alone, mut crowded) = (Samples::default(), Samples::default());
    a_thread_for_each_core()?.block_on(async {
        for _ in 0..effort.of(8, 40) {
            alone.append(sleepers().await?);
            let crowd = spins.keep_busy(2 * cores(), SPINNERS);
            crowded.append(sleepers().await?);
            drop(crowd);
        }
        Ok::<_, Failure>(())
    })?;
    let figure = Figure::of(&crowded, Unit::Milliseconds).with_baseline(&alone);
    let p99 = figure.p99;
    Ok(figure.with_goal("p99", 2.0, p99))
}

/// Tasks that sleep repeatedly: how much longer than requested each sleep takes.
async fn sleepers() -> Result<Samples, Failure> {
    let mut sleepers = JoinSet::new();
    for _ in 0..4 {
        sleepers.spawn(async {
            let mut samples = Samples::default();
            for _ in 0..40 {
                let begun = now();
                sleep(SLEEP).await;
                samples.push(nanos_since(begun) - SLEEP.as_nanos() as f64);
            }
            samples
        });
    }
    let mut all = Samples::default();
    while let Some(samples) = sleepers.join_next().await {
        all.append(samples?);
    }
    Ok(all)
}
