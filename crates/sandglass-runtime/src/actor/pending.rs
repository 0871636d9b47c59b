//! The records that wait for the journal: a failing disk delays no kill, but the transition after it
//! waits for the append.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use sandglass_journal as journal;
use sandglass_liveness::session::{STATUS, Watched};
use sandglass_liveness::{Decided, Entity, Input, Spec, decide};
use sandglass_model::{
    Cancellation, Cause, DispatchId, Event as RecordedEvent, Failure, FailureKind,
    HandlerDeadlineExceeded, HandlerEnd, Limit, Monotonic, Outcome, Recorded, RunReport, WallTime,
};

use super::reservations::Reservations;
use super::{Actor, Ownership};
use crate::account_sampling::AccountSampling;
use crate::asking::ParentBudget;
use crate::error::ActorError;
use crate::publish::Event;
use crate::signals::{HandlerSignal, Sent};

/// Signals of one handler that are recorded. Progress is for people who watch; more of it would
/// fill the journal, so the rest is only published.
pub const SIGNALS_RECORDED_PER_RUN_MAX: u32 = 100;

/// Most signals that are held back, of one entity: more than its handlers usually have names.
const HELD_BACK_MAX: usize = 8;

/// How long a status waits that is not recorded at once: a handler that sets thousands causes one
/// record a second.
const STATUS_WAIT: Duration = Duration::from_secs(1);

/// First wait after a failed append: long enough for a short disturbance to pass.
const RETRY_FIRST: Duration = Duration::from_millis(50);
/// Longest wait after a failed append: the longest delay until a working disk is noticed.
const RETRY_LAST: Duration = Duration::from_secs(5);

/// The records that wait for the journal.
#[derive(Debug, Default)]
pub(super) struct PendingRecords {
    /// Ends that are not recorded yet: at most as many as may be in flight.
    ends: VecDeque<PendingEnd>,
    failure: Option<Failing>,
    /// Recorded signals, by dispatch.
    recorded_signals: BTreeMap<DispatchId, u32>,
    /// The last signal of each handler and name that was not recorded, with the time at which it was
    /// held back. They count as activity, and are recorded before their absence would count as
    /// inactivity.
    held_back: BTreeMap<(DispatchId, String), (WallTime, HandlerSignal)>,
    /// Since when there are any.
    held_since: Monotonic,
}

/// An end that is not recorded yet.
#[derive(Clone, Debug)]
struct PendingEnd {
    /// Shared with the record, because its result may be large.
    end: Arc<HandlerEnd>,
    form: Form,
    /// What was recorded for its replay.
    recording: Option<Arc<[u8]>>,
}

/// How much of an end is to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole,
    /// The journal will never take it completely.
    Reduced,
}

#[derive(Debug)]
struct Failing {
    what: String,
    wait: Duration,
    /// `None` once that time has come.
    retry_at: Option<Monotonic>,
}

