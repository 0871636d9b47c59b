//! The nodes of packs: their requests, their host functions, and what their responses mean.

use std::sync::{Arc, Mutex};

use sandglass_host::{
    Dispatch, DispatchDeadline, LogLevel, NodeAccess, NodeCall, NodeStatus, RecordingLimits,
};
use sandglass_model::{Cause, Clock, Outcome};
use sandglass_runtime::HandlerRun;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::Executed;
use crate::context::Context;
use crate::handlers::Execution;
use crate::library::PackNode;
use crate::sync::lock;
use sandglass_workflow::automaton::BUDGET_PARAM;
use sandglass_workflow::definition::{Definition, Node};
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{self, Payload, RunEvent};
use sandglass_workflow::interrupt::Interrupt;
use sandglass_workflow::node::{End, is_orchestrator, outputs_of};
use sandglass_workflow::state::RunState;

/// Most that one invocation may write to channels, variables and the log, together, in bytes of
/// JSON.
const WRITTEN_MAX_BYTES: usize = 1 << 20;
/// The input with the answer that a node continues with.
const ANSWER: &str = "resumeValue";
/// Longest name of a variable, in bytes.
const NAME_MAX_BYTES: usize = 256;

/// Executes the pack's node `of` as `node` of a run.
pub(crate) async fn invoke(
    Execution { engine, run }: &Execution,
    context: &Context,
    (node, of): (&Node, &PackNode),
    inputs: Map<String, Value>,
) -> Executed {
    let reach = Arc::new(Reach::new(node, context, Arc::clone(&engine.clock)));
    let call = call(run, context, (node, of), inputs, Arc::clone(&reach));
    let dispatched = &run.dispatched;
    let whose = sandglass_host::Context {
        tenant: run.tenant.clone(),
        ..sandglass_host::Context::default()
    };
    // The budget was decided with the dispatch, whatever the pack requests by now.
    let is_decided = dispatched.params.contains_key(BUDGET_PARAM);
    let budget = if is_decided { run.budget } else { of.pack.max_execution.min(run.budget) };
    let mut dispatch = Dispatch::new(run.entity.clone(), dispatched.action.clone(), whose)
        .deadline(DispatchDeadline::after(budget))
        .integration(of.type_id.clone())
        .attempt(dispatched.attempt)
        .identity(dispatched.dispatch, dispatched.trace)
        .recorded(RecordingLimits::default())
        .node(call);
    if let Some(parent) = run.parent {
        dispatch = dispatch.parent(parent);
    }
    let handle = dispatch.stop_handle();
    run.stop.on_kill(move |request| {
        // The next start of the host continues it, as the definition says.
        if request.cause != Cause::Shutdown {
            handle.stop(request.cause, &request.reason);
        }
    });
    let mut report = match engine.host.run(&of.pack.integration, dispatch).await {
        Ok(report) => report,
        Err(error) => {
            let message = format!("the host can't run it: {error}");
            return Executed::failed(ErrorCode::HostUnavailable, message);
        }
    };
    if let Outcome::TimedOut(exceeded) = &mut report.outcome {
        // The host names it by its type; the record names the handler.
        exceeded.integration.clone_from(&dispatched.integration);
    }
    let (end, response) = match &report.outcome {
        Outcome::Completed(completion) => {
            (end_of(&completion.result), Some(completion.result.clone()))
        }
        Outcome::Failed(failure) => {
            (End::Failed(RunError::of_failure(failure)), failure.result.clone())
        }
        _ => (End::Broken, None),
    };
    Executed { end, events: reach.events(), response, report: Some(Box::new(report)) }
}

fn call(
    run: &HandlerRun,
    context: &Context,
    (node, of): (&Node, &PackNode),
    mut inputs: Map<String, Value>,
    access: Arc<Reach>,
) -> NodeCall {
    let index = context.definition.node(&node.id);
    let state = index.map(|index| &context.state.nodes[index]);
    let attempt = state.map_or(0, |state| state.attempt);
    if let Some(answer) = state.and_then(|state| state.resumed_with.clone()) {
        inputs.insert(ANSWER.to_owned(), answer);
    }
    for (name, value) in &node.config {
        inputs.entry(name).or_insert_with(|| value.clone());
    }
    // The inputs of the run come last, so that they replace nothing of the node. One of the name of an
    // answer would let a client answer an interrupt before it is requested. A decider has the inputs that
    // `orchestrator::inputs` lists.
    if !is_orchestrator(node) {
        for (name, value) in context.state.inputs.iter().filter(|(name, _)| *name != ANSWER) {
            inputs.entry(name).or_insert_with(|| value.clone());
        }
    }
    let agent = context.state.orchestrator.as_ref().map(|agent| json!({ "agentId": agent }));
    let request = json!({
        "abiVersion": 1,
        "nodeContext": {
            "runId": run.entity.id(),
            "nodeId": node.id,
            "tenantId": run.tenant,
            "attempt": attempt,
            "configurable": context.begin.configurable,
            "agent": agent,
        },
        "inputs": inputs,
    });
    NodeCall {
        index: of.index,
        request: request.to_string().into_bytes(),
        access,
        seed: seed(run.entity.id(), &node.id, attempt),
    }
}

