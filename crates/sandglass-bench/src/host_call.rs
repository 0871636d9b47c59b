//! Measures what a guest pays to call a host function that does almost nothing. The host's boundary
//! checks the deadline, and names, counts and times the call; the baseline calls the function
//! directly.

use crate::bench_host::{BenchHost, one_thread};
use crate::figure::{Figure, Unit};
use crate::guests::{self, CALLS_COUNT};
use crate::plain::{Plain, Pool};
use crate::timing::{Samples, by_turns, nanos_since, now};
use crate::{Effort, Failure};

/// Time per call: one sample for each dispatch, which makes [`CALLS_COUNT`] calls.
pub(crate) fn measure(effort: Effort) -> Result<Figure, Failure> {
    let guest = guests::calls();
    let host = BenchHost::on_threads(1, &guest)?;
    let embedder = one_thread()?;
    let plain = Plain::new(&guest, Pool::Best)?;
    let [host, plain] = by_turns(
        effort.of(12, 60),
        [
            Box::new(|until, samples| {
                repeat(until, samples, || embedder.block_on(host.complete()))
            }),
            Box::new(|until, samples| {
                repeat(until, samples, || plain.dispatch().map(drop).map_err(Into::into))
            }),
        ],
    )?;
    let added = host.quantiles().p50 - plain.quantiles().p50;
    let figure = Figure::of(&host, Unit::Nanoseconds).with_baseline(&plain);
    Ok(figure.with_ratio_goal(3.0).with_goal("ns more than bare", 15.0, added))
}

fn repeat(
    until: sandglass_model::Monotonic,
    samples: &mut Samples,
    mut dispatch: impl FnMut() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut begun = now();
    while begun < until {
        dispatch()?;
        samples.push(nanos_since(begun) / f64::from(CALLS_COUNT));
        begun = now();
    }
    Ok(())
}
