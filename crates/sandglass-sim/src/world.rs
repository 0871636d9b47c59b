//! The handlers of one process: guests that behave as the dice decide, each in a host that enforces
//! its deadline as the real host does.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{
    Ask, Busy, BusyScope, Calls, Cancellation, CancelledBy, Cause, Clock as _, Completion,
    DeadlineOwner, DeadlineReport, DispatchId, Dispatched, EntitySignal, FirstCause, FunctionCalls,
    HandlerDeadlineExceeded, HostCalls, Limit, Monotonic, Object, Outcome, Overrun, Rejection,
    RejectionKind, RunReport, TimeSplit,
};
use sandglass_runtime::{HandlerNow, HandlerRun, Handlers, Reserved, RunFuture, not_run};
use serde_json::json;
use tokio::sync::Notify;

use crate::automaton::PARTNER;
use crate::fault::Fault;
use crate::guest::{Ending, Guest, Move};
use crate::ledger::{Answer, Key, Truth};
use crate::scene::Process;
use crate::watchdog::WatchedClock;

/// The host function that reaches its time limit.
const SLOW_CALL: &str = "host_http_call";
const SLOW_CALL_LIMIT: Duration = Duration::from_millis(100);
const SLOW_CALL_TAKES: Duration = Duration::from_millis(101);

/// Runs handlers for the simulated process.
#[derive(Clone, Debug)]
pub(crate) struct World(Process);

/// A handler run that is in progress until this value is dropped.
struct Running {
    process: Process,
    key: Key,
    truth: Option<Truth>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.process.scene.ledger().runs.note_stop(self.key, self.truth);
    }
}

impl Handlers for World {
    fn reserve(&self, _: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        let scene = &self.0.scene;
        if !self.0.is_calm() && scene.guests.per_mille(scene.plan.busy) {
            let scope = if tenant == "small" { BusyScope::Tenant } else { BusyScope::Host };
            return Err(Busy { scope, limit: 1, retry_after_ms: scene.guests.within(1..=2_000) });
        }
        Ok(Reserved::of(()))
    }

    fn start(&self, run: HandlerRun) -> RunFuture {
        if !self.0.passes() {
            return Box::pin(std::future::pending());
        }
        if self.0.scene.has(Fault::DoubledDispatch) {
            self.0.scene.story().orphans.push(run.clone());
        }
        Box::pin(self.clone().run(run))
    }

    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        if self.0.scene.has(Fault::LostActivity) {
            return None;
        }
        let active = self.0.ledger().runs.last_call(dispatch)?;
        let active = Some((self.0.clock.now().since(active), active));
        Some(HandlerNow { place: "guest".to_owned(), since: Duration::ZERO, active })
    }

    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        self.0.scene.story().waiters.push((dispatch, Arc::clone(waiter)));
    }
}

impl World {
    pub(crate) const fn new(process: Process) -> Self {
        Self(process)
    }

    /// Starts the handlers of the previous process again, for the fault that starts handlers twice.
    pub(crate) fn run_orphans(&self) {
        let orphans = std::mem::take(&mut self.0.scene.story().orphans);
        for run in orphans {
            tokio::spawn(self.clone().run(run));
        }
    }

    fn run(self, run: HandlerRun) -> impl Future<Output = RunReport> + Send {
        let key = (run.dispatched.dispatch, run.dispatched.attempt);
        self.0.ledger().note_start(&run.entity, key);
        // Created with the future, so that the run counts as over even if the future is dropped
        // early.
        let mut running = Running { process: self.0.clone(), key, truth: None };
        async move {
            let guest = self.guest(&run);
            self.0.command().await;
            if self.0.scene.has(Fault::BusyTask) && self.0.scene.guests.per_mille(100) {
                let clock = WatchedClock::new(self.0.clone());
                loop {
                    clock.now();
                    tokio::task::yield_now().await;
                }
            }
            let (report, truth) = match self.queued(&run, &guest).await {
                Some(never_ran) => (never_ran, None),
                None => {
                    let can_be_killed = guest.can_be_killed();
                    let ended = self.hosted(&run, guest).await;
                    if can_be_killed {
                        self.0.ledger().check_kill(&run.entity);
                    }
                    ended
                }
            };
            running.truth = truth;
            self.0.command().await;
            drop(running);
            report
        }
    }

