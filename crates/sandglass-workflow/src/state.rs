//! The state of a run: the fold of its events. The state and the definition determine what comes next
//! (`plan.rs`).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::channels;
use crate::decision::Decision;
use crate::definition::Definition;
use crate::error::RunError;
use crate::event::{ChildPhase, ChildStatus, Ending, Payload, RunEvent, interrupt_id};
use crate::interrupt::{Interrupt, InterruptKind};
use crate::names::names;
use crate::node::{is_orchestrator, orchestrator};
use crate::variables;

/// The status of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeStatus {
    /// It has not been reached.
    #[default]
    Pending,
    /// It is executing, or was when the log ends.
    Running,
    /// It waits for an answer.
    Suspended,
    /// It is complete.
    Completed,
    /// It has failed.
    Failed(RunError),
    /// Its edges do not lead to it.
    Skipped,
}

impl NodeStatus {
    /// Whether it has ended.
    pub const fn is_resolved(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_) | Self::Skipped)
    }

    /// The name for clients.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Suspended => "suspended",
            Self::Completed => "completed",
            Self::Failed(_) => "failed",
            Self::Skipped => "skipped",
        }
    }
}

/// One node of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeState {
    /// Its status in the current round.
    pub status: NodeStatus,
    /// Its status at the end of the round before, if another round has begun and not reached it.
    pub before: NodeStatus,
    /// Its outputs.
    pub outputs: Value,
    /// How often it began.
    pub executions: u64,
    /// How often it was retried since it last began.
    pub attempt: u32,
    /// The answer that it continues with, if it waited for one.
    pub resumed_with: Option<Value>,
}

/// What a run waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The node that waits.
    pub node: String,
    /// The id of the interrupt.
    pub id: String,
    /// What the node asks.
    pub interrupt: Interrupt,
}

/// How a child run ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ChildEnd {
    /// Its status.
    pub status: ChildStatus,
    /// Why it failed.
    pub error: Option<RunError>,
}

names! {
    /// The status of a run, for clients.
    RunStatus {
        /// It is executing.
        Running = "running",
        /// It waits for an approval.
        WaitingApproval = "waiting-approval",
        /// It waits for another system.
        WaitingExternal = "waiting-external",
        /// It waits for an answer.
        WaitingInput = "waiting-input",
        /// It is being stopped.
        Cancelling = "cancelling",
        /// It is complete.
        Completed = "completed",
        /// It failed.
        Failed = "failed",
        /// It was cancelled.
        Cancelled = "cancelled",
    }
}

/// The state of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    /// The inputs that the run started with.
    pub inputs: Map<String, Value>,
    /// The variables, by name.
    pub variables: Map<String, Value>,
    /// The channels that have a value, by name.
    pub channels: BTreeMap<String, Value>,
    /// The nodes, in the order of the definition.
    pub nodes: Vec<NodeState>,
    /// How many turns its orchestrator took.
    pub iteration: u64,
    /// How many nodes began.
    pub executions: u64,
    /// The name of its orchestrator, once it has decided something.
    pub orchestrator: Option<String>,
    /// The last decision of its orchestrator.
    pub decision: Option<Decision>,
    /// Whether that is the decision of the present turn.
    pub is_decided: bool,
    /// The child runs of the present or last dispatch, by id, with the end of each that has ended
    /// and whose events are recorded.
    pub children: BTreeMap<String, Option<ChildEnd>>,
    /// The answers to questions of the orchestrator, in order.
    pub answers: Vec<Value>,
    /// The answers to interrupts, by node and key: a node that asks again receives them.
    pub resolved: BTreeMap<(String, String), Value>,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// How many interrupts it has had.
    pub interrupts: u64,
    /// How it ended, if it has.
    pub ended: Option<Ending>,
}

impl RunState {
    /// The state before the first event.
    pub fn new(definition: &Definition) -> Self {
        let nodes = vec![NodeState::default(); definition.nodes.len()];
        let channels = definition.channels.iter();
        let channels = channels.filter_map(|(name, channel)| {
            channel.default.clone().map(|default| (name.clone(), default))
        });
        Self { nodes, channels: channels.collect(), ..Self::default() }
    }

