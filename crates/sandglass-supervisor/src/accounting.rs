//! The account of a run's host calls: which functions, how often, how long, and which one it is in;
//! as totals, and the first and last calls one by one.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{
    Call, CallOutcome, CallPlace, Calls, EndPoint, FunctionCalls, HostCalls, Limit, Monotonic,
    Overrun, STORY_CALLS_MAX,
};

use sandglass_model::report::{OVERRUNS_MAX, micros};

use crate::covered;
use crate::functions::{FunctionId, Functions};

/// The host calls of one run, as they happen.
#[derive(Debug, Default)]
pub struct Accounting {
    /// One entry for each called function.
    by_function: Vec<(CallName, Stats)>,
    /// The entry of the present call, and when the call began.
    current: Option<(usize, Monotonic)>,
    /// The entry of the last call: the next one is usually of the same function.
    last: usize,
    /// The guest is at the entry of its next call.
    is_arriving: bool,
    count: u64,
    /// Whether the present call goes on after it was suspended.
    is_resumed: bool,
    total: Duration,
    /// How many calls have ended.
    ended_count: u64,
    /// The calls that have ended: the first half of [`STORY_CALLS_MAX`], and then the last half as a
    /// ring.
    ended: Vec<EndedCall>,
}

// Totals of functions and of granted asks, and a fixed number of calls with short errors.
covered!(
    Accounting: by_function, current, last, is_arriving, count, is_resumed, total, ended_count, ended
);

/// A call that has ended.
#[derive(Debug)]
struct EndedCall {
    /// The entry that counts it.
    place: usize,
    since: Monotonic,
    took: Duration,
    outcome: CallOutcome,
    /// Why it failed, if that is known.
    error: Option<Box<str>>,
}

/// A call whose guest goes on while it is in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallInFlight {
    /// The entry that counts it.
    place: usize,
    /// When it began.
    pub(crate) since: Monotonic,
}

/// How many of the first calls are kept.
const FIRST: usize = STORY_CALLS_MAX / 2;
/// How many of the last calls are kept.
const LAST: usize = STORY_CALLS_MAX - FIRST;

/// The name of a call in reports and labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallName {
    /// The host function that the guest called.
    Function(FunctionId),
    /// What the call is about. There must be few such names.
    Subject(Arc<str>),
}

impl CallName {
    /// The name in reports and labels.
    pub fn text<'a>(&'a self, functions: &'a Functions) -> &'a str {
        match self {
            Self::Function(function) => functions.name(*function),
            Self::Subject(name) => name,
        }
    }

    /// The name as an owned part of a report.
    fn to_report(&self, functions: &Functions) -> Cow<'static, str> {
        match self {
            Self::Function(function) => functions.name(*function).into(),
            Self::Subject(name) => name.to_string().into(),
        }
    }
}

#[derive(Debug, Default)]
struct Stats {
    count: u64,
    total: Duration,
    in_flight: bool,
    failed: Sum,
    /// Calls that waited for the lease of the host before they began, or ended while they waited.
    parked: Sum,
    timed_out: Option<TimedOut>,
}

/// How many calls, and how long they took together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    count: u64,
    total: Duration,
}

impl Sum {
    fn add(&mut self, took: Duration) {
        self.count = self.count.saturating_add(1);
        self.total = self.total.saturating_add(took);
    }

    fn report(self) -> Calls {
        Calls { count: self.count, total_us: micros(self.total) }
    }
}

/// Calls that were ended by their own time limit: the first of them, and how many.
#[derive(Clone, Copy, Debug)]
struct TimedOut {
    since: Monotonic,
    limit: Duration,
    took: Duration,
    all: Sum,
}