    fn guest(&self, run: &HandlerRun) -> Guest {
        let scene = &self.0.scene;
        let names = scene.story().names.clone();
        let budget_ms = u64::try_from(run.budget.as_millis()).unwrap_or(u64::MAX);
        Guest::generate(scene, &run.entity, &names, budget_ms, self.0.is_calm())
    }

    /// Waits for a slot. Returns a report if the handler is stopped or gets no slot in time.
    async fn queued(&self, run: &HandlerRun, guest: &Guest) -> Option<RunReport> {
        let may_ms = u64::try_from(run.schedule_to_start.as_millis()).unwrap_or(u64::MAX);
        tokio::select! {
            biased;
            request = run.stop.killed() => {
                let report = not_run(&run.dispatched, rejection("stopped"));
                let outcome = cancelled(request.cause, request.reason);
                Some(RunReport { outcome, cause: request.cause, ..report })
            }
            () = self.0.pause_ms(guest.queued_ms.min(may_ms)) => {
                let is_late = guest.queued_ms > may_ms || guest.ending == Ending::NotRun;
                let waited = Duration::from_millis(guest.queued_ms);
                let late = (guest.queued_ms > may_ms).then(|| {
                    Overrun::once(Limit::ScheduleToStartTimeout, run.schedule_to_start, waited)
                });
                is_late.then(|| RunReport {
                    overruns: late.into_iter().collect(),
                    ..not_run(&run.dispatched, rejection("no place in time"))
                })
            }
        }
    }

    /// Runs the guest within its deadline: the first cause that is named ends it.
    async fn hosted(&self, run: &HandlerRun, guest: Guest) -> (RunReport, Option<Truth>) {
        let clock = &self.0.clock;
        let (begun, started_at) = (clock.now(), clock.wall());
        let (ends_at, owner) = deadline(run, begun);
        let key = (run.dispatched.dispatch, run.dispatched.attempt);
        self.0.ledger().runs.note_deadline(key, started_at.after(ends_at.since(begun)));
        let unnoticed = guest.slow_calls;
        let (cause, returned) = self.raced(run, guest, (ends_at, at_deadline(owner))).await;
        let truth = Truth { cause, returned_at: returned.as_ref().map(|(at, _)| *at), ends_at };
        let deadline = DeadlineReport {
            budget_ms: millis(ends_at.since(begun)),
            elapsed_ms: millis(clock.now().since(begun)),
            overrun_us: 0,
            owner,
        };
        let (overruns, host_calls) = slow_calls(self.0.ledger().calls.of(key) + unnoticed);
        let mut report = RunReport {
            started_at: Some(started_at),
            deadline,
            cause,
            overruns,
            host_calls,
            ..not_run(&run.dispatched, rejection("unknown"))
        };
        let answer = returned.map(|(_, outcome)| outcome);
        self.end(&mut report, run, answer);
        (report, Some(truth))
    }

    /// Returns what ended a handler run, and when its guest returned with which outcome, if it did.
    async fn raced(
        &self,
        run: &HandlerRun,
        guest: Guest,
        (ends_at, at_deadline): (Monotonic, Cause),
    ) -> (Cause, Option<(Monotonic, Outcome)>) {
        let first = Arc::new(FirstCause::new());
        let naming = Arc::clone(&first);
        run.stop.on_kill(move |request| {
            naming.set(request.cause);
        });
        let can_be_killed = guest.can_be_killed();
        let is_graceful = guest.is_graceful && can_be_killed;
        let asked = Arc::new(Notify::new());
        let asking = Arc::clone(&asked);
        run.stop.on_stop_request(move || asking.notify_one());
        let mut returned = None;
        tokio::select! {
            // Polled in this order: a guest that returns at the very instant of the deadline is in
            // time.
            biased;
            outcome = self.guest_runs(run, guest, ends_at) => {
                let at = self.0.clock.now();
                first.set(if at > ends_at { at_deadline } else { ended_by(&outcome) });
                returned = Some((at, outcome));
            }
            _ = run.stop.killed(), if can_be_killed => {}
            () = asked.notified(), if is_graceful => {
                let at = self.0.clock.now();
                first.set(if at > ends_at { at_deadline } else { Cause::Returned });
                returned = Some((at, graceful_outcome()));
            }
            // The deadline kills a guest only after it has passed.
            () = self.0.until(ends_at.after(Duration::from_millis(1))), if can_be_killed => {
                first.set(at_deadline);
            }
        }
        (first.get().unwrap_or(at_deadline), returned)
    }

