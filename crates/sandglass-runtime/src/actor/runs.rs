//! The handlers of one entity that execute: each on a task of its own, with the handle that stops
//! it. Dropping this drops their futures.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use sandglass_liveness::decide::IN_FLIGHT_MAX;
use sandglass_liveness::session::recovery;
use sandglass_liveness::spec::Integration;
use sandglass_liveness::{Entity, Spec};
use sandglass_model::{
    Busy, Cause, DeadlineOwner, DispatchId, Dispatched, EntityRef, Outcome, Rejection,
    RejectionKind, RunReport, TraceContext,
};
use sandglass_telemetry::metrics::DispatchEnded;
use tokio::sync::mpsc;
use tokio::task::{self, JoinSet};

use super::{Handle, Message};
use crate::asking::{Asking, ParentBudget, WaitingAsker};
use crate::handlers::{HandlerRun, HostCallLimits, Reserved, Stop, lost, stopped};
use crate::panics::{CatchPanic, catch_panic};
use crate::serving::Origin;
use crate::shared::Shared;
use crate::signals::{Sent, SignalQueue, Signals};
use crate::timer;

/// Signals of one entity's handlers that may wait: one of each handler that may be in flight. More
/// are dropped and counted, because sending never waits.
pub const SIGNAL_QUEUE_MAX: usize = IN_FLIGHT_MAX;

/// The handles that stop an entity's handlers, also without waiting for its mailbox.
#[derive(Clone, Default)]
pub(crate) struct Stops(Arc<Mutex<BTreeMap<DispatchId, Stop>>>);

impl Stops {
    /// Kills the handler of `dispatch`, or all of them, and returns how many that were.
    pub(crate) fn kill(&self, of: Option<DispatchId>, cause: Cause, reason: &str) -> usize {
        let chosen = self.chosen(of);
        chosen.iter().for_each(|stop| stop.kill(cause, reason));
        chosen.len()
    }

    /// Sets why the session of the handlers is over.
    pub(crate) fn set_session_over(&self, why: &str) {
        let why: Arc<str> = why.into();
        self.lock().values().for_each(|stop| stop.set_session_over(&why));
    }

    /// Requests that the handler of `dispatch`, or all of them, stop gracefully.
    pub(crate) fn request_stop(&self, of: Option<DispatchId>) {
        self.chosen(of).iter().for_each(Stop::request_stop);
    }

