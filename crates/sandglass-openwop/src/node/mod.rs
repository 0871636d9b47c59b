//! What nodes do: the types that every host has, orchestrators and their dispatching, and the
//! nodes of packs.

pub(crate) mod builtin;
pub(crate) mod dispatch;
pub(crate) mod inputs;
pub(crate) mod orchestrator;
pub(crate) mod packed;

use sandglass_model::RunReport;
use serde_json::{Value, json};

use crate::context::size;
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

/// Most of what a node has logged before it failed that is kept, in bytes of JSON.
const SAID_MAX_BYTES: usize = 64 << 10;

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

    /// The last lines that a node has logged which has failed; what else it has done is undone.
    pub(crate) fn said_in_vain(&mut self) -> Vec<RunEvent> {
        if !matches!(self.end, End::Failed(_) | End::Broken) {
            return Vec::new();
        }
        let mut bytes = 0_usize;
        let lines = std::mem::take(&mut self.events).into_iter().rev();
        let lines = lines.filter(|event| event.kind == Kind::LogAppended).take_while(|event| {
            bytes = bytes.saturating_add(size(&event.payload));
            bytes <= SAID_MAX_BYTES
        });
        let mut lines: Vec<RunEvent> = lines.collect();
        lines.reverse();
        lines
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
