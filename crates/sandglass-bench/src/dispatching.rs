//! Measures what an isolated dispatch costs: creating a store and an instance of its own, one host
//! call, and releasing all of it.

use std::thread;

use sandglass_host::Context;
use sandglass_model::Monotonic;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::bench_host::{BenchHost, LONG, SECRET, cores, one_thread, one_worker};
use crate::figure::{Figure, Unit, rounded};
use crate::guests;
use crate::plain::{Plain, PlainComponent, PlainTasks, Pool};
use crate::timing::{Contender, Samples, by_turns, nanos_since, now};
use crate::{Effort, Failure};

/// Threads on which guests execute in [`throughput`], both in the host and in the baseline.
pub(crate) const THREADS: usize = 2;

/// Dispatches that are in flight at the same time in [`throughput`].
const IN_FLIGHT: usize = 64;

/// Turns of each contender.
pub(crate) fn rounds(effort: Effort) -> u32 {
    effort.of(12, 60)
}

/// Time per dispatch with many in flight: one sample for each turn.
pub(crate) fn throughput(effort: Effort) -> Result<Figure, Failure> {
    let host = BenchHost::on_threads(THREADS, guests::ANSWERS)?;
    let embedder = one_worker()?;
    let best = Plain::new(guests::ANSWERS, Pool::Best)?;
    let default = Plain::new(guests::ANSWERS, Pool::Default)?;
    let [host, best, default] = by_turns(
        rounds(effort),
        [
            Box::new(|until, samples| {
                rate(samples, || embedder.block_on(many_in_flight(&host, until)))
            }),
            Box::new(|until, samples| {
                rate(samples, || on_threads(THREADS, until, || plainly(&best)))
            }),
            Box::new(|until, samples| {
                rate(samples, || on_threads(THREADS, until, || plainly(&default)))
            }),
        ],
    )?;
    let figure = Figure::of(&host, Unit::Nanoseconds).with_baseline(&best).with_ratio_goal(1.25);
    let default = default.quantiles().p50;
    let vs_default = host.quantiles().p50 / default;
    Ok(figure.with("baseline_default_pool", rounded(default)).with_goal(
        "ratio to the default pool",
        1.0,
        vs_default,
    ))
}

fn plainly(plain: &Plain) -> Result<(), Failure> {
    Ok(plain.dispatch().map(drop)?)
}

/// Adds one sample: the time of `work` divided by the number of dispatches that it returns.
pub(crate) fn rate(
    samples: &mut Samples,
    work: impl FnOnce() -> Result<u64, Failure>,
) -> Result<(), Failure> {
    let begun = now();
    let done = work()?;
    samples.push(nanos_since(begun) / done.max(1) as f64);
    Ok(())
}

pub(crate) async fn many_in_flight(host: &BenchHost, until: Monotonic) -> Result<u64, Failure> {
    let mut callers = JoinSet::new();
    for _ in 0..IN_FLIGHT {
        let host = host.clone();
        callers.spawn(async move {
            let mut done = 0;
            while now() < until {
                host.complete().await?;
                done += 1;
            }
            Ok::<u64, Failure>(done)
        });
    }
    let mut all = 0;
    while let Some(done) = callers.join_next().await {
        all += done??;
    }
    Ok(all)
}

