//! The events of a run, derived from the records of its entity: nothing else decides what happened.
//!
//! ```text
//! transition  Pending -> Running     run.started
//! dispatched  node, effect, turn     node.started, or node.retried after a crash
//! ended       completed              the events in its result
//!             limit, timed_out       cap.breached
//!             cancelled              node.cancelled
//! limit.breached                     cap.breached
//! run.stopped                        run.completed, run.failed or run.cancelled
//! ```

use std::fmt;

use sandglass_model::{
    Completion, Decision, DispatchId, Dispatched, Ended, Event, Limit, LimitBreach, LimitBreached,
    LimitKind, Object, Outcome, Position, Record, RunStopped, StopCause,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::automaton::{Action, HandlerError, Integration, Params, State};
use crate::error::{ErrorCode, RunError};
use crate::event::{
    Cancelled, CapKind, Completed, Ending, Failed, Kind, Origin, Payload, RunEvent,
};
use crate::node::{DELAY, DISPATCH};
use crate::step::{Begin, Next};

/// The result of a handler.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StepResult {
    /// What happened.
    pub events: Vec<RunEvent>,
    /// The response of a pack's node: a replay compares with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
}

/// A record does not have the form that this version knows.
#[derive(Debug)]
pub struct Unreadable {
    /// The record.
    pub position: Position,
    /// What is wrong with it.
    pub error: serde_json::Error,
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { position, error } = self;
        write!(f, "record {} does not have the form that this version knows: {error}", position.0)
    }
}

impl std::error::Error for Unreadable {}

/// Derives the events of a run from its records, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// What the run began with.
    pub begin: Option<Begin>,
    /// What the handler does that the last action started.
    next: Option<Next>,
    /// The node that is being executed.
    open: Option<String>,
    /// The handler that waits until the time of an interrupt is over.
    expiry: Option<DispatchId>,
    /// Where the node is executed, or was last.
    pub origin: Option<Origin>,
    /// Whether it is executed again if its host is lost.
    is_rerun: bool,
    /// Why the node failed that is being executed, if it did.
    pub failed: Option<RunError>,
    /// Why the last handler failed, if it did.
    handler_error: Option<RunError>,
    /// How the run ends by its last action, if it does.
    ending: Option<Ending>,
    /// The error of the run if a breach of its limits stops it.
    breach: Option<RunError>,
    /// Whether the end of the run is recorded.
    pub is_over: bool,
    /// Whether the run is being stopped.
    pub is_stopping: bool,
}

type Read<T> = Result<T, serde_json::Error>;

impl Projection {
    /// The events of `record`.
    ///
    /// # Errors
    /// The record does not have the form that this version knows.
    pub fn apply(&mut self, record: &Record) -> Result<Vec<RunEvent>, Unreadable> {
        let events = match &record.event {
            Event::Transition { action, params, from, .. } => self.transition(action, params, from),
            Event::Dispatched(dispatched) => Ok(self.dispatched(dispatched).into_iter().collect()),
            Event::Ended(ended) => match &ended.outcome {
                Outcome::Completed(completion) => self.completed(completion),
                _ => Ok(self.ended(ended).into_iter().collect()),
            },
            Event::LimitBreached(breach) => Ok(self.breached(breach).into_iter().collect()),
            Event::RunStopping(_) => {
                self.is_stopping = true;
                Ok(Vec::new())
            }
            Event::RunStopped(stopped) => Ok(self.stopped(stopped)),
            _ => Ok(Vec::new()),
        };
        events.map_err(|error| Unreadable { position: record.position, error })
    }

    fn transition(&mut self, action: &str, params: &Object, from: &str) -> Read<Vec<RunEvent>> {
        let params = Params::read(params)?;
        let action = Action::parse(action);
        if action != Some(Action::Tell) {
            self.next = params.next;
            let unexpected = || unexpected(params.error, params.error_kind);
            self.ending = self.ending_of(action, params.ending, unexpected)?;
        }
        let mut events = Vec::new();
        if let Some(begin) = params.begin.filter(|_| from == State::Pending.as_str()) {
            events.push(begin.started());
            self.begin = Some(begin);
        }
        params.events.iter().for_each(|event| self.note(event));
        events.extend(params.events);
        Ok(events)
    }

