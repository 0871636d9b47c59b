//! `core.dispatch`: starts the workers that an orchestrator has chosen. Those that are nodes of
//! the same workflow are what its edges lead to; those that are workflows become child runs,
//! one after the other, each of which sees what those before it have put out.

use std::sync::Arc;

use sandglass_model::{EntityRef, Object, RunReport};
use sandglass_runtime::{ActorError, HandlerRun, Request, StopRequest};
use serde_json::{Map, Value, json};

use super::Executed;
use crate::context::Context;
use crate::handlers::{Shared, again_later, cancelled, service, stopped, unless_closing};
use crate::http::error::{Code, Error};
use crate::service::{Service, Wanted, id};
use sandglass_workflow::definition::{Definition, Node};
use sandglass_workflow::event::{Kind, RunEvent};
use sandglass_workflow::json_size;
use sandglass_workflow::projection::{EVENTS, TELL};
use sandglass_workflow::state::RunState;
use sandglass_workflow::step::Parent;

/// How deep runs may work for one another: as deep as asks of entities may.
const DEPTH_MAX: u32 = sandglass_liveness::decide::ASK_DEPTH_MAX;

/// Largest events that are told at once, in bytes of JSON without what is escaped in it.
const TOLD_MAX_BYTES: usize = 128 << 10;

/// Starts the workers of the last decision. What becomes of children is told as it happens, and
/// once, also where the host is lost in between; who could not be started is tried again then.
pub(crate) async fn execute(
    shared: &Arc<Shared>,
    run: &HandlerRun,
    context: &mut Context,
    node: &Node,
) -> Result<Executed, Box<RunReport>> {
    let chosen = chosen(&context.state);
    let (nodes, workflows): (Vec<String>, Vec<String>) =
        chosen.into_iter().partition(|worker| follows(&context.definition, node, worker));
    let mut workers = Map::new();
    for worker in nodes {
        workers.insert(worker, json!({ "kind": "node" }));
    }
    for (nth, worker) in workflows.into_iter().enumerate() {
        let child = Child { shared, run, node, worker: &worker, nth };
        let ended = child.to_its_end(context).await?;
        workers.insert(worker, ended);
    }
    Ok(Executed::completed(json!({ "workers": workers })))
}

/// The workers of the last decision.
fn chosen(state: &RunState) -> Vec<String> {
    let workers = state.decision.as_ref().and_then(|decision| decision.get("nextWorkerIds"));
    let workers = workers.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    workers.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Whether `worker` is a node of the workflow itself: one that `node` leads to, or `node`.
fn follows(definition: &Definition, node: &Node, worker: &str) -> bool {
    let Some(index) = definition.node(&node.id) else { return false };
    let outgoing = definition.graph.outgoing(index).iter();
    let mut targets = outgoing.map(|edge| definition.edges[*edge].target);
    worker == node.id || targets.any(|target| definition.nodes[target].id == worker)
}

/// What has come of a child.
struct Ended {
    /// As clients see it, `{kind, runId, status, outputs?, error?}`: what is sensitive is masked.
    shown: Value,
    /// As they are.
    outputs: Value,
}

/// What has come of a child that is over; none where its log has no end.
async fn harvested(service: &Service, child: &EntityRef) -> Result<Option<Ended>, Error> {
    let log = service.whole_log(child).await?;
    let lines = log.all();
    let Some(last) = lines.last().filter(|line| line.entry.event.kind.is_terminal()) else {
        return Ok(None);
    };
    let payload = &last.entry.event.payload;
    let mut shown = json!({ "kind": "run", "runId": child.id() });
    let mut outputs = Value::Null;
    let status = match last.entry.event.kind {
        Kind::RunCompleted => {
            outputs = payload.get("outputs").cloned().unwrap_or_default();
            let mut masked = outputs.clone();
            let definition = service.definition_of(&log).await?;
            service.library().masks(&definition).mask_all_outputs(&mut masked);
            shown["outputs"] = masked;
            "completed"
        }
        Kind::RunCancelled => "cancelled",
        _ => {
            shown["error"] = payload.get("error").cloned().unwrap_or_default();
            "failed"
        }
    };
    shown["status"] = json!(status);
    Ok(Some(Ended { shown, outputs }))
}

/// How many of these events are told at once, from the first on.
fn told_at_once(events: &[RunEvent]) -> usize {
    let mut bytes = 0_usize;
    let fits = events.iter().take_while(|event| {
        bytes = bytes.saturating_add(json_size(&event.payload));
        bytes <= TOLD_MAX_BYTES
    });
    fits.count().max(1)
}

/// A worker that is a workflow.
struct Child<'a> {
    shared: &'a Arc<Shared>,
    run: &'a HandlerRun,
    node: &'a Node,
    worker: &'a str,
    nth: usize,
}

