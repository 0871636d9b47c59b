//! Runs, as clients ask for them: created, looked at, cancelled, forked, answered.

use std::sync::Arc;

use sandglass_journal::Journal;
use sandglass_liveness::Refusal;
use sandglass_liveness::decide::PARAMS_MAX_BYTES;
use sandglass_liveness::session::{LimitSettings, Setting, Standing};
use sandglass_model::{EntityRef, Entropy, Object, Sequence, StopCause, SystemEntropy};
use sandglass_runtime::{ActorError, Birth, Request, Runtime, SessionStop, Snapshot};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::OpenwopRefusal;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use crate::action::resume;
use crate::breach::KINDS_OF_RUNS;
use crate::context::{Context, Unknown};
use crate::definition::Definition;
use crate::event::{Kind, RunEvent};
use crate::feed::Feeds;
use crate::handlers::{RunHandlers, first_step};
use crate::http::error::{Code, Error};
use crate::http::request::bounds;
use crate::library::Library;
use crate::log::{RunLog, Standing as RunStanding, fold};
use crate::node::is_orchestrator;
use crate::projection::{BEGIN, EVENTS, NEXT, PENDING};
use crate::settings::{Settings, unbounded};
use crate::state::{RunState, Waiting};
use crate::step::{Begin, Copied, Fork, ForkMode, Next, Parent};
use crate::{REPLAY_TYPE, RUN_TYPE, variables};

/// What the ids of runs begin with.
const RUN_PREFIX: &str = "run-";
/// What those of replays begin with.
const REPLAY_PREFIX: &str = "replay-";

/// How often an answer is given where the run moves on meanwhile, and waits for it all the same.
const RESOLVE_ATTEMPTS: usize = 4;

/// The operator that a client's cancel is by.
pub const OPERATOR: &str = "openwop";

/// What clients ask for, over a runtime.
#[derive(Debug)]
pub struct Service {
    pub(crate) runtime: Runtime,
    pub(crate) journal: Arc<dyn Journal>,
    pub(crate) handlers: RunHandlers,
    pub(crate) settings: Settings,
    pub(crate) feeds: Feeds,
}

/// A run that somebody asks for, once it is known that it can be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) workflow: String,
    pub(crate) inputs: Map<String, Value>,
    pub(crate) configurable: Map<String, Value>,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) bounds: Bounds,
}

/// The bounds that a run asks for; what it doesn't say is as its host has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) run_timeout_ms: Option<u64>,
    pub(crate) max_loop_iterations: Option<u64>,
    pub(crate) recursion_limit: Option<u64>,
}

/// A run that is there.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) run: String,
    /// Whether an earlier request has created it.
    pub(crate) is_replayed: bool,
}

impl Service {
    /// Takes requests for runs of `runtime`, which has `handlers`, and whose journal `journal`
    /// is. Records the definitions that aren't in it yet. Needs a tokio runtime.
    ///
    /// # Errors
    /// They can't be recorded.
    pub async fn start(
        runtime: Runtime,
        journal: Arc<dyn Journal>,
        handlers: RunHandlers,
        settings: Settings,
    ) -> Result<Arc<Self>, ActorError> {
        handlers.shared.library.keep(&runtime).await?;
        let feeds = Feeds::of(&runtime, &handlers.shared);
        let service = Arc::new(Self { runtime, journal, handlers, settings, feeds });
        service.handlers.shared.service.send_replace(Some(Arc::downgrade(&service)));
        Ok(service)
    }

    pub(crate) fn library(&self) -> &Arc<Library> {
        &self.handlers.shared.library
    }

