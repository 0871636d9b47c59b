//! Decisions about sessions: a run starts, stops or resumes, and what follows for it from all other
//! decisions about its entity.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::id::{NAME_MAX_BYTES, check_name};
use sandglass_model::report::OVERRUNS_MAX;
use sandglass_model::session::STOP_REASON_MAX_BYTES;
use sandglass_model::signature::CALL_TIMED_OUT;
use sandglass_model::{
    Cancellation, CancelledBy, DeadlineOwner, Directive, DispatchId, Dispatched, Doing, Ended,
    Event, HandlerEnd, LastSignal, Limit, LimitBreached, Outcome, Overrun, RulesVersion, RunLimits,
    RunStopped, RunStopping, Scope, Signature, StopCause, WallTime,
};

use super::commands::handler_cause;
use super::{CALLS_RECORDED_MAX, Input, Refusal, TimedOutCall};
use crate::entity::Entity;
use crate::session::{
    RunPhase, Session, Watched, counts_by_itself, failed_calls, threshold_and_anchor,
};
use crate::spec::{Counted, Spec};

/// Errors if the run of the session does not admit `input`. After the run has stopped, only the ends
/// of its handlers are admitted.
pub(super) fn check_admitted(spec: &Spec, entity: &Entity, input: &Input) -> Result<(), Refusal> {
    let Some(session) = entity.session() else { return Ok(()) };
    match input {
        // One more handler would stop the run, which is not what a retry is for.
        Input::Retry(retry) => {
            session.require_running()?;
            // An integration that continues another one's work is not bounded.
            match spec.counted(&retry.dispatched.integration) {
                Counted::Continuation => Ok(()),
                Counted::Handler | Counted::Turn => has_room(session),
            }
        }
        Input::Action { .. } | Input::StateIdle { .. } | Input::ScheduleDue { .. } => {
            session.require_running()
        }
        _ => Ok(()),
    }
}

fn has_room(session: &Session) -> Result<(), Refusal> {
    match session.limits.max_handler_runs {
        Some(max) if session.handler_runs >= max => Err(Refusal::NoHandlerRunLeft { max }),
        _ => Ok(()),
    }
}

fn session(entity: &Entity) -> Result<&Session, Refusal> {
    entity.session().ok_or(Refusal::NoSession)
}

/// Records the first run.
pub(super) fn start(entity: &Entity, limits: RunLimits) -> Result<Vec<Event>, Refusal> {
    match entity.session() {
        None => Ok(vec![Event::RunStarted { run_seq: 1, limits }]),
        Some(session) => Err(Refusal::StillRunning { run_seq: session.run_seq }),
    }
}

/// A request to resume a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resume {
    /// The name of the operator.
    pub by: String,
    /// Why; may be empty.
    pub reason: String,
    /// The run that the operator saw stop; `None` for any.
    pub expected_run: Option<u32>,
    /// The limits of the next run.
    pub limits: RunLimits,
}

/// Starts the next run, with what the last one left to do.
pub(super) fn resume(spec: &Spec, entity: &Entity, resume: &Resume) -> Result<Vec<Event>, Refusal> {
    let session = session(entity)?;
    check_name("name of who resumes", &resume.by, NAME_MAX_BYTES).map_err(Refusal::BadPrincipal)?;
    reason_fits(&resume.reason)?;
    expected(session, resume.expected_run)?;
    match &session.phase {
        RunPhase::Running => Err(Refusal::StillRunning { run_seq: session.run_seq }),
        RunPhase::Stopped(_) if session.is_blocked() => {
            let (by, reason) = (Some(resume.by.clone()), resume.reason.clone());
            Ok(resumed(spec, entity, session, resume.limits, by, reason))
        }
        RunPhase::Stopping { .. } | RunPhase::Stopped(_) => {
            session.require_running().map(|()| Vec::new())
        }
    }
}

/// The records of the next run: held handlers are dispatched again.
fn resumed(
    spec: &Spec,
    entity: &Entity,
    session: &Session,
    limits: RunLimits,
    by: Option<String>,
    reason: String,
) -> Vec<Event> {
    let next = next_run(session, limits, by, reason, false);
    let held = session.held().iter();
    let dispatched =
        held.map(|held| Event::Dispatched(Box::new(dispatch_again(spec, entity, held))));
    next.into_iter().chain(dispatched).collect()
}

