//! A node, run; and whatever a handler waits for.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Cause, RunReport, WallTime};
use sandglass_runtime::{HandlerRun, StopRequest, until};
use serde_json::{Map, Value, json};

use super::Shared;
use super::ending::{cancelled, failed};
use crate::context::Context;
use crate::node::{Executed, dispatch, packed};
use sandglass_workflow::definition::Node;
use sandglass_workflow::event::RunError;
use sandglass_workflow::node::{DELAY, DISPATCH, End, SUPERVISOR, builtin, inputs, orchestrator};

/// After how many milliseconds something is tried again that can't be done now.
pub(crate) const AGAIN_AFTER_MS: u64 = 1_000;

/// Waits until a run is stopped. A host that shuts down stops none: what it doesn't finish is
/// the next one's, as its definition says.
pub(crate) async fn stopped(run: &HandlerRun) -> StopRequest {
    let request = run.stop.killed().await;
    if request.cause == Cause::Shutdown {
        return std::future::pending().await;
    }
    request
}

/// Runs a node.
pub(super) async fn execute(
    shared: &Arc<Shared>,
    run: &HandlerRun,
    context: &mut Context,
    node: &str,
) -> Result<Executed, Box<RunReport>> {
    let definition = &Arc::clone(&context.definition);
    let Some(index) = definition.node(node) else {
        return Ok(Executed::failed("host_error", format!("the run has no node `{node}`")));
    };
    let node = &definition.nodes[index];
    let inputs = match inputs::resolve(definition, &context.state, index) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    if let Some(executed) = builtin::pure(node, &inputs) {
        return Ok(executed.into());
    }
    match node.type_id.as_str() {
        DELAY => delay(shared, run, node, &inputs, context.since).await,
        SUPERVISOR => Ok(turn(shared, run, context, index, inputs).await),
        DISPATCH => dispatch::execute(shared, run, context, node).await,
        type_id => Ok(match shared.library.node(type_id) {
            Some(of) => packed::invoke(&shared.host, run, context, (node, of), inputs).await,
            None => Executed::failed(
                "capability_not_provided",
                format!("nobody provides nodes of the type `{type_id}`; load a pack that does"),
            ),
        }),
    }
}

async fn delay(
    shared: &Shared,
    run: &HandlerRun,
    node: &Node,
    inputs: &Map<String, Value>,
    started_at: Option<WallTime>,
) -> Result<Executed, Box<RunReport>> {
    let millis = match builtin::delay_ms(node, inputs) {
        Ok(millis) => millis,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    match wait(shared, run, millis, started_at).await {
        None => Ok(Executed::completed(json!({ "delayedMs": millis }))),
        Some(request) => Err(Box::new(cancelled(run, request))),
    }
}

/// Waits until `millis` after `since`, or after now; or until it is stopped.
pub(crate) async fn wait(
    shared: &Shared,
    run: &HandlerRun,
    millis: u64,
    since: Option<WallTime>,
) -> Option<StopRequest> {
    let passed = since.map_or(Duration::ZERO, |since| shared.clock.wall().since(since));
    let left = Duration::from_millis(millis).saturating_sub(passed);
    let due = shared.clock.now().after(left);
    tokio::select! {
        biased;
        request = stopped(run) => Some(request),
        () = until(&*shared.clock, due) => None,
    }
}

/// One turn of an orchestrator.
async fn turn(
    shared: &Shared,
    run: &HandlerRun,
    context: &Context,
    index: usize,
    own: Map<String, Value>,
) -> Executed {
    let (definition, state) = (&context.definition, &context.state);
    let node = &definition.nodes[index];
    // It has asked somebody, and goes on with the answer.
    let asked = state.decision.as_ref().is_some_and(|decision| decision["kind"] == "ask-user");
    if asked && state.nodes[index].resumed_with.is_some() {
        return Executed::completed(orchestrator::answered(state));
    }
    let type_id = match orchestrator::decider(definition, state, index, node) {
        Ok(orchestrator::Decider::Decided(decision)) => {
            return Executed::from_decision(orchestrator::decided(node, state, decision));
        }
        Ok(orchestrator::Decider::Pack(type_id)) => type_id,
        Err(error) => return End::Failed(error).into(),
    };
    let Some(of) = shared.library.node(type_id) else {
        return Executed::failed(
            "capability_not_provided",
            format!("nobody provides the decider `{type_id}`; load a pack that does"),
        );
    };
    let inputs = orchestrator::inputs(node, state, own);
    let asked = packed::invoke(&shared.host, run, context, (node, of), inputs).await;
    let End::Completed(decision) = asked.end else { return asked };
    let (end, decided) = orchestrator::decided(node, state, decision);
    let events = asked.events.into_iter().chain(decided).collect();
    Executed { end, events, ..asked }
}

/// An interrupt of `node` that nobody resolves in time, which waits `since` then.
pub(super) async fn expire(
    shared: &Shared,
    run: &HandlerRun,
    node: &str,
    since: Option<WallTime>,
    after_ms: u64,
) -> RunReport {
    if let Some(request) = wait(shared, run, after_ms, since).await {
        return cancelled(run, request);
    }
    let message = format!("nobody resolved the interrupt of `{node}` within {after_ms} ms");
    failed(run, &RunError::new("interrupt_timeout", message))
}
