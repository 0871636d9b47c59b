//! The decisions of the boundary, which every host call of every engine passes.
//!
//! ```text
//! guest --> park: effects outside, and no lease? -> wait for it; `parking` describes this
//!             |
//!           enter: past the deadline, or stopped? -> end the run, dying in `guest`
//!             |    name, count and time the call, open its span
//!             v
//!           the function itself; if it waits, raced with the deadline
//!             |
//!           leave: past the deadline, or stopped? -> end the run, dying in the function
//! guest <--   +    close the span, account for the time
//! ```
//!
//! An expired deadline ends the run: [`Stopped`] is an error that unwinds the guest, which can
//! neither ignore nor catch it.

use std::time::Duration;

use sandglass_model::{CallOutcome, Cause, Monotonic};
use sandglass_telemetry::trace::names;

use crate::accounting::CallName;
use crate::functions::FunctionId;
use crate::race::CallEnded;
use crate::recording::packing::{Pack, Packer, Unpacker, Unreadable};
use crate::recording::{Replayer, Source};
use crate::supervision::Supervision;

/// The root cause of the error that unwinds a guest whose run must end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the run was stopped: {0:?}")]
pub struct Stopped(pub Cause);

impl Supervision {
    /// Begins a call of `function`, whose arguments a recording compares. Returns where its result
    /// comes from.
    ///
    /// # Errors
    /// The run must end.
    #[inline]
    pub fn enter(
        &mut self,
        function: FunctionId,
        arguments: impl FnOnce(&mut Packer<'_>),
    ) -> Result<Source, Stopped> {
        if self.calls.tasks.is_some() {
            self.settle_withdrawn();
        }
        self.calls.accounting.arrive();
        let now = self.check_fast()?;
        self.calls.accounting.enter(function, now);
        if let Some(in_flight) = self.in_flight() {
            in_flight.note_begun();
        }
        self.watch.run.present.calls(function, now);
        self.calls.spans.begin(function, &self.calls.functions);
        if self.calls.recording.is_off() {
            return Ok(Source::Function);
        }
        let mut arguments = Some(arguments);
        self.enter_recorded(function, &mut |packer| {
            arguments.take().into_iter().for_each(|arguments| arguments(packer));
        })
    }

    #[cold]
    fn enter_recorded(
        &mut self,
        function: FunctionId,
        arguments: Pack<'_>,
    ) -> Result<Source, Stopped> {
        let name = self.calls.functions.name(function);
        let begun = self.calls.recording.begin(name, arguments);
        if let Some(about) = self.calls.recording.replayer().and_then(Replayer::about) {
            self.calls.accounting.name_call(about);
        }
        begun.map_err(|stopped| self.end(stopped.0))
    }

    /// Ends the present call, which returned at `now`: accounts for its time, and closes its span.
    /// `is_failure` is whether its result is an error.
    ///
    /// # Errors
    /// The run must end: a replay, because the recorded run ended behind this call.
    #[inline]
    pub fn leave(&mut self, now: Monotonic, is_failure: bool) -> Result<(), Stopped> {
        self.watch.cut_before = None;
        if let Some(tasks) = &mut self.calls.tasks {
            tasks.resumed = None;
        }
        let ended = self.watch.run.take_call_ended();
        if let Some(ended) = ended {
            self.trace_error(now, names::CALL_ENDED, &ended.to_string());
        }
        let (has_failed, is_activity) = self.guest_mut().take_call_notes();
        let outcome = match ended {
            Some(ended) => ended.outcome(),
            None if has_failed || is_failure => CallOutcome::Failed,
            None => CallOutcome::Ok,
        };
        self.watch.run.present.call_ended(self.watch.phase, now, is_activity);
        self.end_call(now, outcome);
        if outcome != CallOutcome::Ok
            && let Some(error) = self.guest_mut().take_call_error()
        {
            self.calls.accounting.note_error(error);
        }
        if let Some(CallEnded::TimedOut(limit)) = ended {
            self.note_timed_out_call(limit);
        }
        if self.calls.recording.replayer().is_some() {
            self.check()?;
        }
        Ok(())
    }

    /// Accounts for the present call, which has ended `now`.
    #[inline]
    pub(crate) fn end_call(&mut self, now: Monotonic, outcome: CallOutcome) {
        let calls = &mut self.calls;
        if let Some((call, took)) = calls.accounting.leave(now, outcome) {
            calls.spans.end(took, outcome != CallOutcome::Ok, &calls.functions);
            match call {
                CallName::Function(function) => {
                    calls.functions.took(*function, &calls.metrics, took);
                }
                CallName::Subject(name) => calls.metrics.host_call(name, took),
            }
        }
    }

    /// Counts and reports that the call that has just left was ended by its own `limit`.
    #[cold]
    fn note_timed_out_call(&mut self, limit: Duration) {
        let calls = &mut self.calls;
        let Some((call, took)) = calls.accounting.note_timeout(limit) else { return };
        let name = call.text(&calls.functions).to_owned();
        calls.metrics.host_call_timed_out(&name);
        self.guest().note_timed_out_call(&name, limit, took);
    }

    /// As [`Supervision::check`], for a moment from which the guest goes on. Reads the processor's
    /// counter, and the clock only if the counter says that the deadline has passed. Counter error
    /// may delay a kill by a few nanoseconds; it never makes one early.
    ///
    /// # Errors
    /// The run must end.
    #[inline]
    pub fn check_fast(&mut self) -> Result<Monotonic, Stopped> {
        let now = self.watch.clock.now_fast();
        if now <= self.watch.unchecked_until && self.watch.run.cause().is_none() {
            self.watch.checked_at = now;
            return Ok(now);
        }
        self.check_slow(now)
    }

    #[cold]
    fn check_slow(&mut self, now: Monotonic) -> Result<Monotonic, Stopped> {
        if now > self.watch.run.deadline() { self.check() } else { self.check_at(now) }
    }

    /// Reads the clock, and returns the error that unwinds the guest if its run must end. What is
    /// running is noted as the dying span.
    ///
    /// # Errors
    /// The run must end.
    pub fn check(&mut self) -> Result<Monotonic, Stopped> {
        let now = self.watch.clock.now();
        self.check_at(now)
    }

    fn check_at(&mut self, now: Monotonic) -> Result<Monotonic, Stopped> {
        self.watch.checked_at = now;
        let (point, phase) = (self.calls.accounting.point(), self.watch.phase);
        let tasks = self.calls.tasks.as_ref();
        let is_waiting = tasks.is_some_and(|tasks| tasks.is_waiting);
        // The guest learned of each recorded completion, so no replay ends before that.
        let is_resumed = tasks.is_some_and(|tasks| tasks.resumed.is_some());
        let replayer = self.calls.recording.replayer().filter(|_| !is_resumed);
        let recorded = replayer.and_then(|replayer| replayer.ends_at(point, phase, is_waiting));
        match recorded.or_else(|| self.watch.run.due(now)) {
            Some(cause) => Err(self.end(cause)),
            None => Ok(now),
        }
    }

    /// Returns the error that ends the run for `cause`, or for the cause that came first. Notes
    /// what is running.
    #[cold]
    pub fn end(&mut self, cause: Cause) -> Stopped {
        if self.is_in_host_call() {
            let now = self.watch.checked_at;
            self.trace_cut_call(now);
            self.trace_error(now, names::UNFINISHED, "the run ended inside this call");
        }
        self.watch.stopped_in = Some(self.dying_span());
        Stopped(self.watch.run.set_cause(cause))
    }

    /// Adds to the span of the present call that it was ended `now`, and why.
    #[cold]
    fn trace_error(&mut self, now: Monotonic, error_type: &str, why: &str) {
        let took = self.calls.accounting.under_way_for(now).unwrap_or_default();
        self.calls.spans.error(took, error_type, why, &self.calls.functions);
    }

    /// Reads the recorded result of the present call; `Ok(None)` if the call failed then. The
    /// outer `None` means that nothing is replayed.
    #[inline]
    pub fn recorded_result<R>(
        &mut self,
        read: impl FnOnce(&mut Unpacker<'_>) -> Result<R, Unreadable>,
    ) -> Option<Result<Option<R>, Stopped>> {
        let result = self.calls.recording.replayer()?.answer(read);
        Some(result.map_err(|stopped| self.end(stopped.0)))
    }

    /// Reads the recorded error of the call that has just left. `None` if nothing is replayed, or
    /// if it did not fail.
    pub fn recorded_error<E>(
        &mut self,
        read: impl FnOnce(&mut Unpacker<'_>) -> Result<E, Unreadable>,
    ) -> Option<Result<E, Stopped>> {
        let error = self.calls.recording.replayer()?.error(read)?;
        Some(error.map_err(|stopped| self.end(stopped.0)))
    }
}
