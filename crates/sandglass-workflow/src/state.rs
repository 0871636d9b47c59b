//! How a run stands: the fold of its events. What it does next is found out from this and
//! its definition alone (`plan.rs`).

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::channels;
use crate::definition::Definition;
use crate::event::{Kind, RunError, RunEvent};
use crate::node::is_orchestrator;
use crate::variables;

/// How a node stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum NodeStatus {
    /// It has not been come to.
    #[default]
    Pending,
    /// It is being run, or was when the log ends.
    Running,
    /// It waits for an answer.
    Suspended,
    /// It has done its work.
    Completed,
    /// It has failed.
    Failed(RunError),
    /// Its edges don't lead to it.
    Skipped,
}

impl NodeStatus {
    /// Whether nothing more comes of it.
    pub const fn is_resolved(&self) -> bool {
        matches!(self, Self::Completed | Self::Failed(_) | Self::Skipped)
    }

    /// As clients see it.
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
    /// How it stood at the end of the round before, where another one has begun since and has
    /// not come to it.
    pub before: NodeStatus,
    /// What came of it.
    pub outputs: Value,
    /// How often it was begun.
    pub executions: u64,
    /// How often it was retried since it was last begun anew.
    pub attempt: u32,
    /// The answer that it goes on with, where it has waited for one.
    pub resumed_with: Option<Value>,
}

/// What a run waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Waiting {
    /// The node that waits.
    pub node: String,
    /// The id of the interrupt.
    pub interrupt: String,
    /// What was asked: `{kind, key, data, ..}`.
    pub payload: Value,
}

/// How a run stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunState {
    /// The inputs that the run started with.
    pub inputs: Map<String, Value>,
    /// The variables, by name.
    pub variables: Map<String, Value>,
    /// The channels that have a value, by name.
    pub channels: BTreeMap<String, Value>,
    /// By the place of the node in the definition.
    pub nodes: Vec<NodeState>,
    /// Turns of its orchestrator.
    pub iteration: u64,
    /// Nodes that were begun.
    pub executions: u64,
    /// Who orchestrates it, once that has decided something.
    pub orchestrator: Option<String>,
    /// What that has decided last.
    pub decision: Option<Value>,
    /// The child runs of the dispatch that is being run, or was last, by their ids; with what
    /// came of each, but for its outputs, once all of that was told.
    pub children: BTreeMap<String, Option<Value>>,
    /// What people have answered the orchestrator, in order.
    pub answers: Vec<Value>,
    /// The answers to interrupts, by node and key: who asks again is given them.
    pub resolved: BTreeMap<(String, String), Value>,
    /// What it waits for.
    pub waiting: Option<Waiting>,
    /// How many interrupts it has had.
    pub interrupts: u64,
    /// Its last event, where it has come to its end.
    pub ended: Option<(Kind, Value)>,
}

