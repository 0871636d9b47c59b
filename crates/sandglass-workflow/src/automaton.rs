//! The entity of a run, as `run.ioa.toml` of the host declares it: its states, actions,
//! integrations, and the parameters of its actions.

use sandglass_model::{DispatchId, Object};
use serde::de::value::MapDeserializer;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::event::RunEvent;
use crate::names::names;
use crate::step::{Begin, Next};

names! {
    /// A state of the entity.
    State {
        /// The run has not begun.
        Pending = "Pending",
        /// A handler executes, or is about to.
        Running = "Running",
        /// The run waits for the answer to an interrupt.
        Waiting = "Waiting",
        /// The run is complete.
        Completed = "Completed",
        /// The run failed.
        Failed = "Failed",
        /// The run was cancelled.
        Cancelled = "Cancelled",
    }
}

names! {
    /// An action of the entity.
    Action {
        /// Begins a node that is executed again after a crash.
        RunNode = "RunNode",
        /// Begins a node whose effects may have landed before a crash.
        RunEffect = "RunEffect",
        /// Begins a turn of an orchestrator.
        TakeTurn = "TakeTurn",
        /// Continues a node that is executed again after a crash.
        ResumeNode = "ResumeNode",
        /// Continues a node whose effects may have landed before a crash.
        ResumeEffect = "ResumeEffect",
        /// Copies or repeats events of the source of a fork.
        Replay = "Replay",
        /// Decides what the failure of a node means.
        NodeFailed = "NodeFailed",
        /// Leaves the next step to the next start of the host.
        GoOn = "GoOn",
        /// Records events while a handler executes.
        Tell = "Tell",
        /// Waits for an answer.
        Suspend = "Suspend",
        /// Waits for an answer for a limited time.
        SuspendUntil = "SuspendUntil",
        /// Ends the run as complete.
        Complete = "Complete",
        /// Ends the run as failed.
        Fail = "Fail",
        /// Ends a replay as its source was cancelled.
        CancelAsRecorded = "CancelAsRecorded",
        /// Ends the run as cancelled, because its session was stopped.
        Stopped = "Stopped",
    }
}

names! {
    /// An integration of the entity: what a handler of it does.
    Integration {
        /// Executes a node that is executed again after a crash.
        Node = "node",
        /// Executes a node whose effects may have landed before a crash.
        Effect = "effect",
        /// Executes a turn of an orchestrator.
        Turn = "turn",
        /// Continues a node that is executed again after a crash.
        ResumedNode = "resumed_node",
        /// Continues a node whose effects may have landed before a crash.
        ResumedEffect = "resumed_effect",
        /// Copies or repeats events of the source of a fork.
        Replay = "replay",
        /// Decides what the failure of a node means, or what comes next.
        Conclude = "conclude",
        /// Waits until the time of an interrupt is over.
        Expiry = "expiry",
    }
}

impl Integration {
    /// Whether it begins a node.
    pub const fn begins_node(self) -> bool {
        matches!(self, Self::Node | Self::Effect | Self::Turn)
    }

    /// Whether it executes a node.
    pub const fn executes_node(self) -> bool {
        self.begins_node() || matches!(self, Self::ResumedNode | Self::ResumedEffect)
    }

    /// Whether it executes a node that is executed again after a crash, and is not a turn.
    pub const fn is_rerun(self) -> bool {
        matches!(self, Self::Node | Self::ResumedNode)
    }
}

/// The parameter that the spec takes the deadline of a handler from ([`Params::budget_ms`]).
pub const BUDGET_PARAM: &str = "budget_ms";

/// The parameters of an action.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Params {
    /// What the run begins with: of its first action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub begin: Option<Begin>,
    /// What the handler does that the action starts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<Next>,
    /// The time of the pack that executes the node, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub budget_ms: Option<u64>,
    /// The dispatch of the handler whose end the action follows from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<DispatchId>,
    /// What happened.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<RunEvent>,
    /// The payload of the last event of the run: of its last action.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ending: Option<Value>,
    /// The failure of a handler that chose no action itself.
    #[serde(skip_serializing)]
    pub error: Option<HandlerError>,
    /// What kind of failure it is, if [`error`](Self::error) does not have it.
    #[serde(skip_serializing)]
    pub error_kind: Option<String>,
}

/// The failure of a handler, as the runtime passes it to an action.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum HandlerError {
    /// What failed, for people.
    Message(String),
    /// As before version 3 of the rules.
    WithKind {
        /// What kind of failure it is.
        kind: Option<String>,
        /// What failed, for people.
        message: Option<String>,
    },
}

impl Params {
    /// Reads the parameters of a recorded action.
    ///
    /// # Errors
    /// One does not have the form that this version knows.
    pub fn read(params: &Object) -> Result<Self, serde_json::Error> {
        let fields = params.iter().map(|(name, value)| (name.as_str(), value));
        Self::deserialize(MapDeserializer::new(fields))
    }

    /// Parameters with `next` alone.
    pub fn next(next: Next) -> Self {
        Self { next: Some(next), ..Self::default() }
    }
}

impl From<Params> for Object {
    fn from(params: Params) -> Self {
        match serde_json::to_value(params).expect("the parameters are plain data") {
            Value::Object(fields) => fields.into_iter().collect(),
            _ => unreachable!("a struct is an object"),
        }
    }
}
