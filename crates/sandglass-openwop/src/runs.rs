//! Runs that begin, for a client, for a dispatch or as a fork, and runs that end with their parent.

use std::sync::Arc;

use sandglass_journal::PAGE_MAX_ENTRIES;
use sandglass_liveness::decide::PARAMS_MAX_BYTES;
use sandglass_liveness::session::{LimitSettings, RunPhase, Setting};
use sandglass_model::{EntityRef, Object, Position, Sequence, StopCause};
use sandglass_runtime::{
    ActorError, NewEntity, Request, Runtime, SessionStop, SessionStopped, Snapshot,
};
use sandglass_telemetry::metrics::OpenwopRefusal;
use sandglass_workflow::automaton::{Action, Params, State};
use sandglass_workflow::definition::Definition;
use sandglass_workflow::projection::Projection;
use sandglass_workflow::step::{Begin, Copied, Next, Parent};
use sandglass_workflow::variables;
use serde_json::{Map, Value};

use crate::context::Context;
use crate::engine::Engine;
use crate::handlers::first_action;
use crate::id;
use crate::log::ReadError;
use crate::service::Error;

/// A run that is requested, once the form of the request is checked.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    pub(crate) workflow: String,
    pub(crate) inputs: Map<String, Value>,
    pub(crate) configurable: Map<String, Value>,
    pub(crate) tags: Vec<String>,
    pub(crate) metadata: Map<String, Value>,
    pub(crate) bounds: Bounds,
}

/// The limits that a request sets; the host's apply to the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    pub(crate) run_timeout_ms: Option<u64>,
    pub(crate) max_loop_iterations: Option<u64>,
    pub(crate) recursion_limit: Option<u64>,
}

/// A run that exists.
#[derive(Clone, Debug)]
pub(crate) struct Created {
    pub(crate) run: String,
    /// Whether an earlier request of a client has created it.
    pub(crate) is_replayed: bool,
}

/// Types of nodes that the protocol has behind a capability, and that this host does not advertise.
const GATED: [(&str, &str); 1] = [("core.conversationGate", "conversationPrimitive")];

/// Checks that the host has the capabilities that the nodes of `definition` need.
fn check_capabilities(definition: &Definition) -> Result<(), Error> {
    let used = definition.nodes.iter().filter(|node| !node.disabled);
    for node in used {
        let gated = GATED.into_iter().find(|(type_id, _)| node.type_id == *type_id);
        if let Some((type_id, capability)) = gated {
            let node = node.id.clone();
            return Err(Error::CapabilityRequired { capability, type_id, node });
        }
    }
    Ok(())
}

/// What begins and stops runs.
#[derive(Clone)]
pub(crate) struct Runs {
    pub(crate) engine: Arc<Engine>,
    pub(crate) runtime: Runtime,
}

impl Runs {
    /// Creates a run. Requests with the same key create one run. `chosen` is its id, if the host that
    /// received the request has chosen one. That host may send the request again.
    pub(crate) async fn create(
        &self,
        wanted: Wanted,
        key: Option<(&str, String)>,
        chosen: Option<String>,
    ) -> Result<Created, Error> {
        let may_be_repeated = key.is_some() || chosen.is_some();
        let run = match (&key, chosen) {
            (Some((key, _)), _) => id::of_key(key),
            (None, Some(chosen)) => chosen,
            (None, None) => id::of_run()?,
        };
        let entity = id::entity_of(&run).ok_or_else(|| Error::no_run(&run))?;
        let request = key.map(|(_, digest)| digest);
        if may_be_repeated {
            // A repeated request succeeds, whatever has become of the workflow and of the room.
            if let Some(created) = self.earlier(&entity, request.as_deref()).await? {
                return Ok(created);
            }
        }
        let definition = self.definition(&wanted.workflow)?;
        let (begin, limits) = self.beginning(&definition, wanted)?;
        self.check_room()?;
        self.begin(&entity, Begin { request, ..begin }, &definition, limits).await
    }

    /// Starts a child run, unless it was started before.
    pub(crate) async fn start_child(
        &self,
        run: &str,
        wanted: Wanted,
        parent: Parent,
    ) -> Result<(), Error> {
        let entity = id::entity_of(run).ok_or_else(|| Error::no_run(run))?;
        // Whatever has become of the workflow since.
        if self.earlier(&entity, None).await?.is_some() {
            return Ok(());
        }
        let definition = self.definition(&wanted.workflow)?;
        let (begin, limits) = self.beginning(&definition, wanted)?;
        self.begin(&entity, Begin { parent: Some(parent), ..begin }, &definition, limits).await?;
        Ok(())
    }

