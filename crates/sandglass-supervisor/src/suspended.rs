//! Calls whose guest goes on while they are in flight: what the run keeps of each, from the moment
//! when it is suspended until its completion is delivered ([`InFlight`] describes when).

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sandglass_model::{CallOutcome, Cause, Clock, Monotonic};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::Level;
use sandglass_telemetry::trace::names;

use crate::accounting::CallInFlight;
use crate::boundary::Stopped;
use crate::call_spans::SuspendedSpan;
use crate::covered;
use crate::functions::FunctionId;
use crate::host_memory::{Charge, OutOfHostMemory};
use crate::in_flight::{CALL_BYTES, InFlight, Withdrawn};
use crate::lease::Lease;
use crate::present;
use crate::race::{CallEnded, Race};
use crate::recording::{RunRecording, Source};
use crate::supervision::Supervision;

/// What the work of a call notes for the run, which has the call in flight.
#[derive(Debug, Default)]
pub struct CallNote {
    ended: OnceLock<CallEnded>,
    is_parked: AtomicBool,
    parked_ns: AtomicU64,
}

impl CallNote {
    /// Notes why the call is ended although its run goes on.
    pub(crate) fn end(&self, why: CallEnded) {
        // It is noted once, because the call ends with it.
        let _ = self.ended.set(why);
    }

    /// Why the call was ended although its run goes on.
    #[must_use]
    pub fn ended(&self) -> Option<CallEnded> {
        self.ended.get().copied()
    }

    /// Whether the call waits for the lease of the host.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked.load(Ordering::Relaxed)
    }

    /// How long it has waited for the lease; `None` if it did not.
    fn parked(&self) -> Option<Duration> {
        let nanos = self.parked_ns.load(Ordering::Relaxed);
        (nanos > 0).then(|| Duration::from_nanos(nanos))
    }
}

/// The wait of a call in flight for the lease of its host, before it has effects.
#[derive(Debug)]
pub struct Parking {
    lease: Lease,
    race: Race,
    clock: Arc<dyn Clock>,
    metrics: Metrics,
    note: Arc<CallNote>,
}

impl Parking {
    /// Waits until the lease is valid, or until something else ends the call, which its note has then.
    /// Returns whether the run goes on.
    #[must_use = "a run that must end has no further effects"]
    pub async fn wait(self) -> bool {
        let _parked = (self.lease.count_parked(), self.metrics.hold(Level::ParkedCalls));
        let since = self.clock.now();
        self.note.is_parked.store(true, Ordering::Relaxed);
        let valid = async {
            self.lease.valid().await;
            Ok::<_, CallEnded>(())
        };
        let ended = self.race.call(valid).await;
        self.note.is_parked.store(false, Ordering::Relaxed);
        let waited = self.clock.now().since(since).as_nanos();
        self.note
            .parked_ns
            .store(u64::try_from(waited).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        ended.is_some()
    }
}

/// What a run keeps of a call in flight.
#[derive(Debug)]
pub(crate) struct Suspended {
    pub(crate) function: FunctionId,
    pub(crate) call: CallInFlight,
    span: SuspendedSpan,
    note: Arc<CallNote>,
    _charge: Charge,
}

/// What a run keeps of a guest with tasks.
#[derive(Debug)]
pub(crate) struct Tasks {
    in_flight: InFlight,
    /// The calls in flight, by number.
    suspended: BTreeMap<u64, Suspended>,
    /// The present call, if it was suspended and its guest does not know yet that it has completed.
    pub(crate) resumed: Option<Resumed>,
    /// Whether the guest waits for its calls in flight.
    pub(crate) is_waiting: bool,
    /// What the present call notes if it may be suspended.
    pub(crate) noting: Option<Arc<CallNote>>,
}

/// A call whose completion was delivered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resumed {
    number: u64,
    /// Whether the guest yielded then, and waited for nothing.
    pub(crate) at_yield: bool,
}

// Each call in flight is charged as a whole.
covered!(Tasks: in_flight, suspended, resumed, is_waiting, noting);

impl Tasks {
    pub(crate) fn new(in_flight: InFlight) -> Self {
        let suspended = BTreeMap::new();
        Self { in_flight, suspended, resumed: None, is_waiting: false, noting: None }
    }

