//! `core.dispatch`: starts the workers that an orchestrator has chosen. Workers that are nodes of the
//! workflow follow by its edges. Workers that are workflows become child runs, one after the other; each
//! sees the outputs of those before it.

use sandglass_model::EntityRef;
use sandglass_runtime::{ActorError, Request, StopRequest};
use sandglass_workflow::automaton::{Action, Params};
use sandglass_workflow::decision::Decision;
use sandglass_workflow::definition::{Definition, Node};
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{
    ChildEvent, ChildPhase, ChildStatus, Ending, Entry, Payload, RunEvent,
};
use sandglass_workflow::state::ChildEnd;
use sandglass_workflow::step::Parent;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Executed;
use crate::code::Code;
use crate::context::Context;
use crate::handlers::{Ended, Execution};
use crate::id::{self, ChildIds};
use crate::log::{Folded, ReadError};
use crate::runs::{Runs, Wanted};

/// How deep child runs may be nested: as deep as asks of entities may.
const DEPTH_MAX: u32 = sandglass_liveness::decide::ASK_DEPTH_MAX;

/// Most bytes of JSON, without escapes, of events that are recorded at once.
const RECORDED_MAX_BYTES: usize = 128 << 10;

/// What the outputs of the node contain for a worker.
#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase", rename_all_fields = "camelCase")]
enum Worker {
    /// A node of the workflow.
    Node,
    /// A child run.
    Run {
        #[serde(skip_serializing_if = "Option::is_none")]
        run_id: Option<String>,
        status: ChildStatus,
        /// Without sensitive values.
        #[serde(skip_serializing_if = "Option::is_none")]
        outputs: Option<Value>,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<RunError>,
    },
}

/// Starts the workers of the last decision. What becomes of children is recorded when it happens, and
/// once, even if the host is lost in between; a child that could not be started is tried again then.
pub(crate) async fn execute(
    execution: &Execution,
    context: &mut Context,
    node: &Node,
) -> Result<Executed, Ended> {
    let chosen: Vec<String> =
        context.state.decision.iter().flat_map(Decision::workers).cloned().collect();
    let (nodes, workflows): (Vec<String>, Vec<String>) =
        chosen.into_iter().partition(|worker| follows(&context.definition, node, worker));
    let mut workers = Map::new();
    let mut enter = |name: String, worker: &Worker| {
        workers.insert(name, serde_json::to_value(worker).expect("it is plain data"));
    };
    nodes.into_iter().for_each(|worker| enter(worker, &Worker::Node));
    for (nth, workflow) in workflows.into_iter().enumerate() {
        let runs = execution.runs().await.map_err(|request| execution.cancelled(request))?;
        let child = Child { execution, runs, node, workflow: &workflow, nth };
        let ended = child.run(context).await?;
        enter(workflow, &ended);
    }
    let workers = Map::from_iter([("workers".to_owned(), Value::Object(workers))]);
    Ok(Executed::completed(Value::Object(workers)))
}

/// Whether `worker` is a node of the workflow itself: one that `node` leads to, or `node`.
fn follows(definition: &Definition, node: &Node, worker: &str) -> bool {
    let Some(index) = definition.node(&node.id) else { return false };
    let outgoing = definition.graph.outgoing(index).iter();
    let mut targets = outgoing.map(|edge| definition.edges[*edge].target);
    worker == node.id || targets.any(|target| definition.nodes[target].id == worker)
}

/// How many of `events`, from the first on, are recorded at once.
fn recorded_at_once(events: &[RunEvent]) -> usize {
    let mut bytes = 0_usize;
    let fits = events.iter().take_while(|event| {
        bytes = bytes.saturating_add(event.payload.json_size());
        bytes <= RECORDED_MAX_BYTES
    });
    fits.count().max(1)
}

/// A worker that is a workflow.
struct Child<'a> {
    execution: &'a Execution,
    runs: Runs,
    node: &'a Node,
    workflow: &'a str,
    nth: usize,
}

/// How a child run ended, and what its parent sees of that.
struct ChildResult {
    end: ChildEnd,
    outputs: Value,
    /// The outputs without sensitive values, if it is complete.
    masked: Option<Value>,
}

impl ChildResult {
    const fn without_outputs(status: ChildStatus, error: Option<RunError>) -> Self {
        Self { end: ChildEnd { status, error }, outputs: Value::Null, masked: None }
    }
}