impl RunState {
    /// Before anything has happened.
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
        for event in events {
            state.apply(definition, event);
        }
        state
    }

    /// Folds in one more event.
    pub fn apply(&mut self, definition: &Definition, event: &RunEvent) {
        let payload = &event.payload;
        let index = event.node_id.as_deref().and_then(|node| definition.node(node));
        match event.kind {
            Kind::RunStarted => {
                self.inputs = object(payload.get("inputs"));
                // The request was checked before the run was begun.
                let inputs = Value::Object(self.inputs.clone());
                let variables = variables::initial(&definition.variables, Some(&inputs));
                self.variables = variables.unwrap_or_default().into_iter().collect();
            }
            Kind::NodeStarted => {
                let Some(index) = index else { return };
                self.begin(definition, index);
            }
            Kind::NodeRetried => {
                let attempt = payload.get("attempt").and_then(Value::as_u64).unwrap_or(1);
                if let Some(node) = index.and_then(|index| self.nodes.get_mut(index)) {
                    node.attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
                    node.status = NodeStatus::Running;
                }
            }
            Kind::NodeCompleted => {
                if let Some(node) = index.and_then(|index| self.nodes.get_mut(index)) {
                    node.status = NodeStatus::Completed;
                    node.outputs = payload.get("outputs").cloned().unwrap_or_default();
                }
            }
            Kind::NodeFailed => {
                let error = payload.get("error").cloned().unwrap_or_default();
                let error = serde_json::from_value(error)
                    .unwrap_or_else(|_| RunError::new("error", "the node failed"));
                self.set(index, NodeStatus::Failed(error));
                self.waiting = None;
            }
            Kind::NodeSkipped => self.set(index, NodeStatus::Skipped),
            Kind::NodeSuspended => self.set(index, NodeStatus::Suspended),
            Kind::InterruptRequested => {
                self.interrupts += 1;
                let node = event.node_id.clone().unwrap_or_default();
                let interrupt = interrupt_id(&node, self.interrupts);
                self.waiting = Some(Waiting { node, interrupt, payload: payload.clone() });
            }
            Kind::InterruptResolved => {
                let Some(waiting) = self.waiting.take() else { return };
                let key = waiting.payload.get("key").and_then(Value::as_str).unwrap_or_default();
                let value = payload.get("resumeValue").cloned().unwrap_or_default();
                self.resolved.insert((waiting.node, key.to_owned()), value);
            }
            Kind::NodeResumed => {
                let Some(index) = index else { return };
                let answer = payload.get("resumeValue").cloned().unwrap_or_default();
                if is_orchestrator(&definition.nodes[index]) {
                    self.answers.push(answer.clone());
                }
                self.nodes[index].status = NodeStatus::Running;
                self.nodes[index].resumed_with = Some(answer);
            }
            Kind::VariableChanged => {
                let name = payload.get("name").and_then(Value::as_str).unwrap_or_default();
                let next = payload.get("next").cloned().unwrap_or_default();
                self.variables.insert(name.to_owned(), next);
            }
            Kind::ChannelWritten => {
                let name = payload.get("channel").and_then(Value::as_str).unwrap_or_default();
                let written = payload.get("value").cloned().unwrap_or_default();
                let Some(channel) = definition.channels.get(name) else { return };
                let before = self.channels.remove(name);
                self.channels.insert(name.to_owned(), channels::reduce(channel, before, written));
            }
            Kind::OrchestratorDecided => {
                let iteration = payload.get("iteration").and_then(Value::as_u64);
                self.iteration = iteration.unwrap_or(self.iteration.saturating_add(1));
                let agent = payload.get("agentId").and_then(Value::as_str);
                self.orchestrator = agent.map(str::to_owned).or(self.orchestrator.take());
                self.decision = payload.get("decision").cloned();
            }
            Kind::RunCompleted | Kind::RunFailed | Kind::RunCancelled => {
                self.waiting = None;
                self.ended = Some((event.kind, payload.clone()));
            }
            Kind::NodeCancelled
            | Kind::LogAppended
            | Kind::LoopbackLimit
            | Kind::CapBreached
            | Kind::ReplayDiverged
            | Kind::NodeDispatched => {}
            Kind::WorkflowChain => self.hand_off(payload),
        }
    }

    fn hand_off(&mut self, payload: &Value) {
        let (Some(phase), Some(child)) =
            (payload["phase"].as_str(), payload["childRunId"].as_str())
        else {
            return;
        };
        // Of one that has completed there is more to say behind that.
        let status = match phase {
            "output.harvested" => Some("completed"),
            "child.failed" | "child.cancelled" => phase.strip_prefix("child."),
            _ => None,
        };
        let ended = status.map(|status| {
            let mut ended = json!({ "kind": "run", "runId": child, "status": status });
            if let Some(error) = payload.get("error") {
                ended["error"] = error.clone();
            }
            ended
        });
        let known = self.children.entry(child.to_owned()).or_default();
        *known = ended.or(known.take());
    }

    fn set(&mut self, index: Option<usize>, status: NodeStatus) {
        if let Some(node) = index.and_then(|index| self.nodes.get_mut(index)) {
            node.status = status;
        }
    }

    /// A node begins. Where it has come to something before, this is another round of a loop,
    /// and all behind it begins anew.
    fn begin(&mut self, definition: &Definition, index: usize) {
        self.executions = self.executions.saturating_add(1);
        // What it was answered in an earlier round is no answer to this one.
        let id = &definition.nodes[index].id;
        self.resolved.retain(|(node, _), _| node != id);
        self.children.clear();
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

    /// What the outputs of a node are.
    pub fn outputs(&self, definition: &Definition, node: &str) -> Option<&Value> {
        let state = self.nodes.get(definition.node(node)?)?;
        matches!(state.status, NodeStatus::Completed).then_some(&state.outputs)
    }

    /// The node that is being run or waits.
    pub fn current<'a>(&self, definition: &'a Definition) -> Option<&'a str> {
        let is_current =
            |node: &NodeState| matches!(node.status, NodeStatus::Running | NodeStatus::Suspended);
        let index = self.nodes.iter().position(is_current)?;
        definition.nodes.get(index).map(|node| node.id.as_str())
    }
}

/// The nodes that others than back edges lead to from the one at `index`.
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

/// The id of the `nth` interrupt of a run, at `node`.
pub fn interrupt_id(node: &str, nth: u64) -> String {
    format!("{node}-{nth}")
}

/// The fields of `value`; none if it is not an object.
pub fn object(value: Option<&Value>) -> Map<String, Value> {
    value.and_then(Value::as_object).cloned().unwrap_or_default()
}
