//! The events of a run, as its entity's records say them: nothing else decides what happened.
//!
//! ```text
//! transition  Pending -> Running     run.started
//! dispatched  node, effect, turn     node.started, or node.retried after a crash
//! ended       completed              the events that its result holds
//!             limit, timed_out       cap.breached
//!             cancelled              node.cancelled
//! limit.breached                     cap.breached
//! run.stopped                        run.completed, run.failed or run.cancelled
//! ```

use sandglass_model::{
    Decision, DispatchId, Dispatched, Ended, Event, Failure, Limit, LimitBreached, LimitKind,
    Object, Outcome, Record, RunStopped, StopCause,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::event::{Kind, Origin, RunError, RunEvent, kind_of};
use crate::node::{self, DELAY};
use crate::step::{Begin, Next};

/// The state of a run's entity before it has begun.
pub const PENDING: &str = "Pending";
/// The state of a run's entity that waits for somebody's answer.
pub const WAITING: &str = "Waiting";
/// The action by which a run has failed.
pub const FAIL: &str = "Fail";
/// The action that tells of a run what happens while a handler of it is under way.
pub const TELL: &str = "Tell";
/// The action by which a replay ends as the run that it replays was cancelled.
pub const CANCEL_AS_RECORDED: &str = "CancelAsRecorded";
/// The param of an action that says what is run next.
pub const NEXT: &str = "next";
/// The param of an action that says how long the pack may take that runs a node, in milliseconds.
pub const BUDGET: &str = "budget_ms";
/// The param of a run's first action: all that it begins with.
pub const BEGIN: &str = "begin";
/// The param of an action that says what happened by it.
pub const EVENTS: &str = "events";
/// The param of a run's last action: the payload of its last event.
pub const ENDING: &str = "ending";

/// The integrations that begin a node.
const NODES: [&str; 3] = ["node", "effect", "turn"];
/// The integration that waits for the time of an interrupt to be over.
const EXPIRY: &str = "expiry";
/// The integrations that go on with a node.
const RESUMED: [&str; 2] = ["resumed_node", "resumed_effect"];

/// Those that are run again where their host is lost, and aren't a turn.
const RERUN: [&str; 2] = ["node", "resumed_node"];

/// What the handler of a step answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct StepResult {
    /// What happened.
    pub events: Vec<RunEvent>,
    /// The answer of a pack's node, as it was: a replay compares with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub response: Option<Value>,
}

/// Makes a run's events of its records, one after the other.
#[derive(Clone, Debug, Default)]
pub struct Projection {
    /// What its first action said.
    pub begin: Option<Begin>,
    /// What the last action has led to.
    next: Option<Next>,
    /// The node that is being run.
    open: Option<String>,
    /// What waits for the time of its interrupt to be over.
    expiry: Option<DispatchId>,
    /// Where it is run, or was last.
    pub origin: Option<Origin>,
    /// Whether it is run again where its host is lost.
    is_rerun: bool,
    /// Why the node has failed that is being run, where it has.
    pub failed: Option<RunError>,
    /// Why the last handler has failed, where it has.
    told: Option<RunError>,
    /// What the last action said of the run's end.
    ending: Option<(String, Value)>,
    /// The error of the run that a breach of its bounds stops.
    breach: Option<RunError>,
    /// Whether its end was recorded.
    pub is_over: bool,
    /// Whether it is being stopped.
    pub is_stopping: bool,
}

impl Projection {
    /// What happened by `record`.
    pub fn apply(&mut self, record: &Record) -> Vec<RunEvent> {
        match &record.event {
            Event::Transition { action, params, from, .. } => self.transition(action, params, from),
            Event::Dispatched(dispatched) => self.dispatched(dispatched).into_iter().collect(),
            Event::Ended(ended) => self.ended(ended),
            Event::LimitBreached(breach) => self.breached(breach).into_iter().collect(),
            Event::RunStopping(_) => {
                self.is_stopping = true;
                Vec::new()
            }
            Event::RunStopped(stopped) => self.stopped(stopped),
            _ => Vec::new(),
        }
    }