    /// How the run ends by `action`, if it does.
    fn ending_of(
        &mut self,
        action: Option<Action>,
        ending: Option<Value>,
        unexpected: impl FnOnce() -> RunError,
    ) -> Read<Option<Ending>> {
        // An ending that no handler chose names its cause.
        let failed = self.handler_error.take();
        Ok(match (action, ending) {
            (Some(Action::Fail), Some(ending)) => {
                Some(Ending::Failed(Failed::deserialize(ending)?))
            }
            (Some(Action::Fail), None) => {
                let error = failed.unwrap_or_else(unexpected);
                Some(Ending::Failed(Failed::new(error)))
            }
            (Some(Action::CancelAsRecorded), Some(ending)) => {
                Some(Ending::Cancelled(Cancelled::deserialize(ending)?))
            }
            (_, Some(ending)) => Some(Ending::Completed(Completed::deserialize(ending)?)),
            (_, None) => None,
        })
    }

    fn dispatched(&mut self, dispatched: &Dispatched) -> Option<RunEvent> {
        if self.is_stopping {
            // One more than a limit allows: it is recorded as requested, and never begins.
            return None;
        }
        let integration = Integration::parse(&dispatched.integration)?;
        if integration == Integration::Expiry {
            self.expiry = Some(dispatched.dispatch);
        }
        if integration.executes_node() {
            let (dispatch, attempt) = (dispatched.dispatch, dispatched.attempt);
            self.origin = Some(Origin { dispatch, attempt });
            self.is_rerun = integration.is_rerun();
        }
        let Some(Next::Node { node, type_id }) = &self.next else { return None };
        if !integration.begins_node() {
            return None;
        }
        // The node of a run that was forked while it executed it, or whose host was lost.
        let is_open = self.open.as_ref() == Some(node);
        let event = match dispatched.attempt.saturating_sub(1) {
            0 if is_open => return None,
            attempt if is_open => {
                let message = "the host was lost while it ran this node";
                RunEvent::retried(node, attempt, RunError::new(ErrorCode::HostLost, message))
            }
            _ => RunEvent::started(node, type_id),
        };
        self.open = Some(node.clone());
        Some(event)
    }

    fn completed(&mut self, completion: &Completion) -> Read<Vec<RunEvent>> {
        let mut events = StepResult::deserialize(&completion.result)?.events;
        for event in &mut events {
            if event.origin.is_none() && event.kind().ends_node_handler() {
                event.origin.clone_from(&self.origin);
            }
            self.note(event);
        }
        Ok(events)
    }

    /// The end of a handler that did not complete.
    fn ended(&mut self, ended: &Ended) -> Option<RunEvent> {
        if matches!(ended.decision, Decision::Rerun) {
            return None;
        }
        if let Outcome::Failed(failure) = &ended.outcome {
            self.handler_error = Some(RunError::of_failure(failure));
        }
        let is_cancelled = matches!(ended.outcome, Outcome::Cancelled(_));
        if self.expiry == Some(ended.dispatch) && is_cancelled && !self.is_stopping {
            // The answer came first.
            return None;
        }
        if matches!(ended.outcome, Outcome::Interrupted) && self.only_waits(ended.dispatch) {
            // It continues to wait, however many hosts have been lost by now.
            return None;
        }
        let node = self.open.clone()?;
        match failure(&node, ended) {
            // The handler that follows decides whether the node has failed.
            Some((breach, error)) => {
                self.failed = Some(error);
                breach
            }
            None => self.cut(),
        }
    }

    /// The node that was being executed, or waited, is ended with its run.
    fn cut(&mut self) -> Option<RunEvent> {
        let node = self.open.take()?;
        let reason = "the run is stopped".to_owned();
        Some(RunEvent::of_node(&node, Payload::NodeCancelled { node_id: node.clone(), reason }))
    }

