//! The execution of one node.

use std::sync::Arc;

use sandglass_workflow::definition::Node;
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::node::orchestrator::{self, Decider};
use sandglass_workflow::node::{DELAY, DISPATCH, End, SUPERVISOR, builtin, inputs};
use serde_json::{Map, Value};

use super::execution::{Ended, Execution};
use crate::context::Context;
use crate::node::{Executed, dispatch, packed};

/// Executes the node with the id `node`.
pub(super) async fn execute(
    execution: &Execution,
    context: &mut Context,
    node: &str,
) -> Result<Executed, Ended> {
    let definition = &Arc::clone(&context.definition);
    let Some(index) = definition.node(node) else {
        let message = format!("the run has no node `{node}`");
        return Ok(Executed::failed(ErrorCode::HostError, message));
    };
    let node = &definition.nodes[index];
    let inputs = match inputs::resolve(definition, &context.state, index) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    if let Some(end) = builtin::pure(node, &inputs) {
        return Ok(end.into());
    }
    match node.type_id.as_str() {
        DELAY => delay(execution, context, node, &inputs).await,
        SUPERVISOR => Ok(turn(execution, context, index, inputs).await),
        DISPATCH => dispatch::execute(execution, context, node).await,
        type_id => Ok(match execution.engine.library.node(type_id) {
            Some(of) => packed::invoke(execution, context, (node, of), inputs).await,
            None => Executed::failed(
                ErrorCode::CapabilityNotProvided,
                format!("nobody provides nodes of the type `{type_id}`; load a pack that does"),
            ),
        }),
    }
}

async fn delay(
    execution: &Execution,
    context: &Context,
    node: &Node,
    inputs: &Map<String, Value>,
) -> Result<Executed, Ended> {
    let millis = match builtin::delay_ms(node, inputs) {
        Ok(millis) => millis,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    match execution.wait(millis, context.since).await {
        Ok(()) => Ok(Executed::completed(builtin::delayed(millis))),
        Err(request) => Err(execution.cancelled(request)),
    }
}

/// One turn of an orchestrator.
async fn turn(
    execution: &Execution,
    context: &Context,
    index: usize,
    own: Map<String, Value>,
) -> Executed {
    let (definition, state) = (&context.definition, &context.state);
    let node = &definition.nodes[index];
    let configurable = &context.begin.configurable;
    if state.is_decided && state.nodes[index].resumed_with.is_some() {
        return Executed::completed(orchestrator::answered(state));
    }
    if let Some(ratified) = orchestrator::ratified_decision(node, state) {
        return match orchestrator::read(ratified) {
            Ok(decision) => {
                let (end, event) = orchestrator::take_decision(node, state, decision);
                Executed::decided((end, Some(event)))
            }
            Err(error) => End::Failed(error).into(),
        };
    }
    let type_id = match orchestrator::decider(definition, state, index, node) {
        Ok(Decider::Decided(decision)) => {
            return Executed::decided(orchestrator::take_or_hold(
                node,
                state,
                configurable,
                decision,
            ));
        }
        Ok(Decider::Pack(type_id)) => type_id,
        Err(error) => return End::Failed(error).into(),
    };
    let Some(of) = execution.engine.library.node(type_id) else {
        return Executed::failed(
            ErrorCode::CapabilityNotProvided,
            format!("nobody provides the decider `{type_id}`; load a pack that does"),
        );
    };
    let inputs = orchestrator::inputs(node, state, own);
    let executed = packed::invoke(execution, context, (node, of), inputs).await;
    let decision = match &executed.end {
        End::Completed(decision) => orchestrator::read(decision),
        End::Suspended(interrupt) if orchestrator::is_ratification(node, state, interrupt) => {
            let key = &interrupt.key;
            let message = format!(
                "the key `{key}` is the host's, for a decision that is held; use another one"
            );
            Err(RunError::new(ErrorCode::InvalidInterrupt, message))
        }
        _ => return executed,
    };
    match decision {
        Ok(decision) => {
            let (end, event) = orchestrator::take_or_hold(node, state, configurable, decision);
            let events = executed.events.into_iter().chain(event).collect();
            Executed { end, events, ..executed }
        }
        Err(error) => Executed { end: End::Failed(error), ..executed },
    }
}
