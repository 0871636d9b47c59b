//! Measures what a guest pays to call a host function that does almost nothing. The host's boundary
//! checks the deadline, and names, counts and times the call; the baseline calls the function
//! directly.

use crate::figure::{Figure, Unit};
use crate::guests::{self, CALLS_COUNT};
use crate::ours::{Ours, one_thread};
use crate::plain::{Plain, Pool};
use crate::timing::{Samples, by_turns, nanos_since, now};
use crate::{Effort, Failure};

/// Time per call: one sample for each dispatch, which makes [`CALLS_COUNT`] calls.
pub(crate) fn measure(effort: Effort) -> Result<Figure, Failure> {
    let guest = guests::calls();
    let ours = Ours::on_threads(1, &guest)?;
    let embedder = one_thread()?;
    let plain = Plain::new(&guest, Pool::Best)?;
    let [ours, plain] = by_turns(
        effort.of(12, 60),
        [
            Box::new(|until, samples| {
                repeat(until, samples, || embedder.block_on(ours.complete()))
            }),
            Box::new(|until, samples| {
                repeat(until, samples, || plain.dispatch().map(drop).map_err(Into::into))
            }),
        ],
    )?;
    let more = ours.quantiles().p50 - plain.quantiles().p50;
    let figure = Figure::of(&ours, Unit::Nanoseconds).beside(&plain);
    Ok(figure.asks_ratio(3.0).asks("ns more than bare", 15.0, more))
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