    fn definition(&self, workflow: &str) -> Result<Arc<Definition>, Error> {
        let definition = self.engine.library.definition(workflow);
        definition.cloned().ok_or(Error::NoWorkflow)
    }

    /// What a run of `definition` begins with, and its limits.
    fn beginning(
        &self,
        definition: &Definition,
        wanted: Wanted,
    ) -> Result<(Begin, LimitSettings), Error> {
        check_capabilities(definition)?;
        let inputs = Value::Object(wanted.inputs.clone());
        variables::initial(&definition.variables, Some(&inputs)).map_err(Error::InvalidInputs)?;
        self.check_configurable(definition, &wanted.configurable)?;
        let limits = self.limits(definition, &wanted.bounds, Copied::default())?;
        let begin = Begin {
            workflow: definition.id.clone(),
            digest: definition.digest.to_string(),
            inputs: wanted.inputs,
            configurable: wanted.configurable,
            tags: wanted.tags,
            metadata: wanted.metadata,
            inherited: None,
            copied_at: None,
            request: None,
            fork: None,
            copied: Copied::default(),
            parent: None,
        };
        Ok((begin, limits))
    }

    /// Checks the `configurable` of a run against the schema of its workflow.
    pub(crate) fn check_configurable(
        &self,
        definition: &Definition,
        configurable: &Map<String, Value>,
    ) -> Result<(), Error> {
        let Some(schema) = self.engine.library.configurable(&definition.id) else { return Ok(()) };
        let problems = schema.differences("/configurable", &configurable.clone().into());
        if problems.is_empty() {
            return Ok(());
        }
        Err(Error::Differs {
            message: "`configurable` does not match `configurableSchema` of the workflow",
            problems,
        })
    }