impl PendingRecords {
    pub(super) fn push(&mut self, attempt: u32, report: RunReport, accounts: AccountSampling) {
        let account = accounts.of(&report);
        let recording = match &report.recording {
            Some(sandglass_model::Recording::Whole(bytes)) => Some(Arc::clone(bytes)),
            _ => None,
        };
        let end = HandlerEnd { account, ..HandlerEnd::reported(attempt, report) };
        self.ends.push_back(PendingEnd { end: Arc::new(end), form: Form::Whole, recording });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether nothing waits, and nothing has to be retried.
    pub(super) fn is_quiet(&self) -> bool {
        self.ends.is_empty() && self.retry_at().is_none()
    }

    /// When the journal is to be tried again; `None` if nothing has to wait for that.
    pub(super) fn retry_at(&self) -> Option<Monotonic> {
        self.failure.as_ref().and_then(|failing| failing.retry_at)
    }

    /// The wait is over.
    pub(super) fn try_again(&mut self) {
        if let Some(failing) = &mut self.failure {
            failing.retry_at = None;
        }
    }

    /// Why nothing new can be recorded: ends wait, and the time to retry has not come.
    pub(super) fn obstacle(&self) -> Option<&str> {
        let waits = |failing: &&Failing| failing.retry_at.is_some() && !self.ends.is_empty();
        self.failure.as_ref().filter(waits).map(|failing| failing.what.as_str())
    }

    /// Notes a failed append. An append before the time to retry does not postpone the retry,
    /// however many there are.
    pub(super) fn failed(&mut self, what: &str, now: Monotonic) {
        let (wait, retry_at) = match &self.failure {
            None => (RETRY_FIRST, None),
            Some(failing) if failing.retry_at.is_some() => (failing.wait, failing.retry_at),
            Some(failing) => ((failing.wait * 2).min(RETRY_LAST), None),
        };
        let retry_at = retry_at.or_else(|| Some(now.after(wait)));
        self.failure = Some(Failing { what: what.to_owned(), wait, retry_at });
    }

    /// Drops the recordings of handlers whose ends wait: while the disk fails, they must not fill
    /// the memory.
    fn drop_recordings(&mut self) {
        for waiting in &mut self.ends {
            if waiting.recording.take().is_some() {
                let why = "the journal took nothing when the run ended";
                let end = Arc::make_mut(&mut waiting.end);
                end.recording = Some(Recorded::DecisionOnly(why.to_owned()));
            }
        }
    }

    pub(super) fn succeeded(&mut self) {
        self.failure = None;
    }

    fn hold_back(&mut self, signal: HandlerSignal, now: Monotonic, at: WallTime) {
        if self.held_back.is_empty() {
            self.held_since = now;
        }
        self.held_back.insert((signal.dispatch, signal.name.clone()), (at, signal));
        if self.held_back.len() > HELD_BACK_MAX {
            // A status is recorded soon, and people look at it.
            let others = self.held_back.iter().filter(|((_, name), _)| name != STATUS);
            let oldest = others.min_by_key(|(_, (at, _))| *at);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|key| self.held_back.remove(&key));
        }
    }

    /// The entity that limits are measured on. While the journal fails, it includes activity that
    /// waits to be recorded, so that a full disk does not look like inactivity.
    pub(super) fn with_waiting_activity<'a>(
        &self,
        entity: &'a Entity,
        spec: &Spec,
    ) -> Cow<'a, Entity> {
        if self.failure.is_none() || self.held_back.is_empty() {
            return Cow::Borrowed(entity);
        }
        let mut measured = entity.clone();
        let mut in_order: Vec<_> = self.held_back.values().collect();
        in_order.sort_by_key(|(at, _)| *at);
        for (at, signal) in in_order {
            // Activity that was recorded later stays the last.
            let since = measured.watched().map_or(*at, Watched::active_since);
            let HandlerSignal { dispatch, name, payload, .. } = signal.clone();
            let dispatch = Some(dispatch);
            let signal =
                RecordedEvent::Signal { name, from: None, dispatch, payload, resets_idle: false };
            measured.apply(spec, &signal, since.max(*at));
        }
        Cow::Owned(measured)
    }

    /// Whether the last status of a handler is not recorded.
    fn holds_status(&self) -> bool {
        self.held_back.keys().any(|(_, name)| name == STATUS)
    }

    /// Why the journal takes nothing, if its last append failed.
    pub(super) fn failure(&self) -> Option<&str> {
        self.failure.as_ref().map(|failing| failing.what.as_str())
    }

    /// The handler has ended: its signals are not activity of the next attempt.
    fn forget(&mut self, dispatch: DispatchId) {
        self.recorded_signals.remove(&dispatch);
        self.held_back.retain(|_, (_, signal)| signal.dispatch != dispatch);
    }

    fn may_record(&mut self, dispatch: DispatchId) -> bool {
        let count = self.recorded_signals.entry(dispatch).or_default();
        *count = count.saturating_add(1);
        *count <= SIGNALS_RECORDED_PER_RUN_MAX
    }
}

