//! The state of one handler run that host functions touch, whatever engine runs the guest.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{EndPoint, HostCalls, Monotonic, Overrun, Recording, Story, SystemClock};
use sandglass_telemetry::Metrics;

use crate::accounting::Accounting;
use crate::call_spans::CallSpans;
use crate::capability::Guest;
use crate::capability::outside::Outside;
use crate::functions::{FunctionId, Functions};
use crate::in_flight::InFlight;
use crate::lease::Lease;
use crate::measured;
use crate::origin::Origin;
use crate::parking::parked_span;
use crate::race::CallEnded;
use crate::recording::RunRecording;
use crate::run::{Phase, Run};
use crate::run_clock::RunClock;
use crate::secret::Secret;
use crate::suspended::Tasks;
use crate::ticker::Ticker;

/// Everything of one handler run that host functions touch: its deadline, its host calls, and what
/// its guest may do. It belongs to one thread at a time; [`Run`] is the part that threads share.
#[derive(Debug)]
pub struct Supervision {
    /// When the run must end, and where it is.
    pub watch: Watch,
    /// Its host calls.
    pub calls: Calls,
    guest: Guest,
    /// The dispatch behind the run; `None` if nothing runs.
    pub origin: Option<Arc<Origin>>,
}

measured!(Supervision: watch, calls, guest, origin);

/// When the run must end, and where it is.
#[derive(Debug)]
#[non_exhaustive]
pub struct Watch {
    pub(crate) run: Arc<Run>,
    pub(crate) clock: RunClock,
    /// The lease of the host.
    pub(crate) lease: Lease,
    /// The function whose call waits for the lease.
    pub(crate) parked: Option<FunctionId>,
    /// Why a call that waited for the lease is to end before it begins.
    pub(crate) cut_before: Option<CallEnded>,
    /// Wakes calls that have time limits of their own; `None` if nothing runs.
    pub ticker: Option<Arc<Ticker>>,
    /// When the boundary last read the clock.
    pub checked_at: Monotonic,
    /// Until this moment, a run that was not stopped may go on after one look at the clock: its
    /// deadline. Zero in a replay, because there the recording decides when the run ends.
    pub unchecked_until: Monotonic,
    /// How far the run has come.
    pub phase: Phase,
    /// What was running when the run was found to have to end.
    pub(crate) stopped_in: Option<DyingSpan>,
}

/// What is running when a run ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DyingSpan {
    /// Its most specific name.
    pub name: String,
    /// The host function, if it is one.
    pub call: Option<String>,
}

measured!(DyingSpan: name, call);

measured!(
    Watch: run, clock, lease, parked, cut_before, ticker, checked_at, unchecked_until, phase,
    stopped_in
);

/// The host calls of the run: counted, timed, traced and recorded.
#[derive(Debug)]
#[non_exhaustive]
pub struct Calls {
    /// The functions that the guest can call.
    pub functions: Arc<Functions>,
    pub(crate) accounting: Accounting,
    /// Time in host functions until the guest was instantiated; `None` before that.
    pub(crate) while_instantiating: Option<Duration>,
    /// The spans of host calls.
    pub spans: CallSpans,
    /// The recording that is written or replayed.
    pub recording: RunRecording,
    pub(crate) metrics: Metrics,
    /// The calls in flight of a guest with tasks; `None` if the guest has one call at a time.
    pub(crate) tasks: Option<Box<Tasks>>,
}

measured!(
    Calls: functions, accounting, while_instantiating, spans, recording, metrics, tasks
);

/// What a [`Supervision`] begins with.
#[derive(Debug)]
pub struct Start {
    /// The part that other threads see.
    pub run: Arc<Run>,
    /// The clock of the host.
    pub clock: RunClock,
    /// The lease of the host.
    pub lease: Lease,
    /// Wakes calls that have time limits of their own; `None` if nothing runs.
    pub ticker: Option<Arc<Ticker>>,
    /// When the budget began.
    pub began: Monotonic,
    /// When the budget ends.
    pub deadline: Monotonic,
    /// The functions that the guest can call.
    pub functions: Arc<Functions>,
    /// The recording that is written or played, if any.
    pub recording: RunRecording,
    /// The spans of host calls.
    pub spans: CallSpans,
    /// The calls in flight; `None` if the guest has one call at a time.
    pub in_flight: Option<InFlight>,
    /// Where host calls are measured.
    pub metrics: Metrics,
    /// The capabilities of the guest.
    pub guest: Guest,
    /// The dispatch behind the run; `None` if nothing runs.
    pub origin: Option<Arc<Origin>>,
}