/// Calls `dispatch` on each of `threads` threads until the given moment, and returns how often.
fn on_threads(
    threads: usize,
    until: Monotonic,
    dispatch: impl Fn() -> Result<(), Failure> + Sync,
) -> Result<u64, Failure> {
    thread::scope(|scope| {
        let work = || {
            let mut done = 0;
            while now() < until {
                dispatch()?;
                done += 1;
            }
            Ok::<u64, Failure>(done)
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let mut all = 0;
        for worker in workers {
            all += worker.join().map_err(|_| "a thread of dispatches panicked")??;
        }
        Ok(all)
    })
}

/// Time per dispatch in place from as many threads as cores: one sample for each turn. The baseline is
/// plain Wasmtime on as many threads; the goal compares with the same host on one thread.
pub(crate) fn inline_threads(effort: Effort) -> Result<Figure, Failure> {
    /// How many times the rate of one thread is the goal, with `threads` threads: 1.8 with two.
    fn least_gain(threads: usize) -> f64 {
        0.9 * threads as f64
    }
    let threads = cores();
    let host = BenchHost::new(guests::ANSWERS)?;
    // Each thread polls its own dispatch; this runtime only lets them do so at the same time.
    let embedder = one_worker()?;
    let plain = Plain::new(guests::ANSWERS, Pool::Best)?;
    let in_place = || embedder.block_on(host.complete_in_place());
    let plainly = || plainly(&plain);
    let [many, one, plain_many, plain_one] = by_turns(
        rounds(effort),
        [
            Box::new(|until, samples| rate(samples, || on_threads(threads, until, in_place))),
            Box::new(|until, samples| rate(samples, || on_threads(1, until, in_place))),
            Box::new(|until, samples| rate(samples, || on_threads(threads, until, plainly))),
            Box::new(|until, samples| rate(samples, || on_threads(1, until, plainly))),
        ],
    )?;
    let gain = |many: &Samples, one: &Samples| one.quantiles().p50 / many.quantiles().p50;
    let figure = Figure::of(&many, Unit::Nanoseconds).with_baseline(&plain_many);
    Ok(figure
        .with("threads", threads)
        .with("one_thread", rounded(one.quantiles().p50))
        .with("gain", rounded(gain(&many, &one)))
        .with("baseline_gain", rounded(gain(&plain_many, &plain_one)))
        .with_goal(
            "time relative to one thread",
            1.0 / least_gain(threads),
            1.0 / gain(&many, &one),
        ))
}

/// Dispatches one at a time, in place on the caller's task: one sample for each dispatch. A second
/// baseline uses the stacks of plain Wasmtime for asynchronous guests.
pub(crate) fn inline(effort: Effort) -> Result<Figure, Failure> {
    let host = BenchHost::new(guests::ANSWERS)?;
    let embedder = one_thread()?;
    let plain = Plain::new(guests::ANSWERS, Pool::Best)?;
    let [host, alone, on_stacks] = by_turns(
        rounds(effort),
        [
            one_at_a_time(|| embedder.block_on(host.complete_in_place())),
            one_at_a_time(|| Ok(plain.dispatch().map(drop)?)),
            one_at_a_time(|| Ok(embedder.block_on(plain.dispatch_async()).map(drop)?)),
        ],
    )?;
    let on_stacks = rounded(on_stacks.quantiles().p50);
    let figure = Figure::of(&host, Unit::Nanoseconds).with_baseline(&alone).with_ratio_goal(1.25);
    Ok(figure.with("baseline_async", on_stacks))
}

/// Dispatches one at a time through the host's own executor: one sample for each dispatch. For
/// comparison, it also measures an empty task on other threads.
pub(crate) fn executor(effort: Effort) -> Result<Figure, Failure> {
    /// What the executor may add to a dispatch in place, in nanoseconds.
    const EXECUTOR_NS: f64 = 10_000.0;
    let host = BenchHost::on_threads(THREADS, guests::ANSWERS)?;
    let embedder = one_thread()?;
    let plain = Plain::new(guests::ANSWERS, Pool::Best)?;
    let others = Builder::new_multi_thread().worker_threads(THREADS).build()?;
    let [host, plain, hops] = by_turns(
        rounds(effort),
        [
            one_at_a_time(|| embedder.block_on(host.complete())),
            one_at_a_time(|| Ok(plain.dispatch().map(drop)?)),
            one_at_a_time(|| Ok(embedder.block_on(others.spawn(async {}))?)),
        ],
    )?;
    let figure = Figure::of(&host, Unit::Nanoseconds).with_baseline(&plain);
    let at_most = 1.25 * plain.quantiles().p50 + EXECUTOR_NS;
    let (p50, hops) = (figure.p50, rounded(hops.quantiles().p50));
    Ok(figure.with("empty_task", hops).with_goal("p50", at_most.round(), p50))
}

/// Dispatches a component one at a time, in place on the caller's task: one sample for each
/// dispatch.
pub(crate) fn component(effort: Effort) -> Result<Figure, Failure> {
    let host = BenchHost::new(guests::COMPONENT)?;
    let embedder = one_thread()?;
    let plain = PlainComponent::new(guests::COMPONENT, Pool::Best)?;
    let [host, plain] = by_turns(
        rounds(effort),
        [
            one_at_a_time(|| embedder.block_on(host.complete_in_place())),
            one_at_a_time(|| Ok(plain.dispatch()?)),
        ],
    )?;
    Ok(Figure::of(&host, Unit::Nanoseconds).with_baseline(&plain).with_ratio_goal(1.35))
}

/// Dispatches an asynchronous component one at a time, in place on the caller's task: one sample for
/// each dispatch.
pub(crate) fn component_async(effort: Effort) -> Result<Figure, Failure> {
    let host = BenchHost::new(guests::COMPONENT_ASYNC)?;
    let embedder = one_thread()?;
    let plain = PlainTasks::new(guests::COMPONENT_ASYNC)?;
    let [host, plain] = by_turns(
        rounds(effort),
        [
            one_at_a_time(|| embedder.block_on(host.complete_in_place())),
            one_at_a_time(|| Ok(embedder.block_on(plain.dispatch())?)),
        ],
    )?;
    Ok(Figure::of(&host, Unit::Nanoseconds).with_baseline(&plain).with_ratio_goal(1.3))
}

/// Dispatches one at a time, in place, with templates in the configuration, parameters and the state of
/// the entity: one sample for each dispatch. The baseline is the same host without these. The dispatch
/// is made before its sample begins: an embedder has its context already, and would not copy it. `copied`
/// is the median with that copy.
pub(crate) fn templates(effort: Effort) -> Result<Figure, Failure> {
    let plain = BenchHost::new(guests::ANSWERS)?;
    let embedder = one_thread()?;
    let config = [
        ("authorization", format!("Bearer {{secret:{SECRET}}}")),
        ("url", "https://api.example.com/orders/{field:Id}".to_owned()),
    ];
    let fields = json!({ "Id": "1", "Status": "Busy", "city": "Oslo", "attempts": 3 });
    let context = Context {
        params: [("city".to_owned(), "Oslo".into()), ("weight".to_owned(), 3.into())].into(),
        entity_state: json!({ "status": "Busy", "sequence_nr": 2, "fields": fields }),
        config: config.map(|(key, value)| (key.to_owned(), value)).into(),
        ..Context::default()
    };
    let host = plain.with_context(context);
    let run = |host: &BenchHost, dispatch| embedder.block_on(host.complete_dispatch(dispatch));
    let [given, plain, copied] = by_turns(
        rounds(effort),
        [
            one_at_a_time_given(|| host.dispatch(LONG), |dispatch| run(&host, dispatch)),
            one_at_a_time_given(|| plain.dispatch(LONG), |dispatch| run(&plain, dispatch)),
            one_at_a_time(|| embedder.block_on(host.complete_in_place())),
        ],
    )?;
    let copied = rounded(copied.quantiles().p50);
    let figure = Figure::of(&given, Unit::Nanoseconds).with_baseline(&plain).with_ratio_goal(1.10);
    Ok(figure.with("copied", copied))
}

/// Calls `run` repeatedly with what `make` returns, and adds one sample for the time of each run.
fn one_at_a_time_given<'a, T>(
    make: impl Fn() -> T + 'a,
    run: impl Fn(T) -> Result<(), Failure> + 'a,
) -> Contender<'a> {
    Box::new(move |until, samples| {
        while now() < until {
            let given = make();
            let begun = now();
            run(given)?;
            samples.push(nanos_since(begun));
        }
        Ok(())
    })
}

/// Calls `dispatch` repeatedly, and adds one sample for the time of each call.
fn one_at_a_time<'a>(mut dispatch: impl FnMut() -> Result<(), Failure> + 'a) -> Contender<'a> {
    Box::new(move |until, samples| {
        let mut begun = now();
        while begun < until {
            dispatch()?;
            samples.push(nanos_since(begun));
            begun = now();
        }
        Ok(())
    })
}