impl Child<'_> {
    /// Runs it, and answers how it has ended.
    async fn to_its_end(&self, context: &mut Context) -> Result<Value, Box<RunReport>> {
        let service = service(self.shared, self.run).await;
        let service = service.map_err(|request| Box::new(cancelled(self.run, request)))?;
        let index = context.definition.node(&self.node.id);
        let execution = index.map_or(0, |index| context.state.nodes[index].executions);
        let id = id::of_child(self.run.entity.id(), &self.node.id, execution, self.nth);
        let known = context.state.children.get(&id).cloned();
        if known.is_none() {
            let started = self.start(&service, &id, context).await?;
            context.happened(self.told("dispatch.began", json!({})));
            if let Err(error) = started {
                context.happened(self.told("dispatch.failed", json!({ "error": error })));
                return Ok(json!({ "kind": "run", "status": "failed", "error": error }));
            }
            context.happened(self.told("dispatch.succeeded", json!({ "childRunId": id })));
            self.tell(&service, context).await;
        }
        let Ended { shown, outputs } = self.ended(&service, &id, known.as_ref()).await?;
        if known.flatten().is_none() {
            let events = self.of_its_end(&shown, &outputs);
            events.into_iter().for_each(|event| context.happened(event));
            self.tell(&service, context).await;
        }
        Ok(shown)
    }

    /// Records what has happened by now, in its order; what can't be recorded stays for the end
    /// of the node.
    async fn tell(&self, service: &Service, context: &mut Context) {
        while !context.untold.is_empty() {
            let count = told_at_once(&context.untold);
            let params = Object::from([(EVENTS.to_owned(), json!(context.untold[..count]))]);
            let request = Request::new(TELL).params(params);
            if let Err(error) = service.runtime.request(&self.run.entity, request).await {
                tracing::debug!(run = %self.run.entity, %error, "it is told later");
                return;
            }
            context.untold.drain(..count);
        }
    }

    /// Starts it, unless it was started before, as `id`; answers why it can't be.
    async fn start(
        &self,
        service: &Service,
        id: &str,
        context: &Context,
    ) -> Result<Result<(), Value>, Box<RunReport>> {
        let depth = context.begin.parent.as_ref().map_or(1, |parent| parent.depth + 1);
        if depth > DEPTH_MAX {
            let message = format!("runs may work for one another {DEPTH_MAX} deep");
            return Ok(Err(json!({ "code": "dispatch_too_deep", "message": message })));
        }
        let parent =
            Parent { run: self.run.entity.id().to_owned(), node: self.node.id.clone(), depth };
        let wanted = Wanted {
            workflow: self.worker.to_owned(),
            inputs: self.map_inputs(&context.state.variables),
            ..Wanted::default()
        };
        loop {
            let started = service.start_child(id, wanted.clone(), parent.clone()).await;
            let Err(why) = started else { return Ok(Ok(())) };
            unless_closing(service).await;
            if why.code != Code::Unavailable {
                let told = Value::from(&why);
                return Ok(Err(json!({ "code": told["error"], "message": told["message"] })));
            }
            // It may be there, of the host before this one.
            if let Some(request) = again_later(self.shared, self.run, service).await {
                return Err(self.stop(service, id, request).await);
            }
        }
    }

    /// Waits for the end of the run `id`, and answers what has come of it. What is `known` of
    /// one whose records are gone is all there is.
    async fn ended(
        &self,
        service: &Service,
        id: &str,
        known: Option<&Option<Value>>,
    ) -> Result<Ended, Box<RunReport>> {
        let lost = || {
            let error = json!({ "code": "host_error", "message": "its records are gone" });
            let shown = json!({ "kind": "run", "runId": id, "status": "failed", "error": error });
            let shown = known.cloned().flatten().unwrap_or(shown);
            Ended { shown, outputs: Value::Null }
        };
        let Some(child) = id::entity_of(id) else { return Ok(lost()) };
        loop {
            let over = tokio::select! {
                biased;
                request = stopped(self.run) => return Err(self.stop(service, id, request).await),
                over = service.until_over(&child) => over,
            };
            let found = match over {
                Ok(()) => harvested(service, &child).await.ok().flatten(),
                Err(ActorError::UnknownEntity(_)) => return Ok(lost()),
                Err(_) => None,
            };
            if let Some(ended) = found {
                return Ok(ended);
            }
            // What can't be found out now is no end that it has come to.
            if let Some(request) = again_later(self.shared, self.run, service).await {
                return Err(self.stop(service, id, request).await);
            }
        }
    }

    /// Stops it with its parent.
    async fn stop(&self, service: &Service, id: &str, request: StopRequest) -> Box<RunReport> {
        if let Some(child) = id::entity_of(id) {
            // One that isn't there, or has just ended, needs none.
            drop(service.stop_with(&child, &self.run.entity, request.reason.clone()).await);
        }
        Box::new(cancelled(self.run, request))
    }

    /// What happens when it has ended.
    fn of_its_end(&self, ended: &Value, outputs: &Value) -> Vec<RunEvent> {
        let id = &ended["runId"];
        let status = ended["status"].as_str().unwrap_or("failed");
        let dispatched =
            json!({ "childRunId": id, "childWorkflowId": self.worker, "childStatus": status });
        let mut events = vec![RunEvent::of_node(Kind::NodeDispatched, &self.node.id, dispatched)];
        let mut more = json!({ "childRunId": id });
        if let Some(error) = ended.get("error") {
            more["error"] = error.clone();
        }
        events.push(self.told(&format!("child.{status}"), more));
        if status == "completed" {
            let keys = self.map_outputs(outputs, &mut events);
            let more = json!({ "childRunId": id, "harvestedKeys": keys });
            events.push(self.told("output.harvested", more));
        }
        events
    }

    /// The child's inputs: `config.inputMapping` says which of this run's variables each is; all
    /// variables where nothing is said.
    fn map_inputs(&self, variables: &Map<String, Value>) -> Map<String, Value> {
        let Some(mapping) = self.node.config.get("inputMapping").and_then(Value::as_object) else {
            return variables.clone();
        };
        let of = |(input, variable): (&String, &Value)| {
            Some((input.clone(), variables.get(variable.as_str()?)?.clone()))
        };
        mapping.iter().filter_map(of).collect()
    }

    /// Sets the variables that `config.outputMapping` names to the child's outputs.
    fn map_outputs(&self, outputs: &Value, events: &mut Vec<RunEvent>) -> Vec<String> {
        let mapping = self.node.config.get("outputMapping").and_then(Value::as_object);
        let mut keys = Vec::new();
        for (variable, output) in mapping.into_iter().flatten() {
            let Some(value) = output.as_str().and_then(|output| outputs.get(output)) else {
                continue;
            };
            let payload = json!({ "name": variable, "next": value, "nodeId": self.node.id });
            events.push(RunEvent::of_node(Kind::VariableChanged, &self.node.id, payload));
            keys.push(variable.clone());
        }
        keys
    }

    fn told(&self, phase: &str, more: Value) -> RunEvent {
        let mut payload = json!({
            "phase": phase,
            "workerId": self.worker,
            "parentRunId": self.run.entity.id(),
        });
        if let (Some(payload), Value::Object(more)) = (payload.as_object_mut(), more) {
            payload.extend(more);
        }
        RunEvent::of_node(Kind::WorkflowChain, &self.node.id, payload)
    }
}
