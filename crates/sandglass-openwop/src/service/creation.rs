//! Runs that begin: by a client, by a run that works through others, or as a fork.

use std::sync::Arc;

use sandglass_liveness::decide::PARAMS_MAX_BYTES;
use sandglass_liveness::session::{LimitSettings, Setting};
use sandglass_model::{EntityRef, Object, Sequence};
use sandglass_runtime::{ActorError, NewEntity, Request};
use sandglass_telemetry::metrics::OpenwopRefusal;
use serde_json::{Map, Value, json};

use super::{Service, id};
use crate::context::Context;
use crate::handlers::first_step;
use crate::http::error::{Code, Error};
use sandglass_workflow::definition::Definition;
use sandglass_workflow::projection::{BEGIN, NEXT, PENDING};
use sandglass_workflow::step::{Begin, Copied, Next, Parent};
use sandglass_workflow::variables;

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
    /// Creates a run; with a key, once, whoever asks again.
    pub(crate) async fn create(
        &self,
        wanted: Wanted,
        key: Option<(&str, String)>,
    ) -> Result<Created, Error> {
        let run = match &key {
            Some((key, _)) => id::of_key(key),
            None => id::of_run()?,
        };
        let entity = id::entity_of(&run).ok_or_else(|| Error::no_run(&run))?;
        let request = key.map(|(_, digest)| digest);
        if request.is_some() {
            // Who asks again is answered whatever has become of the workflow and of the room.
            if let Some(created) = self.again(&entity, request.as_deref()).await? {
                return Ok(created);
            }
        }
        let definition = self.definition(&wanted.workflow)?;
        let (begin, limits) = self.beginning(&definition, wanted)?;
        self.has_room()?;
        self.begin(&entity, Begin { request, ..begin }, &definition, limits).await
    }

    fn definition(&self, workflow: &str) -> Result<Arc<Definition>, Error> {
        self.library().definition(workflow).cloned().ok_or_else(|| {
            let shown: String = workflow.chars().take(128).collect();
            let message = format!("this host has no workflow `{shown}`");
            Error::new(Code::WorkflowNotFound, message).detail("workflowId", shown)
        })
    }

    /// What a run of `definition` begins with, and what bounds it.
    fn beginning(
        &self,
        definition: &Definition,
        wanted: Wanted,
    ) -> Result<(Begin, LimitSettings), Error> {
        check_inputs(definition, &wanted.inputs)?;
        self.check_configurable(definition, &wanted.configurable)?;
        let limits = self.limits(definition, &wanted.bounds, Copied::default())?;
        let begin = Begin {
            workflow: definition.id.clone(),
            digest: definition.digest.to_string(),
            inputs: wanted.inputs,
            configurable: wanted.configurable,
            tags: wanted.tags,
            metadata: wanted.metadata,
            request: None,
            fork: None,
            copied: Copied::default(),
            parent: None,
        };
        Ok((begin, limits))
    }

    /// Whether the `configurable` of a run is as its workflow wants it.
    pub(super) fn check_configurable(
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
        run: &str,
        wanted: Wanted,
        parent: Parent,
    ) -> Result<EntityRef, Error> {
        let entity = id::entity_of(run).ok_or_else(|| Error::no_run(run))?;
        // Whatever has become of the workflow since.
        if self.again(&entity, None).await?.is_some() {
            return Ok(entity);
        }
        let definition = self.definition(&wanted.workflow)?;
        let (begin, limits) = self.beginning(&definition, wanted)?;
        self.begin(&entity, Begin { parent: Some(parent), ..begin }, &definition, limits).await?;
        Ok(entity)
    }

    /// Creates the entity of a run, which begins with that.
    pub(super) async fn begin(
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
        let birth = NewEntity { limits, first: Some(first.clone()), ..NewEntity::default() };
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
    pub(super) fn has_room(&self) -> Result<(), Error> {
        let most = self.settings.max_active_runs;
        if self.handlers.active() >= most {
            self.metrics().openwop_refused(OpenwopRefusal::Runs);
            let message = format!("{most} runs are under way, as many as there may be");
            return Err(Error::new(Code::RateLimited, message));
        }
        Ok(())
    }

    /// What is asked of the session that a run is: what the host allows is its ceiling.
    pub(super) fn limits(
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

fn no_begin(entity: &EntityRef, error: &ActorError) -> Error {
    tracing::error!(%entity, %error, "a run can't begin");
    Error::new(Code::Internal, "the run could not be begun")
}