/// What a run did, when it has ended.
#[derive(Debug)]
pub struct Account {
    /// Its host calls, in sums.
    pub host_calls: HostCalls,
    /// Host calls that exceeded their own time limits.
    pub overruns: Vec<Overrun>,
    /// Its first and last host calls and requests, one by one.
    pub story: Story,
    /// Time in all host functions.
    pub in_host: Duration,
    /// Time in host functions until the guest was instantiated.
    pub in_host_while_instantiating: Duration,
    /// The recording, if one was written.
    pub recording: Option<Recording>,
}

impl Supervision {
    /// Supervises a run whose budget has begun.
    #[must_use]
    pub fn new(start: Start) -> Self {
        let is_replay = matches!(start.recording, RunRecording::Replaying(_));
        let unchecked_until = if is_replay { Monotonic::default() } else { start.deadline };
        Self {
            watch: Watch {
                run: start.run,
                clock: start.clock,
                lease: start.lease,
                parked: None,
                cut_before: None,
                ticker: start.ticker,
                checked_at: start.began,
                unchecked_until,
                phase: Phase::Instantiating,
                stopped_in: None,
            },
            calls: Calls {
                functions: start.functions,
                accounting: Accounting::default(),
                while_instantiating: None,
                spans: start.spans,
                recording: start.recording,
                metrics: start.metrics,
                tasks: start.in_flight.map(|in_flight| Box::new(Tasks::new(in_flight))),
            },
            guest: start.guest,
            origin: start.origin,
        }
    }

    /// The state of a store in which nothing runs, for questions about types and for tests.
    #[must_use]
    pub fn idle() -> Self {
        Self::new(Start {
            run: Arc::default(),
            clock: RunClock::new(Arc::new(SystemClock::new())),
            lease: Lease::default(),
            ticker: None,
            began: Monotonic::default(),
            deadline: Monotonic::default(),
            functions: Arc::default(),
            recording: RunRecording::Off,
            spans: CallSpans::idle(),
            in_flight: None,
            metrics: Metrics::disabled(),
            guest: Guest::idle(),
            origin: None,
        })
    }

    /// The part of the run that other threads see.
    #[must_use]
    pub const fn run(&self) -> &Arc<Run> {
        &self.watch.run
    }