impl Actor {
    /// Records the ends that wait, in the order in which they came.
    pub(super) async fn record_ends(&mut self) {
        while self.ownership == Ownership::Owner && self.pending.obstacle().is_none() {
            let has_failed = self.pending.failure().is_some();
            // The cause of these ends comes first.
            if !self.record_stop().await {
                self.pending.drop_recordings();
                return;
            }
            if self.pending.is_empty() {
                return;
            }
            // Signals that were sent before the ends come before the ends.
            let holds_back = has_failed || self.pending.holds_status();
            if holds_back && let Err(error) = self.record_all_held_back().await {
                if !matches!(error, ActorError::Journal(_)) {
                    self.pending.drop_recordings();
                    return;
                }
                // The journal refuses these signals themselves. The end matters more.
                tracing::error!(%error, "signals of a handler cannot be recorded");
                self.pending.held_back.clear();
            }
            let (parent_budget, asker_remaining_ms) =
                self.remaining_parent_budget(&self.pending.ends[0].end);
            let PendingEnd { end, form, recording } = &mut self.pending.ends[0];
            if end.asker_remaining_ms != asker_remaining_ms {
                Arc::make_mut(end).asker_remaining_ms = asker_remaining_ms;
            }
            let (end, form, recording) = (Arc::clone(end), *form, recording.clone());
            let (dispatch, attempt) = (end.dispatch, end.attempt);
            let recording = recording.map(|body| journal::Recording { dispatch, attempt, body });
            let input = Input::HandlerEnded(Arc::clone(&end));
            match self.commit_input_with(&input, parent_budget, recording).await {
                Ok(_) => {}
                Err(ActorError::JournalUnavailable { .. }) => {
                    self.pending.drop_recordings();
                    return;
                }
                Err(ActorError::Refused { refusal, .. }) => {
                    tracing::error!(dispatch = %end.dispatch, %refusal, "ignored the end of a handler that is not in flight");
                }
                Err(ActorError::Journal(error)) if form == Form::Whole => {
                    let end = Arc::new(reduced(&end, &error));
                    self.pending.ends[0] = PendingEnd { end, form: Form::Reduced, recording: None };
                    continue;
                }
                Err(ActorError::Elsewhere(_)) => return,
                // The next start finds it in flight, and ends it as interrupted.
                Err(error) => {
                    tracing::error!(dispatch = %end.dispatch, %error, "an end cannot be recorded");
                }
            }
            self.pending.ends.pop_front();
            self.pending.forget(end.dispatch);
            self.runs.forget(end.dispatch, end.attempt);
        }
    }

    /// What follows a handler is done for the same asker, within the time that the asker has left,
    /// in milliseconds. If it has none left, or waits no more, what follows has its own budget.
    fn remaining_parent_budget(&self, end: &HandlerEnd) -> (ParentBudget, Option<u64>) {
        let now = self.shared.clock.now();
        let parent_budget = self.runs.parent_budget(end.dispatch, end.attempt);
        let parent_budget = parent_budget.filter(|_| end.cause != Cause::ParentDeadline);
        let left = parent_budget.and_then(|budget| Some((budget, budget.remaining_ms(now)?)));
        left.map(|(budget, left_ms)| (budget.clone(), Some(left_ms))).unwrap_or_default()
    }

