//! `core.dispatch`: starts the workers that an orchestrator has chosen. Those that are nodes of
//! the same workflow are what its edges lead to; those that are workflows become child runs,
//! one after the other, each of which sees what those before it have put out.

use std::sync::Arc;

use sandglass_model::{EntityRef, Object, RunReport, StopCause};
use sandglass_runtime::{HandlerRun, Request, SessionStop};
use serde_json::{Map, Value, json};

use super::Executed;
use crate::context::Context;
use crate::definition::{Definition, Node};
use crate::event::{Kind, RunEvent};
use crate::handlers::{Shared, cancelled, stopped};
use crate::masks::Masks;
use crate::projection::{EVENTS, TELL};
use crate::service::{Service, Wanted, id};
use crate::state::RunState;
use crate::step::Parent;

/// How deep runs may work for one another: as deep as asks of entities may.
const DEPTH_MAX: u32 = sandglass_liveness::decide::ASK_DEPTH_MAX;

/// Starts the workers of the last decision. What becomes of children is told as it happens, and
/// once, also where the host is lost in between.
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

/// How a worker has ended that could not be started.
fn refused(error: Value) -> Value {
    json!({ "kind": "run", "status": "failed", "error": error })
}

/// Whether `worker` is a node of the workflow itself: one that `node` leads to, or `node`.
fn follows(definition: &Definition, node: &Node, worker: &str) -> bool {
    let Some(index) = definition.node(&node.id) else { return false };
    let outgoing = definition.graph.outgoing(index).iter();
    let mut targets = outgoing.map(|edge| definition.edges[*edge].target);
    worker == node.id || targets.any(|target| definition.nodes[target].id == worker)
}

/// Never comes back where the host shuts down: what it can't find out any more is left to the
/// next one, which runs the node again and finds what was started.
async fn unless_closing(service: &Service) {
    if service.runtime.is_closing() {
        std::future::pending().await
    }
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
        let known = context.state.handoffs.get(self.nth).cloned();
        if let Some(error) = known.as_ref().and_then(|known| known.refused.clone()) {
            return Ok(refused(error));
        }
        if known.is_none() {
            context.happened(self.told("dispatch.began", json!({})));
        }
        let (service, child) = match self.start(context).await {
            Ok(started) => started,
            Err(error) => {
                context.happened(self.told("dispatch.failed", json!({ "error": error })));
                return Ok(refused(error));
            }
        };
        let id = child.id().to_owned();
        if known.as_ref().is_none_or(|known| known.child.is_none()) {
            context.happened(self.told("dispatch.succeeded", json!({ "childRunId": id })));
            self.tell(&service, context).await;
        }
        tokio::select! {
            biased;
            request = stopped(self.run) => {
                let reason = request.reason.clone();
                let parent = Some(self.run.entity.clone());
                let cause = StopCause::Parent { parent, reason };
                let stop = SessionStop { run_seq: None, cause };
                // One that has just ended needs none.
                drop(service.runtime.stop_session(&child, stop).await);
                return Err(Box::new(cancelled(self.run, request)));
            }
            over = service.until_over(&child) => if over.is_err() {
                unless_closing(&service).await;
            }
        }
        let (ended, outputs) = self.harvest(&service, &child).await;
        if !known.is_some_and(|known| known.is_over) {
            self.of_its_end(&ended, &outputs).into_iter().for_each(|event| context.happened(event));
            self.tell(&service, context).await;
        }
        Ok(ended)
    }

    /// Records what has happened by now. What can't be recorded is when the node ends.
    async fn tell(&self, service: &Service, context: &mut Context) {
        let params = Object::from([(EVENTS.to_owned(), json!(context.untold))]);
        match service.runtime.request(&self.run.entity, Request::new(TELL).params(params)).await {
            Ok(_) => context.untold.clear(),
            Err(error) => tracing::debug!(run = %self.run.entity, %error, "it is told later"),
        }
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

    async fn start(&self, context: &Context) -> Result<(Arc<Service>, EntityRef), Value> {
        let error = |code: &str, message: String| json!({ "code": code, "message": message });
        // A host that has just started takes runs when it has found all that there are.
        let mut there = self.shared.service.subscribe();
        let service = tokio::select! {
            biased;
            there = there.wait_for(Option::is_some) => {
                there.ok().and_then(|service| service.as_ref()?.upgrade())
            }
            _ = stopped(self.run) => None,
        };
        let service = service
            .ok_or_else(|| error("host_unavailable", "the host takes no runs".to_owned()))?;
        let depth = context.begin.parent.as_ref().map_or(1, |parent| parent.depth + 1);
        if depth > DEPTH_MAX {
            let message = format!("runs may work for one another {DEPTH_MAX} deep");
            return Err(error("dispatch_too_deep", message));
        }
        let parent =
            Parent { run: self.run.entity.id().to_owned(), node: self.node.id.clone(), depth };
        let run = id::of_child(self.run.dispatched.dispatch, self.nth);
        let wanted = Wanted {
            workflow: self.worker.to_owned(),
            inputs: self.map_inputs(&context.state.variables),
            ..Wanted::default()
        };
        match service.start_child(&run, wanted, parent).await {
            Ok(child) => Ok((service, child)),
            Err(why) => {
                unless_closing(&service).await;
                let told = Value::from(&why);
                Err(json!({ "code": told["error"], "message": told["message"] }))
            }
        }
    }

    /// What has come of it, `{kind, runId, status, outputs?, error?}`, in which what is
    /// sensitive in it is masked; and its outputs as they are.
    async fn harvest(&self, service: &Service, child: &EntityRef) -> (Value, Value) {
        let mut ended = json!({ "kind": "run", "runId": child.id(), "status": "failed" });
        let log = service.whole_log(child).await.ok();
        let last = log.and_then(|log| Some((log.all().pop()?, log)));
        let Some((last, log)) = last.filter(|(last, _)| last.entry.event.kind.is_terminal()) else {
            let message = "how the child run has ended can't be read";
            ended["error"] = json!({ "code": "host_error", "message": message });
            return (ended, Value::Null);
        };
        let payload = &last.entry.event.payload;
        match last.entry.event.kind {
            Kind::RunCompleted => {
                let outputs = payload.get("outputs").cloned().unwrap_or_default();
                let mut shown = outputs.clone();
                if let Ok(definition) = service.definition_of(&log).await {
                    Masks::of(&definition, service.library()).mask_all_outputs(&mut shown);
                }
                ended["status"] = json!("completed");
                ended["outputs"] = shown;
                return (ended, outputs);
            }
            Kind::RunCancelled => ended["status"] = json!("cancelled"),
            _ => ended["error"] = payload.get("error").cloned().unwrap_or_default(),
        }
        (ended, Value::Null)
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
