//! What a run's handlers do: a node, and then what comes next.
//!
//! ```text
//! start ──▶ what is known of the run ──▶ the node ──▶ its events ──▶ plan ──▶ the next action
//!          (kept, or read)              (Rust, or a pack in the host)
//! ```

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sandglass_host::Host;
use sandglass_journal::Journal;
use sandglass_model::{
    Cancellation, CancelledBy, Cause, Clock, Completion, DispatchId, Failure, FailureKind, Object,
    Outcome, RunReport,
};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, StopRequest, unreported, until};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::action::{RESUME_EFFECT, RUN_EFFECT, led_to, resume};
use crate::context::{Context, Contexts, RUN_EVENTS_MAX_BYTES, Unknown};
use crate::definition::Node;
use crate::event::{Kind, Origin, RunError, RunEvent};
use crate::feed::is_run;
use crate::library::Library;
use crate::node::{
    self, DELAY, DISPATCH, End, Executed, SUPERVISOR, builtin, dispatch, inputs, orchestrator,
    packed,
};
use crate::plan::plan;
use crate::projection::{BEGIN, EVENTS, NEXT, StepResult};
use crate::replay;
use crate::service::Service;
use crate::step::{Begin, Next};

/// The param of an action that names the handler whose end it follows from.
const AFTER: &str = "after";
/// What of a failure's result holds the answer that the host didn't take.
const RESPONSE: &str = "response";

/// Runs the handlers of runs; those of other entities are for somebody else.
#[derive(Clone)]
pub struct RunHandlers {
    pub(crate) shared: Arc<Shared>,
    others: Option<Arc<dyn Handlers>>,
}

/// What the handlers of runs share.
pub(crate) struct Shared {
    pub(crate) host: Host,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) library: Arc<Library>,
    pub(crate) contexts: Contexts,
    /// How many handlers of runs there are.
    active: AtomicUsize,
    /// The service that they belong to, once it is there: some start runs of their own.
    pub(crate) service: watch::Sender<Option<Weak<Service>>>,
}

impl RunHandlers {
    /// Handlers that run the nodes of `library`, those of packs in `host`; `journal` and
    /// `clock` are the runtime's.
    #[must_use]
    pub fn new(
        host: Host,
        journal: Arc<dyn Journal>,
        clock: Arc<dyn Clock>,
        library: Library,
    ) -> Self {
        let shared = Shared {
            host,
            journal,
            clock,
            library: Arc::new(library),
            contexts: Contexts::default(),
            active: AtomicUsize::new(0),
            service: watch::Sender::new(None),
        };
        Self { shared: Arc::new(shared), others: None }
    }

    /// Has `others` run the handlers of entities that are no runs.
    #[must_use]
    pub fn beside(self, others: Arc<dyn Handlers>) -> Self {
        Self { others: Some(others), ..self }
    }

    /// How many runs are under way.
    pub(crate) fn active(&self) -> usize {
        self.shared.active.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RunHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunHandlers").field("active", &self.active()).finish_non_exhaustive()
    }
}

impl Handlers for RunHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        match &self.others {
            Some(others) if !is_run(&run.entity) => others.start(run),
            _ => {
                // One that waits for somebody isn't under way.
                let waits = run.dispatched.integration == "expiry";
                let counted = (!waits).then(|| Counted::one_more(&self.shared));
                let shared = Arc::clone(&self.shared);
                Box::pin(async move {
                    let _counted = counted;
                    handle(&shared, run).await
                })
            }
        }
    }

    fn reserve(
        &self,
        dispatched: &sandglass_model::Dispatched,
        tenant: &str,
    ) -> Result<sandglass_runtime::Reserved, sandglass_model::Busy> {
        match &self.others {
            Some(others) if dispatched.module != MODULE => others.reserve(dispatched, tenant),
            _ => Ok(sandglass_runtime::Reserved::default()),
        }
    }

    fn doing(&self, dispatch: DispatchId) -> Option<(String, std::time::Duration)> {
        if let Some(others) = &self.others {
            return others.doing(dispatch);
        }
        let runs = self.shared.host.live_runs(usize::MAX).runs;
        let run = runs.into_iter().find(|run| run.dispatch == dispatch)?;
        let now = self.shared.host.clock().now();
        Some((run.doing.as_str().to_owned(), now.since(run.since)))
    }

    fn module_hash(&self, module: &str) -> Option<sandglass_model::ModuleHash> {
        self.others.as_ref()?.module_hash(module)
    }
}