    /// Whether `dispatch` does nothing but wait, and is executed again if its host is lost.
    fn only_waits(&self, dispatch: DispatchId) -> bool {
        let is_wait = match &self.next {
            Some(Next::Node { type_id, .. } | Next::Resumed { type_id, .. }) => {
                [DELAY, DISPATCH].contains(&type_id.as_str())
            }
            _ => false,
        };
        self.expiry == Some(dispatch) || (is_wait && self.is_rerun)
    }

    /// Follows which node is being executed.
    fn note(&mut self, event: &RunEvent) {
        match event.kind() {
            Kind::NodeStarted => self.open.clone_from(&event.node_id),
            Kind::NodeRetried => self.failed = None,
            Kind::NodeCompleted | Kind::NodeFailed | Kind::NodeCancelled
                if self.open == event.node_id =>
            {
                (self.open, self.failed) = (None, None);
            }
            _ => {}
        }
    }

    fn breached(&mut self, breach: &LimitBreached) -> Option<RunEvent> {
        // The end of a handler reports a breach of that handler, or of one of its calls.
        let kind = CapKind::of_run(breach.limit)?;
        let copied = self.begin.as_ref().map(|begin| begin.copied).unwrap_or_default();
        let before = match breach.limit {
            Limit::MaxHandlerRuns => copied.executions,
            Limit::MaxLoopIterations => copied.turns,
            _ => 0,
        };
        let limit = breach.threshold.saturating_add(before);
        let observed = breach.observed.saturating_add(before);
        let node = match (&self.next, breach.limit) {
            (Some(Next::Node { node, .. }), Limit::MaxHandlerRuns | Limit::MaxLoopIterations) => {
                Some(node.clone())
            }
            _ => self.open.clone(),
        };
        self.breach = Some(breach_error(kind, limit, observed, node.as_deref()));
        // The other limits are those of the run, whichever node was executing.
        let node_id = node.filter(|_| kind == CapKind::NodeExecutions);
        let payload = Payload::CapBreached { kind, limit, observed, node_id: node_id.clone() };
        Some(RunEvent { node_id, ..RunEvent::of_run(payload) })
    }

    fn stopped(&mut self, stopped: &RunStopped) -> Vec<RunEvent> {
        if stopped.directive.is_some_and(sandglass_model::Directive::goes_on) {
            return Vec::new();
        }
        // A run that waits has no handler that could have ended its node.
        let is_cut = !matches!(stopped.cause, StopCause::Completion | StopCause::Trap);
        let cut = if is_cut && self.failed.is_none() { self.cut() } else { None };
        self.is_over = true;
        let ending = match &stopped.cause {
            StopCause::Completion | StopCause::Trap => {
                self.ending.take().unwrap_or_else(|| Ending::Completed(Completed::default()))
            }
            StopCause::Operator { reason, .. } => {
                let reason = if reason.is_empty() { "cancelled" } else { reason };
                Ending::Cancelled(Cancelled { reason: reason.to_owned(), ..Cancelled::default() })
            }
            StopCause::Parent { parent, .. } => Ending::Cancelled(Cancelled {
                reason: "parent-cancelled".to_owned(),
                parent_run_id: parent.as_ref().map(|parent| parent.id().to_owned()),
                duration_ms: None,
            }),
            cause @ (StopCause::Limit { .. } | StopCause::Shutdown) => {
                let stopped = || RunError::new(cause.code(), "the run was stopped");
                Ending::Failed(Failed::new(self.breach.take().unwrap_or_else(stopped)))
            }
        };
        let last = RunEvent::of_run(ending.into_payload(stopped.elapsed_ms));
        cut.into_iter().chain([last]).collect()
    }
}