/// The records that the next run begins with.
fn next_run(
    session: &Session,
    limits: RunLimits,
    by: Option<String>,
    reason: String,
    to_cancel: bool,
) -> [Event; 2] {
    let (from_run_seq, run_seq) = (session.run_seq, session.run_seq.saturating_add(1));
    let resumed = Event::SessionResumed { from_run_seq, run_seq, by, reason, to_cancel };
    [resumed, Event::RunStarted { run_seq, limits }]
}

/// The dispatch of a handler that was stopped with its run, for the next run.
fn dispatch_again(spec: &Spec, entity: &Entity, held: &Dispatched) -> Dispatched {
    let attempt = held.attempt.saturating_add(1);
    let integration = spec.integrations.get(&held.integration);
    let budget_ms = match (held.owner, integration) {
        // An asker's remaining time no longer applies once it stopped waiting. Version 1 of the
        // rules kept it.
        (DeadlineOwner::Parent, Some(integration)) if spec.rules >= RulesVersion::V2 => {
            integration.budget_for(&held.params)
        }
        _ => held.budget_ms,
    };
    Dispatched {
        budget_ms,
        spec: Some(entity.spec),
        expected: Some(entity.sequence),
        attempt,
        // Its asker got an answer long ago.
        owner: DeadlineOwner::Handler,
        asker: None,
        depth: 0,
        retried: None,
        trace: held.trace.of_dispatch(held.dispatch, attempt),
        ..held.clone()
    }
}

fn expected(session: &Session, expected: Option<u32>) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != session.run_seq => {
            Err(Refusal::NotTheRun { expected, run_seq: session.run_seq })
        }
        _ => Ok(()),
    }
}

fn reason_fits(reason: &str) -> Result<(), Refusal> {
    if reason.len() > STOP_REASON_MAX_BYTES {
        return Err(Refusal::TooLarge { what: "reason", max: STOP_REASON_MAX_BYTES });
    }
    Ok(())
}

/// Stops the run `run_seq`, or the present one.
pub(super) fn stop(
    spec: &Spec,
    entity: &Entity,
    run_seq: Option<u32>,
    cause: &StopCause,
    now: WallTime,
) -> Result<Vec<Event>, Refusal> {
    let session = session(entity)?;
    if let StopCause::Operator { by, reason } = cause {
        check_name("name of who stops it", by, NAME_MAX_BYTES).map_err(Refusal::BadPrincipal)?;
        reason_fits(reason)?;
    }
    if let StopCause::Parent { reason, .. } = cause {
        reason_fits(reason)?;
    }
    expected(session, run_seq)?;
    if let (StopCause::Operator { by, reason }, true) = (cause, session.is_blocked()) {
        return Ok(cancelled(spec, entity, session, (by, reason), now));
    }
    session.require_running()?;
    Ok(vec![stopping(spec, session, cause.clone())])
}

/// An operator cancels a session that waits to be resumed: its next run begins with the held
/// handlers, and is stopped before any of them starts, so that each has its ending.
fn cancelled(
    spec: &Spec,
    entity: &Entity,
    session: &Session,
    (by, reason): (&str, &str),
    now: WallTime,
) -> Vec<Event> {
    let cause = StopCause::Operator { by: by.to_owned(), reason: reason.to_owned() };
    let next = next_run(session, *session.limits, Some(by.to_owned()), reason.to_owned(), true);
    let mut after = entity.clone();
    let mut events = Vec::new();
    let mut push = |after: &mut Entity, event: Event| {
        after.apply(spec, &event, now);
        events.push(event);
    };
    next.into_iter().for_each(|event| push(&mut after, event));
    if let Some(session) = after.session() {
        let stopping = stopping(spec, session, cause.clone());
        push(&mut after, stopping);
    }
    for held in session.held() {
        let dispatched = dispatch_again(spec, &after, held);
        let dispatch = dispatched.dispatch;
        push(&mut after, Event::Dispatched(Box::new(dispatched)));
        let Some(end) =
            after.in_flight_handler(dispatch).map(|run| cancelled_end(&run.dispatched, &cause))
        else {
            continue;
        };
        // It has just been dispatched, so nothing refuses its end. Guards of its action see no other entity,
        // because the record of this decision has no place for states.
        let known = super::Known::default();
        let ended = super::ending::decide(spec, &after, &end, now, known).unwrap_or_default();
        ended.into_iter().for_each(|event| push(&mut after, event));
    }
    events
}