/// Largest events of a run whose state is kept for its next handler, in bytes of JSON: of a
/// larger one the journal is read again.
const KEPT_MAX_BYTES: usize = 256 << 10;

/// The module that the integrations of runs name.
const MODULE: &str = "openwop";

/// A handler of a run, as long as it is there.
struct Counted(Arc<Shared>);

impl Counted {
    fn one_more(shared: &Arc<Shared>) -> Self {
        shared.active.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.active.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until a run is stopped. A host that shuts down stops none: what it doesn't finish is
/// the next one's, as its definition says.
pub(crate) async fn stopped(run: &HandlerRun) -> StopRequest {
    let request = run.stop.wait().await;
    if request.cause == Cause::Shutdown {
        return std::future::pending().await;
    }
    request
}

/// What a handler has to say at its end.
pub(crate) struct Answer {
    pub(crate) action: &'static str,
    pub(crate) params: Object,
    pub(crate) result: StepResult,
    pub(crate) report: Option<Box<RunReport>>,
}

async fn handle(shared: &Arc<Shared>, run: HandlerRun) -> RunReport {
    let known = shared.known(&run).await;
    let mut context = match known {
        Ok(known) => known,
        Err(unknown) => return failed(&run, &RunError::new("host_error", unknown.to_string())),
    };
    let next = run.dispatched.params.get(NEXT).cloned();
    let next: Option<Next> = next.and_then(|next| serde_json::from_value(next).ok());
    let answer = match (run.dispatched.integration.as_str(), next) {
        ("conclude", _) => {
            let said = shared.contexts.take_said(&run.entity, context.origin.as_ref());
            conclude(&mut context, said)
        }
        ("expiry", Some(Next::Expiry { after_ms, .. })) => {
            let waiting = context.state.waiting.take().map(|waiting| waiting.node);
            let since = context.since;
            // It waits for as long as it may: what is known of the run isn't needed for that.
            drop(context);
            return expire(shared, &run, &waiting.unwrap_or_default(), since, after_ms).await;
        }
        ("replay", Some(Next::Replay { at })) => replay::step(shared, &run, &mut context, at).await,
        (_, Some(Next::Node { node, .. } | Next::Resumed { node, .. })) => {
            let executed = execute(shared, &run, &mut context, &node).await;
            match executed {
                Ok(mut executed) => {
                    let (dispatch, attempt) = (run.dispatched.dispatch, run.dispatched.attempt);
                    let said = executed.said_in_vain();
                    shared.contexts.keep_said(&run.entity, Origin { dispatch, attempt }, said);
                    ended(&run, &mut context, &node, executed)
                }
                Err(report) => return *report,
            }
        }
        _ => Err(failed(&run, &RunError::new("host_error", "the run's next step can't be read"))),
    };
    match answer {
        Ok(answer) => shared.answered(&run, context, answer),
        Err(report) => report,
    }
}

impl Shared {
    /// What is known of the run.
    async fn known(&self, run: &HandlerRun) -> Result<Context, Unknown> {
        let params = &run.dispatched.params;
        let is_first = run.dispatched.attempt == 1;
        let kept = if let (Some(begin), true) = (params.get(BEGIN), is_first) {
            let begin: Begin =
                serde_json::from_value(begin.clone()).map_err(|_| Unknown::NoBeginning)?;
            let definition = self.library.pinned(&*self.journal, &begin).await?;
            let mut context = Context::beginning(begin, definition, &self.library);
            let told = params.get(EVENTS).cloned();
            let told = told.and_then(|told| serde_json::from_value(told).ok());
            let told: Vec<RunEvent> = told.unwrap_or_default();
            told.iter().for_each(|event| context.apply(event));
            Some(context)
        } else {
            let after = params.get(AFTER).cloned();
            let after = after.and_then(|after| serde_json::from_value(after).ok());
            self.contexts.take(&run.entity, after).filter(|_| is_first)
        };
        let next = params.get(NEXT).cloned();
        let next: Option<Next> = next.and_then(|next| serde_json::from_value(next).ok());
        match (kept, next) {
            (Some(mut context), Some(Next::Node { node, type_id })) => {
                if context.state.current(&context.definition) != Some(&*node) {
                    let payload = json!({ "nodeId": node, "typeId": type_id });
                    context.apply(&RunEvent::of_node(Kind::NodeStarted, &node, payload));
                }
                Ok(context)
            }
            (Some(context), Some(Next::Replay { .. } | Next::Expiry { .. })) => Ok(context),
            _ => Context::read(&*self.journal, &self.library, &run.entity).await,
        }
    }

    /// The report of a handler that has come to `answer`.
    fn answered(&self, run: &HandlerRun, context: Context, answer: Answer) -> RunReport {
        let Answer { mut action, mut params, result, report } = answer;
        let is_closing = || run.stop.requested().is_some_and(|stop| stop.cause == Cause::Shutdown);
        if [RUN_EFFECT, RESUME_EFFECT].contains(&action) && is_closing() {
            // It would be recorded and never begun, and the next start could not tell that from
            // one that was lost in the middle.
            (action, _) = ("GoOn", params.remove(NEXT));
        }
        if context.bytes > RUN_EVENTS_MAX_BYTES {
            let message = format!(
                "the events of the run are larger than {RUN_EVENTS_MAX_BYTES} bytes together; \
                 keep large data elsewhere"
            );
            return failed(run, &RunError::new("run_too_large", message));
        }
        params.insert(AFTER.to_owned(), json!(run.dispatched.dispatch));
        if params.contains_key(NEXT) && context.bytes <= KEPT_MAX_BYTES {
            let mut context = context;
            context.since = None;
            self.contexts.keep(&run.entity, run.dispatched.dispatch, context);
        }
        let completion = Completion {
            action: Some(action.to_owned()),
            params,
            // It is plain data.
            result: serde_json::to_value(result).unwrap_or_default(),
        };
        let outcome = Outcome::Completed(completion);
        match report {
            Some(report) => RunReport { outcome, ..*report },
            None => unreported(&run.dispatched, outcome, Cause::Returned),
        }
    }
}

/// The report of a handler that has failed with `error`.
pub(crate) fn failed(run: &HandlerRun, error: &RunError) -> RunReport {
    unreported(&run.dispatched, Outcome::Failed(failure(error, None)), Cause::Returned)
}

/// A failure by `error`, and what a guest had answered by then: a replay compares with it.
fn failure(error: &RunError, response: Option<Value>) -> Failure {
    let mut result = json!({ "error": error });
    if let Some(response) = response {
        result[RESPONSE] = response;
    }
    let message = format!("{}: {}", error.code, error.message);
    Failure { kind: FailureKind::TypedFailure, message, result: Some(result) }
}

/// The answer of a guest that the host didn't take; none where the failure is the guest's own,
/// which says so.
pub(crate) fn not_taken(failure: &Failure) -> Option<&Value> {
    failure.result.as_ref().filter(|result| result.get("outcome").is_none())?.get(RESPONSE)
}

/// The report of a handler that was stopped.
pub(crate) fn cancelled(run: &HandlerRun, request: StopRequest) -> RunReport {
    let by = CancelledBy::of(request.cause);
    let cancellation = Cancellation { by, reason: request.reason, dying_span: None };
    unreported(&run.dispatched, Outcome::Cancelled(cancellation), request.cause)
}

/// Runs a node.
async fn execute(
    shared: &Arc<Shared>,
    run: &HandlerRun,
    context: &mut Context,
    node: &str,
) -> Result<Executed, Box<RunReport>> {
    let definition = &Arc::clone(&context.definition);
    let Some(index) = definition.node(node) else {
        return Ok(Executed::failed("host_error", format!("the run has no node `{node}`")));
    };
    let node = &definition.nodes[index];
    let inputs = match inputs::resolve(definition, &context.state, index) {
        Ok(inputs) => inputs,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    if let Some(executed) = builtin::pure(node, &inputs) {
        return Ok(executed);
    }
    match node.type_id.as_str() {
        DELAY => delay(shared, run, node, &inputs, context.since).await,
        SUPERVISOR => Ok(turn(shared, run, context, index, inputs).await),
        DISPATCH => dispatch::execute(shared, run, context, node).await,
        type_id => Ok(match shared.library.node(type_id) {
            Some(of) => packed::invoke(&shared.host, run, context, (node, of), inputs).await,
            None => Executed::failed(
                "capability_not_provided",
                format!("nobody provides nodes of the type `{type_id}`; load a pack that does"),
            ),
        }),
    }
}

async fn delay(
    shared: &Shared,
    run: &HandlerRun,
    node: &Node,
    inputs: &serde_json::Map<String, Value>,
    started_at: Option<sandglass_model::WallTime>,
) -> Result<Executed, Box<RunReport>> {
    let millis = match builtin::delay_ms(node, inputs) {
        Ok(millis) => millis,
        Err(error) => return Ok(End::Failed(error).into()),
    };
    match wait(shared, run, millis, started_at).await {
        None => Ok(Executed::completed(json!({ "delayedMs": millis }))),
        Some(request) => Err(Box::new(cancelled(run, request))),
    }
}

/// Waits until `millis` after `since`, or after now; or until it is stopped.
async fn wait(
    shared: &Shared,
    run: &HandlerRun,
    millis: u64,
    since: Option<sandglass_model::WallTime>,
) -> Option<StopRequest> {
    let passed = since.map_or(std::time::Duration::ZERO, |since| shared.clock.wall().since(since));
    let left = std::time::Duration::from_millis(millis).saturating_sub(passed);
    let due = shared.clock.now().after(left);
    tokio::select! {
        biased;
        request = stopped(run) => Some(request),
        () = until(&*shared.clock, due) => None,
    }
}

/// One turn of an orchestrator.
async fn turn(
    shared: &Shared,
    run: &HandlerRun,
    context: &Context,
    index: usize,
    own: serde_json::Map<String, Value>,
) -> Executed {
    let (definition, state) = (&context.definition, &context.state);
    let node = &definition.nodes[index];
    // It has asked somebody, and goes on with the answer.
    let asked = state.decision.as_ref().is_some_and(|decision| decision["kind"] == "ask-user");
    if asked && state.nodes[index].resumed_with.is_some() {
        return Executed::completed(orchestrator::answered(state));
    }
    let type_id = match orchestrator::decider(definition, state, index, node) {
        Ok(orchestrator::Decider::Decided(decision)) => {
            return orchestrator::decided(node, state, decision);
        }
        Ok(orchestrator::Decider::Pack(type_id)) => type_id,
        Err(error) => return End::Failed(error).into(),
    };
    let Some(of) = shared.library.node(type_id) else {
        return Executed::failed(
            "capability_not_provided",
            format!("nobody provides the decider `{type_id}`; load a pack that does"),
        );
    };
    let inputs = orchestrator::inputs(node, state, own);
    let asked = packed::invoke(&shared.host, run, context, (node, of), inputs).await;
    let End::Completed(decision) = asked.end else { return asked };
    let decided = orchestrator::decided(node, state, decision);
    let events = asked.events.into_iter().chain(decided.events).collect();
    Executed { events, response: asked.response, report: asked.report, ..decided }
}

/// What follows from the end of a node.
#[expect(clippy::result_large_err, reason = "a report is what a handler ends with")]
fn ended(
    run: &HandlerRun,
    context: &mut Context,
    node: &str,
    executed: Executed,
) -> Result<Answer, RunReport> {
    let Executed { end, mut events, response, report } = executed;
    match end {
        End::Completed(outputs) => {
            events.push(RunEvent::completed(node, &outputs));
            events.iter().for_each(|event| context.apply(event));
            let events = context.untold.drain(..).chain(events).collect();
            Ok(Answer { report, ..go_on(context, events) }.responded(response))
        }
        End::Suspended(interrupt) => {
            let nth = context.state.interrupts.saturating_add(1);
            events.extend(node::suspended(node, nth, &interrupt));
            events.iter().for_each(|event| context.apply(event));
            Ok(Answer { report, ..go_on(context, events) }.responded(response))
        }
        End::Failed(error) => Err(match report {
            // It says the same.
            Some(report) if matches!(report.outcome, Outcome::Failed(_)) => *report,
            // Its guest has done its work, and what that answered can't be taken.
            Some(report) => {
                let outcome = Outcome::Failed(failure(&error, response));
                RunReport { outcome, ..*report }
            }
            None => failed(run, &error),
        }),
        End::Broken => Err(match report {
            Some(report) => *report,
            None => failed(run, &RunError::new("host_error", "the node ended without a report")),
        }),
    }
}

impl Answer {
    fn responded(mut self, response: Option<Value>) -> Self {
        self.result.response = response;
        self
    }
}

/// What a node's failure means, which has `said` something before it: it is run once more,
/// another node takes it up, or the run has failed.
#[expect(clippy::result_large_err, reason = "a report is what a handler ends with")]
fn conclude(context: &mut Context, said: Vec<RunEvent>) -> Result<Answer, RunReport> {
    let definition = Arc::clone(&context.definition);
    let current = context.state.current(&definition).map(str::to_owned);
    let error = context.failed.take();
    let (Some(node), Some(error)) = (current, error) else {
        return Ok(go_on(context, Vec::new()));
    };
    said.iter().for_each(|event| context.apply(event));
    let mut events = said;
    let index = definition.node(&node).unwrap_or_default();
    let attempt = context.state.nodes[index].attempt;
    if is_retryable(&error) && attempt < definition.settings.max_retries.unwrap_or(0) {
        let attempt = attempt.saturating_add(1);
        let payload = json!({ "nodeId": node, "attempt": attempt, "lastError": error });
        let event = RunEvent::of_node(Kind::NodeRetried, &node, payload);
        context.apply(&event);
        // It goes on with what was counted when it began.
        let (action, params) = resume(&context.library, &definition, index);
        events.push(event);
        let result = StepResult { events, response: None };
        return Ok(Answer { action, params, result, report: None });
    }
    let event = RunEvent::failed(&node, &error);
    context.apply(&event);
    events.push(event);
    Ok(go_on(context, events))
}

/// Whether a node that failed so may be run again by itself: not where a bound of it was
/// breached, and not where its effects may have landed.
fn is_retryable(error: &RunError) -> bool {
    const NEVER: [&str; 6] = [
        "wasm_memory_exceeded",
        "wasm_fuel_exhausted",
        "wasm_execution_timeout",
        "run_interrupted",
        "capability_not_provided",
        "interrupt_timeout",
    ];
    !NEVER.contains(&error.code.as_str())
}

/// An interrupt of `node` that nobody resolves in time, which waits `since` then.
async fn expire(
    shared: &Shared,
    run: &HandlerRun,
    node: &str,
    since: Option<sandglass_model::WallTime>,
    after_ms: u64,
) -> RunReport {
    if let Some(request) = wait(shared, run, after_ms, since).await {
        return cancelled(run, request);
    }
    let message = format!("nobody resolved the interrupt of `{node}` within {after_ms} ms");
    failed(run, &RunError::new("interrupt_timeout", message))
}

/// What comes next, once `events` are folded in.
pub(crate) fn go_on(context: &mut Context, mut events: Vec<RunEvent>) -> Answer {
    let definition = Arc::clone(&context.definition);
    let planned = plan(&definition, &mut context.state);
    events.extend(planned.events);
    let (action, params) = led_to(context, planned.step);
    let result = StepResult { events, response: None };
    Answer { action, params, result, report: None }
}

/// The action by which a run begins or goes on, and its params: for requests.
pub(crate) fn first_step(context: &mut Context) -> (&'static str, Object) {
    let Answer { action, mut params, result, .. } = go_on(context, Vec::new());
    if !result.events.is_empty() {
        params.insert(EVENTS.to_owned(), json!(result.events));
    }
    (action, params)
}
