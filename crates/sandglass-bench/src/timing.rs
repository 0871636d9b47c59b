//! Samples of measurements, their quantiles, and the turns of what is compared.

use std::sync::LazyLock;
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, SystemClock};

use crate::Failure;

/// How long each contender works before the next one has its turn: long compared with a task
/// switch, short compared with disturbances by other load on the machine.
const TURN: Duration = Duration::from_millis(50);

/// Most samples that are retained of one measurement, 8 MB: more than the 99th percentile needs.
const SAMPLES_MAX: usize = 1_000_000;

/// The clock of all measurements, with one origin for the whole process.
static CLOCK: LazyLock<SystemClock> = LazyLock::new(SystemClock::new);

pub(crate) fn now() -> Monotonic {
    CLOCK.now()
}

pub(crate) fn nanos_since(begun: Monotonic) -> f64 {
    now().since(begun).as_nanos() as f64
}

/// Samples of one measurement, in nanoseconds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

/// The median, the 99th percentile and the maximum; all are zero if there are no samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) max: f64,
}

impl Samples {
    pub(crate) fn push(&mut self, nanos: f64) {
        if self.0.len() < SAMPLES_MAX {
            self.0.push(nanos);
        }
    }

    /// Adds the samples of `others`.
    pub(crate) fn append(&mut self, others: Self) {
        others.each(|nanos| self.push(nanos));
    }

    pub(crate) fn each(&self, look: impl FnMut(f64)) {
        self.0.iter().copied().for_each(look);
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.len() as u64
    }

    pub(crate) fn quantiles(&self) -> Quantiles {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let Some(last) = sorted.len().checked_sub(1) else { return Quantiles::default() };
        let at = |percent: usize| sorted[last * percent / 100];
        Quantiles { p50: at(50), p99: at(99), max: at(100) }
    }
}

/// One of the alternatives that are compared: it works until the given moment, and adds a sample
/// for each piece of work.
pub(crate) type Contender<'a> = Box<dyn FnMut(Monotonic, &mut Samples) -> Result<(), Failure> + 'a>;

/// Lets `contenders` take turns, `rounds` times. Each round begins with a different contender.
/// Before the first round, each has one turn that does not count.
pub(crate) fn by_turns<const N: usize>(
    rounds: u32,
    mut contenders: [Contender<'_>; N],
) -> Result<[Samples; N], Failure> {
    let mut all: [Samples; N] = std::array::from_fn(|_| Samples::default());
    for contender in &mut contenders {
        contender(now().after(TURN), &mut Samples::default())?;
    }
    for round in 0..rounds as usize {
        for turn in 0..N {
            let whose = (round + turn) % N;
            contenders[whose](now().after(TURN), &mut all[whose])?;
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_all_samples_in_their_order() {
        let mut samples = Samples::default();
        assert_eq!(samples.quantiles(), Quantiles::default());
        (0..=200).rev().for_each(|nanos| samples.push(f64::from(nanos)));
        assert_eq!(samples.quantiles(), Quantiles { p50: 100.0, p99: 198.0, max: 200.0 });
    }

    #[test]
    fn the_first_turn_of_each_does_not_count() {
        let contender = |weight: f64| -> Contender<'_> {
            let mut turns = 0.0;
            Box::new(move |_, samples| {
                samples.push(weight + turns);
                turns += 1.0;
                Ok(())
            })
        };
        let [one, other] = by_turns(3, [contender(0.0), contender(10.0)]).expect("it works");
        assert_eq!((one.0, other.0), (vec![1.0, 2.0, 3.0], vec![11.0, 12.0, 13.0]));
    }
}