/// The end of a handler that never starts, because `cause` has stopped its session.
fn cancelled_end(dispatched: &Dispatched, cause: &StopCause) -> Arc<HandlerEnd> {
    let (cause, reason) = handler_cause(cause);
    let by = CancelledBy::of(cause);
    let outcome = Outcome::Cancelled(Cancellation { by, reason, dying_span: None });
    Arc::new(HandlerEnd::unreported(dispatched, outcome, cause))
}

fn stopping(spec: &Spec, session: &Session, cause: StopCause) -> Event {
    Event::RunStopping(Box::new(RunStopping {
        run_seq: session.run_seq,
        stop_reason_code: cause.code().to_owned(),
        directive: directive(&cause, retries_left(spec, session, &cause)),
        grace_ms: if cause.has_grace() { session.limits.abort_timeout_ms } else { 0 },
        cause,
    }))
}

fn retries_left(spec: &Spec, session: &Session, cause: &StopCause) -> u64 {
    let Some(limit) = cause.limit() else { return 0 };
    let budget = spec.limits.as_ref().and_then(|limits| limits.retries.get(&limit));
    budget.copied().unwrap_or(0).saturating_sub(session.retried(limit))
}

/// What happens to a session whose run is stopped by `cause`, if it may be retried this often by
/// itself.
#[must_use]
pub const fn directive(cause: &StopCause, retries_left: u64) -> Directive {
    match cause {
        StopCause::Limit { .. } if retries_left > 0 => Directive::Retry,
        StopCause::Limit { limit: Limit::RunTimeout } | StopCause::Shutdown => Directive::Wait,
        StopCause::Limit { limit: Limit::ProgressTimeout } => Directive::Unstuck,
        StopCause::Limit { .. }
        | StopCause::Operator { .. }
        | StopCause::Parent { .. }
        | StopCause::Trap
        | StopCause::Completion => Directive::Cancel,
    }
}

/// Whether the run of `entity` works only for the handler `asker`, so that it ends with the session
/// of that handler: its author has declared that, and everything in flight was asked for by that
/// handler or follows from it.
#[must_use]
pub fn works_only_for(spec: &Spec, entity: &Entity, asker: DispatchId) -> bool {
    let stops_with_it = spec.limits.as_ref().is_some_and(|limits| limits.stop_with_parent);
    // A session with nothing in flight has no handler that the parent waits for.
    stops_with_it
        && !entity.is_settled()
        && entity.session().is_some_and(Session::is_running)
        && entity.in_flight().iter().all(|run| run.dispatched.asker == Some(asker))
}

/// A limit on time is breached.
pub(super) fn limit_due(
    spec: &Spec,
    entity: &Entity,
    (limit, observed_ms): (Limit, u64),
    (doing, active): (Option<&Doing>, Option<&LastSignal>),
    now: WallTime,
) -> Result<Vec<Event>, Refusal> {
    let watched = watched(entity)?;
    let has_work = !entity.is_settled();
    let (threshold, _) =
        threshold_and_anchor(watched, has_work, limit).ok_or(Refusal::StaleTimer)?;
    if observed_ms <= threshold {
        return Err(Refusal::NotIdleYet { idle_ms: observed_ms, after_ms: threshold });
    }
    let cause = StopCause::Limit { limit };
    let stops = watched.session().filter(|_| limit.stops_runs());
    let stopping = stops.map(|session| stopping(spec, session, cause));
    let breach = Breach {
        doing: doing.cloned(),
        active: active.filter(|active| active.at > watched.active_since()).cloned(),
        ..Breach::of(limit, threshold, observed_ms)
    };
    Ok(std::iter::once(breach.recorded(entity, watched, now)).chain(stopping).collect())
}

/// A host call of a handler shows activity: it ends an inactivity that was warned of.
pub(super) fn active(entity: &Entity, signal: &LastSignal) -> Result<Vec<Event>, Refusal> {
    let watched = watched(entity)?;
    if !watched.is_running() || !watched.is_silent() || signal.at <= watched.active_since() {
        return Err(Refusal::StaleTimer);
    }
    Ok(vec![limit_cleared(watched, signal.at, Some(Box::new(signal.clone())))])
}