    /// The run with this id.
    pub(crate) async fn find(&self, id: &str) -> Result<(EntityRef, Arc<Snapshot>), Error> {
        let entity = entity_of(id).ok_or_else(|| Error::no_run(id))?;
        match self.runtime.entity(&entity).await {
            // One that has not begun was never answered to anybody.
            Ok(snapshot) if snapshot.state == PENDING => Err(Error::no_run(id)),
            Ok(snapshot) => Ok((entity, snapshot)),
            Err(ActorError::UnknownEntity(_)) => Err(Error::no_run(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// The log of a run, unless the logs of others that are read take all there is for them.
    pub(crate) async fn log(&self, id: &str) -> Result<Arc<RunLog>, Error> {
        let (entity, _) = self.find(id).await?;
        let most = self.settings.max_log_bytes;
        if !self.feeds.has_room(&entity, most) {
            self.metrics().openwop_refused(OpenwopRefusal::Logs);
            let message =
                format!("the runs that are read have {most} bytes of events, as many as they may");
            return Err(Error::new(Code::RateLimited, message));
        }
        self.whole_log(&entity).await
    }

    /// The same, whatever others take.
    pub(crate) async fn whole_log(&self, entity: &EntityRef) -> Result<Arc<RunLog>, Error> {
        self.feeds.log(entity).await.map_err(|error| unreadable(&error))
    }

    /// What the host's clock says.
    pub(crate) fn now(&self) -> sandglass_model::Monotonic {
        self.handlers.shared.clock.now()
    }

    /// Where the host's metrics go.
    pub(crate) fn metrics(&self) -> &Metrics {
        &self.handlers.shared.host.telemetry().metrics
    }

    /// The definition that a run began with.
    pub(crate) async fn definition_of(&self, log: &RunLog) -> Result<Arc<Definition>, Error> {
        let folded = log.folded().await;
        let begin = folded.projection.begin.as_ref().ok_or_else(|| Error::no_run(log.run.id()))?;
        let definition = self.library().pinned(&*self.journal, begin).await;
        definition.map_err(|unknown| unknown_of(&unknown))
    }

    /// How a run stands.
    pub(crate) async fn standing(&self, log: &RunLog) -> Result<RunStanding, Error> {
        let definition = self.definition_of(log).await?;
        let folded = log.folded().await;
        let lines = log.all();
        let state = fold(&definition, lines.iter().map(|line| &line.entry.event));
        Ok(RunStanding { folded, definition, state })
    }

    /// Creates a run; with a key, once, whoever asks again.
    pub(crate) async fn create(
        &self,
        wanted: Wanted,
        key: Option<(&str, String)>,
    ) -> Result<Created, Error> {
        let run = match &key {
            Some((key, _)) => id_of_key(key),
            None => self.drawn(RUN_PREFIX)?,
        };
        let entity = entity_of(&run).ok_or_else(|| Error::no_run(&run))?;
        let request = key.map(|(_, digest)| digest);
        if request.is_some() {
            // Who asks again is answered whatever has become of the workflow and of the room.
            if let Some(created) = self.again(&entity, request.as_deref()).await? {
                return Ok(created);
            }
        }
        let definition =
            Arc::clone(self.library().definition(&wanted.workflow).ok_or_else(|| {
                let shown: String = wanted.workflow.chars().take(128).collect();
                Error::new(Code::WorkflowNotFound, "this host has no such workflow")
                    .detail("workflowId", shown)
            })?);
        check_inputs(&definition, &wanted.inputs)?;
        self.check_configurable(&definition, &wanted.configurable)?;
        let limits = self.limits(&definition, &wanted.bounds, Copied::default())?;
        let begin = Begin {
            workflow: definition.id.clone(),
            digest: definition.digest.to_string(),
            inputs: wanted.inputs,
            configurable: wanted.configurable,
            tags: wanted.tags,
            metadata: wanted.metadata,
            request,
            fork: None,
            copied: Copied::default(),
            parent: None,
        };
        self.has_room()?;
        self.begin(&entity, begin, &definition, limits).await
    }

    /// Whether the `configurable` of a run is as its workflow wants it.
    fn check_configurable(
        &self,
        definition: &Definition,
        configurable: &Map<String, Value>,
    ) -> Result<(), Error> {
        let Some(schema) = self.library().configurable(&definition.id) else { return Ok(()) };
        let configurable = Value::Object(configurable.clone());
        let message = "`configurable` isn't as the workflow wants it";
        crate::interrupt::refused("/configurable", message, schema, &configurable)
    }

    /// Starts a run that works for another one; once, however often it is asked for.
    pub(crate) async fn start_child(
        &self,
        id: &str,
        workflow: &str,
        inputs: Map<String, Value>,
        parent: Parent,
        configurable: &Map<String, Value>,
    ) -> Result<EntityRef, Error> {
        let entity = entity_of(id).ok_or_else(|| Error::no_run(id))?;
        // Whatever has become of the workflow since.
        if self.again(&entity, None).await?.is_some() {
            return Ok(entity);
        }
        let definition = self.library().definition(workflow).cloned();
        let definition = definition.ok_or_else(|| {
            Error::new(Code::WorkflowNotFound, format!("this host has no workflow `{workflow}`"))
        })?;
        check_inputs(&definition, &inputs)?;
        self.check_configurable(&definition, configurable)?;
        let limits = self.limits(&definition, &Bounds::default(), Copied::default())?;
        let begin = Begin {
            workflow: definition.id.clone(),
            digest: definition.digest.to_string(),
            inputs,
            configurable: configurable.clone(),
            tags: Vec::new(),
            metadata: Map::new(),
            request: None,
            fork: None,
            copied: Copied::default(),
            parent: Some(parent),
        };
        self.begin(&entity, begin, &definition, limits).await?;
        Ok(entity)
    }

    /// Creates the entity of a run, which begins with that.
    async fn begin(
        &self,
        entity: &EntityRef,
        begin: Begin,
        definition: &Arc<Definition>,
        limits: LimitSettings,
    ) -> Result<Created, Error> {
        let request = begin.request.clone();
        let (action, mut params) = match &begin.fork {
            Some(_) => {
                let next = Next::Replay { at: 1 };
                ("Replay", Object::from([(NEXT.to_owned(), json!(next))]))
            }
            None => {
                let definition = Arc::clone(definition);
                first_step(&mut Context::beginning(begin.clone(), definition, self.library()))
            }
        };
        params.insert(BEGIN.to_owned(), json!(begin));
        if serde_json::to_string(&params).is_ok_and(|text| text.len() > PARAMS_MAX_BYTES) {
            let what = "the inputs, `configurable`, `metadata` and `tags` of the run together";
            return Err(Error::too_large(what, PARAMS_MAX_BYTES));
        }
        // Of those who ask at once, one finds it as it was created.
        let first = Request::new(action).params(params).expecting(Sequence::default());
        let created = Created { run: entity.id().to_owned(), is_replayed: false };
        let birth = Birth { limits, first: Some(first.clone()), ..Birth::default() };
        match self.runtime.create_as(entity.clone(), birth).await {
            Ok(_) => return Ok(created),
            Err(ActorError::EntityExists(_)) => {}
            Err(error @ ActorError::Refused { .. }) => return Err(no_begin(entity, &error)),
            Err(error) => return Err(error.into()),
        }
        // Somebody else has just asked with the same key; or it was created by an earlier
        // version, whose host has ended before it began, and it begins now.
        if let Some(created) = self.again(entity, request.as_deref()).await? {
            return Ok(created);
        }
        match self.runtime.request(entity, first).await {
            Ok(_) => Ok(created),
            Err(error @ (ActorError::Refused { .. } | ActorError::Conflict { .. })) => {
                // It has begun by somebody else's request meanwhile.
                let again = self.again(entity, request.as_deref()).await?;
                again.ok_or_else(|| no_begin(entity, &error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The run that an earlier request with the same key has created; none where none has.
    async fn again(
        &self,
        entity: &EntityRef,
        request: Option<&str>,
    ) -> Result<Option<Created>, Error> {
        let snapshot = match self.runtime.entity(entity).await {
            Ok(snapshot) => snapshot,
            Err(ActorError::UnknownEntity(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if snapshot.state == PENDING {
            return Ok(None);
        }
        let log = self.whole_log(entity).await?;
        let begin = log.folded().await.projection.begin;
        let same = begin.is_some_and(|begin| begin.request.as_deref() == request);
        if !same {
            let message = "this idempotency key was used for another request; use a new one";
            return Err(Error::new(Code::IdempotencyKeyMismatch, message));
        }
        Ok(Some(Created { run: entity.id().to_owned(), is_replayed: true }))
    }

    /// Whether one more run may be under way.
    fn has_room(&self) -> Result<(), Error> {
        let most = self.settings.max_active_runs;
        if self.handlers.active() >= most {
            self.metrics().openwop_refused(OpenwopRefusal::Runs);
            let message = format!("{most} runs are under way, as many as there may be");
            return Err(Error::new(Code::RateLimited, message));
        }
        Ok(())
    }

    /// What is asked of the session that a run is: what the host allows is its ceiling.
    fn limits(
        &self,
        definition: &Definition,
        bounds: &Bounds,
        copied: Copied,
    ) -> Result<LimitSettings, Error> {
        let left = |asked: Option<u64>, most: u64, used: u64, name: &str| {
            let all = asked.unwrap_or(most).min(most);
            match all.checked_sub(used).filter(|left| *left > 0) {
                Some(left) => Ok(Some(Setting::At(left))),
                None => Err(Error::invalid(
                    &format!("/runOptionsOverlay/configurable/{name}"),
                    format!(
                        "the events before `fromSeq` have used {used} of {all}; fork earlier, or \
                         allow more"
                    ),
                )),
            }
        };
        let asked = bounds.run_timeout_ms.or(definition.settings.timeout_ms);
        let settings = &self.settings;
        Ok(LimitSettings {
            // Whatever is above the ceiling is cut to it by the runtime.
            execution_timeout: asked.map(Setting::At),
            max_handler_runs: left(
                bounds.recursion_limit,
                settings.max_node_executions,
                copied.executions,
                "recursionLimit",
            )?,
            max_loop_iterations: left(
                bounds.max_loop_iterations,
                settings.max_loop_iterations,
                copied.turns,
                "maxLoopIterations",
            )?,
            ..LimitSettings::default()
        })
    }

    fn drawn(&self, prefix: &str) -> Result<String, Error> {
        let mut bytes = [0; 16];
        SystemEntropy.fill(&mut bytes).map_err(|_| Error::from(ActorError::NoRandomness))?;
        Ok(format!("{prefix}{}", hex(&bytes)))
    }

    /// Cancels a run; answers how it stands then.
    pub(crate) async fn cancel(&self, id: &str, reason: &str) -> Result<&'static str, Error> {
        let (entity, _) = self.find(id).await?;
        let cause = StopCause::Operator { by: OPERATOR.to_owned(), reason: reason.to_owned() };
        let stop = SessionStop { run_seq: None, cause };
        match self.runtime.stop_session(&entity, stop).await {
            Ok(_) => {}
            Err(ActorError::Refused { refusal: Refusal::RunStopped { .. }, .. }) => {
                let log = self.whole_log(&entity).await?;
                let ended = log.all().last().map(|line| line.entry.event.kind);
                return match ended {
                    Some(Kind::RunCancelled) => Ok("cancelled"),
                    _ => Err(Error::new(Code::RunTerminal, "the run has come to its end before")),
                };
            }
            Err(ActorError::Refused { refusal: Refusal::RunStopping { .. }, .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let snapshot = self.runtime.entity(&entity).await?;
        Ok(if is_over(&snapshot) { "cancelled" } else { "cancelling" })
    }

    /// Waits until a run has come to its end.
    pub(crate) async fn until_over(&self, entity: &EntityRef) -> Result<(), ActorError> {
        self.runtime.wait_until(entity, is_over).await.map(drop)
    }

    /// Forks a run; answers from which event on the fork isn't simply its source: the one that
    /// was asked for; of a branch before it, where that one is in the middle of a node, the one
    /// behind its beginning, or the breach of a bound of the source.
    pub(crate) async fn fork(
        &self,
        id: &str,
        (from, mode): (u64, ForkMode),
        overlay: &Overlay,
    ) -> Result<(Created, u64), Error> {
        let log = self.log(id).await?;
        let source = self.standing(&log).await?;
        if from >= source.folded.events {
            let last = source.folded.events.saturating_sub(1);
            let message =
                format!("the run's last event is number {last}; fork from there or before");
            return Err(Error::new(Code::ForkPastEnd, message).detail("lastSequence", last));
        }
        if mode == ForkMode::Replay && source.state.ended.is_none() {
            let message = "the run is under way; replay it when it has ended, or branch from it";
            return Err(Error::new(Code::RunActive, message));
        }
        let Some(of) = source.folded.projection.begin.clone() else {
            return Err(Error::no_run(id));
        };
        self.has_room()?;
        let prefix = match mode {
            ForkMode::Replay => REPLAY_PREFIX,
            ForkMode::Branch => RUN_PREFIX,
        };
        let run = self.drawn(prefix)?;
        let lines = log.all();
        let mut until = usize::try_from(from).unwrap_or(usize::MAX).min(lines.len());
        if mode == ForkMode::Branch {
            // A branch has bounds of its own: what came of its source's isn't in it.
            let breached = lines.iter().position(|line| is_breach_of_run(&line.entry.event));
            until = until.min(breached.unwrap_or(until));
            // The answer and what goes on with it are one.
            let last = until.checked_sub(1).and_then(|last| lines.get(last));
            until -= usize::from(
                last.is_some_and(|line| line.entry.event.kind == Kind::InterruptResolved),
            );
        }
        let fold_to = |until: usize| {
            fold(&source.definition, lines[..until].iter().map(|line| &line.entry.event))
        };
        let mut before = fold_to(until);
        if mode == ForkMode::Branch
            && before.waiting.is_none()
            && before.current(&source.definition).is_some()
        {
            // The node that is open there runs once more: what it had written by then is left out.
            let begins = |kind: Kind| {
                matches!(kind, Kind::NodeStarted | Kind::NodeRetried | Kind::NodeResumed)
            };
            let begun = lines[..until].iter().rposition(|line| begins(line.entry.event.kind));
            until = begun.map_or(until, |begun| begun + 1);
            before = fold_to(until);
        }
        let from = until as u64;
        // A node that is open there is run by the branch, which counts it: a turn, too, also one
        // that was decided, and goes on with an answer.
        let open = before.current(&source.definition).filter(|_| before.waiting.is_none());
        let open = open.and_then(|node| source.definition.node(node));
        let is_answered = open.is_some_and(|open| {
            is_orchestrator(&source.definition.nodes[open])
                && before.nodes[open].resumed_with.is_some()
        });
        let copied = Copied {
            executions: before.executions.saturating_sub(u64::from(open.is_some())),
            turns: before.iteration.saturating_sub(u64::from(is_answered)),
        };
        let mut configurable = of.configurable;
        configurable.extend(overlay.configurable.clone());
        let present = self.library().definition(&source.definition.id);
        let is_present = present.is_some_and(|one| one.digest == source.definition.digest);
        if mode == ForkMode::Branch && is_present {
            self.check_configurable(&source.definition, &configurable)?;
        }
        let (limits, copied) = match mode {
            // It ends as its source did: no clock and no counter decides again.
            ForkMode::Replay => (unbounded(), Copied::default()),
            ForkMode::Branch => {
                // What the overlay doesn't say is as the source has it.
                let path = "/runOptionsOverlay/configurable";
                let bounds = bounds(&configurable, path)?;
                (self.limits(&source.definition, &bounds, copied)?, copied)
            }
        };
        let begin = Begin {
            configurable,
            tags: overlay.tags.clone().unwrap_or(of.tags),
            metadata: overlay.metadata.clone().unwrap_or(of.metadata),
            request: None,
            fork: Some(Fork { source: id.to_owned(), from, mode }),
            copied,
            parent: None,
            ..of
        };
        let entity = entity_of(&run).ok_or_else(|| Error::no_run(&run))?;
        let created = self.begin(&entity, begin, &source.definition, limits).await?;
        Ok((created, from))
    }

    /// Gives a run the answer that it waits for.
    pub(crate) async fn resolve(
        &self,
        id: &str,
        node: &str,
        answer: Value,
    ) -> Result<&'static str, Error> {
        let mut asked = None;
        for _ in 0..RESOLVE_ATTEMPTS {
            // Of two answers at once one finds that the run has moved on from here.
            let (entity, snapshot) = self.find(id).await?;
            let log = self.whole_log(&entity).await?;
            let standing = self.standing(&log).await?;
            let waiting = waiting_at(&standing, node)?;
            // One that somebody sees in the log before its actor shows it is asked for again.
            if asked.replace(waiting.interrupt.clone()).is_some_and(|one| one != waiting.interrupt)
            {
                break;
            }
            crate::interrupt::check(&waiting.payload, &answer)?;
            let (action, params) = self.resumption(&standing, waiting, &answer);
            let request = Request::new(action).params(params).expecting(snapshot.sequence);
            match self.runtime.request(&entity, request).await {
                Ok(_) => return Ok("running"),
                // It is recorded twice: as the answer, and as what the node goes on with.
                Err(ActorError::Refused { refusal: Refusal::TooLarge { max, .. }, .. }) => {
                    return Err(Error::too_large("twice the answer", max));
                }
                Err(ActorError::Refused { .. } | ActorError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(answered(node))
    }

    /// The action that gives a run `answer`, and its params.
    fn resumption(
        &self,
        standing: &RunStanding,
        waiting: &Waiting,
        answer: &Value,
    ) -> (&'static str, Object) {
        let node = waiting.node.as_str();
        let resolved = json!({
            "nodeId": node, "interruptId": waiting.interrupt, "kind": waiting.payload["kind"],
            "resumeValue": answer,
        });
        let resumed =
            json!({ "nodeId": node, "interruptId": waiting.interrupt, "resumeValue": answer });
        let events = [
            RunEvent::of_node(Kind::InterruptResolved, node, resolved),
            RunEvent::of_node(Kind::NodeResumed, node, resumed),
        ];
        let index = standing.definition.node(node).unwrap_or_default();
        let (action, mut params) = resume(self.library(), &standing.definition, index);
        params.insert(EVENTS.to_owned(), json!(events));
        (action, params)
    }
}

/// What `node` waits for.
fn waiting_at<'a>(standing: &'a RunStanding, node: &str) -> Result<&'a Waiting, Error> {
    if let Some(waiting) = standing.state.waiting.as_ref().filter(|one| one.node == node) {
        return Ok(waiting);
    }
    Err(if standing.definition.node(node).is_some() {
        answered(node)
    } else {
        let shown: String = node.chars().take(64).collect();
        Error::new(Code::NotFound, "the run has no such node").detail("nodeId", shown)
    })
}

fn answered(node: &str) -> Error {
    let message = "the node waits for no answer, or has it";
    Error::new(Code::InterruptResolved, message).detail("nodeId", node)
}

/// Whether a run of `definition` can begin with these inputs.
fn check_inputs(definition: &Definition, inputs: &Map<String, Value>) -> Result<(), Error> {
    let inputs = Value::Object(inputs.clone());
    let Err(problems) = variables::initial(&definition.variables, Some(&inputs)) else {
        return Ok(());
    };
    let first = problems.first().map(ToString::to_string).unwrap_or_default();
    let all: Vec<Value> = problems
        .iter()
        .map(|problem| json!({ "path": problem.path, "message": problem.what }))
        .collect();
    Err(Error::new(Code::Validation, format!("the inputs can't be taken: {first}"))
        .detail("problems", all))
}

/// What a fork has other than its source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Overlay {
    pub(crate) configurable: Map<String, Value>,
    pub(crate) tags: Option<Vec<String>>,
    pub(crate) metadata: Option<Map<String, Value>>,
}

/// Whether a bound of a whole run was breached: whatever follows is its end.
fn is_breach_of_run(event: &RunEvent) -> bool {
    let is_of_run = |payload: &Value| {
        payload["kind"].as_str().is_some_and(|kind| KINDS_OF_RUNS.contains(&kind))
    };
    match event.kind {
        Kind::CapBreached => is_of_run(&event.payload),
        kind => kind == Kind::LoopbackLimit,
    }
}

/// Whether a run has come to its end.
fn is_over(snapshot: &Snapshot) -> bool {
    snapshot.session.as_ref().is_some_and(|session| session.is_over())
}

/// Whether a run is being stopped.
pub(crate) fn is_stopping(snapshot: &Snapshot) -> bool {
    let session = snapshot.session.as_ref();
    session.is_some_and(|session| matches!(session.standing, Standing::Stopping { .. }))
}

/// The entity of the run with this id; none where it is no id of a run.
pub(crate) fn entity_of(id: &str) -> Option<EntityRef> {
    let of = |prefix: &str| {
        let digits = id.strip_prefix(prefix)?;
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        (digits.len() == 32 && digits.bytes().all(is_digit)).then_some(())
    };
    let entity_type = of(RUN_PREFIX).map(|()| RUN_TYPE).or(of(REPLAY_PREFIX).map(|()| REPLAY_TYPE));
    EntityRef::new(entity_type?, id).ok()
}

/// The id of the run that an idempotency key stands for: so the key lives as long as the run,
/// also over a restart.
fn id_of_key(key: &str) -> String {
    let digest =
        Sha256::new().chain_update("openwop-idempotency-key\0").chain_update(key).finalize();
    format!("{RUN_PREFIX}{}", hex(&digest[..16]))
}

/// The id of the child run that `dispatch` starts as its `nth`.
pub(crate) fn id_of_child(dispatch: sandglass_model::DispatchId, nth: usize) -> String {
    let digest = Sha256::new()
        .chain_update("openwop-child\0")
        .chain_update(dispatch.as_bytes())
        .chain_update((nth as u64).to_be_bytes())
        .finalize();
    format!("{RUN_PREFIX}{}", hex(&digest[..16]))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unreadable(error: &sandglass_journal::Error) -> Error {
    tracing::warn!(%error, "a run's records can't be read");
    Error::new(Code::Unavailable, "the run's records can't be read now; try again later")
}

fn no_begin(entity: &EntityRef, error: &ActorError) -> Error {
    tracing::error!(%entity, %error, "a run can't begin");
    Error::new(Code::Internal, "the run could not be begun")
}

fn unknown_of(unknown: &Unknown) -> Error {
    tracing::error!(error = %unknown, "a run can't be told");
    Error::new(Code::Internal, "the run's records can't be understood; the host's log says why")
}

/// As clients see how a run stands.
pub(crate) fn status(state: &RunState, is_stopping: bool) -> &'static str {
    match (&state.ended, is_stopping, &state.waiting) {
        (Some((Kind::RunCompleted, _)), ..) => "completed",
        (Some((Kind::RunCancelled, _)), ..) => "cancelled",
        (Some(_), ..) => "failed",
        (None, true, _) => "cancelling",
        (None, false, Some(waiting)) => match waiting.payload["kind"].as_str() {
            Some("approval" | "low-confidence") => "waiting-approval",
            Some("external-event") => "waiting-external",
            _ => "waiting-input",
        },
        (None, false, None) => "running",
    }
}
