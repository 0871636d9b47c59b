//! The actions of a run's entity that its steps are, and their params.

use sandglass_model::Object;
use serde_json::{Value, json};

use crate::context::{Class, Context, class};
use crate::library::Library;
use crate::settings::millis;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::node::{is_orchestrator, orchestrator};
use sandglass_workflow::plan::Step;
use sandglass_workflow::projection::{BUDGET, ENDING, FAIL, NEXT};
use sandglass_workflow::step::Next;

/// The action that begins a node whose effects may not be made twice.
pub(crate) const RUN_EFFECT: &str = "RunEffect";

/// The action that goes on with such a node.
pub(crate) const RESUME_EFFECT: &str = "ResumeEffect";

/// The action that `step` is, and its params.
pub(crate) fn led_to(context: &Context, step: Step) -> (&'static str, Object) {
    let ending = |ending: Value| Object::from([(ENDING.to_owned(), ending)]);
    match step {
        Step::Run(index) => run_node(context, index),
        Step::Wait => {
            let timeout = context.state.waiting.as_ref().and_then(|waiting| {
                let after_ms = waiting.payload.get("timeoutMs")?.as_u64()?;
                Some(Next::Expiry { interrupt: waiting.interrupt.clone(), after_ms })
            });
            match timeout {
                Some(next) => ("SuspendUntil", Object::from([(NEXT.to_owned(), json!(next))])),
                None => ("Suspend", Object::new()),
            }
        }
        Step::Complete(outputs) => ("Complete", ending(json!({ "outputs": outputs }))),
        Step::Fail(error) => {
            let node = error.details.as_ref().and_then(|details| details.get("nodeId")).cloned();
            let mut payload = json!({ "error": error });
            if let Some(node) = node {
                payload["failedNodeId"] = node;
            }
            (FAIL, ending(payload))
        }
    }
}

/// The action that begins the node at `index`.
fn run_node(context: &Context, index: usize) -> (&'static str, Object) {
    let node = &context.definition.nodes[index];
    let next = Next::Node { node: node.id.clone(), type_id: node.type_id.clone() };
    let action = match context.class(index) {
        Class::Turn => "TakeTurn",
        Class::Rerun => "RunNode",
        Class::Once => RUN_EFFECT,
    };
    (action, params_of(&context.library, &context.definition, index, &next))
}

/// The action that goes on with the node at `index`, which has begun before.
pub(crate) fn resume(
    library: &Library,
    definition: &Definition,
    index: usize,
) -> (&'static str, Object) {
    let node = &definition.nodes[index];
    let next = Next::Resumed { node: node.id.clone(), type_id: node.type_id.clone() };
    let action = match class(library, definition, index) {
        Class::Once => RESUME_EFFECT,
        Class::Turn | Class::Rerun => "ResumeNode",
    };
    (action, params_of(library, definition, index, &next))
}

/// The params of an action that runs the node at `index`: what is `next`, and the time that a
/// pack has for that.
fn params_of(library: &Library, definition: &Definition, index: usize, next: &Next) -> Object {
    let mut params = Object::from([(NEXT.to_owned(), json!(next))]);
    let node = &definition.nodes[index];
    let by = if is_orchestrator(node) {
        node.config.get(orchestrator::DECIDER).and_then(Value::as_str).unwrap_or_default()
    } else {
        &node.type_id
    };
    if let Some(of) = library.node(by) {
        params.insert(BUDGET.to_owned(), json!(millis(of.pack.max_execution)));
    }
    params
}