/// The seed of a node's randomness: the same for each execution of an attempt.
fn seed(run: &str, node: &str, attempt: u32) -> [u8; 32] {
    let part = |text: &str| (text.len() as u64).to_be_bytes();
    let digest = Sha256::new()
        .chain_update(part(run))
        .chain_update(run)
        .chain_update(part(node))
        .chain_update(node)
        .chain_update(attempt.to_be_bytes());
    digest.finalize().into()
}

/// How a node ended, by the response of its pack, whose form the host has checked.
fn end_of(response: &Value) -> End {
    let error = |code: ErrorCode, message: String| End::Failed(RunError::new(code, message));
    match response["outcome"].as_str() {
        Some("completed") => End::Completed(outputs_of(response["output"].clone())),
        Some("suspended") => match Interrupt::parse(&response["interrupt"]) {
            Ok(interrupt) => End::Suspended(interrupt),
            Err(why) => error(ErrorCode::InvalidInterrupt, why),
        },
        _ => error(ErrorCode::InvalidResponse, "the pack's answer has no outcome".to_owned()),
    }
}

/// What a node reads and writes: it sees its own writes, and other nodes do once it has completed.
#[derive(Debug)]
struct Reach {
    node: String,
    type_id: String,
    definition: Arc<Definition>,
    clock: Arc<dyn Clock>,
    written: Mutex<Written>,
}

#[derive(Debug)]
struct Written {
    state: RunState,
    events: Vec<RunEvent>,
    bytes: usize,
}

impl Reach {
    fn new(node: &Node, context: &Context, clock: Arc<dyn Clock>) -> Self {
        Self {
            node: node.id.clone(),
            type_id: node.type_id.clone(),
            definition: Arc::clone(&context.definition),
            clock,
            written: Mutex::new(Written {
                state: context.state.clone(),
                events: Vec::new(),
                bytes: 0,
            }),
        }
    }

    fn events(&self) -> Vec<RunEvent> {
        std::mem::take(&mut lock(&self.written).events)
    }

    /// Adds an event of the node, unless all of them are too large.
    fn note(&self, payload: Payload) -> NodeStatus {
        let mut written = lock(&self.written);
        let bytes = written.bytes.saturating_add(payload.json_size()).saturating_add(64);
        if bytes > WRITTEN_MAX_BYTES {
            return NodeStatus::CapabilityBreach;
        }
        written.bytes = bytes;
        let event = RunEvent::of_node(&self.node, payload);
        written.state.apply(&self.definition, &event);
        written.events.push(event);
        NodeStatus::Ok
    }
}

impl NodeAccess for Reach {
    fn channel_read(&self, name: &str) -> Option<Value> {
        let channel = self.definition.channels.get(name)?;
        let may = channel.readers.allows(&self.node, &self.type_id);
        if may { lock(&self.written).state.channels.get(name).cloned() } else { None }
    }

    fn channel_write(&self, name: &str, value: Value) -> NodeStatus {
        let Some(channel) = self.definition.channels.get(name) else { return NodeStatus::NotFound };
        if !channel.writers.allows(&self.node, &self.type_id) {
            return NodeStatus::ChannelAccessDenied;
        }
        self.note(Payload::ChannelWritten {
            channel: name.to_owned(),
            value,
            reducer: Some(channel.reducer),
            written_at: Some(self.clock.wall().to_string()),
        })
    }

    fn variable_get(&self, key: &str) -> Option<Value> {
        lock(&self.written).state.variables.get(key).cloned()
    }

    fn variable_set(&self, key: &str, value: Value) -> NodeStatus {
        if key.is_empty() || key.len() > NAME_MAX_BYTES || key.chars().any(char::is_control) {
            return NodeStatus::ValidationError;
        }
        let declared = self.definition.variables.iter().find(|variable| variable.name == key);
        if declared.is_some_and(|variable| !variable.kind.takes(&value)) {
            return NodeStatus::ValidationError;
        }
        self.note(Payload::VariableChanged {
            name: key.to_owned(),
            next: value,
            previous: self.variable_get(key),
            node_id: self.node.clone(),
        })
    }

    fn interrupt(&self, payload: &Value) -> Option<Value> {
        let key = payload.get("key").and_then(Value::as_str)?;
        lock(&self.written).state.resolved.get(&(self.node.clone(), key.to_owned())).cloned()
    }

    fn log(&self, level: LogLevel, message: &str) {
        let level = match level {
            LogLevel::Trace | LogLevel::Debug => event::LogLevel::Debug,
            LogLevel::Info => event::LogLevel::Info,
            LogLevel::Warn => event::LogLevel::Warn,
            LogLevel::Error => event::LogLevel::Error,
        };
        let (message, node_id) = (message.to_owned(), self.node.clone());
        // What is too large is only in the log of the host.
        let _ = self.note(Payload::LogAppended { level, message, node_id });
    }
}