/// The error of a run that no handler has ended.
fn unexpected(error: Option<HandlerError>, kind: Option<String>) -> RunError {
    let (kind, message) = match error {
        None => (kind, None),
        Some(HandlerError::Message(message)) => (kind, Some(message)),
        Some(HandlerError::WithKind { kind, message }) => (kind, message),
    };
    RunError::new(
        &*kind.unwrap_or_else(|| "host_error".to_owned()),
        message.unwrap_or_else(|| "the host could not go on with the run".to_owned()),
    )
}

/// Why a run failed that was stopped by a breach of its limits, before or in a node.
fn breach_error(kind: CapKind, limit: u64, observed: u64, node: Option<&str>) -> RunError {
    let error = match kind {
        CapKind::NodeExecutions => RunError::new(
            ErrorCode::RecursionLimitExceeded,
            format!("the run may execute {limit} nodes, and this would be number {observed}"),
        )
        .detail("limit", limit)
        .detail("observed", observed),
        CapKind::LoopIterations => RunError::new(
            ErrorCode::LoopLimitExceeded,
            format!("its orchestrator may take {limit} turns, and this would be number {observed}"),
        )
        .detail("limit", limit)
        .detail("iteration", observed),
        _ => RunError::new(
            ErrorCode::RunTimeout,
            format!("the run may take {limit} ms, and has taken {observed} ms"),
        )
        .detail("limitMs", limit)
        .detail("elapsedMs", observed),
    };
    match node {
        Some(node) => error.detail("nodeId", node),
        None => error,
    }
}

/// Why a node failed whose handler did not complete, with the breach of a limit if that is the
/// reason; `None` if it was ended with its run.
fn failure(node: &str, ended: &Ended) -> Option<(Option<RunEvent>, RunError)> {
    let died_in = |error: RunError| match &ended.dying_span {
        Some(span) => error.detail("dyingSpan", &**span),
        None => error,
    };
    let breached = |kind: CapKind, code: ErrorCode, message: String, limit: u64, observed: u64| {
        // A number that the clock gives is above its limit, and so is one that a guest requests.
        let observed = observed.max(limit.saturating_add(1));
        let error = died_in(RunError::new(code, message))
            .detail("kind", kind.as_str())
            .detail("limit", limit)
            .detail("observed", observed)
            .detail("nodeId", node);
        let node_id = Some(node.to_owned());
        let breach = Payload::CapBreached { kind, limit, observed, node_id };
        Some((Some(RunEvent::of_node(node, breach)), error))
    };
    match &ended.outcome {
        Outcome::Cancelled(_) | Outcome::Completed(_) => None,
        Outcome::Limit(breach @ LimitBreach { kind, limit, observed }) => {
            let code = match kind {
                LimitKind::WasmMemory | LimitKind::WasmTable | LimitKind::HostMemory => {
                    ErrorCode::WasmMemoryExceeded
                }
                LimitKind::WasmFuel => ErrorCode::WasmFuelExhausted,
            };
            breached(CapKind::of_guest(*kind), code, breach.to_string(), *limit, *observed)
        }
        Outcome::TimedOut(exceeded) => breached(
            CapKind::WasmExecutionTime,
            ErrorCode::WasmExecutionTimeout,
            format!(
                "the node may run for {} ms, and was stopped after {} ms in {}",
                exceeded.budget_ms, exceeded.elapsed_ms, exceeded.dying_span
            ),
            exceeded.budget_ms,
            exceeded.elapsed_ms,
        ),
        Outcome::Failed(failure) => Some((None, RunError::of_failure(failure))),
        Outcome::Interrupted => {
            let message = "the host was lost while it ran this node, whose effects may have landed";
            Some((None, RunError::new(ErrorCode::RunInterrupted, message)))
        }
        other => {
            let (kind, message) = other.error().unwrap_or_default();
            let code = match other {
                Outcome::Trapped(_) => ErrorCode::WasmTrap,
                _ => ErrorCode::from(&*kind),
            };
            let error = died_in(RunError::new(code, message));
            Some((None, error.detail("nodeId", node).detail("kind", kind)))
        }
    }
}