    /// The state that `events` lead to.
    pub fn fold<'a>(
        definition: &Definition,
        events: impl IntoIterator<Item = &'a RunEvent>,
    ) -> Self {
        let mut state = Self::new(definition);
        events.into_iter().for_each(|event| state.apply(definition, event));
        state
    }

    /// Folds in one more event.
    pub fn apply(&mut self, definition: &Definition, event: &RunEvent) {
        let index = event.node_id.as_deref().and_then(|node| definition.node(node));
        match &event.payload {
            Payload::RunStarted { inputs, .. } => {
                self.inputs.clone_from(inputs);
                // The request was checked before the run was begun.
                let inputs = Value::Object(inputs.clone());
                let variables = variables::initial(&definition.variables, Some(&inputs));
                self.variables = variables.unwrap_or_default().into_iter().collect();
            }
            Payload::VariableChanged { name, next, .. } => {
                self.variables.insert(name.clone(), next.clone());
            }
            Payload::ChannelWritten { channel: name, value, .. } => {
                let Some(channel) = definition.channels.get(name) else { return };
                let before = self.channels.remove(name);
                let value = channels::reduce(channel, before, value.clone());
                self.channels.insert(name.clone(), value);
            }
            Payload::InterruptRequested(interrupt) => {
                self.interrupts += 1;
                let node = event.node_id.clone().unwrap_or_default();
                let id = interrupt_id(&node, self.interrupts);
                self.waiting = Some(Waiting { node, id, interrupt: interrupt.clone() });
            }
            Payload::InterruptResolved { resume_value, .. } => {
                let Some(Waiting { node, interrupt, .. }) = self.waiting.take() else { return };
                self.resolved.insert((node, interrupt.key), resume_value.clone());
            }
            Payload::OrchestratorDecided { agent_id, decision, iteration } => {
                self.iteration = *iteration;
                self.orchestrator = Some(agent_id.clone());
                self.decision = Some(decision.clone());
                self.is_decided = true;
            }
            Payload::WorkflowChain(event) => self.apply_child(&event.phase),
            Payload::RunCompleted(_) | Payload::RunFailed(_) | Payload::RunCancelled(_) => {
                self.waiting = None;
                self.ended = event.payload.ending();
            }
            Payload::NodeStarted { .. }
            | Payload::NodeRetried { .. }
            | Payload::NodeCompleted { .. }
            | Payload::NodeFailed { .. }
            | Payload::NodeSkipped { .. }
            | Payload::NodeSuspended { .. }
            | Payload::NodeResumed { .. } => {
                if let Some(index) = index {
                    self.apply_to_node(definition, index, &event.payload);
                }
            }
            Payload::NodeCancelled { .. }
            | Payload::LogAppended { .. }
            | Payload::LoopbackLimit { .. }
            | Payload::CapBreached { .. }
            | Payload::ReplayDiverged { .. }
            | Payload::NodeDispatched { .. } => {}
        }
    }

    /// Folds in an event of the node at `index`.
    fn apply_to_node(&mut self, definition: &Definition, index: usize, payload: &Payload) {
        if let Payload::NodeStarted { .. } = payload {
            return self.begin(definition, index);
        }
        let is_ratified = orchestrator::ratified_decision(&definition.nodes[index], self).is_some();
        let node = &mut self.nodes[index];
        match payload {
            Payload::NodeRetried { attempt, .. } => {
                node.attempt = *attempt;
                node.status = NodeStatus::Running;
            }
            Payload::NodeCompleted { outputs, .. } => {
                node.status = NodeStatus::Completed;
                node.outputs.clone_from(outputs);
            }
            Payload::NodeFailed { error, .. } => {
                node.status = NodeStatus::Failed(error.clone());
                self.waiting = None;
            }
            Payload::NodeSkipped { .. } => node.status = NodeStatus::Skipped,
            Payload::NodeSuspended { .. } => node.status = NodeStatus::Suspended,
            Payload::NodeResumed { resume_value, .. } => {
                node.status = NodeStatus::Running;
                node.resumed_with = Some(resume_value.clone());
                if is_orchestrator(&definition.nodes[index]) && !is_ratified {
                    self.answers.push(resume_value.clone());
                }
            }
            _ => {}
        }
    }

    fn apply_child(&mut self, phase: &ChildPhase) {
        let (child, end) = match phase {
            ChildPhase::Began | ChildPhase::NotStarted { .. } => return,
            // The outputs of one that is complete are recorded after this.
            ChildPhase::Started { child_run_id } | ChildPhase::Completed { child_run_id } => {
                (child_run_id, None)
            }
            ChildPhase::Harvested { child_run_id, .. } => {
                (child_run_id, Some(ChildEnd { status: ChildStatus::Completed, error: None }))
            }
            ChildPhase::Failed { child_run_id, error } => {
                let error = error.clone();
                (child_run_id, Some(ChildEnd { status: ChildStatus::Failed, error }))
            }
            ChildPhase::Cancelled { child_run_id } => {
                (child_run_id, Some(ChildEnd { status: ChildStatus::Cancelled, error: None }))
            }
        };
        let known = self.children.entry(child.clone()).or_default();
        *known = end.or(known.take());
    }

    /// The status for clients of a run that is in this state, unless it `is_stopping`.
    pub fn status(&self, is_stopping: bool) -> RunStatus {
        match (&self.ended, is_stopping, &self.waiting) {
            (Some(Ending::Completed(_)), ..) => RunStatus::Completed,
            (Some(Ending::Cancelled(_)), ..) => RunStatus::Cancelled,
            (Some(Ending::Failed(_)), ..) => RunStatus::Failed,
            (None, true, _) => RunStatus::Cancelling,
            (None, false, Some(waiting)) => match waiting.interrupt.kind {
                InterruptKind::Approval | InterruptKind::LowConfidence => {
                    RunStatus::WaitingApproval
                }
                InterruptKind::ExternalEvent => RunStatus::WaitingExternal,
                _ => RunStatus::WaitingInput,
            },
            (None, false, None) => RunStatus::Running,
        }
    }

    /// A node begins. If it has ended before, this is another round of a loop, and everything behind it
    /// starts again.
    fn begin(&mut self, definition: &Definition, index: usize) {
        self.executions = self.executions.saturating_add(1);
        // Answers of an earlier round do not count in this one.
        let id = &definition.nodes[index].id;
        self.resolved.retain(|(node, _), _| node != id);
        self.children.clear();
        self.is_decided &= !is_orchestrator(&definition.nodes[index]);
        if self.nodes[index].status.is_resolved() {
            for behind in downstream(definition, index) {
                let node = &mut self.nodes[behind];
                if node.status.is_resolved() {
                    node.before = std::mem::take(&mut node.status);
                }
                (node.status, node.attempt) = (NodeStatus::Pending, 0);
            }
        }
        let node = &mut self.nodes[index];
        (node.status, node.attempt, node.resumed_with) = (NodeStatus::Running, 0, None);
        node.executions = node.executions.saturating_add(1);
    }

    /// The outputs of a node, if it is complete.
    pub fn outputs(&self, definition: &Definition, node: &str) -> Option<&Value> {
        let state = self.nodes.get(definition.node(node)?)?;
        matches!(state.status, NodeStatus::Completed).then_some(&state.outputs)
    }

    /// The node that executes or waits, by its index.
    pub fn current(&self) -> Option<usize> {
        let is_current =
            |node: &NodeState| matches!(node.status, NodeStatus::Running | NodeStatus::Suspended);
        self.nodes.iter().position(is_current)
    }
}

/// The nodes that can be reached from the one at `index` without back edges.
fn downstream(definition: &Definition, index: usize) -> Vec<usize> {
    let mut found = vec![false; definition.nodes.len()];
    let mut way = vec![index];
    while let Some(node) = way.pop() {
        for edge in definition.graph.outgoing(node) {
            let target = definition.edges[*edge].target;
            if !definition.graph.is_back(*edge) && !found[target] {
                found[target] = true;
                way.push(target);
            }
        }
    }
    (0..found.len()).filter(|node| found[*node]).collect()
}