    /// Sets the outcome of a handler run that ended by the cause in `report`.
    fn end(&self, report: &mut RunReport, run: &HandlerRun, answer: Option<Outcome>) {
        let is_over = report.cause == at_deadline(report.deadline.owner);
        let takes_late = is_over && self.0.scene.has(Fault::LateSuccess);
        match answer {
            Some(outcome) if report.cause == ended_by(&outcome) || takes_late => {
                (report.cause, report.outcome) = (ended_by(&outcome), outcome);
            }
            _ if is_over => timed_out(report, run),
            _ => {
                let reason = run.stop.kill_request().map(|request| request.reason);
                report.outcome = cancelled(report.cause, reason.unwrap_or_default());
            }
        }
    }

    /// Runs the guest until its export returns.
    async fn guest_runs(&self, run: &HandlerRun, guest: Guest, ends_at: Monotonic) -> Outcome {
        for one in guest.moves {
            match one {
                Move::Wait(millis) => self.0.pause_ms(millis).await,
                Move::Signal(what) => self.send_signal(run, what),
                Move::Call(millis) => {
                    self.note_call(run);
                    self.0.pause_ms(millis).await;
                    self.note_call(run);
                }
                Move::SlowCall => self.slow_call(run).await,
                Move::SignalTo(target) => {
                    let (id, _) = self.0.scene.new_request();
                    let payload = json!({ "request": id });
                    let signal = EntitySignal { target, name: PARTNER.to_owned(), payload };
                    let sent = run.asks.clone().signal(signal).await;
                    if sent.is_ok() && !self.0.has_crashed() {
                        self.0.ledger().note_answer(id, Answer::Accepted(None));
                    }
                }
                Move::Ask(ask) => {
                    let (id, params) = self.0.scene.new_request();
                    let dispatched = &run.dispatched;
                    let nth = 1_000 + u32::try_from(id).unwrap_or(0);
                    let trace = dispatched.trace.of_dispatch(dispatched.dispatch, nth);
                    let (target, action, until) = *ask;
                    let ask = Ask { target, action, params, until, not_after: ends_at, trace };
                    let answer = run.asks.clone().ask(ask).await;
                    if answer.is_ok() && !self.0.has_crashed() {
                        self.0.ledger().note_answer(id, Answer::Accepted(None));
                    }
                }
            }
        }
        match guest.ending {
            Ending::Answer(outcome) => outcome,
            Ending::ReturnAt { after_deadline_ms, outcome } => {
                let at = ends_at.after(Duration::from_millis(after_deadline_ms));
                self.0.until(at).await;
                outcome
            }
            Ending::ReturnNear(outcome) => {
                let just_before = ends_at.as_nanos().saturating_sub(1_000_000);
                self.0.until(Monotonic::from_nanos(just_before)).await;
                outcome
            }
            Ending::Hang | Ending::NotRun => std::future::pending().await,
            // Like a panicking host, but without the panic hook, which would print a message.
            Ending::Panic => {
                self.0.ledger().spawns.note_panic(&run.entity);
                std::panic::resume_unwind(Box::new("the dice say so"))
            }
        }
    }

    /// The guest makes a host call that its own time limit ends. In a coarse world, all times but
    /// this one are whole seconds, so the call takes none of it.
    async fn slow_call(&self, run: &HandlerRun) {
        self.note_call(run);
        let took = if self.0.scene.plan.is_coarse { Duration::ZERO } else { SLOW_CALL_TAKES };
        self.0.pause_ms(millis(took)).await;
        self.note_call(run);
        let key = (run.dispatched.dispatch, run.dispatched.attempt);
        self.0.ledger().calls.note(key);
        let times = if self.0.scene.has(Fault::DoubledCall) { 2 } else { 1 };
        for _ in 0..times {
            let at = self.0.clock.wall();
            run.signals.call_timed_out(SLOW_CALL, SLOW_CALL_LIMIT, SLOW_CALL_TAKES, at);
        }
    }