    /// Creates the entity of a run with its first action.
    pub(crate) async fn begin(
        &self,
        entity: &EntityRef,
        begin: Begin,
        definition: &Arc<Definition>,
        limits: LimitSettings,
    ) -> Result<Created, Error> {
        let Engine { library, journals, .. } = &*self.engine;
        library.record(&self.runtime, journals, entity, definition).await?;
        let request = begin.request.clone();
        let (action, params) = match &begin.fork {
            Some(_) => (Action::Replay, Params::next(Next::Replay { at: 1 })),
            None => {
                let mut context = Context::beginning(begin.clone(), Arc::clone(definition));
                first_action(library, &mut context)
            }
        };
        let params = Object::from(Params { begin: Some(begin), ..params });
        if serde_json::to_string(&params).is_ok_and(|text| text.len() > PARAMS_MAX_BYTES) {
            let what = "the inputs, `configurable`, `metadata` and `tags` of the run together";
            return Err(Error::TooLarge { what, max_bytes: PARAMS_MAX_BYTES });
        }
        // Of simultaneous requests, one creates the run and the others find it.
        let first = Request::new(action.as_str()).params(params).expecting(Sequence::default());
        let created = Created { run: entity.id().to_owned(), is_replayed: false };
        let birth = NewEntity { limits, first: Some(first.clone()), ..NewEntity::default() };
        match self.runtime.create_as(entity.clone(), birth).await {
            Ok(_) => return Ok(created),
            Err(ActorError::EntityExists(_)) => {}
            Err(error @ ActorError::Refused { .. }) => return Err(not_begun(entity, &error)),
            Err(error) => return Err(error.into()),
        }
        // Another request with the same key has created it; or an earlier version has, whose host
        // ended before the run began, and it begins now.
        if let Some(created) = self.earlier(entity, request.as_deref()).await? {
            return Ok(created);
        }
        match self.runtime.request(entity, first).await {
            Ok(_) => Ok(created),
            Err(error @ (ActorError::Refused { .. } | ActorError::Conflict { .. })) => {
                // Another request has begun it meanwhile.
                let earlier = self.earlier(entity, request.as_deref()).await?;
                earlier.ok_or_else(|| not_begun(entity, &error))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// The run that an earlier request with the same key has created, if one has.
    pub(crate) async fn earlier(
        &self,
        entity: &EntityRef,
        request: Option<&str>,
    ) -> Result<Option<Created>, Error> {
        let snapshot = match self.runtime.entity(entity).await {
            Ok(snapshot) => snapshot,
            Err(ActorError::UnknownEntity(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if snapshot.state == State::Pending.as_str() {
            return Ok(None);
        }
        match self.recorded(entity, request).await? {
            Some(created) => Ok(Some(created)),
            None => Err(Error::KeyUsed),
        }
    }

    /// As [`Runs::earlier`], but for a run that another host may own. `None` if it has not begun.
    pub(crate) async fn recorded(
        &self,
        entity: &EntityRef,
        request: Option<&str>,
    ) -> Result<Option<Created>, Error> {
        let Some(begin) = self.begin_of(entity).await? else { return Ok(None) };
        if begin.request.as_deref() != request {
            return Err(Error::KeyUsed);
        }
        // A request without a key is repeated only by a host, whose client gets one response.
        let is_replayed = request.is_some();
        Ok(Some(Created { run: entity.id().to_owned(), is_replayed }))
    }

    /// What a run began with, from its first records.
    pub(crate) async fn begin_of(&self, entity: &EntityRef) -> Result<Option<Begin>, ReadError> {
        let mut projection = Projection::default();
        let mut next = Some(Position(1));
        while let (Some(from), None) = (next, &projection.begin) {
            let journals = &self.engine.journals;
            let page = journals.read_entity(entity.clone(), from, PAGE_MAX_ENTRIES).await?;
            next = page.next;
            for record in page.into_records()? {
                projection.apply(&record)?;
            }
        }
        Ok(projection.begin)
    }

    /// Checks that one more run may execute.
    pub(crate) fn check_room(&self) -> Result<(), Error> {
        let max = self.engine.settings.max_active_runs;
        if self.engine.active() < max {
            return Ok(());
        }
        self.engine.metrics().openwop_refused(OpenwopRefusal::Runs);
        Err(Error::TooManyRuns(max))
    }

    /// The limits of the session of a run; those of the host are its ceilings.
    pub(crate) fn limits(
        &self,
        definition: &Definition,
        bounds: &Bounds,
        copied: Copied,
    ) -> Result<LimitSettings, Error> {
        let remaining = |requested: Option<u64>, max: u64, used: u64, name: &str| {
            let all = requested.unwrap_or(max).min(max);
            match all.checked_sub(used).filter(|remaining| *remaining > 0) {
                Some(remaining) => Ok(Some(Setting::At(remaining))),
                None => {
                    let path = format!("/runOptionsOverlay/configurable/{name}");
                    Err(Error::LimitUsedUp { path, used, all })
                }
            }
        };
        let settings = &self.engine.settings;
        Ok(LimitSettings {
            // The runtime reduces it to the ceiling.
            execution_timeout: bounds
                .run_timeout_ms
                .or(definition.settings.timeout_ms)
                .map(Setting::At),
            max_handler_runs: remaining(
                bounds.recursion_limit,
                settings.max_node_executions,
                copied.executions,
                "recursionLimit",
            )?,
            max_loop_iterations: remaining(
                bounds.max_loop_iterations,
                settings.max_loop_iterations,
                copied.turns,
                "maxLoopIterations",
            )?,
            ..LimitSettings::default()
        })
    }

    /// Stops a run with `parent`, which it works for.
    pub(crate) async fn stop_with(
        &self,
        run: &EntityRef,
        parent: &EntityRef,
        reason: String,
    ) -> Result<SessionStopped, ActorError> {
        let cause = StopCause::Parent { parent: Some(parent.clone()), reason };
        self.runtime.stop_session(run, SessionStop { run_seq: None, cause }).await
    }

    /// Waits until a run has ended.
    pub(crate) async fn until_over(&self, run: &EntityRef) -> Result<(), ActorError> {
        self.runtime.wait_until(run, is_over).await.map(drop)
    }

    /// Never returns if the host shuts down: the next start continues what this one cannot do any
    /// more, by executing the handler again.
    pub(crate) async fn unless_closing(&self) {
        if self.runtime.is_closing() {
            std::future::pending().await
        }
    }
}

/// Whether a run has ended.
pub(crate) fn is_over(snapshot: &Snapshot) -> bool {
    snapshot.session.as_ref().is_some_and(|session| session.is_over())
}

/// Whether a run is being stopped.
pub(crate) fn is_stopping(snapshot: &Snapshot) -> bool {
    let session = snapshot.session.as_ref();
    session.is_some_and(|session| matches!(session.phase, RunPhase::Stopping { .. }))
}

fn not_begun(entity: &EntityRef, error: &ActorError) -> Error {
    tracing::error!(%entity, %error, "a run cannot begin");
    Error::NotBegun
}