    /// The number and function of the oldest call in flight, and how many there are besides.
    fn waits_for(&self) -> Option<(u64, FunctionId, usize)> {
        let (number, oldest) = self.suspended.first_key_value()?;
        Some((*number, oldest.function, self.suspended.len() - 1))
    }

    /// The oldest call in flight, if the guest waits for it, and if it is older than the present call.
    pub(crate) fn oldest_awaited(&self, is_in_call: bool) -> Option<&Suspended> {
        let (number, oldest) = self.suspended.first_key_value()?;
        let is_awaited = match self.resumed {
            Some(resumed) => !resumed.at_yield && *number < resumed.number,
            None => self.is_waiting && !is_in_call,
        };
        is_awaited.then_some(oldest)
    }
}

impl Suspended {
    /// Whether the call waits for the lease of the host.
    pub(crate) fn is_parked(&self) -> bool {
        self.note.is_parked()
    }
}

impl Supervision {
    /// The calls in flight; `None` if the guest has one call at a time.
    #[must_use]
    pub fn in_flight(&self) -> Option<&InFlight> {
        self.calls.tasks.as_ref().map(|tasks| &tasks.in_flight)
    }

    /// Sets what the present call notes while it begins, because it may be suspended.
    pub fn note_in(&mut self, note: Option<Arc<CallNote>>) {
        if let Some(tasks) = &mut self.calls.tasks {
            tasks.noting = note;
        }
    }

    /// Whether the run is a replay.
    #[must_use]
    pub const fn is_replay(&self) -> bool {
        matches!(self.calls.recording, RunRecording::Replaying(_))
    }

    /// The wait for the lease that a call of `function` needs before it has effects, if it does not
    /// have to wait before it begins; `None` if the lease is valid, or not needed.
    #[must_use]
    pub fn parking(&self, function: FunctionId, note: &Arc<CallNote>) -> Option<Parking> {
        self.must_park(function).then(|| Parking {
            lease: self.watch.lease.clone(),
            race: Race::of(self),
            clock: Arc::clone(self.watch.clock.shared()),
            metrics: self.calls.metrics.clone(),
            note: Arc::clone(note),
        })
    }

    /// Suspends the present call, of `function`, so that the guest goes on. Its work notes in `note`
    /// what the run has to know. Returns the number of the call.
    ///
    /// # Errors
    /// The account of the run has no room for one more.
    pub fn suspend(
        &mut self,
        function: FunctionId,
        note: Arc<CallNote>,
    ) -> Result<u64, OutOfHostMemory> {
        // The recording of a replay decides when its run ends.
        let bytes = if self.is_replay() { 0 } else { CALL_BYTES };
        let charge = self.guest().memory.charge(bytes)?;
        let number = self.calls.accounting.count();
        let now = self.watch.checked_at;
        let calls = &mut self.calls;
        if let Some(call) = calls.accounting.suspend() {
            let span = calls.spans.suspend();
            calls.recording.suspend();
            let in_flight = present::InFlight {
                function,
                name: calls.accounting.name_of(call).clone(),
                since: call.since,
                note: Arc::clone(&note),
            };
            self.watch.run.present.add_in_flight(number, in_flight);
            let suspended = Suspended { function, call, span, note, _charge: charge };
            if let Some(tasks) = &mut calls.tasks {
                tasks.suspended.insert(number, suspended);
            }
        }
        // That the call has begun shows that the guest is active.
        self.watch.run.present.call_ended(self.watch.phase, now, true);
        Ok(number)
    }

    /// Makes call `number`, whose completion is delivered, the present one. Returns where its result
    /// comes from.
    ///
    /// # Errors
    /// The run must end: a replay, because the recording has another completion here.
    pub fn resume(&mut self, number: u64) -> Result<Source, Stopped> {
        let now = self.watch.clock.now_fast();
        self.settle_withdrawn();
        let in_flight = self.in_flight();
        let waited = in_flight.map(|in_flight| in_flight.take_waited(now)).unwrap_or_default();
        let completion = in_flight.and_then(InFlight::take_delivery);
        self.calls.accounting.add_waited(waited);
        let function = self.resume_unrecorded(number);
        let calls = &mut self.calls;
        if let Some(tasks) = &mut calls.tasks {
            let at_yield = completion.is_some_and(|completion| completion.is_at_yield());
            tasks.resumed = function.map(|_| Resumed { number, at_yield });
        }
        let name = function.map_or("", |function| calls.functions.name(function));
        let resumed = calls.recording.resume(number, name, completion);
        if let Some(function) = function {
            self.watch.run.present.calls(function, self.watch.checked_at);
        }
        resumed.map_err(|stopped| self.end(stopped.0))
    }

