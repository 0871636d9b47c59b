//! The actions of a run's entity that the steps of a plan become.

use sandglass_workflow::automaton::{Action, Params};
use sandglass_workflow::definition::{Definition, OnCrash};
use sandglass_workflow::event::{Completed, Ending, Failed};
use sandglass_workflow::node::{is_orchestrator, orchestrator};
use sandglass_workflow::plan::Step;
use sandglass_workflow::step::Next;
use serde_json::Value;

use crate::context::Context;
use crate::library::Library;
use crate::settings::millis;

/// The action that `step` becomes, and its parameters.
pub(crate) fn action_of(library: &Library, context: &Context, step: Step) -> (Action, Params) {
    match step {
        Step::Run(index) => {
            let (node, type_id) = named(&context.definition, index);
            let action = match class(library, &context.definition, index) {
                Class::Turn => Action::TakeTurn,
                Class::Rerun => Action::RunNode,
                Class::Once => Action::RunEffect,
            };
            let next = Next::Node { node, type_id };
            (action, executing(library, &context.definition, index, next))
        }
        Step::Wait => {
            let waiting = context.state.waiting.as_ref();
            match waiting.and_then(|waiting| Some((waiting, waiting.interrupt.timeout_ms?))) {
                Some((waiting, after_ms)) => {
                    let next = Next::Expiry { interrupt: waiting.id.clone(), after_ms };
                    (Action::SuspendUntil, Params::next(next))
                }
                None => (Action::Suspend, Params::default()),
            }
        }
        Step::Complete(outputs) => {
            let ending = Completed { outputs: Some(outputs), duration_ms: None };
            end(Action::Complete, &Ending::Completed(ending))
        }
        Step::Fail(error) => {
            let details = error.details.as_ref();
            let failed_node_id = details.and_then(|details| details.get("nodeId")).cloned();
            end(Action::Fail, &Ending::Failed(Failed { failed_node_id, ..Failed::new(error) }))
        }
    }
}

/// `action`, which ends a run with `ending`.
pub(crate) fn end(action: Action, ending: &Ending) -> (Action, Params) {
    let ending = serde_json::to_value(ending).expect("endings are plain data");
    (action, Params { ending: Some(ending), ..Params::default() })
}

/// The action that continues the node at `index`, which has begun before.
pub(crate) fn resume(library: &Library, definition: &Definition, index: usize) -> (Action, Params) {
    let (node, type_id) = named(definition, index);
    let action = match class(library, definition, index) {
        Class::Once => Action::ResumeEffect,
        Class::Turn | Class::Rerun => Action::ResumeNode,
    };
    (action, executing(library, definition, index, Next::Resumed { node, type_id }))
}

fn named(definition: &Definition, index: usize) -> (String, String) {
    let node = &definition.nodes[index];
    (node.id.clone(), node.type_id.clone())
}

/// The parameters of an action that executes the node at `index`: with the time of a pack.
fn executing(library: &Library, definition: &Definition, index: usize, next: Next) -> Params {
    let node = &definition.nodes[index];
    let by = if is_orchestrator(node) {
        node.config.get(orchestrator::DECIDER).and_then(Value::as_str).unwrap_or_default()
    } else {
        &node.type_id
    };
    let budget_ms = library.node(by).map(|of| millis(of.pack.max_execution));
    Params { budget_ms, ..Params::next(next) }
}

/// What becomes of a node if its host is lost while it executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// A turn of an orchestrator: it is taken again.
    Turn,
    /// It is executed again.
    Rerun,
    /// It fails, because its effects may have landed.
    Once,
}

/// The class of the node at `index`: as it says itself (`settings.onCrash`), else as its definition
/// says, else by its type.
fn class(library: &Library, definition: &Definition, index: usize) -> Class {
    let node = &definition.nodes[index];
    if is_orchestrator(node) {
        return Class::Turn;
    }
    match node.on_crash.or(definition.settings.on_crash) {
        Some(OnCrash::Rerun) => Class::Rerun,
        Some(OnCrash::Fail) => Class::Once,
        None => match library.node(&node.type_id) {
            Some(of) if !of.is_pure() => Class::Once,
            _ => Class::Rerun,
        },
    }
}