    /// Records and publishes signals of handlers, and records their host calls that timed out:
    /// `first`, and those that wait. Ends that wait come first. While the journal is not to be tried,
    /// neither is tried: signals are only for people who watch, and the end of a handler records the
    /// calls that are not recorded yet.
    pub(super) async fn record_signals(&mut self, first: Option<Sent>) {
        self.record_ends().await;
        let is_failing = self.pending.retry_at().is_some();
        let at = self.shared.clock.wall();
        let (mut inputs, mut recorded) = (Vec::new(), Vec::new());
        for sent in self.runs.take_signals(first) {
            let signal = match sent {
                Sent::Signal(signal) => signal,
                Sent::CallTimedOut { attempt, call } => {
                    if !is_failing && self.is_in_flight(call.dispatch, attempt) {
                        inputs.push(Input::CallTimedOut(call));
                    }
                    continue;
                }
            };
            match self.classify(signal) {
                SignalUse::Record(signal) if is_failing => {
                    self.hold_back(signal);
                    self.drop_signals(1);
                }
                SignalUse::Record(signal) => {
                    inputs.push(recorded_signal(signal.clone()));
                    recorded.push(signal);
                }
                SignalUse::Publish(event) => self.shared.publish(event),
                SignalUse::TooLate => {}
            }
        }
        if inputs.is_empty() {
            return;
        }
        let (decided, refused) = self.decide_all(inputs, at);
        self.drop_signals(refused);
        if decided.events.is_empty() {
            return;
        }
        if self.commit(decided, Reservations::default(), at, None).await.is_err() {
            self.drop_signals(recorded.len() - refused);
            recorded.into_iter().for_each(|signal| self.hold_back(signal));
        }
    }

    fn is_in_flight(&self, dispatch: DispatchId, attempt: u32) -> bool {
        let run = self.entity.in_flight_handler(dispatch);
        self.ownership == Ownership::Owner
            && run.is_some_and(|run| run.dispatched.attempt == attempt)
    }

    /// Keeps a signal that is not recorded now, if it counts as activity.
    fn hold_back(&mut self, signal: HandlerSignal) {
        if self.entity.watched().is_some() {
            let clock = &self.shared.clock;
            self.pending.hold_back(signal, clock.now(), clock.wall());
        }
    }

    /// What follows from `inputs`, one after the other, and how many signals are refused.
    pub(super) fn decide_all(&self, inputs: Vec<Input>, at: WallTime) -> (Decided, usize) {
        let mut all = Decided { events: Vec::new(), after: self.entity.clone() };
        let mut refused = 0;
        for input in inputs {
            match decide(&self.spec, Some(&all.after), &input, at) {
                Ok(Decided { events, after }) => {
                    all.events.extend(events);
                    all.after = after;
                }
                Err(_) => refused += usize::from(matches!(input, Input::Signal { .. })),
            }
        }
        (all, refused)
    }

    fn classify(&mut self, signal: HandlerSignal) -> SignalUse {
        if self.entity.in_flight_handler(signal.dispatch).is_none()
            || self.ownership != Ownership::Owner
        {
            return SignalUse::TooLate;
        }
        if self.pending.may_record(signal.dispatch) {
            return SignalUse::Record(signal);
        }
        self.hold_back(signal.clone());
        self.drop_signals(1);
        let HandlerSignal { dispatch, name, payload, .. } = signal;
        let (entity, payload) = (self.entity.entity.clone(), payload.into());
        SignalUse::Publish(Event::UnrecordedSignal { entity, dispatch, name, payload })
    }

    /// When signals that were held back have to be recorded: half way to the time at which their
    /// absence would count as inactivity; a status, which people look at, after a second.
    pub(super) fn held_back_at(&self) -> Monotonic {
        let watched = self.entity.watched().filter(|_| !self.pending.held_back.is_empty());
        watched.map_or(Monotonic::NEVER, |watched| {
            let half = Duration::from_millis(watched.stuck_after_ms()) / 2;
            let wait = if self.pending.holds_status() { half.min(STATUS_WAIT) } else { half };
            self.pending.held_since.after(wait)
        })
    }

    /// Records signals that were held back, if it is time for that.
    pub(super) async fn record_held_back(&mut self, now: Monotonic) {
        if self.held_back_at() <= now {
            // What is not recorded is retried when a limit is due.
            let _ = self.record_all_held_back().await;
        }
    }

