//! What follows from the end of a node: its events, and the next action of the run.

use std::sync::Arc;

use sandglass_model::{Outcome, RunReport};
use sandglass_workflow::automaton::{Action, Params};
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::RunEvent;
use sandglass_workflow::node::End;
use sandglass_workflow::plan::plan;
use sandglass_workflow::projection::StepResult;
use sandglass_workflow::state::{NodeState, NodeStatus};

use super::execution::{Ended, Execution, failure};
use crate::action::{action_of, resume};
use crate::context::Context;
use crate::library::Library;
use crate::node::Executed;

/// What a handler decides at its end.
pub(crate) struct Decided {
    pub(crate) action: Action,
    pub(crate) params: Params,
    pub(crate) result: StepResult,
    pub(crate) report: Option<Box<RunReport>>,
}

impl Decided {
    /// `events` happened, and `action` follows.
    pub(crate) fn new((action, params): (Action, Params), events: Vec<RunEvent>) -> Self {
        let result = StepResult { events, response: None };
        Self { action, params, result, report: None }
    }
}

/// What follows from the end of a node.
pub(super) fn node_ended(
    execution: &Execution,
    context: &mut Context,
    node: &str,
    executed: Executed,
) -> Result<Decided, Ended> {
    let Executed { end, mut events, response, report } = executed;
    match end {
        End::Completed(outputs) => events.push(RunEvent::completed(node, outputs)),
        End::Suspended(interrupt) => {
            let nth = context.state.interrupts.saturating_add(1);
            events.extend(RunEvent::suspended(node, nth, interrupt));
        }
        End::Failed(error) => {
            return Err(match report {
                // It has the same failure.
                Some(report) if matches!(report.outcome, Outcome::Failed(_)) => report,
                // The guest completed, and its response is invalid.
                Some(report) => {
                    let outcome = Outcome::Failed(failure(&error, response));
                    Box::new(RunReport { outcome, ..*report })
                }
                None => execution.failed(&error),
            });
        }
        End::Broken => {
            return Err(report.unwrap_or_else(|| {
                let message = "the node ended without a report";
                execution.failed(&RunError::new(ErrorCode::HostError, message))
            }));
        }
    }
    events.iter().for_each(|event| context.apply(event));
    let events = context.unrecorded.drain(..).chain(events).collect();
    let mut decided = go_on(&execution.engine.library, context, events);
    decided.result.response = response;
    Ok(Decided { report, ..decided })
}

/// What follows from the failure of a node, which logged `logged` before it: it is executed again,
/// another node handles the failure, or the run has failed.
pub(super) fn conclude(library: &Library, context: &mut Context, logged: Vec<RunEvent>) -> Decided {
    let definition = Arc::clone(&context.definition);
    let current = context.state.current();
    let (Some(index), Some(error)) = (current, context.failed.take()) else {
        return resume_or_go_on(library, context);
    };
    let mut events = logged;
    let node = &definition.nodes[index].id;
    let attempt = context.state.nodes[index].attempt;
    let is_retried =
        error.code.is_retryable() && attempt < definition.settings.max_retries.unwrap_or(0);
    events.push(match is_retried {
        true => RunEvent::retried(node, attempt.saturating_add(1), error),
        false => RunEvent::failed(node, error),
    });
    events.iter().for_each(|event| context.apply(event));
    match is_retried {
        // It was counted when it began.
        true => Decided::new(resume(library, &definition, index), events),
        false => go_on(library, context, events),
    }
}

/// What comes next if nothing has failed: the node that was executing continues; it was counted
/// when it began.
fn resume_or_go_on(library: &Library, context: &mut Context) -> Decided {
    let running = |node: &NodeState| node.status == NodeStatus::Running;
    match context.state.nodes.iter().position(running) {
        Some(index) if context.state.waiting.is_none() => {
            Decided::new(resume(library, &context.definition, index), Vec::new())
        }
        _ => go_on(library, context, Vec::new()),
    }
}

/// What comes next after `events`, which are folded in.
pub(crate) fn go_on(
    library: &Library,
    context: &mut Context,
    mut events: Vec<RunEvent>,
) -> Decided {
    let planned = plan(&context.definition, &mut context.state);
    events.extend(planned.events);
    Decided::new(action_of(library, context, planned.step), events)
}

/// The first action of a run.
pub(crate) fn first_action(library: &Library, context: &mut Context) -> (Action, Params) {
    let Decided { action, params, result, .. } = go_on(library, context, Vec::new());
    (action, Params { events: result.events, ..params })
}
