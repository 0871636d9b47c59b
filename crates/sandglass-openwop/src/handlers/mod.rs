//! What a run's handlers do: a node, and then what comes next.
//!
//! ```text
//! start ──▶ what is known of the run ──▶ the node ──▶ its events ──▶ plan ──▶ the next action
//!          (kept, or read)              (Rust, or a pack in the host)
//! ```

mod ending;
mod executing;
mod family;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sandglass_host::Host;
use sandglass_journal::Journal;
use sandglass_model::{Cause, Clock, Completion, DispatchId, Outcome, RunReport};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, unreported};
use serde_json::json;
use tokio::sync::watch;

pub(crate) use self::ending::{Answer, cancelled, failed, first_step, go_on, not_taken};
use self::ending::{conclude, ended};
pub(crate) use self::executing::{AGAIN_AFTER_MS, stopped, wait};
use self::executing::{execute, expire};
use self::family::stop_orphan;
pub(crate) use self::family::{again_later, service, unless_closing};
use crate::action::{RESUME_EFFECT, RUN_EFFECT};
use crate::context::{Context, Contexts, RUN_EVENTS_MAX_BYTES, Unknown};
use crate::feed::is_run;
use crate::library::Library;
use crate::replay;
use crate::service::Service;
use sandglass_workflow::event::{Kind, Origin, RunError, RunEvent};
use sandglass_workflow::projection::{BEGIN, EVENTS, NEXT, param};
use sandglass_workflow::step::{Begin, Next};

/// The param of an action that names the handler whose end it follows from.
const AFTER: &str = "after";
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

async fn handle(shared: &Arc<Shared>, run: HandlerRun) -> RunReport {
    let mut context = loop {
        match shared.known(&run).await {
            Ok(known) => break known,
            // It is no failure of the run.
            Err(Unknown::Journal(sandglass_journal::Error::Unavailable { what })) => {
                tracing::warn!(run = %run.entity, what, "the records of a run can't be read now");
                if let Some(request) = wait(shared, &run, AGAIN_AFTER_MS, None).await {
                    return cancelled(&run, request);
                }
            }
            Err(unknown) => return failed(&run, &RunError::new("host_error", unknown.to_string())),
        }
    };
    if let Some(report) = stop_orphan(shared, &run, &context).await {
        return report;
    }
    let next: Option<Next> = param(&run.dispatched.params, NEXT);
    let answer = match (run.dispatched.integration.as_str(), next) {
        ("conclude", _) => {
            let said = shared.contexts.take_said(&run.entity, context.origin.as_ref());
            let goes_on = context.failed.is_none();
            let answer =
                conclude(&mut context, said).map(|answer| shared.answered(&run, context, answer));
            if goes_on {
                // Since when it waits is in the records alone.
                shared.contexts.forget(&run.entity);
            }
            return answer.unwrap_or_else(|report| report);
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
            let told: Vec<RunEvent> = param(params, EVENTS).unwrap_or_default();
            told.iter().for_each(|event| context.apply(event));
            Some(context)
        } else {
            self.contexts.take(&run.entity, param(params, AFTER)).filter(|_| is_first)
        };
        match (kept, param(params, NEXT)) {
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
        let is_closing =
            || run.stop.kill_request().is_some_and(|stop| stop.cause == Cause::Shutdown);
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