    /// Copies, because callbacks of a stop must not be called under the lock.
    fn chosen(&self, of: Option<DispatchId>) -> Vec<Stop> {
        let stops = self.lock();
        let chosen = stops.iter().filter(|(dispatch, _)| of.is_none_or(|of| of == **dispatch));
        chosen.map(|(_, stop)| stop.clone()).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<DispatchId, Stop>> {
        // No code between two changes of one critical section can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handler that has to be started.
pub(super) struct Starting {
    pub(super) dispatched: Arc<Dispatched>,
    pub(super) reserved: Reserved,
    pub(super) parent_budget: ParentBudget,
    /// The span of the transition that dispatched it.
    pub(super) parent: Option<TraceContext>,
}

/// A handler that has ended.
#[derive(Debug)]
pub(super) struct EndedHandler {
    pub(super) attempt: u32,
    pub(super) report: RunReport,
}

/// The handlers of one entity that execute: at most [`IN_FLIGHT_MAX`], which decisions enforce.
pub(super) struct Runs {
    tasks: JoinSet<EndedHandler>,
    /// What each task executes, for the report of one that is lost.
    running: HashMap<task::Id, Arc<Dispatched>>,
    pub(super) stops: Stops,
    /// The budget that waiting askers leave each attempt, until its end is recorded.
    parent_budgets: BTreeMap<(DispatchId, u32), ParentBudget>,
    signals: mpsc::Receiver<Sent>,
    signal_queue: SignalQueue,
}

impl Runs {
    pub(super) fn new(stops: Stops) -> Self {
        let (signal_queue, signals) = SignalQueue::new();
        let (tasks, running, parent_budgets) = Default::default();
        Self { tasks, running, stops, parent_budgets, signals, signal_queue }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Starts a handler.
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        spec: &Spec,
        entity: &Entity,
        starting: Starting,
    ) {
        let Starting { dispatched, reserved, parent_budget, parent } = starting;
        let integration = spec.integrations.get(&dispatched.integration);
        let queue_ms = integration.map_or(dispatched.budget_ms, |one| one.schedule_to_start_ms);
        // A parent's budget is bounded by the parent's deadline, which does not wait for the
        // start.
        let own_ms = match (dispatched.owner, integration) {
            (DeadlineOwner::Parent, Some(integration)) => {
                integration.budget_for(&dispatched.params)
            }
            _ => dispatched.budget_ms,
        };
        let stop = Stop::default();
        let synthetic = spec.limits.as_ref().map(|limits| Arc::clone(&limits.synthetic));
        let synthetic = synthetic.unwrap_or_default();
        self.set_parent_budget(&dispatched, &parent_budget);
        self.stops.lock().insert(dispatched.dispatch, stop.clone());
        let run = HandlerRun {
            entity: entity.entity.clone(),
            tenant: entity.tenant.clone(),
            schedule_to_start: Duration::from_millis(queue_ms),
            reserved,
            host_calls: integration.map(host_call_limits).unwrap_or_default(),
            recovery: recovery(entity, &dispatched)
                .or_else(|| shared.conversations.find(spec, entity)),
            session_id: entity.session().map(|_| entity.entity.to_string()),
            budget: Duration::from_millis(own_ms),
            not_after: parent_budget.not_after,
            asks: Asking::new(shared, entity, &dispatched, stop.clone()),
            parent,
            stop: stop.clone(),
            signals: Signals::new(
                (dispatched.dispatch, dispatched.attempt),
                self.signal_queue.clone(),
                synthetic,
            ),
            fields: entity.fields_of(dispatched.dispatch),
            dispatched: Arc::clone(&dispatched),
        };
        let handlers = Arc::clone(&shared.handlers);
        let (of, shared) = (Arc::clone(&dispatched), Arc::clone(shared));
        let entity = entity.entity.clone();
        self.spawn(of, async move {
            let report = match catch_panic(|| handlers.start(run)) {
                Some(running) => {
                    let on_behalf = OnBehalf { shared: &shared, entity: &entity, stop: &stop };
                    on_behalf
                        .unless_abandoned(CatchPanic(running), parent_budget, dispatched.dispatch)
                        .await
                }
                None => None,
            };
            let mut report = report.unwrap_or_else(|| panicked(&dispatched));
            report.dispatch_id = dispatched.dispatch;
            EndedHandler { attempt: dispatched.attempt, report }
        });
    }

    /// Ends a handler for which there is no slot as rejected, after the wait that the host
    /// proposes. An entity whose endings start handlers again would otherwise spin as fast as it
    /// can write.
    pub(super) fn reject(
        &mut self,
        shared: &Arc<Shared>,
        spec: &Spec,
        entity: &Entity,
        (dispatched, parent_budget): (Arc<Dispatched>, &ParentBudget),
        busy: Busy,
    ) {
        self.set_parent_budget(&dispatched, parent_budget);
        let integration = spec.integrations.get(&dispatched.integration);
        let queue_ms = integration.map_or(dispatched.budget_ms, |one| one.schedule_to_start_ms);
        let wait = Duration::from_millis(busy.retry_after_ms.min(queue_ms));
        let stop = Stop::default();
        self.stops.lock().insert(dispatched.dispatch, stop.clone());
        let (shared, entity) = (Arc::clone(shared), entity.entity.clone());
        self.spawn(Arc::clone(&dispatched), async move {
            let over = shared.clock.now().after(wait);
            let (outcome, cause) = tokio::select! {
                biased;
                request = stop.killed() => stopped(request),
                () = timer::until(&*shared.clock, over) => {
                    let (kind, message) = (RejectionKind::HostUnavailable, busy.to_string());
                    (Outcome::Rejected(Rejection { kind, message }), Cause::NotStarted)
                }
            };
            let metrics = &shared.telemetry.metrics;
            let dispatches = metrics.dispatch_metrics(entity.entity_type(), &dispatched.action);
            dispatches.ended(&DispatchEnded {
                outcome: outcome.kind(),
                budget: Duration::from_millis(dispatched.budget_ms),
                duration: Duration::ZERO,
                overrun: Duration::ZERO,
            });
            let report = RunReport::unreported(&dispatched, outcome, cause);
            EndedHandler { attempt: dispatched.attempt, report }
        });
    }

    fn spawn(
        &mut self,
        of: Arc<Dispatched>,
        run: impl Future<Output = EndedHandler> + Send + 'static,
    ) {
        let task = self.tasks.spawn(run);
        self.running.insert(task.id(), of);
    }

    fn set_parent_budget(&mut self, dispatched: &Dispatched, parent_budget: &ParentBudget) {
        if parent_budget.waiting.is_some() {
            self.parent_budgets
                .insert((dispatched.dispatch, dispatched.attempt), parent_budget.clone());
        }
    }

    /// What an asker leaves this attempt of `dispatch`, if one waits for it.
    pub(super) fn parent_budget(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Option<&ParentBudget> {
        self.parent_budgets.get(&(dispatch, attempt))
    }

    /// The end of this attempt of `dispatch` is recorded.
    pub(super) fn forget(&mut self, dispatch: DispatchId, attempt: u32) {
        self.parent_budgets.remove(&(dispatch, attempt));
    }

    /// What can be waited for at the same time: ends and signals.
    pub(super) fn split(&mut self) -> (Ends<'_>, &mut mpsc::Receiver<Sent>) {
        let ends = Ends { tasks: &mut self.tasks, running: &mut self.running, stops: &self.stops };
        (ends, &mut self.signals)
    }

    /// `first` and the signals and timed-out host calls that wait: at most as many as may wait at once, so that a handler
    /// that keeps sending cannot delay the rest, and at least all that were sent before now.
    pub(super) fn take_signals(&mut self, first: Option<Sent>) -> Vec<Sent> {
        let waiting = std::iter::from_fn(|| self.signals.try_recv().ok());
        first.into_iter().chain(waiting).take(SIGNAL_QUEUE_MAX).collect()
    }
}

fn host_call_limits(of: &Integration) -> HostCallLimits {
    let of_each = of.host_calls_ms.iter();
    HostCallLimits {
        all: of.host_call_ms.map(Duration::from_millis),
        of: of_each.map(|(name, ms)| (name.clone(), Duration::from_millis(*ms))).collect(),
    }
}

/// The ends of handlers.
pub(super) struct Ends<'a> {
    tasks: &'a mut JoinSet<EndedHandler>,
    running: &'a mut HashMap<task::Id, Arc<Dispatched>>,
    stops: &'a Stops,
}

impl Ends<'_> {
    /// The next handler that ends; `None` if there is none.
    pub(super) async fn next(self) -> Option<EndedHandler> {
        let joined = self.tasks.join_next_with_id().await?;
        let task = joined.as_ref().map_or_else(task::JoinError::id, |(task, _)| *task);
        let of = self.running.remove(&task)?;
        self.stops.lock().remove(&of.dispatch);
        // Lost in code of the embedder that is not called through `catch_panic`, such as the drop
        // of its future. (Single tasks are never aborted.)
        let lost = |_| EndedHandler { attempt: of.attempt, report: panicked(&of) };
        Some(joined.map_or_else(lost, |(_, ended)| ended))
    }
}

type Running = dyn Future<Output = RunReport> + Send;

/// A handler that an asker may wait for.
struct OnBehalf<'a> {
    shared: &'a Arc<Shared>,
    entity: &'a EntityRef,
    stop: &'a Stop,
}

impl OnBehalf<'_> {
    /// The report of `run`. If its asker goes away without an answer, the handler is killed, or its
    /// entity decides about it. At the asker's deadline the handler has reached its own, which ends
    /// it.
    async fn unless_abandoned(
        &self,
        mut run: CatchPanic<Running>,
        parent_budget: ParentBudget,
        dispatch: DispatchId,
    ) -> Option<RunReport> {
        let ParentBudget { not_after, waiting: Some(asker) } = parent_budget else {
            return run.await;
        };
        tokio::select! {
            biased;
            report = &mut run => return report,
            () = asker.clone().abandoned() => {}
        }
        let has_time = not_after.is_none_or(|at| self.shared.clock.now() < at);
        if has_time && !self.notify_of_parent(&asker, dispatch) {
            self.stop.kill(Cause::CallerGone, "");
        }
        run.await
    }