    fn resume_unrecorded(&mut self, number: u64) -> Option<FunctionId> {
        let calls = &mut self.calls;
        let tasks = calls.tasks.as_mut()?;
        let Suspended { function, call, span, note, .. } = tasks.suspended.remove(&number)?;
        self.watch.run.present.remove_in_flight(number);
        calls.accounting.resume(call);
        calls.spans.resume(span);
        if let Some(time) = note.parked() {
            calls.accounting.note_parked(call, time);
            calls.metrics.host_call_parked(calls.functions.name(function), time);
        }
        if let Some(why) = note.ended() {
            self.watch.run.note_call_ended(why);
        }
        Some(function)
    }

    /// Accounts for the calls that the guest has cancelled.
    #[cold]
    pub(crate) fn settle_withdrawn(&mut self) {
        let withdrawn = self.in_flight().map(InFlight::take_withdrawn).unwrap_or_default();
        let now = self.watch.clock.now_fast();
        for Withdrawn { call, delivered } in withdrawn {
            self.calls.recording.withdraw(call, delivered);
            if self.resume_unrecorded(call).is_some() {
                self.watch.run.take_call_ended();
                self.end_call(now, CallOutcome::Failed);
                self.calls.accounting.note_error("the guest cancelled the call".to_owned());
            }
        }
    }

    /// Ends the run outside of its guest, which waits for its calls in flight or yields, because it
    /// must end `now`.
    pub fn end_between(&mut self, now: Monotonic, yields: bool) -> Stopped {
        self.settle_withdrawn();
        if let Some(tasks) = &mut self.calls.tasks {
            tasks.is_waiting = !yields && !tasks.in_flight.is_interrupted();
        }
        match self.watch.run.due(now) {
            Some(cause) => self.end(cause),
            // Only a replay ends although its run is not due.
            None => self.end_replay(),
        }
    }

    /// Ends a replay whose guest waits for nothing that is recorded.
    fn end_replay(&mut self) -> Stopped {
        let replayer = self.calls.recording.replayer();
        // A guest that was ended in its own code may get on until it waits.
        let ended_waiting = replayer.is_some_and(|replayer| replayer.ends_waiting());
        if let Some(tasks) = &mut self.calls.tasks {
            tasks.is_waiting &= ended_waiting;
        }
        if let Err(stopped) = self.check() {
            return stopped;
        }
        let waits_for = self.calls.tasks.as_deref().and_then(Tasks::waits_for);
        let waits_for = waits_for.map(|(number, function, more)| {
            (number, self.calls.functions.name(function).to_owned(), more)
        });
        let stalled = self.calls.recording.replayer().map(|replayer| replayer.stalled(waits_for));
        self.end(stalled.map_or(Cause::Cancel, |stopped| stopped.0))
    }

    /// Ends all calls in flight, because their run has ended `now`.
    pub(crate) fn cut_suspended(&mut self, now: Monotonic) {
        let next = |tasks: &Option<Box<Tasks>>| {
            let (number, suspended) = tasks.as_ref()?.suspended.first_key_value()?;
            Some((*number, suspended.function))
        };
        while let Some((number, function)) = next(&self.calls.tasks) {
            self.resume_unrecorded(number);
            self.trace_cut_call(now);
            let name = self.calls.functions.name(function);
            self.calls.spans.error(
                self.calls.accounting.under_way_for(now).unwrap_or_default(),
                names::UNFINISHED,
                "the run ended inside this call",
                &self.calls.functions,
            );
            let took = self.calls.accounting.cut(now);
            self.calls.metrics.host_call(name, took);
            self.calls.spans.end(took, true, &self.calls.functions);
        }
    }
}