    fn transition(&mut self, action: &str, params: &Object, from: &str) -> Vec<RunEvent> {
        if action != TELL {
            self.led_on(action, params);
        }
        let mut events = Vec::new();
        if let Some(begin) = param::<Begin>(params, BEGIN).filter(|_| from == PENDING) {
            events.push(RunEvent::of_run(Kind::RunStarted, begin.started()));
            self.begin = Some(begin);
        }
        let told: Vec<RunEvent> = param(params, EVENTS).unwrap_or_default();
        told.iter().for_each(|event| self.note(event));
        events.extend(told);
        events
    }

    /// What an action has led to.
    fn led_on(&mut self, action: &str, params: &Object) {
        self.next = param(params, NEXT);
        // An ending that is no handler's own names its cause.
        let failed = self.told.take();
        let unexpected = || json!({ "error": failed.unwrap_or_else(|| unexpected(params)) });
        let told = params.get(ENDING).cloned();
        let told = told.or_else(|| (action == FAIL).then(unexpected));
        self.ending = told.map(|ending| (action.to_owned(), ending));
    }

    fn dispatched(&mut self, dispatched: &Dispatched) -> Option<RunEvent> {
        if self.is_stopping {
            // One more than a bound allows: it is recorded as asked for, and never begins.
            return None;
        }
        let integration = dispatched.integration.as_str();
        if integration == EXPIRY {
            self.expiry = Some(dispatched.dispatch);
        }
        if NODES.contains(&integration) || RESUMED.contains(&integration) {
            let (dispatch, attempt) = (dispatched.dispatch, dispatched.attempt);
            self.origin = Some(Origin { dispatch, attempt });
            self.is_rerun = RERUN.contains(&integration);
        }
        if !NODES.contains(&integration) {
            return None;
        }
        let Some(Next::Node { node, type_id }) = &self.next else { return None };
        // Of a run that was forked while it ran this one, or whose host was lost.
        let is_open = self.open.as_ref() == Some(node);
        let (kind, payload) = if is_open && dispatched.attempt > 1 {
            let lost = RunError::new("host_lost", "the host was lost while it ran this node");
            let attempt = dispatched.attempt.saturating_sub(1);
            (Kind::NodeRetried, json!({ "nodeId": node, "attempt": attempt, "lastError": lost }))
        } else if is_open {
            return None;
        } else {
            let payload = json!({ "nodeId": node, "typeId": type_id, "attempt": 0 });
            (Kind::NodeStarted, payload)
        };
        self.open = Some(node.clone());
        Some(RunEvent::of_node(kind, node, payload))
    }

    fn ended(&mut self, ended: &Ended) -> Vec<RunEvent> {
        if let Outcome::Completed(completion) = &ended.outcome {
            let mut result: StepResult =
                serde_json::from_value(completion.result.clone()).unwrap_or_default();
            for event in &mut result.events {
                if event.origin.is_none() && event.kind.ends_a_run_of_a_node() {
                    event.origin.clone_from(&self.origin);
                }
                self.note(event);
            }
            return result.events;
        }
        if matches!(ended.decision, Decision::Rerun) {
            return Vec::new();
        }
        if let Outcome::Failed(failure) = &ended.outcome {
            self.told = Some(told(failure));
        }
        let is_cancelled = matches!(ended.outcome, Outcome::Cancelled(_));
        if self.expiry == Some(ended.dispatch) && is_cancelled && !self.is_stopping {
            // The answer came first.
            return Vec::new();
        }
        if matches!(ended.outcome, Outcome::Interrupted) && self.only_waits(ended.dispatch) {
            // It goes on waiting, however many hosts have been lost by now.
            return Vec::new();
        }
        let Some(node) = self.open.clone() else { return Vec::new() };
        match failure(&node, ended) {
            // Whether it has failed for good is for the handler behind it to say.
            Some((breach, error)) => {
                self.failed = Some(error);
                breach.into_iter().collect()
            }
            None => self.cut().into_iter().collect(),
        }
    }

    /// The node that was being run, or waited, is ended with its run.
    fn cut(&mut self) -> Option<RunEvent> {
        let node = self.open.take()?;
        let payload = json!({ "nodeId": node, "reason": "the run is stopped" });
        Some(RunEvent::of_node(Kind::NodeCancelled, &node, payload))
    }

