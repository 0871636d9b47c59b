//! What follows from the end of a node: its events, and the action that leads on.

use std::sync::Arc;

use sandglass_model::{
    Cancellation, CancelledBy, Cause, Failure, FailureKind, Object, Outcome, RunReport,
};
use sandglass_runtime::{HandlerRun, StopRequest, unreported};
use serde_json::{Value, json};

use crate::action::{led_to, resume};
use crate::context::Context;
use crate::node::Executed;
use sandglass_workflow::event::{Kind, RunError, RunEvent};
use sandglass_workflow::node::{self, End};
use sandglass_workflow::plan::plan;
use sandglass_workflow::projection::{EVENTS, StepResult};
use sandglass_workflow::state::{NodeState, NodeStatus};

/// What of a failure's result holds the answer that the host didn't take.
const RESPONSE: &str = "response";

/// What a handler has to say at its end.
pub(crate) struct Answer {
    pub(crate) action: &'static str,
    pub(crate) params: Object,
    pub(crate) result: StepResult,
    pub(crate) report: Option<Box<RunReport>>,
}

/// What follows from the end of a node.
#[expect(clippy::result_large_err, reason = "a report is what a handler ends with")]
pub(super) fn ended(
    run: &HandlerRun,
    context: &mut Context,
    node: &str,
    executed: Executed,
) -> Result<Answer, RunReport> {
    let Executed { end, mut events, response, report } = executed;
    match end {
        End::Completed(outputs) => {
            events.push(RunEvent::completed(node, &outputs));
            events.iter().for_each(|event| context.apply(event));
            let events = context.untold.drain(..).chain(events).collect();
            Ok(Answer { report, ..go_on(context, events) }.responded(response))
        }
        End::Suspended(interrupt) => {
            let nth = context.state.interrupts.saturating_add(1);
            events.extend(node::suspended(node, nth, &interrupt));
            events.iter().for_each(|event| context.apply(event));
            Ok(Answer { report, ..go_on(context, events) }.responded(response))
        }
        End::Failed(error) => Err(match report {
            // It says the same.
            Some(report) if matches!(report.outcome, Outcome::Failed(_)) => *report,
            // Its guest has done its work, and what that answered can't be taken.
            Some(report) => {
                let outcome = Outcome::Failed(failure(&error, response));
                RunReport { outcome, ..*report }
            }
            None => failed(run, &error),
        }),
        End::Broken => Err(match report {
            Some(report) => *report,
            None => failed(run, &RunError::new("host_error", "the node ended without a report")),
        }),
    }
}

impl Answer {
    fn responded(mut self, response: Option<Value>) -> Self {
        self.result.response = response;
        self
    }
}

/// What a node's failure means, which has `said` something before it: it is run once more,
/// another node takes it up, or the run has failed.
#[expect(clippy::result_large_err, reason = "a report is what a handler ends with")]
pub(super) fn conclude(context: &mut Context, said: Vec<RunEvent>) -> Result<Answer, RunReport> {
    let definition = Arc::clone(&context.definition);
    let current = context.state.current(&definition).map(str::to_owned);
    let error = context.failed.take();
    let (Some(node), Some(error)) = (current, error) else {
        return Ok(go_on_with(context));
    };
    said.iter().for_each(|event| context.apply(event));
    let mut events = said;
    let index = definition.node(&node).unwrap_or_default();
    let attempt = context.state.nodes[index].attempt;
    if is_retryable(&error) && attempt < definition.settings.max_retries.unwrap_or(0) {
        let attempt = attempt.saturating_add(1);
        let payload = json!({ "nodeId": node, "attempt": attempt, "lastError": error });
        let event = RunEvent::of_node(Kind::NodeRetried, &node, payload);
        context.apply(&event);
        // It goes on with what was counted when it began.
        let (action, params) = resume(&context.library, &definition, index);
        events.push(event);
        let result = StepResult { events, response: None };
        return Ok(Answer { action, params, result, report: None });
    }
    let event = RunEvent::failed(&node, &error);
    context.apply(&event);
    events.push(event);
    Ok(go_on(context, events))
}

/// What comes next where nothing has failed: the node that was under way goes on, which was
/// counted when it began.
fn go_on_with(context: &mut Context) -> Answer {
    let running = |node: &NodeState| node.status == NodeStatus::Running;
    match context.state.nodes.iter().position(running) {
        Some(index) if context.state.waiting.is_none() => {
            let (action, params) = resume(&context.library, &context.definition, index);
            Answer { action, params, result: StepResult::default(), report: None }
        }
        _ => go_on(context, Vec::new()),
    }
}

/// Whether a node that failed so may be run again by itself: not where a bound of it was
/// breached, and not where its effects may have landed.
fn is_retryable(error: &RunError) -> bool {
    const NEVER: [&str; 7] = [
        "run_too_large",
        "wasm_memory_exceeded",
        "wasm_fuel_exhausted",
        "wasm_execution_timeout",
        "run_interrupted",
        "capability_not_provided",
        "interrupt_timeout",
    ];
    !NEVER.contains(&error.code.as_str())
}

/// What comes next, once `events` are folded in.
pub(crate) fn go_on(context: &mut Context, mut events: Vec<RunEvent>) -> Answer {
    let definition = Arc::clone(&context.definition);
    let planned = plan(&definition, &mut context.state);
    events.extend(planned.events);
    let (action, params) = led_to(context, planned.step);
    let result = StepResult { events, response: None };
    Answer { action, params, result, report: None }
}

/// The action by which a run begins or goes on, and its params: for requests.
pub(crate) fn first_step(context: &mut Context) -> (&'static str, Object) {
    let Answer { action, mut params, result, .. } = go_on(context, Vec::new());
    if !result.events.is_empty() {
        params.insert(EVENTS.to_owned(), json!(result.events));
    }
    (action, params)
}

/// The report of a handler that has failed with `error`.
pub(crate) fn failed(run: &HandlerRun, error: &RunError) -> RunReport {
    unreported(&run.dispatched, Outcome::Failed(failure(error, None)), Cause::Returned)
}

/// A failure by `error`, and what a guest had answered by then: a replay compares with it.
fn failure(error: &RunError, response: Option<Value>) -> Failure {
    let mut result = json!({ "error": error });
    if let Some(response) = response {
        result[RESPONSE] = response;
    }
    let message = format!("{}: {}", error.code, error.message);
    Failure { kind: FailureKind::TypedFailure, message, result: Some(result) }
}

/// The answer of a guest that the host didn't take; none where the failure is the guest's own,
/// which says so.
pub(crate) fn not_taken(failure: &Failure) -> Option<&Value> {
    failure.result.as_ref().filter(|result| result.get("outcome").is_none())?.get(RESPONSE)
}

/// The report of a handler that was stopped.
pub(crate) fn cancelled(run: &HandlerRun, request: StopRequest) -> RunReport {
    let by = CancelledBy::of(request.cause);
    let cancellation = Cancellation { by, reason: request.reason, dying_span: None };
    unreported(&run.dispatched, Outcome::Cancelled(cancellation), request.cause)
}