    /// If the session of the asker is over, notifies the entity, which knows whether its run works
    /// only for that session. Returns whether the entity will take care of the handler.
    fn notify_of_parent(&self, asker: &WaitingAsker, dispatch: DispatchId) -> bool {
        let Some(parent) = asker.parent_over() else { return false };
        let runtime = self.shared.runtime.borrow().as_ref().and_then(Weak::upgrade);
        let message = Message::ParentOver { dispatch, parent };
        let sent = runtime.map(|inner| {
            let send = |handle: &Handle| handle.mailbox.try_send(message).is_ok();
            inner.reach(self.entity, Origin::Inside, send)
        });
        matches!(sent, Some(Ok(true)))
    }
}

/// The report of a handler whose host panicked.
fn panicked(dispatched: &Dispatched) -> RunReport {
    let (dispatch, integration) = (dispatched.dispatch, &dispatched.integration);
    tracing::error!(%dispatch, integration, "the host panicked while it ran a handler");
    lost(dispatched)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_taken_in_order_and_at_most_a_queue_full_at_once() {
        let mut runs = Runs::new(Stops::default());
        let of = (DispatchId::from_bytes([7; 16]), 1);
        let signals = Signals::new(of, runs.signal_queue.clone(), Arc::default());
        assert!(signals.send("progress", 0.into()));
        let first = runs.signals.try_recv().expect("it waits");
        for number in 1..=SIGNAL_QUEUE_MAX {
            assert!(signals.send("progress", number.into()));
        }
        assert!(!signals.send("progress", 0.into()), "no more may wait");
        let signals = runs.take_signals(Some(first));
        let numbers = signals.iter().map(|sent| match sent {
            Sent::Signal(signal) => signal.payload.as_u64(),
            Sent::CallTimedOut { .. } => None,
        });
        assert!(numbers.eq((0..SIGNAL_QUEUE_MAX as u64).map(Some)), "{signals:?}");
        assert_eq!(runs.take_signals(None).len(), 1, "the rest comes with the next turn");
    }
}