    /// The clock of the run.
    #[must_use]
    pub const fn clock(&self) -> &RunClock {
        &self.watch.clock
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Monotonic {
        self.watch.clock.now()
    }

    /// The capabilities of the guest.
    #[must_use]
    pub const fn guest(&self) -> &Guest {
        &self.guest
    }

    /// The capabilities of the guest.
    pub const fn guest_mut(&mut self) -> &mut Guest {
        &mut self.guest
    }

    /// The capability to send requests.
    #[must_use]
    pub fn outside(&self) -> Outside {
        self.guest.outside(&self.watch.run, self.watch.clock.shared())
    }

    /// Names the present call after what it is about. There must be few such names, because
    /// metrics and reports carry them.
    pub fn name_call(&mut self, name: Arc<str>) {
        self.calls.recording.name_call(&name);
        self.watch.run.present.name_call(Arc::clone(&name));
        self.calls.accounting.name_call(name);
    }

    /// Gives the guest a secret, which texts for people do not show from now on.
    pub fn give_secret(&mut self, name: &str, secret: &Secret) {
        self.guest.redactor.hide(secret);
        self.calls.recording.see(name, secret);
    }

    /// The guest is instantiated, and runs from now on.
    pub fn begin_running(&mut self) {
        self.watch.phase = Phase::Running;
        let now = self.watch.clock.now_fast();
        self.watch.run.present.in_guest(Phase::Running, now);
        self.calls.while_instantiating = Some(self.calls.accounting.total());
    }

    /// The name of what is running: a host call, or the phase of the guest.
    #[must_use]
    pub fn present_span(&self) -> String {
        let call = self.calls.accounting.current(&self.calls.functions);
        call.unwrap_or_else(|| self.watch.phase.own_span()).to_owned()
    }

    /// What a run that ends now dies in. A call that waits for the lease has the name of
    /// [`parked_span`], because it has not begun. A host call has the name of the innermost open span, or of
    /// the destination of its request, if the manifest declares one. A guest that waits for several
    /// calls dies in the oldest of them.
    #[must_use]
    pub fn dying_span(&self) -> DyingSpan {
        let accounting = &self.calls.accounting;
        if let Some(function) = self.watch.parked {
            let name = parked_span(self.calls.functions.name(function));
            return DyingSpan { name, call: None };
        }
        let functions = &self.calls.functions;
        let tasks = self.calls.tasks.as_ref();
        let resumed = tasks.and_then(|tasks| tasks.resumed);
        // A guest that yields waits for nothing, although the completion of a call is there.
        let current_since = match resumed {
            Some(resumed) if resumed.at_yield => None,
            _ => accounting.current_since(),
        };
        let oldest = tasks.and_then(|tasks| tasks.oldest_awaited(current_since.is_some()));
        let (since, name, call) = match (current_since, oldest) {
            (_, Some(oldest)) if oldest.is_parked() => {
                let name = parked_span(functions.name(oldest.function));
                return DyingSpan { name, call: None };
            }
            (_, Some(oldest)) => {
                let name = accounting.name_of(oldest.call).text(functions).to_owned();
                (oldest.call.since, name, Some(functions.name(oldest.function)))
            }
            (Some(since), None) => {
                (since, self.present_span(), self.watch.run.present.function(functions))
            }
            (None, None) => {
                return DyingSpan { name: self.watch.phase.own_span().to_owned(), call: None };
            }
        };
        let destination = || {
            let url = self.guest.requests.unfinished_since(since)?;
            self.guest.grants.destinations.name_of(&url).map(str::to_owned)
        };
        let span = self.guest.spans.innermost_declared().map(str::to_owned);
        let name = span.or_else(destination).unwrap_or(name);
        DyingSpan { name, call: call.map(str::to_owned) }
    }

    /// Returns what was running when the run was found to have to end.
    pub fn take_dying_span(&mut self) -> DyingSpan {
        self.watch.stopped_in.take().unwrap_or_else(|| self.dying_span())
    }

    /// Whether the guest is in a host call.
    #[must_use]
    pub fn is_in_host_call(&self) -> bool {
        self.calls.accounting.current(&self.calls.functions).is_some()
    }

    /// Where the run is, counted in host calls.
    #[must_use]
    pub fn point(&self) -> EndPoint {
        self.calls.accounting.point()
    }

    /// How many host calls have begun.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls.accounting.count()
    }

    /// Computes the account of the run, which began at `start`, and whose guest is off the CPU since `end`.
    pub fn finish(&mut self, start: Monotonic, end: Monotonic) -> Account {
        self.settle_withdrawn();
        if let Some(waited) = self.in_flight().map(|in_flight| in_flight.take_waited(end)) {
            self.calls.accounting.add_waited(waited);
        }
        self.trace_cut_call(end);
        let Calls { functions, accounting, metrics, .. } = &mut self.calls;
        if let Some(name) = accounting.current(functions).map(str::to_owned) {
            metrics.host_call(&name, accounting.cut(end));
        }
        self.cut_suspended(end);
        let Calls { functions, accounting, while_instantiating, recording, .. } = &mut self.calls;
        let (calls, calls_omitted) = accounting.calls(functions, start);
        let (requests, requests_omitted) =
            self.guest.requests.report((start, end), accounting.cut_since());
        let in_host = accounting.total();
        Account {
            host_calls: accounting.report(functions),
            overruns: accounting.overruns(functions, start),
            story: Story { calls, calls_omitted, requests, requests_omitted },
            in_host,
            in_host_while_instantiating: while_instantiating.unwrap_or(in_host),
            recording: recording.finish(),
        }
    }

    /// Adds to the trace that the run ends `now` inside the present call, if there is one.
    pub(crate) fn trace_cut_call(&mut self, now: Monotonic) {
        if let Some(took) = self.calls.accounting.under_way_for(now) {
            self.calls.spans.open(took, &self.calls.functions);
        }
    }
}

/// A run whose caller has gone is dropped wherever it is.
impl Drop for Supervision {
    fn drop(&mut self) {
        if self.calls.spans.is_waiting() {
            self.trace_cut_call(self.watch.clock.now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measured::Measured as _;

    #[test]
    fn the_dying_span_is_measured() {
        let mut run = Supervision::idle();
        let before = run.uncharged_bytes();
        run.watch.stopped_in = Some(DyingSpan { name: "x".repeat(1000), call: None });
        assert_eq!(run.uncharged_bytes(), before + 1000);
    }
}