/// A host call of a handler in flight reached its own time limit. It is recorded at once, so that a
/// crash of the host does not lose it.
pub(super) fn call_timed_out(
    spec: &Spec,
    entity: &Entity,
    call: &TimedOutCall,
    now: WallTime,
) -> Result<Vec<Event>, Refusal> {
    let session = session(entity)?;
    let dispatch = call.dispatch;
    let run = entity.in_flight_handler(dispatch).ok_or(Refusal::UnknownDispatch { dispatch })?;
    // Earlier versions of the rules recorded all of them with the end.
    let is_recorded = spec.rules >= RulesVersion::V3
        && run.recorded_calls.count() < CALLS_RECORDED_MAX
        && call.observed_ms > call.threshold_ms;
    if !is_recorded {
        return Err(Refusal::RecordedAtTheEnd { dispatch });
    }
    let (handler, host_call) = (run.dispatched.integration.clone(), Some(call.host_call.clone()));
    let breach = Breach {
        doing: Some(Doing { handler, host_call, since: call.since }),
        dispatch: Some(dispatch),
        ..Breach::of(Limit::HostCallTimeout, call.threshold_ms, call.observed_ms)
    };
    Ok(vec![breach.recorded(entity, session.into(), now)])
}

/// The session of `entity`, or its handlers.
fn watched(entity: &Entity) -> Result<Watched<'_>, Refusal> {
    entity.watched().ok_or(Refusal::NoSession)
}

/// The record that the inactivity of `watched` has ended `at`; by `last_signal`, if no record shows
/// that.
fn limit_cleared(
    watched: Watched<'_>,
    at: WallTime,
    last_signal: Option<Box<LastSignal>>,
) -> Event {
    Event::LimitCleared {
        run_seq: watched.session().map(|session| session.run_seq),
        limit: Limit::InactivityWarn,
        silent_ms: millis_between(watched.active_since(), at),
        last_signal,
    }
}

fn millis_between(from: WallTime, to: WallTime) -> u64 {
    u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX)
}

/// A measured breach.
struct Breach {
    limit: Limit,
    threshold: u64,
    observed: u64,
    doing: Option<Doing>,
    /// Activity later than any that the records show.
    active: Option<LastSignal>,
    times: u64,
    /// The dispatch of a host call whose handler is still running.
    dispatch: Option<DispatchId>,
    /// What is repeated.
    signature: Option<Signature>,
}

impl Breach {
    const fn of(limit: Limit, threshold: u64, observed: u64) -> Self {
        let (doing, active, dispatch, signature) = (None, None, None, None);
        Self { limit, threshold, observed, doing, active, times: 1, dispatch, signature }
    }

    /// Its record.
    fn recorded(self, entity: &Entity, watched: Watched<'_>, at: WallTime) -> Event {
        let Self { limit, threshold, observed, doing, active, times, dispatch, signature } = self;
        let session = watched.session();
        Event::LimitBreached(Box::new(LimitBreached {
            session: session.map(|_| entity.entity.clone()),
            run_seq: session.map(|session| session.run_seq),
            scope: session.map_or(Scope::Handler, |_| limit.scope()),
            limit,
            kind: limit.meter(),
            threshold,
            observed,
            at,
            last_signal: active.or_else(|| watched.last_signal().cloned()),
            in_flight: doing,
            action: limit.action(),
            times,
            dispatch,
            signature,
        }))
    }
}

/// Applies the rules of the session to `events`, which its entity has decided: returns them with the
/// records that its limits and its run add. If the entity is not a session, the only such record is
/// that an inactivity of its handlers has ended.
pub(super) fn apply_session_rules(
    spec: &Spec,
    entity: &Entity,
    events: Vec<Event>,
    now: WallTime,
) -> (Vec<Event>, Option<Entity>) {
    // Most entities that are not sessions are spared the copy.
    if entity.session().is_none() && !entity.watched().is_some_and(Watched::is_silent) {
        return (events, None);
    }
    let ended = events.iter().filter_map(|event| match event {
        Event::Ended(ended) => Some((ended.dispatch, ended.attempt)),
        _ => None,
    });
    let mut supervision = Supervision {
        spec,
        after: entity.clone(),
        now,
        has_trapped: false,
        has_completed: false,
        ended: ended.collect(),
        decided: Vec::new(),
    };
    events.into_iter().for_each(|event| supervision.take(event));
    supervision.conclude();
    (supervision.decided, Some(supervision.after))
}