impl Child<'_> {
    /// Starts it unless it was started before, and waits for its end.
    async fn run(&self, context: &mut Context) -> Result<Worker, Ended> {
        let index = context.definition.node(&self.node.id);
        let execution = index.map_or(0, |index| context.state.nodes[index].executions);
        let parent = self.execution.run.entity.id();
        let id = self.id(ChildIds::new(parent, &self.node.id, execution, self.nth), context);
        let known = context.state.children.get(&id).cloned();
        if known.is_none() {
            let started = self.start(&id, context).await?;
            context.add(self.event(ChildPhase::Began));
            if let Err(error) = started {
                context.add(self.event(ChildPhase::NotStarted { error: error.clone() }));
                let (status, error) = (ChildStatus::Failed, Some(error));
                return Ok(Worker::Run { run_id: None, status, outputs: None, error });
            }
            context.add(self.event(ChildPhase::Started { child_run_id: id.clone() }));
            self.record(context).await;
        }
        let known = known.flatten();
        let result = self.result(&id, known.as_ref()).await?;
        if known.is_none() {
            self.end_events(&id, &result).into_iter().for_each(|event| context.add(event));
            self.record(context).await;
        }
        let ChildEnd { status, error } = result.end;
        Ok(Worker::Run { run_id: Some(id), status, outputs: result.masked, error })
    }

    /// The id with which it was started, or will be.
    fn id(&self, ChildIds { in_one_journal, in_partition }: ChildIds, context: &Context) -> String {
        let is_partitioned = self.execution.engine.journals.is_partitioned();
        let (id, other) = if is_partitioned {
            (in_partition, in_one_journal)
        } else {
            (in_one_journal, in_partition)
        };
        // An earlier version has started it, or its journal was another store.
        let children = &context.state.children;
        if children.contains_key(&other) && !children.contains_key(&id) { other } else { id }
    }

    /// Records the events that have happened so far, in their order; what cannot be recorded now is
    /// recorded at the end of the node.
    async fn record(&self, context: &mut Context) {
        let run = &self.execution.run.entity;
        while !context.unrecorded.is_empty() {
            let count = recorded_at_once(&context.unrecorded);
            let events = context.unrecorded[..count].to_vec();
            let params = Params { events, ..Params::default() };
            let request = Request::new(Action::Tell.as_str()).params(params.into());
            if let Err(error) = self.runs.runtime.request(run, request).await {
                tracing::debug!(%run, %error, "events are recorded later");
                return;
            }
            context.unrecorded.drain(..count);
        }
    }

    /// Starts it as `id`, unless it was started before; the inner error is why it cannot be.
    async fn start(&self, id: &str, context: &Context) -> Result<Result<(), RunError>, Ended> {
        let depth = context.begin.parent.as_ref().map_or(1, |parent| parent.depth + 1);
        if depth > DEPTH_MAX {
            let message = format!("runs may work for one another {DEPTH_MAX} deep");
            return Ok(Err(RunError::new(ErrorCode::DispatchTooDeep, message)));
        }
        let run = self.execution.run.entity.id().to_owned();
        let parent = Parent { run, node: self.node.id.clone(), depth };
        let wanted = Wanted {
            workflow: self.workflow.to_owned(),
            inputs: self.map_inputs(&context.state.variables),
            ..Wanted::default()
        };
        loop {
            let started = self.runs.start_child(id, wanted.clone(), parent.clone()).await;
            let Err(error) = started else { return Ok(Ok(())) };
            self.runs.unless_closing().await;
            if !matches!(error.code(), Code::Unavailable | Code::NotOwner) {
                return Ok(Err(RunError::new(error.code().as_str(), error.to_string())));
            }
            // The host before this one may have started it.
            self.wait_to_retry(id).await?;
        }
    }

    /// Waits for the end of the run `id`. If its records are gone, the result is what this run has
    /// recorded of it.
    async fn result(&self, id: &str, known: Option<&ChildEnd>) -> Result<ChildResult, Ended> {
        let failed = |message: String| {
            let error = RunError::new(ErrorCode::HostError, message);
            ChildResult::without_outputs(ChildStatus::Failed, Some(error))
        };
        let lost = || match known.cloned() {
            Some(ChildEnd { status, error }) => ChildResult::without_outputs(status, error),
            None => failed("its records are gone".to_owned()),
        };
        let Some(child) = id::entity_of(id) else { return Ok(lost()) };
        loop {
            match self.execution.unless_stopped(self.runs.until_over(&child)).await {
                Err(request) => return Err(self.stop(id, request).await),
                Ok(Err(ActorError::UnknownEntity(_))) => return Ok(lost()),
                // The records of a child on another host show its end.
                Ok(Ok(()) | Err(ActorError::Elsewhere(_))) => match self.harvest(&child).await {
                    Ok(Some(result)) => return Ok(result),
                    Err(error) if !error.is_temporary() => return Ok(failed(error.to_string())),
                    Ok(None) | Err(_) => {}
                },
                Ok(Err(_)) => {}
            }
            // That its end cannot be read now does not mean that it has failed.
            self.wait_to_retry(id).await?;
        }
    }

    /// How a child that is over ended; `None` if its last event is not recorded.
    async fn harvest(&self, child: &EntityRef) -> Result<Option<ChildResult>, ReadError> {
        let engine = &self.execution.engine;
        let (mut folded, mut last) = (Folded::default(), None);
        let take = |entry: Entry| last = Some(entry.event.payload);
        folded.read_on(&engine.journals, child, take).await?;
        Ok(Some(match last.and_then(|last| last.ending()) {
            None => return Ok(None),
            Some(Ending::Cancelled(_)) => {
                ChildResult::without_outputs(ChildStatus::Cancelled, None)
            }
            Some(Ending::Failed(failed)) => {
                ChildResult::without_outputs(ChildStatus::Failed, Some(failed.error))
            }
            Some(Ending::Completed(completed)) => {
                let begin = folded.projection.begin.ok_or(ReadError::NoBeginning)?;
                let definition = engine.library.pinned(&engine.journals, child, &begin).await?;
                let outputs = completed.outputs.unwrap_or_default();
                let mut masked = outputs.clone();
                engine.library.masks(&definition).mask_all_outputs(&mut masked);
                let end = ChildEnd { status: ChildStatus::Completed, error: None };
                ChildResult { end, outputs, masked: Some(masked) }
            }
        }))
    }

    async fn wait_to_retry(&self, id: &str) -> Result<(), Ended> {
        self.runs.unless_closing().await;
        match self.execution.wait_to_retry().await {
            Ok(()) => Ok(()),
            Err(request) => Err(self.stop(id, request).await),
        }
    }

    /// Stops it with its parent.
    async fn stop(&self, id: &str, request: StopRequest) -> Ended {
        if let Some(child) = id::entity_of(id) {
            let parent = &self.execution.run.entity;
            // A child that does not exist, or has just ended, need not be stopped.
            drop(self.runs.stop_with(&child, parent, request.reason.clone()).await);
        }
        self.execution.cancelled(request)
    }

    /// The events of the end of the child `id`.
    fn end_events(&self, id: &str, result: &ChildResult) -> Vec<RunEvent> {
        let node = &self.node.id;
        let child_run_id = id.to_owned();
        let dispatched = Payload::NodeDispatched {
            child_run_id: child_run_id.clone(),
            child_workflow_id: self.workflow.to_owned(),
            child_status: result.end.status,
        };
        let mut events = vec![RunEvent::of_node(node, dispatched)];
        match result.end.status {
            ChildStatus::Cancelled => {
                events.push(self.event(ChildPhase::Cancelled { child_run_id }));
            }
            ChildStatus::Failed => {
                let error = result.end.error.clone();
                events.push(self.event(ChildPhase::Failed { child_run_id, error }));
            }
            ChildStatus::Completed => {
                let completed = ChildPhase::Completed { child_run_id: child_run_id.clone() };
                events.push(self.event(completed));
                let mapped = self.map_outputs(&result.outputs);
                let harvested_keys = mapped.iter().map(|(name, _)| name.clone()).collect();
                events.extend(mapped.into_iter().map(|(name, next)| {
                    let (previous, node_id) = (None, node.clone());
                    let changed = Payload::VariableChanged { name, next, previous, node_id };
                    RunEvent::of_node(node, changed)
                }));
                events.push(self.event(ChildPhase::Harvested { child_run_id, harvested_keys }));
            }
        }
        events
    }

    /// The child's inputs: `config.inputMapping` states which of this run's variables each is; if it
    /// is absent, the inputs are all variables.
    fn map_inputs(&self, variables: &Map<String, Value>) -> Map<String, Value> {
        let mapped = self.mapped("inputMapping", |variable| variables.get(variable));
        mapped.map_or_else(|| variables.clone(), Map::from_iter)
    }

    /// The variables that `config.outputMapping` sets, with the outputs of the child.
    fn map_outputs(&self, outputs: &Value) -> Vec<(String, Value)> {
        self.mapped("outputMapping", |output| outputs.get(output)).unwrap_or_default()
    }

    /// The names that the mapping `key` of the node sets, with the values that `value` finds for them.
    fn mapped<'v>(
        &self,
        key: &str,
        value: impl Fn(&str) -> Option<&'v Value>,
    ) -> Option<Vec<(String, Value)>> {
        let mapping = self.node.config.get(key)?.as_object()?;
        let of = |(to, from): (&String, &Value)| Some((to.clone(), value(from.as_str()?)?.clone()));
        Some(mapping.iter().filter_map(of).collect())
    }

    fn event(&self, phase: ChildPhase) -> RunEvent {
        let worker_id = self.workflow.to_owned();
        let parent_run_id = self.execution.run.entity.id().to_owned();
        let event = ChildEvent { worker_id, parent_run_id, phase };
        RunEvent::of_node(&self.node.id, Payload::WorkflowChain(event))
    }
}