    /// If only signals that were held back show that `limit` is not breached, records them. Returns
    /// whether there were any.
    pub(super) async fn recorded_what_was_held_back(
        &mut self,
        limit: Limit,
    ) -> Result<bool, ActorError> {
        match limit {
            Limit::InactivityWarn | Limit::InactivityTimeout | Limit::ProgressTimeout => {
                self.record_all_held_back().await
            }
            _ => Ok(false),
        }
    }

    async fn record_all_held_back(&mut self) -> Result<bool, ActorError> {
        let at = self.shared.clock.wall();
        let held = std::mem::take(&mut self.pending.held_back);
        let of_running =
            |signal: &&HandlerSignal| self.entity.in_flight_handler(signal.dispatch).is_some();
        let signals = held.values().map(|(_, signal)| signal);
        let inputs = signals.filter(of_running).cloned().map(recorded_signal).collect();
        let (decided, _) = self.decide_all(inputs, at);
        if decided.events.is_empty() {
            return Ok(false);
        }
        let committed = self.commit(decided, Reservations::default(), at, None).await;
        if committed.is_err() {
            // Without them, the next evaluation would report inactivity that did not happen.
            self.pending.held_back = held;
        }
        committed.map(|_| true)
    }

    fn drop_signals(&self, many: usize) {
        let entity_type = self.entity.entity.entity_type();
        (0..many).for_each(|_| self.shared.telemetry.metrics.signal_dropped(entity_type));
    }
}

/// The input that records a signal of a handler.
fn recorded_signal(signal: HandlerSignal) -> Input {
    let HandlerSignal { dispatch, name, payload, .. } = signal;
    Input::Signal { name, from: None, dispatch: Some(dispatch), payload }
}

/// What to do with a signal.
enum SignalUse {
    Record(HandlerSignal),
    Publish(Event),
    TooLate,
}

/// A smaller form of an end that the journal will never take: without the parts whose size the
/// guest or a caller has chosen. A result that is left out becomes a failure.
fn reduced(end: &HandlerEnd, error: &journal::Error) -> HandlerEnd {
    tracing::error!(dispatch = %end.dispatch, %error, "the end cannot be recorded completely");
    let outcome = match &end.outcome {
        Outcome::Completed(_) | Outcome::Failed(_) => Outcome::Failed(Failure {
            kind: FailureKind::ResultTooLarge,
            message: format!("the handler's result cannot be recorded: {error}"),
            result: None,
        }),
        Outcome::TimedOut(exceeded) => {
            let backtrace = Vec::new();
            let exceeded = HandlerDeadlineExceeded { backtrace, ..(**exceeded).clone() };
            Outcome::TimedOut(Box::new(exceeded))
        }
        Outcome::Cancelled(cancellation) => {
            Outcome::Cancelled(Cancellation { reason: String::new(), ..cancellation.clone() })
        }
        // Their texts are short, and written by the host.
        other @ (Outcome::Trapped(_)
        | Outcome::Limit(_)
        | Outcome::Rejected(_)
        | Outcome::Interrupted) => other.clone(),
    };
    let recording =
        end.recording.as_ref().map(|_| Recorded::DecisionOnly("its end was too large".to_owned()));
    HandlerEnd { outcome, recording, account: None, ..end.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_before_the_retry_does_not_postpone_it() {
        let start = Monotonic::default();
        let mut pending = PendingRecords::default();
        pending.failed("disk full", start);
        let first = pending.retry_at();
        assert_eq!(first, Some(start.after(RETRY_FIRST)));
        pending.failed("disk full", start.after(RETRY_FIRST / 2));
        assert_eq!(pending.retry_at(), first);
        pending.try_again();
        pending.failed("disk full", start.after(RETRY_FIRST));
        assert_eq!(pending.retry_at(), Some(start.after(RETRY_FIRST * 3)), "it waits longer");
    }
}