    /// A host call of the guest begins or ends.
    fn note_call(&self, run: &HandlerRun) {
        let dispatch = run.dispatched.dispatch;
        let (now, at) = (self.0.clock.now(), self.0.clock.wall());
        self.0.ledger().runs.note_call((dispatch, run.dispatched.attempt), now, at);
        let mut story = self.0.scene.story();
        let (woken, others) =
            std::mem::take(&mut story.waiters).into_iter().partition(|(of, _)| *of == dispatch);
        story.waiters = others;
        drop(story);
        let woken: Vec<(DispatchId, Arc<Notify>)> = woken;
        woken.iter().for_each(|(_, waiter)| waiter.notify_one());
    }

    fn send_signal(&self, run: &HandlerRun, what: &'static str) {
        let at = self.0.clock.wall();
        let mut ledger = self.0.ledger();
        let state = ledger.entity(&run.entity).map(|entity| entity.state.clone());
        ledger.old_rule.note_signal(&run.entity, &state.unwrap_or_default(), what, at);
        drop(ledger);
        // The entity may be too busy to take the signal, which is not an error.
        let _ = run.signals.send(what, json!({ "done": 1 }));
    }
}

/// The cause of an end that the guest reached on its own.
const fn ended_by(outcome: &Outcome) -> Cause {
    match outcome {
        Outcome::Trapped(_) | Outcome::Limit(_) => Cause::Trap,
        _ => Cause::Returned,
    }
}

/// What a guest returns if it stops gracefully.
fn graceful_outcome() -> Outcome {
    Outcome::Completed(Completion {
        action: Some("Done0".to_owned()),
        params: Object::new(),
        result: json!({ "success": true }),
    })
}

/// What a report contains about host calls that reached their own time limit `times` times.
fn slow_calls(times: u64) -> (Vec<Overrun>, HostCalls) {
    if times == 0 {
        return Default::default();
    }
    let overrun = Overrun {
        host_call: Some(SLOW_CALL.into()),
        times,
        ..Overrun::once(Limit::HostCallTimeout, SLOW_CALL_LIMIT, SLOW_CALL_TAKES)
    };
    let total_us = millis(SLOW_CALL_TAKES) * 1_000 * times;
    let function = FunctionCalls {
        name: SLOW_CALL.into(),
        count: times,
        total_us,
        in_flight: false,
        failed: Calls::default(),
        timed_out: Calls { count: times, total_us },
        parked: Calls::default(),
    };
    (vec![overrun], HostCalls { count: times, by_function: vec![function] })
}

/// When a handler run that begins now must end, and whose deadline that is. If both deadlines fall
/// on one instant, its own counts.
pub(crate) fn deadline(run: &HandlerRun, begun: Monotonic) -> (Monotonic, DeadlineOwner) {
    let own = begun.after(run.budget);
    match run.not_after {
        Some(parent) if parent < own => (parent.max(begun), DeadlineOwner::Parent),
        _ => (own, DeadlineOwner::Handler),
    }
}

pub(crate) const fn at_deadline(owner: DeadlineOwner) -> Cause {
    match owner {
        DeadlineOwner::Handler => Cause::Deadline,
        DeadlineOwner::Parent => Cause::ParentDeadline,
    }
}

pub(crate) fn timed_out(report: &mut RunReport, run: &HandlerRun) {
    let DeadlineReport { budget_ms, elapsed_ms, owner, .. } = report.deadline;
    report.deadline.overrun_us = elapsed_ms.saturating_sub(budget_ms) * 1_000;
    let dispatched = &run.dispatched;
    report.outcome = Outcome::TimedOut(Box::new(HandlerDeadlineExceeded {
        integration: dispatched.integration.clone(),
        entity_type: run.entity.entity_type().to_owned(),
        entity_id: run.entity.id().to_owned(),
        action: dispatched.action.clone(),
        attempt: dispatched.attempt,
        budget_ms,
        elapsed_ms,
        overrun_us: report.deadline.overrun_us,
        owner,
        dying_span: "guest".to_owned(),
        dying_call: None,
        backtrace: Vec::new(),
        host_calls: HostCalls::default().count,
        time_split_us: TimeSplit::default(),
        trace_id: dispatched.trace.trace_id,
    }));
}

pub(crate) fn cancelled(cause: Cause, reason: String) -> Outcome {
    Outcome::Cancelled(Cancellation { by: CancelledBy::of(cause), reason, dying_span: None })
}

fn rejection(message: &str) -> Rejection {
    Rejection { kind: RejectionKind::HostUnavailable, message: message.to_owned() }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
