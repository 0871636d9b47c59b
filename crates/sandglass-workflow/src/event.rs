//! What happens in a run, as its clients see it: the events of the protocol.

use std::fmt;

use sandglass_model::{DispatchId, Limit, WallTime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What kind of event: those of the protocol's catalogue that this host sends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum Kind { $($(#[$doc])* #[serde(rename = $text)] $name,)* }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// As it is sent.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

kinds! {
    /// A run begins: always its first event.
    RunStarted = "run.started",
    /// A run has come to its end.
    RunCompleted = "run.completed",
    /// A run has failed.
    RunFailed = "run.failed",
    /// A run was cancelled.
    RunCancelled = "run.cancelled",
    /// A node begins.
    NodeStarted = "node.started",
    /// A node has done its work.
    NodeCompleted = "node.completed",
    /// A node has failed.
    NodeFailed = "node.failed",
    /// A node waits for an answer from outside.
    NodeSuspended = "node.suspended",
    /// A node goes on with the answer.
    NodeResumed = "node.resumed",
    /// A node is run once more.
    NodeRetried = "node.retried",
    /// A node isn't run, by its edges.
    NodeSkipped = "node.skipped",
    /// A node was ended with its run.
    NodeCancelled = "node.cancelled",
    /// What a node waits for.
    InterruptRequested = "interrupt.requested",
    /// The answer to it.
    InterruptResolved = "interrupt.resolved",
    /// A channel was written to.
    ChannelWritten = "channel.written",
    /// A variable was set.
    VariableChanged = "variable.changed",
    /// A node has said something.
    LogAppended = "log.appended",
    /// A loop that no orchestrator decides has come round too often.
    LoopbackLimit = "workflow.loopback-limit",
    /// A bound was breached.
    CapBreached = "cap.breached",
    /// A replay has come to something else than the run that it replays.
    ReplayDiverged = "replay.diverged",
    /// An orchestrator has taken a turn.
    OrchestratorDecided = "runOrchestrator.decided",
    /// A child run was started.
    NodeDispatched = "node.dispatched",
    /// How a child run goes.
    WorkflowChain = "core.workflowChain.event",
}

impl Kind {
    /// Whether a run ends by it.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed | Self::RunCancelled)
    }

    /// Whether a node's handler has come to an end by it.
    pub const fn ends_a_run_of_a_node(self) -> bool {
        matches!(
            self,
            Self::NodeCompleted | Self::NodeFailed | Self::NodeSuspended | Self::NodeRetried
        )
    }

    /// Whether a stream has it for debugging alone.
    #[must_use]
    pub const fn is_detail(self) -> bool {
        matches!(self, Self::LogAppended)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Where a node was really run: a replay of a replay goes back to that.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The dispatch.
    pub dispatch: DispatchId,
    /// Which attempt of it.
    pub attempt: u32,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// What.
    #[serde(rename = "type")]
    pub kind: Kind,
    /// At which node.
    #[serde(rename = "nodeId", default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// What is to say of it.
    pub payload: Value,
    /// Of the end of a node's handler: where that was run. Clients don't see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
}

impl RunEvent {
    /// About the whole run.
    pub fn of_run(kind: Kind, payload: Value) -> Self {
        Self { kind, node_id: None, payload, origin: None }
    }

    /// About one node.
    pub fn of_node(kind: Kind, node: &str, payload: Value) -> Self {
        Self { kind, node_id: Some(node.to_owned()), payload, origin: None }
    }

    /// That a node has done its work, with what came of it.
    pub fn completed(node: &str, outputs: &Value) -> Self {
        Self::of_node(Kind::NodeCompleted, node, json!({ "nodeId": node, "outputs": outputs }))
    }

    /// That a node has failed.
    pub fn failed(node: &str, error: &RunError) -> Self {
        Self::of_node(Kind::NodeFailed, node, json!({ "nodeId": node, "error": error }))
    }

    /// That a node isn't run.
    pub fn skipped(node: &str, reason: &str) -> Self {
        Self::of_node(Kind::NodeSkipped, node, json!({ "nodeId": node, "reason": reason }))
    }
}

/// Why a node or run has failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunError {
    /// For programs.
    pub code: String,
    /// For people.
    pub message: String,
    /// What else is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<Value>,
}

impl RunError {
    /// An error with a code and a message; each gets a default if it is empty.
    pub fn new(code: impl Into<String>, message: impl Into<String>) -> Self {
        // The protocol wants some text in both.
        let some = |text: String, else_: &str| {
            if text.is_empty() { else_.to_owned() } else { text }
        };
        Self {
            code: some(code.into(), "error"),
            message: some(message.into(), "no message was given"),
            details: None,
        }
    }

    /// Adds details for programs.
    #[must_use]
    pub fn details(self, details: Value) -> Self {
        Self { details: Some(details), ..self }
    }

    /// With these details, where they are an object.
    pub fn details_or(self, details: Option<Value>) -> Self {
        Self { details: details.filter(Value::is_object), ..self }
    }
}

/// An event at its place in the log of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number, from 0.
    pub sequence: u64,
    /// When it was recorded.
    pub at: WallTime,
    /// What happened.
    pub event: RunEvent,
}

impl Entry {
    /// Its id: the same for whoever asks, whenever.
    pub fn id(&self, run: &str) -> String {
        event_id(run, self.sequence)
    }

    /// As clients get it.
    pub fn document(&self, run: &str) -> Value {
        let mut document = json!({
            "eventId": self.id(run),
            "runId": run,
            "type": self.event.kind,
            "payload": self.event.payload,
            "timestamp": self.at.to_string(),
            "sequence": self.sequence,
        });
        if let Some(node) = &self.event.node_id {
            document["nodeId"] = json!(node);
        }
        document
    }
}

/// The id of an event of a run.
pub fn event_id(run: &str, sequence: u64) -> String {
    format!("{run}:{sequence}")
}

/// The kinds of breaches of runs' bounds.
pub const KINDS_OF_RUNS: [&str; 3] = ["run-duration", "node-executions", "loop-iterations"];

/// The kind of a breach of a run's bound, as clients know it; none for limits that are no
/// bounds of runs.
#[must_use]
pub const fn kind_of(limit: Limit) -> Option<&'static str> {
    match limit {
        Limit::ExecutionTimeout | Limit::RunTimeout => Some(KINDS_OF_RUNS[0]),
        Limit::MaxHandlerRuns => Some(KINDS_OF_RUNS[1]),
        Limit::MaxLoopIterations => Some(KINDS_OF_RUNS[2]),
        _ => None,
    }
}