struct Supervision<'a> {
    spec: &'a Spec,
    after: Entity,
    now: WallTime,
    /// Whether a handler trapped.
    has_trapped: bool,
    /// Whether a handler completed.
    has_completed: bool,
    /// The attempts whose ends are among the records.
    ended: Vec<(DispatchId, u32)>,
    decided: Vec<Event>,
}

impl Supervision<'_> {
    fn take(&mut self, event: Event) {
        if let Event::Dispatched(dispatched) = &event {
            self.hold_to_bounds(dispatched);
        }
        let cleared = self.cleared_by(&event);
        let breaches = self.breaches_of_end(&event);
        let failed_by = self.failed_by(&event);
        let dispatched = match &event {
            // If its end is among the records, it needs no other.
            Event::Dispatched(dispatched)
                if !self.ended.contains(&(dispatched.dispatch, dispatched.attempt)) =>
            {
                Some(dispatched.dispatch)
            }
            _ => None,
        };
        self.push(event);
        cleared.into_iter().for_each(|event| self.push(event));
        breaches.into_iter().for_each(|breach| self.breach(breach));
        failed_by.iter().for_each(|signature| self.note_repeat(signature));
        let is_running = self.after.session().is_none_or(Session::is_running);
        if let (Some(dispatch), false) = (dispatched, is_running)
            && let Some(run) = self.after.in_flight_handler(dispatch)
        {
            let end = super::ending::end_unstarted(&self.after, run);
            self.push(end);
        }
    }

    fn push(&mut self, event: Event) {
        self.after.apply(self.spec, &event, self.now);
        self.decided.push(event);
    }

    fn breach(&mut self, breach: Breach) {
        if let Some(session) = self.after.session() {
            let event = breach.recorded(&self.after, session.into(), self.now);
            self.push(event);
        }
    }

    /// Stops the run if `dispatched` is one handler more than the run may start, before it is
    /// dispatched.
    fn hold_to_bounds(&mut self, dispatched: &Dispatched) {
        let Some(session) = self.after.session().filter(|session| session.is_running()) else {
            return;
        };
        let limits = &session.limits;
        let is_run = session.is_handler_run(self.spec, dispatched);
        let is_turn = session.is_iteration(self.spec, dispatched);
        let most_runs = limits.max_handler_runs.filter(|_| is_run);
        let most_turns = limits.max_loop_iterations.filter(|_| is_turn);
        let bounds = [
            (Limit::MaxHandlerRuns, most_runs, session.handler_runs),
            (Limit::MaxLoopIterations, most_turns, session.loop_iterations),
        ];
        let over = bounds.into_iter().find_map(|(limit, most, so_far)| {
            most.filter(|most| so_far >= *most).map(|most| (limit, most, so_far.saturating_add(1)))
        });
        let Some((limit, threshold, observed)) = over else { return };
        let stopping = stopping(self.spec, session, StopCause::Limit { limit });
        self.breach(Breach::of(limit, threshold, observed));
        self.push(stopping);
    }

    fn cleared_by(&self, event: &Event) -> Option<Event> {
        let watched = self.after.watched()?;
        let is_broken = watched.is_broken_by(self.spec, &self.after, event);
        is_broken.then(|| limit_cleared(watched, self.now, None))
    }

    /// The breaches of a handler's limits, if `event` is its end: those of its calls, and of its
    /// own deadline.
    fn breaches_of_end(&mut self, event: &Event) -> Vec<Breach> {
        let Event::Ended(ended) = event else { return Vec::new() };
        self.has_trapped |= matches!(ended.outcome, Outcome::Trapped(_));
        self.has_completed |= matches!(ended.outcome, Outcome::Completed(_));
        let Some(run) = self.after.in_flight_handler(ended.dispatch) else { return Vec::new() };
        let handler = &run.dispatched.integration;
        // As many as a report may contain; a record with more is forged.
        let inside = ended.overruns.iter().take(OVERRUNS_MAX);
        let inside = inside.filter_map(|overrun| run.recorded_calls.unrecorded(overrun));
        let inside = inside.map(|overrun| breach_inside(handler, ended, &overrun, self.now));
        let by_itself = match &ended.outcome {
            Outcome::TimedOut(exceeded) => Some(Breach {
                doing: Some(Doing {
                    handler: handler.clone(),
                    host_call: Some(exceeded.dying_span.clone()),
                    since: ended.started_at.unwrap_or(self.now),
                }),
                ..Breach::of(Limit::Deadline, exceeded.budget_ms, exceeded.elapsed_ms)
            }),
            _ => None,
        };
        inside.chain(by_itself).collect()
    }

    /// The signatures of what failed by `event`: of the host calls of a handler that has ended, and
    /// of the handler itself, or of one call of a handler that is running.
    fn failed_by(&self, event: &Event) -> Vec<Signature> {
        let entity = &self.after.entity;
        let run_of = |dispatch| self.after.in_flight_handler(dispatch);
        match event {
            Event::Ended(ended) => {
                let Some(run) = run_of(ended.dispatch) else { return Vec::new() };
                let (dispatched, recorded) = (&run.dispatched, &run.recorded_calls);
                let calls = failed_calls(entity, dispatched, ended, recorded);
                let own = Signature::of(entity, dispatched, ended);
                let own = own.filter(|_| counts_by_itself(self.spec, ended));
                calls.map(|(signature, _)| signature).chain(own).collect()
            }
            Event::LimitBreached(breach) => {
                let call = breach.call_of_running();
                let failed = call.and_then(|(dispatch, host_call)| {
                    let dispatched = &run_of(dispatch)?.dispatched;
                    Some(Signature::of_calls(entity, dispatched, host_call, CALL_TIMED_OUT))
                });
                failed.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// Records that a failure was repeated, once it has occurred often enough.
    fn note_repeat(&mut self, signature: &Signature) {
        let Some(session) = self.after.session() else { return };
        let Some(threshold) = session.limits.repeat_threshold else { return };
        let known = session.failures().iter().find(|known| known.signature == *signature);
        let Some(observed) = known.map(|known| known.count) else { return };
        if observed >= threshold {
            // A threshold is the largest allowed number, as with every limit.
            let threshold = threshold.saturating_sub(1);
            let breach = Breach::of(Limit::RepeatThreshold, threshold, observed);
            self.breach(Breach { signature: Some(signature.clone()), ..breach });
        }
    }

    /// Concludes: the run has stopped, and if it has to be retried, another one begins.
    fn conclude(&mut self) {
        let Some(session) = self.after.session() else { return };
        if !self.after.is_settled() {
            return;
        }
        let (cause, directive) = match &session.phase {
            RunPhase::Stopped(_) => return,
            // A session that has come to its end during its grace can neither be resumed nor counts
            // as cancelled.
            RunPhase::Stopping { stopping, .. }
                if self.spec.is_terminal(&self.after.state)
                    && (self.has_completed || stopping.directive.goes_on()) =>
            {
                (StopCause::Completion, None)
            }
            RunPhase::Stopping { stopping, .. } => {
                (stopping.cause.clone(), Some(stopping.directive))
            }
            RunPhase::Running if self.spec.is_terminal(&self.after.state) => {
                let cause = if self.has_trapped { StopCause::Trap } else { StopCause::Completion };
                (cause, None)
            }
            RunPhase::Running => return,
        };
        let least = session.limits.repeat_threshold.unwrap_or(u64::MAX);
        let stopped = RunStopped {
            run_seq: session.run_seq,
            stop_reason_code: cause.code().to_owned(),
            cause,
            directive,
            elapsed_ms: millis_between(session.run_started, self.now),
            signature: session.top_failure(least),
        };
        self.push(Event::RunStopped(Box::new(stopped)));
        if directive == Some(Directive::Retry)
            && let Some(session) = self.after.session()
        {
            let events =
                resumed(self.spec, &self.after, session, *session.limits, None, String::new());
            events.into_iter().for_each(|event| self.take(event));
        }
    }
}

/// A breach by a call of `handler`, whose end is `ended`, recorded at `now`.
fn breach_inside(handler: &str, ended: &Ended, overrun: &Overrun, now: WallTime) -> Breach {
    let Overrun { limit, host_call, started_us, threshold_ms, observed_ms, times } = overrun;
    let since = match ended.started_at {
        Some(started) => started.after(Duration::from_micros(*started_us)),
        // It never started, and has waited until now.
        None => now.before(Duration::from_millis(*observed_ms)),
    };
    let host_call = host_call.as_ref().map(ToString::to_string);
    Breach {
        doing: Some(Doing { handler: handler.to_owned(), host_call, since }),
        times: *times,
        ..Breach::of(*limit, *threshold_ms, *observed_ms)
    }
}
