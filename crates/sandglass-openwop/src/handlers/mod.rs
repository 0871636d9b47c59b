//! What a handler of a run does: it executes a node, and then decides what comes next.
//!
//! ```text
//! start ──▶ context of the run ──▶ the node ──▶ its events ──▶ plan ──▶ report: the next action
//!          (kept, or read)        (builtin, child runs, or a pack in the host)
//! ```

mod ending;
mod execution;
mod node;
mod orphan;

use std::fmt;
use std::sync::Arc;

use sandglass_host::Host;
use sandglass_journal::Journals;
use sandglass_model::{
    Busy, Cause, Clock, Completion, DispatchId, Dispatched, ModuleHash, Outcome, RunReport,
};
use sandglass_runtime::{HandlerNow, HandlerRun, Handlers, Reserved, RunFuture, handler_now};
use sandglass_workflow::automaton::{Action, Integration, Params};
use sandglass_workflow::error::{ErrorCode, RunError};
use sandglass_workflow::event::{Origin, RunEvent};
use sandglass_workflow::step::Next;
use tokio::sync::Notify;

pub(crate) use self::ending::{Decided, first_action, go_on};
use self::ending::{conclude, node_ended};
pub(crate) use self::execution::{Ended, Execution, refused_response};
use self::node::execute;
use self::orphan::stop_orphan;
use crate::context::{Context, RUN_EVENTS_MAX_BYTES};
use crate::engine::Engine;
use crate::feed::is_run;
use crate::library::Library;
use crate::log::ReadError;
use crate::replay;
use crate::settings::Settings;

/// Largest events of a run whose context is kept for its next handler, in bytes of JSON: for a
/// larger one the journal is read again.
const KEPT_MAX_BYTES: usize = 256 << 10;

/// The module that the integrations of runs name.
const MODULE: &str = "openwop";

/// Executes the handlers of runs, and passes those of other entities on.
#[derive(Clone)]
pub struct RunHandlers {
    pub(crate) engine: Arc<Engine>,
    others: Option<Arc<dyn Handlers>>,
}

impl RunHandlers {
    /// Handlers that execute the nodes of `library`, those of packs in `host`; `journal` and
    /// `clock` are the runtime's.
    #[must_use]
    pub fn new(
        host: Host,
        journals: Journals,
        clock: Arc<dyn Clock>,
        library: Library,
        settings: Settings,
    ) -> Self {
        let engine = Engine::new(host, journals, clock, library, settings);
        Self { engine: Arc::new(engine), others: None }
    }

    /// Has `others` execute the handlers of entities that are not runs.
    #[must_use]
    pub fn beside(self, others: Arc<dyn Handlers>) -> Self {
        Self { others: Some(others), ..self }
    }
}

impl fmt::Debug for RunHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let active = self.engine.active();
        f.debug_struct("RunHandlers").field("active", &active).finish_non_exhaustive()
    }
}

impl Handlers for RunHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        match &self.others {
            Some(others) if !is_run(&run.entity) => others.start(run),
            _ => {
                let engine = Arc::clone(&self.engine);
                // A run that waits for an answer does not count.
                let waits = run.dispatched.integration == Integration::Expiry.as_str();
                let active = (!waits).then(|| engine.count_active());
                Box::pin(async move {
                    let _active = active;
                    let report = Execution { engine, run }.handle().await;
                    report.unwrap_or_else(|ended| *ended)
                })
            }
        }
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        match &self.others {
            Some(others) if dispatched.module != MODULE => others.reserve(dispatched, tenant),
            _ => Ok(Reserved::default()),
        }
    }

    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        handler_now(&self.engine.host, dispatch)
            .or_else(|| self.others.as_ref().and_then(|others| others.doing(dispatch)))
    }

    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        self.engine.host.on_activity(dispatch, Arc::clone(waiter));
        if let Some(others) = &self.others {
            others.on_activity(dispatch, waiter);
        }
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.others.as_ref()?.module_hash(module)
    }
}

impl Execution {
    /// Does what the dispatch requests; returns the report with the next action of the run.
    async fn handle(&self) -> Result<RunReport, Ended> {
        let unreadable = || {
            let message = "the run's next step can't be read";
            self.failed(&RunError::new(ErrorCode::HostError, message))
        };
        let dispatched = &self.run.dispatched;
        let params = Params::read(&dispatched.params).map_err(|_| unreadable())?;
        let mut context = self.context(&params).await?;
        stop_orphan(self, &context).await?;
        let decided = match (Integration::parse(&dispatched.integration), params.next) {
            (Some(Integration::Conclude), _) => return Ok(self.conclude(context)),
            (Some(Integration::Expiry), Some(Next::Expiry { after_ms, .. })) => {
                let waiting = context.state.waiting.take().map(|waiting| waiting.node);
                let since = context.since;
                // It may wait for long, and does not need the context.
                drop(context);
                return Err(self.expire(&waiting.unwrap_or_default(), since, after_ms).await);
            }
            (Some(Integration::Replay), Some(Next::Replay { at })) => {
                replay::step(self, &mut context, at).await?
            }
            (_, Some(Next::Node { node, .. } | Next::Resumed { node, .. })) => {
                let mut executed = execute(self, &mut context, &node).await?;
                let (dispatch, attempt) = (dispatched.dispatch, dispatched.attempt);
                let logged = executed.take_logged();
                let contexts = &self.engine.contexts;
                contexts.keep_logged(&self.run.entity, Origin { dispatch, attempt }, logged);
                node_ended(self, &mut context, &node, executed)?
            }
            _ => return Err(unreadable()),
        };
        Ok(self.report(context, decided))
    }