impl Accounting {
    /// The guest is at the entry of its next call, where its run may have to end.
    pub fn arrive(&mut self) {
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

    /// Adds that the guest has waited for calls in flight for `time`.
    pub(crate) fn add_waited(&mut self, time: Duration) {
        self.total = self.total.saturating_add(time);
    }

    /// Adds that the next call, of `function`, has waited for the lease of the host for `time`. It
    /// counts as time in host functions.
    #[cold]
    pub(crate) fn park(&mut self, function: FunctionId, time: Duration) {
        let place = self.place_of(CallName::Function(function));
        self.by_function[place].1.parked.add(time);
        self.total = self.total.saturating_add(time);
    }

    /// Names the present call. There must be few such names.
    pub fn name_call(&mut self, name: Arc<str>) {
        if let Some((_, since)) = self.current {
            self.current = Some((self.place_of(CallName::Subject(name)), since));
        }
    }

    /// Takes the present call, because the guest goes on while it is in flight.
    pub(crate) fn suspend(&mut self) -> Option<CallInFlight> {
        let (place, since) = self.current.take()?;
        Some(CallInFlight { place, since })
    }

    /// Makes a call the present one again.
    pub(crate) fn resume(&mut self, call: CallInFlight) {
        self.current = Some((call.place, call.since));
        self.is_resumed = true;
    }

    /// Adds that a call in flight has waited for the lease of the host for `time`.
    #[cold]
    pub(crate) fn note_parked(&mut self, call: CallInFlight, time: Duration) {
        self.by_function[call.place].1.parked.add(time);
    }

    /// The name of a call in flight.
    pub(crate) fn name_of(&self, call: CallInFlight) -> &CallName {
        &self.by_function[call.place].0
    }

    /// Ends the present call with `outcome`. Returns its name, and how long it took.
    #[inline]
    pub fn leave(&mut self, now: Monotonic, outcome: CallOutcome) -> Option<(&CallName, Duration)> {
        let (took, place) = self.end(now, outcome)?;
        Some((&self.by_function[place].0, took))
    }

    /// Notes that the last call was ended by its own `limit`. Returns its name, and how long it took.
    #[cold]
    pub fn note_timeout(&mut self, limit: Duration) -> Option<(&CallName, Duration)> {
        let ended = self.ended.get(self.last_ended())?;
        let EndedCall { place, since, took, .. } = *ended;
        let first = TimedOut { since, limit, took, all: Sum::default() };
        let (name, stats) = &mut self.by_function[place];
        stats.timed_out.get_or_insert(first).all.add(took);
        Some((name, took))
    }

    /// Notes why the last call failed.
    #[cold]
    pub(crate) fn note_error(&mut self, error: String) {
        let last = self.last_ended();
        if let Some(ended) = self.ended.get_mut(last) {
            ended.error = Some(error.into());
        }
    }

    /// The place in `ended` of the call that ended last.
    fn last_ended(&self) -> usize {
        if self.ended_count <= STORY_CALLS_MAX as u64 {
            self.ended.len().saturating_sub(1)
        } else {
            FIRST + ring(self.ended_count - 1)
        }
    }

    /// The breached time limits of calls in a run that began at `start`, for at most [`OVERRUNS_MAX`]
    /// functions.
    pub fn overruns(&self, functions: &Functions, start: Monotonic) -> Vec<Overrun> {
        let timed_out = self.by_function.iter().filter_map(|(name, stats)| {
            let TimedOut { since, limit, took, all } = stats.timed_out?;
            Some(Overrun {
                host_call: Some(name.to_report(functions)),
                started_us: micros(since.since(start)),
                times: all.count,
                ..Overrun::once(Limit::HostCallTimeout, limit, took)
            })
        });
        timed_out.take(OVERRUNS_MAX).collect()
    }

    /// Ends the present call because its run ended inside it. Returns how long it took.
    pub fn cut(&mut self, now: Monotonic) -> Duration {
        let Some((took, place)) = self.end(now, CallOutcome::Unfinished) else {
            return Duration::ZERO;
        };
        self.by_function[place].1.in_flight = true;
        took
    }

    /// When the oldest call began inside which the run ended, if it ended in one.
    pub fn cut_since(&self) -> Option<Monotonic> {
        let cut = self.ended.iter().filter(|ended| ended.outcome == CallOutcome::Unfinished);
        cut.map(|ended| ended.since).min()
    }

    /// Ends the present call. Returns how long it took, and its entry.
    #[inline]
    fn end(&mut self, now: Monotonic, outcome: CallOutcome) -> Option<(Duration, usize)> {
        let (place, since) = self.current.take()?;
        let took = now.since(since);
        // While a suspended call was in flight, the guest was executed, or waited for several.
        if !std::mem::take(&mut self.is_resumed) {
            self.total += took;
        }
        self.keep(EndedCall { place, since, took, outcome, error: None });
        let stats = &mut self.by_function[place].1;
        stats.count += 1;
        stats.total += took;
        if outcome == CallOutcome::Failed {
            stats.failed.add(took);
        }
        Some((took, place))
    }

    #[inline]
    fn keep(&mut self, ended: EndedCall) {
        if self.ended.len() < STORY_CALLS_MAX {
            self.ended.push(ended);
        } else {
            self.ended[FIRST + ring(self.ended_count)] = ended;
        }
        self.ended_count += 1;
    }

    /// The kept calls in their order, of a run that began at `start`, and how many are left out after
    /// the first ones.
    pub fn calls(&self, functions: &Functions, start: Monotonic) -> (Vec<Call>, u64) {
        let omitted = self.ended_count.saturating_sub(STORY_CALLS_MAX as u64);
        let (first, last) = self.ended.split_at(self.ended.len().min(FIRST));
        // The oldest of the last calls is where the next one would be stored.
        let oldest = if omitted > 0 { ring(self.ended_count) } else { 0 };
        let in_order = last[oldest..].iter().chain(&last[..oldest]);
        let calls = first.iter().chain(in_order).map(|ended| Call {
            name: self.by_function[ended.place].0.to_report(functions),
            started_us: micros(ended.since.since(start)),
            duration_us: micros(ended.took),
            outcome: ended.outcome,
            error: ended.error.as_deref().map(str::to_owned),
        });
        (calls.collect(), omitted)
    }

    /// The name of the present call.
    pub fn current<'a>(&'a self, functions: &'a Functions) -> Option<&'a str> {
        self.current.map(|(place, _)| self.by_function[place].0.text(functions))
    }

    /// When the present call began.
    pub fn current_since(&self) -> Option<Monotonic> {
        self.current.map(|(_, since)| since)
    }

    /// How long the present call has taken until `now`.
    pub fn under_way_for(&self, now: Monotonic) -> Option<Duration> {
        self.current.map(|(_, since)| now.since(since))
    }

    /// Where the run is, in host calls.
    pub fn point(&self) -> EndPoint {
        let (place, call) = match (&self.current, self.is_arriving) {
            // The guest has not learned yet that a call has completed that was suspended.
            (Some(_), _) if self.is_resumed => (CallPlace::After, self.count),
            (Some(_), _) => (CallPlace::Inside, self.count),
            (None, true) => (CallPlace::Before, self.count + 1),
            (None, false) => (CallPlace::After, self.count),
        };
        EndPoint { place, call }
    }

    /// How many calls have begun, including the present one.
    pub const fn count(&self) -> u64 {
        self.count
    }

    pub(crate) fn total(&self) -> Duration {
        self.total
    }

    pub(crate) fn report(&self, functions: &Functions) -> HostCalls {
        let by_function = self
            .by_function
            .iter()
            // A function whose calls were all renamed has none of its own.
            .filter(|(_, stats)| stats.count > 0 || stats.parked.count > 0)
            .map(|(name, stats)| FunctionCalls {
                name: name.to_report(functions),
                count: stats.count,
                total_us: micros(stats.total),
                in_flight: stats.in_flight,
                failed: match name {
                    CallName::Function(function) if !functions.can_wait(*function) => {
                        Calls::default()
                    }
                    _ => stats.failed.report(),
                },
                timed_out: stats.timed_out.map(|of| of.all.report()).unwrap_or_default(),
                parked: stats.parked.report(),
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

/// The place in the ring of the call after `count` others.
fn ring(count: u64) -> usize {
    #[allow(clippy::cast_possible_truncation, reason = "less than the ring is long")]
    let at = ((count - FIRST as u64) % LAST as u64) as usize;
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::functions;

    /// Of `count` calls, the numbers, from 0, of those that are kept, and how many are left out.
    fn kept(count: u64) -> (Vec<u64>, u64) {
        let (functions, [function]) = functions(["f"]);
        let mut accounting = Accounting::default();
        for call in 0..count {
            let at = |offset| Monotonic::from_nanos((call * 10 + offset) * 1000);
            accounting.enter(function, at(0));
            accounting.leave(at(3), CallOutcome::Ok);
        }
        let (calls, omitted) = accounting.calls(&functions, Monotonic::default());
        assert!(calls.iter().all(|call| call.duration_us == 3 && call.name == "f"));
        (calls.iter().map(|call| call.started_us / 10).collect(), omitted)
    }

    #[test]
    fn the_first_and_the_last_calls_are_kept_in_order() {
        for count in [0, 1, 31, 32, 33, 63, 64, 65, 96, 97, 1000] {
            let (kept, omitted) = kept(count);
            let expected: Vec<_> = (0..count).filter(|at| *at < 32 || count - at <= 32).collect();
            assert_eq!(kept, expected, "of {count}");
            assert_eq!(kept.len() as u64 + omitted, count);
        }
    }

    #[test]
    fn calls_that_time_out_are_counted_with_the_values_of_the_first() {
        let (functions, [slow, fast]) = functions(["slow", "fast"]);
        let mut accounting = Accounting::default();
        let limit = Duration::from_millis(5);
        for call in 0..1_000_u64 {
            let at = |millis: u64| Monotonic::from_nanos((call * 20 + millis) * 1_000_000);
            accounting.enter(slow, at(1));
            // By the processor's counter, it may seem to have taken exactly its limit.
            accounting.leave(at(6), CallOutcome::TimedOut);
            let noted = accounting.note_timeout(limit);
            assert_eq!(noted, Some((&CallName::Function(slow), limit)));
            accounting.enter(fast, at(7));
            accounting.leave(at(8), CallOutcome::Ok);
        }
        let overruns = accounting.overruns(&functions, Monotonic::default());
        let [overrun] = overruns.as_slice() else { panic!("{overruns:?}") };
        let Overrun { limit, host_call, started_us, threshold_ms, observed_ms, times } = overrun;
        assert_eq!((*limit, host_call.as_deref()), (Limit::HostCallTimeout, Some("slow")));
        assert_eq!((*started_us, *threshold_ms, *observed_ms, *times), (1_000, 5, 6, 1_000));
    }

    #[test]
    fn an_error_is_kept_with_its_call_also_in_the_ring() {
        let (functions, [function]) = functions(["f"]);
        let mut accounting = Accounting::default();
        for call in 0..100 {
            accounting.enter(function, Monotonic::default());
            accounting.leave(Monotonic::default(), CallOutcome::Failed);
            accounting.note_error(format!("reason {call}"));
        }
        let (calls, omitted) = accounting.calls(&functions, Monotonic::default());
        let errors: Vec<_> = calls.iter().filter_map(|call| call.error.clone()).collect();
        let kept: Vec<_> = (0..32).chain(68..100).map(|call| format!("reason {call}")).collect();
        assert_eq!((errors, omitted), (kept, 36));
    }

    #[test]
    fn a_call_in_which_the_run_ended_is_unfinished() {
        let (functions, [function]) = functions(["f"]);
        let mut accounting = Accounting::default();
        accounting.enter(function, Monotonic::from_nanos(1_000));
        accounting.name_call("ask:Other.Go".into());
        accounting.cut(Monotonic::from_nanos(9_000));
        let (calls, omitted) = accounting.calls(&functions, Monotonic::default());
        let name = "ask:Other.Go".into();
        let outcome = CallOutcome::Unfinished;
        assert_eq!(calls, [Call { name, started_us: 1, duration_us: 8, outcome, error: None }]);
        assert_eq!(omitted, 0);
    }
}
