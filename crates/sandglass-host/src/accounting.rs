//! What a run did at the boundary: which host functions it called, how often,
//! how long, and which one it is in.

use std::time::Duration;

use sandglass_model::{FunctionCalls, HostCalls, Monotonic};

use crate::functions::{FunctionId, Functions};

/// The host calls of one run, as they happen.
#[derive(Debug, Default)]
pub(crate) struct Accounting {
    /// By function; one for each that was called.
    by_function: Vec<(FunctionId, Stats)>,
    current: Option<(FunctionId, Monotonic)>,
    count: u64,
    total: Duration,
}

#[derive(Debug, Default)]
struct Stats {
    count: u64,
    total: Duration,
    in_flight: bool,
}

impl Accounting {
    pub(crate) fn enter(&mut self, function: FunctionId, now: Monotonic) {
        self.count += 1;
        self.stats(function).count += 1;
        self.current = Some((function, now));
    }

    /// Ends the call that is under way; answers how long it took.
    pub(crate) fn leave(&mut self, now: Monotonic) -> Duration {
        let Some((function, since)) = self.current.take() else { return Duration::ZERO };
        let took = now.since(since);
        self.total += took;
        self.stats(function).total += took;
        took
    }

    /// Ends the call that is under way because its run ended inside it; answers
    /// which it was and how long it took.
    pub(crate) fn cut(&mut self, now: Monotonic) -> Option<(FunctionId, Duration)> {
        let function = self.current()?;
        let took = self.leave(now);
        self.stats(function).in_flight = true;
        Some((function, took))
    }

    pub(crate) fn current(&self) -> Option<FunctionId> {
        self.current.map(|(function, _)| function)
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn report(&self, functions: &Functions) -> HostCalls {
        let by_function = self
            .by_function
            .iter()
            .map(|(function, stats)| FunctionCalls {
                name: functions.name(*function).to_owned(),
                count: stats.count,
                total_us: u64::try_from(stats.total.as_micros()).unwrap_or(u64::MAX),
                in_flight: stats.in_flight,
            })
            .collect();
        HostCalls { count: self.count, by_function }
    }

    // A guest imports few functions, so a scan beats any map.
    fn stats(&mut self, function: FunctionId) -> &mut Stats {
        let place = match self.by_function.iter().position(|(held, _)| *held == function) {
            Some(place) => place,
            None => {
                self.by_function.push((function, Stats::default()));
                self.by_function.len() - 1
            }
        };
        &mut self.by_function[place].1
    }
}