    /// The context of the run, as soon as the journal can be read.
    async fn context(&self, params: &Params) -> Result<Context, Ended> {
        loop {
            match self.try_context(params).await {
                Ok(context) => return Ok(context),
                // The run has not failed.
                Err(error) if error.is_temporary() => {
                    let run = &self.run.entity;
                    tracing::warn!(%run, %error, "the context of a run cannot be read now");
                    self.wait_to_retry().await.map_err(|request| self.cancelled(request))?;
                }
                Err(error) => {
                    let error = RunError::new(ErrorCode::HostError, error.to_string());
                    return Err(self.failed(&error));
                }
            }
        }
    }

    /// The context of the run: that of its beginning, of the handler before this one, or else of
    /// its records.
    async fn try_context(&self, params: &Params) -> Result<Context, ReadError> {
        let engine = &self.engine;
        let is_first = self.run.dispatched.attempt == 1;
        let kept = match &params.begin {
            Some(begin) if is_first => {
                let run = &self.run.entity;
                let definition = engine.library.pinned(&engine.journals, run, begin).await?;
                let mut context = Context::beginning(begin.clone(), definition);
                params.events.iter().for_each(|event| context.apply(event));
                Some(context)
            }
            _ => {
                let kept = engine.contexts.take(&self.run.entity, params.after);
                kept.filter(|_| is_first)
            }
        };
        match (kept, &params.next) {
            (Some(mut context), Some(Next::Node { node, type_id })) => {
                let index = context.definition.node(node);
                if index.is_none() || context.state.current() != index {
                    context.apply(&RunEvent::started(node, type_id));
                }
                Ok(context)
            }
            (Some(context), Some(Next::Replay { .. } | Next::Expiry { .. })) => Ok(context),
            _ => Context::read(&engine.journals, &engine.library, &self.run.entity).await,
        }
    }

    /// Decides what the failure of a node means, or what comes next.
    fn conclude(&self, mut context: Context) -> RunReport {
        let contexts = &self.engine.contexts;
        let logged = contexts.take_logged(&self.run.entity, context.origin.as_ref());
        let has_failed = context.failed.is_some();
        let decided = conclude(&self.engine.library, &mut context, logged);
        let report = self.report(context, decided);
        if !has_failed {
            // Only the records contain since when it waits.
            contexts.forget(&self.run.entity);
        }
        report
    }

    /// The failure of an interrupt of `node`, which waits `since` then, once its time is over.
    async fn expire(
        &self,
        node: &str,
        since: Option<sandglass_model::WallTime>,
        after_ms: u64,
    ) -> Ended {
        if let Err(request) = self.wait(after_ms, since).await {
            return self.cancelled(request);
        }
        let message = format!("nobody resolved the interrupt of `{node}` within {after_ms} ms");
        self.failed(&RunError::new(ErrorCode::InterruptTimeout, message))
    }

    /// The report of a handler that has `decided` what comes next.
    fn report(&self, mut context: Context, decided: Decided) -> RunReport {
        let Decided { mut action, mut params, result, report } = decided;
        let run = &self.run;
        let is_closing =
            || run.stop.kill_request().is_some_and(|stop| stop.cause == Cause::Shutdown);
        if matches!(action, Action::RunEffect | Action::ResumeEffect) && is_closing() {
            // It would be recorded and never begin, and the next start could not distinguish that
            // from a node that was lost while it executed.
            (action, params.next) = (Action::GoOn, None);
        }
        if context.bytes > RUN_EVENTS_MAX_BYTES {
            let message = format!(
                "the events of the run are larger than {RUN_EVENTS_MAX_BYTES} bytes together; \
                 keep large data elsewhere"
            );
            return *self.failed(&RunError::new(ErrorCode::RunTooLarge, message));
        }
        let dispatch = run.dispatched.dispatch;
        params.after = Some(dispatch);
        if params.next.is_some() && context.bytes <= KEPT_MAX_BYTES {
            context.since = None;
            self.engine.contexts.keep(&run.entity, dispatch, context);
        }
        let completion = Completion {
            action: Some(action.as_str().to_owned()),
            params: params.into(),
            result: serde_json::to_value(result).expect("results are plain data"),
        };
        let outcome = Outcome::Completed(completion);
        match report {
            Some(report) => RunReport { outcome, ..*report },
            None => RunReport::unreported(&run.dispatched, outcome, Cause::Returned),
        }
    }
}