    /// Whether `dispatch` does nothing but wait, and is run again where its host is lost.
    fn only_waits(&self, dispatch: DispatchId) -> bool {
        let waits = |type_id: &str| [DELAY, node::DISPATCH].contains(&type_id);
        let is_wait = match &self.next {
            Some(Next::Node { type_id, .. } | Next::Resumed { type_id, .. }) => waits(type_id),
            _ => false,
        };
        self.expiry == Some(dispatch) || (is_wait && self.is_rerun)
    }

    /// Follows which node is being run.
    fn note(&mut self, event: &RunEvent) {
        match event.kind {
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
        let copied = self.begin.as_ref().map(|begin| begin.copied).unwrap_or_default();
        // Of a handler or of one of its calls its end says it.
        let kind = kind_of(breach.limit)?;
        let before = match breach.limit {
            Limit::MaxHandlerRuns => copied.executions,
            Limit::MaxLoopIterations => copied.turns,
            _ => 0,
        };
        let breach = LimitBreached {
            threshold: breach.threshold.saturating_add(before),
            observed: breach.observed.saturating_add(before),
            ..breach.clone()
        };
        let mut payload =
            json!({ "kind": kind, "limit": breach.threshold, "observed": breach.observed });
        let node = match (&self.next, breach.limit) {
            (Some(Next::Node { node, .. }), Limit::MaxHandlerRuns | Limit::MaxLoopIterations) => {
                Some(node.clone())
            }
            _ => self.open.clone(),
        };
        if let Some(node) = &node {
            payload["nodeId"] = json!(node);
        }
        self.breach = Some(breach_error(&breach, node.as_deref()));
        Some(RunEvent { kind: Kind::CapBreached, node_id: node, payload, origin: None })
    }

    fn stopped(&mut self, stopped: &RunStopped) -> Vec<RunEvent> {
        if stopped.directive.is_some_and(sandglass_model::Directive::goes_on) {
            return Vec::new();
        }
        // No handler of one that waits has ended it.
        let is_cut = !matches!(stopped.cause, StopCause::Completion | StopCause::Trap);
        let cut = if is_cut && self.failed.is_none() { self.cut() } else { None };
        self.is_over = true;
        let duration = stopped.elapsed_ms;
        let (kind, mut payload) = match &stopped.cause {
            StopCause::Completion | StopCause::Trap => match self.ending.take() {
                Some((action, ending)) if action == FAIL => (Kind::RunFailed, ending),
                Some((action, ending)) if action == CANCEL_AS_RECORDED => {
                    (Kind::RunCancelled, ending)
                }
                Some((_, ending)) => (Kind::RunCompleted, ending),
                None => (Kind::RunCompleted, json!({})),
            },
            StopCause::Operator { reason, .. } => {
                let reason = Some(reason).filter(|reason| !reason.is_empty());
                (
                    Kind::RunCancelled,
                    json!({ "reason": reason.map_or("cancelled", String::as_str) }),
                )
            }
            StopCause::Parent { parent, .. } => {
                let parent = parent.as_ref().map(|parent| parent.id().to_owned());
                let mut payload = json!({ "reason": "parent-cancelled" });
                if let Some(parent) = parent {
                    payload["parentRunId"] = json!(parent);
                }
                (Kind::RunCancelled, payload)
            }
            cause @ (StopCause::Limit { .. } | StopCause::Shutdown) => {
                let stopped = || RunError::new(cause.code(), "the run was stopped");
                let error = self.breach.take().unwrap_or_else(stopped);
                (Kind::RunFailed, json!({ "error": error }))
            }
        };
        if let Some(payload) = payload.as_object_mut() {
            payload.entry("durationMs").or_insert(json!(duration));
        }
        cut.into_iter().chain([RunEvent::of_run(kind, payload)]).collect()
    }
}

/// The param `name` of an action; none where it isn't there, or can't be read.
pub fn param<T: DeserializeOwned>(params: &Object, name: &str) -> Option<T> {
    params.get(name).and_then(|value| T::deserialize(value).ok())
}

/// The error of a run that no handler has ended.
fn unexpected(params: &Object) -> RunError {
    let part =
        |key: &str| params.get("error").and_then(|error| error.get(key)).and_then(Value::as_str);
    RunError::new(
        part("kind").unwrap_or("host_error"),
        part("message").unwrap_or("the host could not go on with the run"),
    )
}

/// Why a run has failed that a bound of it stopped, before or in a node.
fn breach_error(breach: &LimitBreached, node: Option<&str>) -> RunError {
    let (limit, observed) = (breach.threshold, breach.observed);
    let mut error = match breach.limit {
        Limit::MaxHandlerRuns => RunError::new(
            "recursion_limit_exceeded",
            format!("the run may execute {limit} nodes, and this would be number {observed}"),
        )
        .details(json!({ "limit": limit, "observed": observed })),
        Limit::MaxLoopIterations => RunError::new(
            "loop_limit_exceeded",
            format!("its orchestrator may take {limit} turns, and this would be number {observed}"),
        )
        .details(json!({ "limit": limit, "iteration": observed })),
        _ => RunError::new(
            "run_timeout",
            format!("the run may take {limit} ms, and has taken {observed} ms"),
        )
        .details(json!({ "limitMs": limit, "elapsedMs": observed })),
    };
    if let (Some(node), Some(details)) = (node, &mut error.details) {
        details["nodeId"] = json!(node);
    }
    error
}

/// Why a node has failed whose handler did not complete, and the bound of it that was
/// breached, if one was; none where it was ended with its run.
fn failure(node: &str, ended: &Ended) -> Option<(Option<RunEvent>, RunError)> {
    let died_in = ended.dying_span.as_deref();
    let breached = |kind: &str, code: &str, message: String, limit: u64, observed: u64| {
        // A number that the clock gives is above its limit; one that a guest asks for, too.
        let observed = observed.max(limit.saturating_add(1));
        let mut details = json!({ "kind": kind, "limit": limit, "observed": observed });
        if let Some(span) = died_in {
            details["dyingSpan"] = json!(span);
        }
        details["nodeId"] = json!(node);
        let payload = json!({ "kind": kind, "limit": limit, "observed": observed, "nodeId": node });
        let error = RunError::new(code, message).details(details);
        Some((Some(RunEvent::of_node(Kind::CapBreached, node, payload)), error))
    };
    match &ended.outcome {
        Outcome::Cancelled(_) | Outcome::Completed(_) => None,
        Outcome::Limit(breach) => {
            let code = match breach.kind {
                LimitKind::WasmMemory | LimitKind::WasmTable | LimitKind::HostMemory => {
                    "wasm_memory_exceeded"
                }
                LimitKind::WasmFuel => "wasm_fuel_exhausted",
            };
            let kind = match breach.kind {
                // The protocol has one kind for memory.
                LimitKind::WasmTable | LimitKind::HostMemory => LimitKind::WasmMemory.as_str(),
                kind => kind.as_str(),
            };
            breached(kind, code, breach.to_string(), breach.limit, breach.observed)
        }
        Outcome::TimedOut(exceeded) => breached(
            "wasm-execution-time",
            "wasm_execution_timeout",
            format!(
                "the node may run for {} ms, and was stopped after {} ms in {}",
                exceeded.budget_ms, exceeded.elapsed_ms, exceeded.dying_span
            ),
            exceeded.budget_ms,
            exceeded.elapsed_ms,
        ),
        Outcome::Failed(failure) => Some((None, told(failure))),
        Outcome::Interrupted => {
            let message = "the host was lost while it ran this node, whose effects may have landed";
            Some((None, RunError::new("run_interrupted", message)))
        }
        other => {
            let (kind, message) = other.error().unwrap_or_default();
            let mut details = json!({ "nodeId": node });
            if let Some(span) = died_in {
                details["dyingSpan"] = json!(span);
            }
            let code = match other {
                Outcome::Trapped(_) => "wasm_trap".to_owned(),
                _ => kind.clone(),
            };
            details["kind"] = json!(kind);
            Some((None, RunError::new(code, message).details(details)))
        }
    }
}

/// The error that a node has told, or what is wrong with what it told.
pub fn told(failure: &Failure) -> RunError {
    let told = failure.result.as_ref().and_then(|result| result.get("error"));
    match told.and_then(|told| serde_json::from_value::<RunError>(told.clone()).ok()) {
        Some(error) => RunError::new(error.code, error.message).details_or(error.details),
        None => RunError::new(failure.kind.as_str(), failure.message.clone()),
    }
}
