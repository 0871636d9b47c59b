//! What happens in a run: the events that its clients receive, and that its state is folded from.

use sandglass_model::{DispatchId, Limit, LimitKind, WallTime};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use crate::decision::Decision;
use crate::definition::Reducer;
use crate::error::RunError;
use crate::interrupt::{Interrupt, InterruptKind};
use crate::json_size;
use crate::names::names;
use crate::step::ForkMode;

macro_rules! events {
    ($($(#[$doc:meta])* $text:literal => $name:ident $body:tt,)*) => {
        names! {
            /// The kind of an event: those of the protocol's catalogue that this host sends.
            Kind { $($(#[$doc])* $name = $text,)* }
        }

        /// What happened, with the fields of the protocol (`run-event-payloads.schema.json`).
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[serde(tag = "type", content = "payload", rename_all_fields = "camelCase")]
        #[expect(missing_docs, reason = "the protocol describes the fields")]
        pub enum Payload { $($(#[$doc])* #[serde(rename = $text)] $name $body,)* }

        impl Payload {
            /// The kind of the event.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$name { .. } => Kind::$name,)* }
            }
        }
    };
}

events! {
    /// The run began: always its first event.
    "run.started" => RunStarted {
        workflow_id: String,
        inputs: Map<String, Value>,
        transport: String,
        engine_version: String,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tags: Vec<String>,
        #[serde(default, skip_serializing_if = "Map::is_empty")]
        metadata: Map<String, Value>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent_run_id: Option<String>,
    },
    /// The run is complete.
    "run.completed" => RunCompleted(Completed),
    /// The run failed.
    "run.failed" => RunFailed(Failed),
    /// The run was cancelled.
    "run.cancelled" => RunCancelled(Cancelled),
    /// A node began.
    "node.started" => NodeStarted { node_id: String, type_id: String, attempt: u32 },
    /// A node is complete.
    "node.completed" => NodeCompleted { node_id: String, outputs: Value },
    /// A node failed.
    "node.failed" => NodeFailed { node_id: String, error: RunError },
    /// A node waits for an answer from outside.
    "node.suspended" => NodeSuspended {
        node_id: String,
        interrupt_id: String,
        kind: InterruptKind,
        key: String,
        /// What the protocol names besides the kind: present for decisions of low confidence.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<InterruptKind>,
        /// Whose decision that is, as far as it is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        agent_id: Option<String>,
    },
    /// A node continues with the answer.
    "node.resumed" => NodeResumed { node_id: String, interrupt_id: String, resume_value: Value },
    /// A node is executed again.
    "node.retried" => NodeRetried { node_id: String, attempt: u32, last_error: RunError },
    /// A node is not executed, by its edges.
    "node.skipped" => NodeSkipped { node_id: String, reason: String },
    /// A node was ended with its run.
    "node.cancelled" => NodeCancelled { node_id: String, reason: String },
    /// What a node waits for.
    "interrupt.requested" => InterruptRequested(Interrupt),
    /// The answer to it.
    "interrupt.resolved" => InterruptResolved {
        node_id: String,
        interrupt_id: String,
        kind: InterruptKind,
        resume_value: Value,
    },
    /// A node wrote to a channel.
    "channel.written" => ChannelWritten {
        channel: String,
        value: Value,
        /// Absent from events of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reducer: Option<Reducer>,
        /// Absent from events of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        written_at: Option<String>,
    },
    /// A variable was set.
    "variable.changed" => VariableChanged {
        name: String,
        next: Value,
        #[serde(
            default,
            deserialize_with = "present",
            skip_serializing_if = "Option::is_none"
        )]
        previous: Option<Value>,
        node_id: String,
    },
    /// A node logged something.
    "log.appended" => LogAppended { level: LogLevel, message: String, node_id: String },
    /// A loop that no orchestrator decides was taken too often.
    "workflow.loopback-limit" => LoopbackLimit { node_id: String, iterations: u64, limit: u64 },
    /// A limit was breached.
    "cap.breached" => CapBreached {
        kind: CapKind,
        limit: u64,
        observed: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        node_id: Option<String>,
    },
    /// A replay led to something else than the run that it replays.
    "replay.diverged" => ReplayDiverged {
        source_run_id: String,
        at_sequence: u64,
        original_event_id: String,
        /// Absent from events of earlier versions.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        replay_event_id: Option<String>,
        divergence_kind: DivergenceKind,
        divergence_point: Kind,
        node_id: Option<String>,
        what: String,
        recorded: String,
        came: String,
    },
    /// An orchestrator took a turn.
    "runOrchestrator.decided" => OrchestratorDecided {
        agent_id: String,
        decision: Decision,
        iteration: u64,
    },
    /// A child run ended.
    "node.dispatched" => NodeDispatched {
        child_run_id: String,
        child_workflow_id: String,
        child_status: ChildStatus,
    },
    /// What became of a child run.
    "core.workflowChain.event" => WorkflowChain(ChildEvent),
}

/// Distinguishes a field that is `null` from one that is absent.
fn present<'de, D: Deserializer<'de>>(value: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(value).map(Some)
}

impl Kind {
    /// Whether a run ends with it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::RunCompleted | Self::RunFailed | Self::RunCancelled)
    }

    /// Whether the handler of a node ends with it.
    pub const fn ends_node_handler(self) -> bool {
        matches!(
            self,
            Self::NodeCompleted | Self::NodeFailed | Self::NodeSuspended | Self::NodeRetried
        )
    }

    /// Whether the mode `updates` of the protocol's streams has it: the run, a node or an interrupt
    /// reached another status.
    pub const fn is_update(self) -> bool {
        self.is_terminal()
            || matches!(
                self,
                Self::RunStarted
                    | Self::NodeCompleted
                    | Self::NodeFailed
                    | Self::NodeSkipped
                    | Self::NodeCancelled
                    | Self::NodeSuspended
                    | Self::NodeResumed
                    | Self::NodeDispatched
                    | Self::InterruptRequested
                    | Self::InterruptResolved
            )
    }
}

names! {
    /// The limit that was breached.
    CapKind {
        /// The time of a run.
        RunDuration = "run-duration",
        /// The nodes that a run may execute.
        NodeExecutions = "node-executions",
        /// The turns of an orchestrator.
        LoopIterations = "loop-iterations",
        /// The memory of a node: the protocol has one kind for memory.
        WasmMemory = "wasm-memory",
        /// The fuel of a node.
        WasmFuel = "wasm-fuel",
        /// The time of a node.
        WasmExecutionTime = "wasm-execution-time",
    }
}

impl CapKind {
    /// The kind of a breach of a limit of a session; `None` if the limit is not one of runs.
    pub const fn of_run(limit: Limit) -> Option<Self> {
        match limit {
            Limit::ExecutionTimeout | Limit::RunTimeout => Some(Self::RunDuration),
            Limit::MaxHandlerRuns => Some(Self::NodeExecutions),
            Limit::MaxLoopIterations => Some(Self::LoopIterations),
            _ => None,
        }
    }

    /// The kind of a breach of a limit of a guest.
    pub(crate) const fn of_guest(limit: LimitKind) -> Self {
        match limit {
            LimitKind::WasmMemory | LimitKind::WasmTable | LimitKind::HostMemory => {
                Self::WasmMemory
            }
            LimitKind::WasmFuel => Self::WasmFuel,
        }
    }

    /// Whether it is a limit of a whole run.
    pub(crate) const fn is_of_run(self) -> bool {
        matches!(self, Self::RunDuration | Self::NodeExecutions | Self::LoopIterations)
    }
}

names! {
    /// How important a line in the log of a node is.
    LogLevel {
        /// For debugging.
        Debug = "debug",
        /// Normal.
        Info = "info",
        /// Unusual.
        Warn = "warn",
        /// A failure.
        Error = "error",
    }
}

names! {
    /// In which respect a replay differs from its source.
    DivergenceKind {
        /// The node ended in another way.
        Output = "output",
        /// The node cannot be executed again.
        TypeMismatch = "type-mismatch",
    }
}

names! {
    /// How a child run ended.
    ChildStatus {
        /// It is complete.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

/// Something that happened to a child run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the protocol describes the fields")]
pub struct ChildEvent {
    pub worker_id: String,
    pub parent_run_id: String,
    #[serde(flatten)]
    pub phase: ChildPhase,
}

/// What happened to a child run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all_fields = "camelCase")]
#[expect(missing_docs, reason = "the protocol describes the fields")]
pub enum ChildPhase {
    /// It is being started.
    #[serde(rename = "dispatch.began")]
    Began,
    /// It was started.
    #[serde(rename = "dispatch.succeeded")]
    Started { child_run_id: String },
    /// It could not be started.
    #[serde(rename = "dispatch.failed")]
    NotStarted { error: RunError },
    /// It is complete.
    #[serde(rename = "child.completed")]
    Completed { child_run_id: String },
    /// It failed.
    #[serde(rename = "child.failed")]
    Failed {
        child_run_id: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
    },
    /// It was cancelled.
    #[serde(rename = "child.cancelled")]
    Cancelled { child_run_id: String },
    /// The parent has its outputs.
    #[serde(rename = "output.harvested")]
    Harvested { child_run_id: String, harvested_keys: Vec<String> },
}

/// The run that a fork was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the protocol describes the fields")]
pub struct ForkedFrom {
    pub run_id: String,
    pub from_seq: u64,
    pub mode: ForkMode,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Ending {
    /// It is complete.
    Completed(Completed),
    /// It failed.
    Failed(Failed),
    /// It was cancelled.
    Cancelled(Cancelled),
}

/// The end of a run that is complete.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Completed {
    /// The outputs of its last nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<Value>,
    /// How long it took, once it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

/// The end of a run that failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Failed {
    /// Why.
    pub error: RunError,
    /// The node that the details of the error name; a pack may have written anything there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_node_id: Option<Value>,
    /// How long the run took, once it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl Failed {
    /// A failure for `error`.
    pub const fn new(error: RunError) -> Self {
        Self { error, failed_node_id: None, duration_ms: None }
    }
}

/// The end of a run that was cancelled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cancelled {
    /// Why.
    pub reason: String,
    /// The run that it worked for, if it was cancelled with that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_run_id: Option<String>,
    /// How long it took, once it is recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_ms: Option<u64>,
}

impl Ending {
    /// The last event of the run, which took `duration_ms` unless it is a replay.
    pub fn into_payload(mut self, duration: u64) -> Payload {
        let (Self::Completed(Completed { duration_ms, .. })
        | Self::Failed(Failed { duration_ms, .. })
        | Self::Cancelled(Cancelled { duration_ms, .. })) = &mut self;
        duration_ms.get_or_insert(duration);
        match self {
            Self::Completed(ending) => Payload::RunCompleted(ending),
            Self::Failed(ending) => Payload::RunFailed(ending),
            Self::Cancelled(ending) => Payload::RunCancelled(ending),
        }
    }
}

impl Payload {
    /// How the run ended, if this is its last event.
    pub fn ending(&self) -> Option<Ending> {
        match self {
            Self::RunCompleted(ending) => Some(Ending::Completed(ending.clone())),
            Self::RunFailed(ending) => Some(Ending::Failed(ending.clone())),
            Self::RunCancelled(ending) => Some(Ending::Cancelled(ending.clone())),
            _ => None,
        }
    }

    /// Approximate size of the fields as JSON, in bytes ([`json_size`]).
    pub fn json_size(&self) -> usize {
        /// The size of `{"type": "", "payload": }`.
        const ENVELOPE: usize = 2 + ("type".len() + 4 + 2) + ("payload".len() + 4);
        json_size(self).saturating_sub(ENVELOPE + self.kind().as_str().len())
    }

    /// The fields alone, as JSON.
    pub fn fields(&self) -> Value {
        let mut tagged = serde_json::to_value(self).expect("payloads are plain data");
        tagged["payload"].take()
    }
}

/// Where a node was really executed: a replay of a replay needs it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// The dispatch.
    pub dispatch: DispatchId,
    /// The attempt of the dispatch.
    pub attempt: u32,
}

/// Something that happened in a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEvent {
    /// What happened.
    #[serde(flatten)]
    pub payload: Payload,
    /// The node that it happened at.
    #[serde(rename = "nodeId", default, skip_serializing_if = "Option::is_none")]
    pub node_id: Option<String>,
    /// Where the handler was executed that ended with this event. Clients do not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// When the source of a fork recorded it, if the fork copied it as it is.
    #[serde(rename = "copiedAt", default, skip_serializing_if = "Option::is_none")]
    pub copied_at: Option<WallTime>,
}

impl RunEvent {
    /// An event of the whole run.
    pub const fn of_run(payload: Payload) -> Self {
        Self { payload, node_id: None, origin: None, copied_at: None }
    }

    /// An event of one node.
    pub fn of_node(node: &str, payload: Payload) -> Self {
        Self { node_id: Some(node.to_owned()), ..Self::of_run(payload) }
    }

    /// The kind of the event.
    pub const fn kind(&self) -> Kind {
        self.payload.kind()
    }

    /// A node began.
    pub fn started(node: &str, type_id: &str) -> Self {
        let (node_id, type_id) = (node.to_owned(), type_id.to_owned());
        Self::of_node(node, Payload::NodeStarted { node_id, type_id, attempt: 0 })
    }

    /// A node is complete.
    pub fn completed(node: &str, outputs: Value) -> Self {
        Self::of_node(node, Payload::NodeCompleted { node_id: node.to_owned(), outputs })
    }

    /// A node failed.
    pub fn failed(node: &str, error: RunError) -> Self {
        Self::of_node(node, Payload::NodeFailed { node_id: node.to_owned(), error })
    }

    /// A node is executed again.
    pub fn retried(node: &str, attempt: u32, last_error: RunError) -> Self {
        let node_id = node.to_owned();
        Self::of_node(node, Payload::NodeRetried { node_id, attempt, last_error })
    }

    /// A node waits for the answer to the `nth` interrupt of its run.
    pub fn suspended(node: &str, nth: u64, interrupt: Interrupt) -> [Self; 2] {
        let reason = Some(interrupt.kind).filter(|kind| *kind == InterruptKind::LowConfidence);
        let agent = reason.and_then(|_| interrupt.data.get("agentId")?.as_str());
        let suspended = Payload::NodeSuspended {
            node_id: node.to_owned(),
            interrupt_id: interrupt_id(node, nth),
            kind: interrupt.kind,
            key: interrupt.key.clone(),
            reason,
            agent_id: agent.map(str::to_owned),
        };
        let requested = Payload::InterruptRequested(interrupt);
        [Self::of_node(node, suspended), Self::of_node(node, requested)]
    }
}

/// The id of the `nth` interrupt of a run, at `node`.
pub(crate) fn interrupt_id(node: &str, nth: u64) -> String {
    format!("{node}-{nth}")
}

/// Finds the event that caused each event of a child run (`causationId`). Child runs are executed one after
/// the other, so the last one is the cause.
#[derive(Clone, Copy, Debug, Default)]
pub struct Causes {
    decided: Option<u64>,
    handed_over: Option<u64>,
}

impl Causes {
    /// The number of the event that `event` follows from, which is number `sequence`.
    pub const fn next(&mut self, sequence: u64, event: &RunEvent) -> Option<u64> {
        match &event.payload {
            Payload::OrchestratorDecided { .. } => {
                self.decided = Some(sequence);
                None
            }
            Payload::NodeDispatched { .. } => self.decided,
            Payload::WorkflowChain(ChildEvent { phase, .. }) => {
                let cause = match phase {
                    ChildPhase::Began => self.decided,
                    _ => self.handed_over,
                };
                self.handed_over = Some(sequence);
                cause
            }
            _ => None,
        }
    }
}

/// An event with its position in the log of its run.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its number, from 0.
    pub sequence: u64,
    /// The number of the event that it follows from ([`Causes`]).
    pub cause: Option<u64>,
    /// When it was recorded; if a fork copied it as it is, when its source did.
    pub at: WallTime,
    /// What happened.
    pub event: RunEvent,
}

impl Entry {
    /// The event as clients receive it, before masking.
    pub fn document(&self, run: &str) -> Value {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct Document<'a> {
            event_id: String,
            run_id: &'a str,
            #[serde(flatten)]
            payload: &'a Payload,
            timestamp: String,
            sequence: u64,
            #[serde(skip_serializing_if = "Option::is_none")]
            node_id: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            causation_id: Option<String>,
        }
        let document = Document {
            event_id: event_id(run, self.sequence),
            run_id: run,
            payload: &self.event.payload,
            timestamp: self.at.to_string(),
            sequence: self.sequence,
            node_id: self.event.node_id.as_deref(),
            causation_id: self.cause.map(|cause| event_id(run, cause)),
        };
        let mut document = serde_json::to_value(document).expect("events are plain data");
        if let Payload::OrchestratorDecided { .. } = &self.event.payload
            && let Some(payload) = document["payload"].as_object_mut()
        {
            // Hosts send it from version 5 of the execution model on, and this one has version 1.
            payload.remove("iteration");
        }
        document
    }
}

/// The id of an event of a run: the same for every reader, at any time.
pub fn event_id(run: &str, sequence: u64) -> String {
    format!("{run}:{sequence}")
}
