//! What nodes do without a host: their inputs, the types that every host has, and the turns of
//! orchestrators.

pub mod builtin;
pub mod inputs;
pub mod orchestrator;

use serde_json::{Map, Value};

use crate::definition::Node;
use crate::error::RunError;
use crate::interrupt::Interrupt;

/// Does nothing.
pub const NOOP: &str = "core.noop";
/// Returns its inputs.
pub const IDENTITY: &str = "core.identity";
/// Waits.
pub const DELAY: &str = "core.delay";
/// Fails.
pub const FAIL: &str = "core.fail";
/// Decides what comes next, in turns.
pub const SUPERVISOR: &str = "core.orchestrator.supervisor";
/// Starts the workers that an orchestrator has chosen.
pub const DISPATCH: &str = "core.dispatch";

/// The node types that every host has.
pub const BUILTIN: [&str; 6] = [NOOP, IDENTITY, DELAY, FAIL, SUPERVISOR, DISPATCH];

/// Whether it is an orchestrator.
pub fn is_orchestrator(node: &Node) -> bool {
    node.type_id == SUPERVISOR
}

/// Whether it starts the workers that an orchestrator has chosen.
pub fn is_dispatch(node: &Node) -> bool {
    node.type_id == DISPATCH
}

/// How a node has ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// With outputs: an object.
    Completed(Value),
    /// It waits for an answer to this.
    Suspended(Interrupt),
    /// By an error.
    Failed(RunError),
    /// It was stopped, or its guest failed; the report says why.
    Broken,
}

/// The outputs for an answer: an object itself, any other value as `output`.
pub fn outputs_of(answer: Value) -> Value {
    match answer {
        Value::Object(_) => answer,
        Value::Null => Value::Object(Map::new()),
        other => Value::Object(Map::from_iter([("output".to_owned(), other)])),
    }
}
