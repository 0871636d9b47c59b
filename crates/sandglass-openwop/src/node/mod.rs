//! What nodes do: the types that every host has, orchestrators and their dispatching, and the
//! nodes of packs.

pub(crate) mod builtin;
pub(crate) mod dispatch;
pub(crate) mod inputs;
pub(crate) mod orchestrator;
pub(crate) mod packed;

use sandglass_model::RunReport;
use serde_json::{Value, json};

use crate::definition::Node;
use crate::event::{Kind, RunError, RunEvent};

/// Does nothing.
pub(crate) const NOOP: &str = "core.noop";
/// Answers what it is given.
pub(crate) const IDENTITY: &str = "core.identity";
/// Waits.
pub(crate) const DELAY: &str = "core.delay";
/// Fails.
pub(crate) const FAIL: &str = "core.fail";
/// Decides what comes next, turn by turn.
pub(crate) const SUPERVISOR: &str = "core.orchestrator.supervisor";
/// Starts the workers that an orchestrator has chosen.
pub(crate) const DISPATCH: &str = "core.dispatch";

/// The node types that every host has.
pub const BUILTIN: [&str; 6] = [NOOP, IDENTITY, DELAY, FAIL, SUPERVISOR, DISPATCH];

/// Whether it decides, turn by turn.
pub(crate) fn is_orchestrator(node: &Node) -> bool {
    node.type_id == SUPERVISOR
}

/// Whether it starts the workers that an orchestrator has chosen.
pub(crate) fn is_dispatch(node: &Node) -> bool {
    node.type_id == DISPATCH
}

/// How a node has ended, and what the host says of it where it was a pack's.
#[derive(Debug)]
pub(crate) struct Executed {
    pub(crate) end: End,
    /// What happened on the way.
    pub(crate) events: Vec<RunEvent>,
    /// Its pack's answer.
    pub(crate) response: Option<Value>,
    pub(crate) report: Option<Box<RunReport>>,
}

/// How a node has ended.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    /// With outputs: an object.
    Completed(Value),
    /// It waits for an answer to this: `{kind, key, data, ..}`.
    Suspended(Value),
    /// By an error.
    Failed(RunError),
    /// It was ended, or its guest broke down, as the report says.
    Broken,
}

impl From<End> for Executed {
    fn from(end: End) -> Self {
        Self { end, events: Vec::new(), response: None, report: None }
    }
}

impl Executed {
    pub(crate) fn completed(outputs: Value) -> Self {
        End::Completed(outputs).into()
    }

    pub(crate) fn failed(code: &str, message: impl Into<String>) -> Self {
        End::Failed(RunError::new(code, message)).into()
    }

    pub(crate) fn with(self, events: Vec<RunEvent>) -> Self {
        Self { events, ..self }
    }
}

/// The outputs that an answer is: an object by its keys, anything else as `output`.
pub(crate) fn outputs_of(answer: Value) -> Value {
    match answer {
        Value::Object(_) => answer,
        Value::Null => json!({}),
        other => json!({ "output": other }),
    }
}

/// The events by which `node` is suspended with the `nth` interrupt of its run.
pub(crate) fn suspended(node: &str, nth: u64, interrupt: &Value) -> [RunEvent; 2] {
    let id = crate::state::interrupt_id(node, nth);
    let payload = json!({
        "nodeId": node,
        "interruptId": id,
        "kind": interrupt["kind"],
        "key": interrupt["key"],
    });
    [
        RunEvent::of_node(Kind::NodeSuspended, node, payload),
        RunEvent::of_node(Kind::InterruptRequested, node, interrupt.clone()),
    ]
}
