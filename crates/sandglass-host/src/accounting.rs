//! What a run did at the boundary: which host functions it called, how often,
//! how long, and which one it is in.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{CallPlace, EndPoint, FunctionCalls, HostCalls, Monotonic};

use crate::functions::{FunctionId, Functions};

/// The host calls of one run, as they happen.
#[derive(Debug, Default)]
pub(crate) struct Accounting {
    /// By function; one for each that was called.
    by_function: Vec<(CallName, Stats)>,
    /// Where the call that is under way is counted, and when it began.
    current: Option<(usize, Monotonic)>,
    /// Where the last one that began is: mostly, the next is of the same function.
    last: usize,
    /// The guest is at the entry of its next call.
    is_arriving: bool,
    count: u64,
    total: Duration,
}

/// What a call goes by in reports and labels.
#[derive(Clone, Debug, PartialEq, Eq)]
enum CallName {
    /// The host function that the guest called.
    Function(FunctionId),
    /// What it turned out to be about, where that is known and bounded.
    Subject(Arc<str>),
}

impl CallName {
    fn text<'a>(&'a self, functions: &'a Functions) -> &'a str {
        match self {
            Self::Function(function) => functions.name(*function),
            Self::Subject(name) => name,
        }
    }
}

#[derive(Debug, Default)]
struct Stats {
    count: u64,
    total: Duration,
    in_flight: bool,
}

impl Accounting {
    /// The guest has come to the entry of its next call, and may not be let in.
    pub(crate) fn arrive(&mut self) {
        self.is_arriving = true;
    }

    #[inline]
    pub(crate) fn enter(&mut self, function: FunctionId, now: Monotonic) {
        self.is_arriving = false;
        self.count += 1;
        let is_it = |(name, _): &(CallName, Stats)| matches!(name, CallName::Function(held) if *held == function);
        if !self.by_function.get(self.last).is_some_and(is_it) {
            self.last = self.place_of(CallName::Function(function));
        }
        self.current = Some((self.last, now));
    }

    /// From now on the call that is under way goes by `name`. There must be few.
    pub(crate) fn is_about(&mut self, name: Arc<str>) {
        if let Some((_, since)) = self.current {
            self.current = Some((self.place_of(CallName::Subject(name)), since));
        }
    }

    /// Ends the call that is under way; answers what it went by, and how long it took.
    #[inline]
    pub(crate) fn leave<'a>(
        &'a mut self,
        now: Monotonic,
        functions: &'a Functions,
    ) -> Option<(&'a str, Duration)> {
        let (took, place) = self.end(now)?;
        Some((self.by_function[place].0.text(functions), took))
    }

    /// Ends the call that is under way because its run ended inside it; answers
    /// how long it took.
    pub(crate) fn cut(&mut self, now: Monotonic) -> Duration {
        let Some((took, place)) = self.end(now) else { return Duration::ZERO };
        self.by_function[place].1.in_flight = true;
        took
    }

    /// How long the call took that is under way, and where it is counted.
    #[inline]
    fn end(&mut self, now: Monotonic) -> Option<(Duration, usize)> {
        let (place, since) = self.current.take()?;
        let took = now.since(since);
        self.total += took;
        let stats = &mut self.by_function[place].1;
        stats.count += 1;
        stats.total += took;
        Some((took, place))
    }

    /// What the call that is under way goes by.
    pub(crate) fn current<'a>(&'a self, functions: &'a Functions) -> Option<&'a str> {
        self.current.map(|(place, _)| self.by_function[place].0.text(functions))
    }

    /// Where the run is among its calls.
    pub(crate) fn point(&self) -> EndPoint {
        let (place, call) = match (&self.current, self.is_arriving) {
            (Some(_), _) => (CallPlace::Inside, self.count),
            (None, true) => (CallPlace::Before, self.count + 1),
            (None, false) => (CallPlace::After, self.count),
        };
        EndPoint { place, call }
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn report(&self, functions: &Functions) -> HostCalls {
        let by_function = self
            .by_function
            .iter()
            // One whose calls all turned out to be about something has none of its own.
            .filter(|(_, stats)| stats.count > 0)
            .map(|(name, stats)| FunctionCalls {
                name: name.text(functions).to_owned(),
                count: stats.count,
                total_us: u64::try_from(stats.total.as_micros()).unwrap_or(u64::MAX),
                in_flight: stats.in_flight,
            })
            .collect();
        HostCalls { count: self.count, by_function }
    }

    // A guest imports few functions, so a scan beats any map.
    fn place_of(&mut self, name: CallName) -> usize {
        match self.by_function.iter().position(|(held, _)| *held == name) {
            Some(place) => place,
            None => {
                self.by_function.push((name, Stats::default()));
                self.by_function.len() - 1
            }
        }
    }
}
