//! Measures how long after its deadline a guest leaves the CPU.

use std::time::Duration;

use crate::bench_host::{BenchHost, cores, one_thread};
use crate::figure::{Figure, Unit};
use crate::guests;
use crate::timing::Samples;
use crate::{Effort, Failure};

/// Budgets of the guests that are killed. They are as short as possible, yet long enough that each
/// guest begins before its kill. They differ so that the deadlines do not fall into step.
const BUDGETS: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(3), Duration::from_millis(4)];

/// What the other cores do during the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Load {
    /// Nothing.
    Idle,
    /// They execute guests that spin.
    Saturated,
}

/// Kills guests that spin in their own code. For [`Load::Saturated`], the killed guests themselves
/// saturate the cores: there is one for each core, and the next starts as soon as one is gone.
pub(crate) fn spinning(effort: Effort, load: Load) -> Result<Figure, Failure> {
    let host = BenchHost::new(guests::SPINS)?;
    let kills = effort.of(300, 4000);
    let at_once = if load == Load::Idle { 1 } else { cores() };
    let samples = kill(&host, at_once, kills)?;
    let figure = Figure::of(&samples, Unit::Microseconds);
    let (p50, p99) = (figure.p50, figure.p99);
    let most = if load == Load::Idle { 300.0 } else { 1000.0 };
    let figure = figure.with_goal("p50", 100.0, p50).with_goal("p99", most, p99);
    if load == Load::Idle {
        return Ok(figure);
    }
    // With more spinners than cores, a deadline may pass while its guest waits for a scheduler
    // slice. The guest burns no CPU then, and is gone when it gets its next slice.
    let crowded = kill(&host, 2 * cores(), kills)?;
    let crowded = Figure::of(&crowded, Unit::Microseconds);
    Ok(figure.with("crowded_p50", crowded.p50).with("crowded_p99", crowded.p99))
}

/// Kills guests that wait in an asynchronous host function of the embedder, which never returns.
/// For [`Load::Saturated`], other guests of the same host spin, one for each core.
pub(crate) fn waiting(effort: Effort, load: Load) -> Result<Figure, Failure> {
    let spins = BenchHost::new(guests::SPINS)?;
    let waits = spins.with_guest(guests::WAITS)?;
    let kills = effort.of(300, 4000);
    let spinners = if load == Load::Idle { 0 } else { cores() };
    let samples = one_thread()?.block_on(async {
        let crowd = spins.keep_busy(spinners, Duration::from_secs(1));
        let samples = one_after_the_other(waits, kills).await;
        drop(crowd);
        samples
    })?;
    let figure = Figure::of(&samples, Unit::Microseconds);
    let (p50, p99) = (figure.p50, figure.p99);
    Ok(match load {
        Load::Idle => figure.with_goal("p50", 200.0, p50).with_goal("p99", 500.0, p99),
        Load::Saturated => figure.with_goal("p99", 2000.0, p99),
    })
}

/// Kills `kills` guests, `at_once` of them at a time.
fn kill(host: &BenchHost, at_once: usize, kills: u32) -> Result<Samples, Failure> {
    let each = kills / u32::try_from(at_once)?.max(1);
    one_thread()?.block_on(async {
        let mut killers = tokio::task::JoinSet::new();
        for _ in 0..at_once {
            killers.spawn(one_after_the_other(host.clone(), each));
        }
        let mut all = Samples::default();
        while let Some(samples) = killers.join_next().await {
            all.append(samples??);
        }
        Ok(all)
    })
}

async fn one_after_the_other(host: BenchHost, kills: u32) -> Result<Samples, Failure> {
    let mut samples = Samples::default();
    for budget in BUDGETS.into_iter().cycle().take(kills as usize) {
        samples.push(host.kill(budget).await?);
    }
    Ok(samples)
}
