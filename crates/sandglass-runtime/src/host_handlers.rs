//! Executes handlers as WASM guests: finds the module that an integration names, compiles it once,
//! and dispatches to the host.

mod adaptor;
mod modules;
mod never_ran;

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    CallLimits, Context, Dispatch, DispatchDeadline, DispatchLimits, Host, Integration,
    RecordingLimits, Reservation, ReserveFor, RunNow, replace_fields, templates,
};
use sandglass_liveness::session::preamble;
use sandglass_model::{
    Busy, Clock, DispatchId, Dispatched, Frame, ModuleHash, Monotonic, Object, Rejection,
    RunReport, Sequence,
};
use serde_json::{Map, Value, json};
use tokio::sync::Notify;

pub use modules::Module;

use crate::handlers::{
    FramesFuture, HandlerNow, HandlerRun, Handlers, Reserved, RunFuture, lost, stopped,
};
use crate::timer;
use adaptor::{Clocks, HostAsks, SignalAdaptor};
use modules::{Loadable, Modules};
use never_ran::{expired, never_ran, refused, rejected, started_too_late, too_late};

/// Executes handlers in a [`Host`]. Modules are compiled once, when they are first needed, and not
/// on the threads of the runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostHandlers {
    host: Host,
    clock: Arc<dyn Clock>,
    modules: Arc<Modules>,
    recording: Option<RecordingLimits>,
    /// Overlays the state of each entity.
    overlay: Arc<Object>,
}

/// What is reserved for one handler: a slot, and the version of its module that its record names,
/// which stays available even if a newer version replaces it meanwhile.
#[derive(Debug)]
struct ReservedSlot {
    reservation: Reservation,
    version: Arc<Loadable>,
}

impl HostHandlers {
    /// Executes the modules of these names in `host`; `clock` is that of the runtime.
    #[must_use]
    pub fn new(
        host: Host,
        clock: Arc<dyn Clock>,
        modules: impl IntoIterator<Item = (String, Module)>,
    ) -> Self {
        let table = Modules::default();
        table.put(modules.into_iter().map(|(name, module)| (name, Loadable::of(module))));
        let recording = Some(RecordingLimits::default());
        Self { host, clock, modules: Arc::new(table), recording, overlay: Arc::default() }
    }

    /// Overlays the state that handlers see of their entities by `state`, for tools that run a handler
    /// without the history of its entity: objects such as `fields` are merged, and other values
    /// replaced.
    #[must_use]
    pub fn entity_state(self, state: Object) -> Self {
        Self { overlay: Arc::new(state), ..self }
    }

    /// Sets what is recorded of each handler for its replay; `None` records nothing. The default is
    /// [`RecordingLimits::default`].
    #[must_use]
    pub fn recording(self, limits: Option<RecordingLimits>) -> Self {
        Self { recording: limits, ..self }
    }

    /// Compiles every module now, so that no dispatch waits for it. If one cannot be compiled, its
    /// dispatches are rejected with the reason.
    pub async fn compile(&self) {
        for (name, loadable) in self.modules.present() {
            if let Err(rejection) = loadable.load(&self.host, &name, NO_TENANT, &NO_LIMITS).await {
                tracing::warn!(module = name, "the module cannot be executed: {rejection}");
            }
        }
    }

    /// Replaces or adds the module called `name` for new dispatches; those in flight finish with
    /// their version. It is compiled and checked first.
    ///
    /// # Errors
    /// It cannot be executed; nothing has changed.
    pub async fn put(&self, name: &str, module: Module) -> Result<ModuleHash, Rejection> {
        let hash = module.hash();
        let one = [(name.to_owned(), module)];
        self.put_all(one).await.map(|()| hash).map_err(|(_, rejection)| rejection)
    }

    /// Replaces or adds several modules, all or none.
    ///
    /// # Errors
    /// The name of one that cannot be executed, and why. Nothing has changed.
    pub async fn put_all(
        &self,
        modules: impl IntoIterator<Item = (String, Module)>,
    ) -> Result<(), (String, Rejection)> {
        let mut compiled = Vec::new();
        for (name, module) in modules {
            let loadable = Loadable::of(module);
            match loadable.load(&self.host, &name, NO_TENANT, &NO_LIMITS).await {
                Ok(_) => compiled.push((name, loadable)),
                Err(rejection) => return Err((name, rejection)),
            }
        }
        self.modules.put(compiled);
        Ok(())
    }

    /// The host that executes them.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }
}

/// Modules that are compiled before a tenant needs them are compiled for all tenants.
const NO_TENANT: &str = "";

/// Modules are compiled in advance for integrations that limit nothing.
const NO_LIMITS: DispatchLimits =
    DispatchLimits { memory_bytes: None, fuel: None, response_bytes: None };

impl Handlers for HostHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let host = self.host.clone();
        let clock = Arc::clone(&self.clock);
        let modules = Arc::clone(&self.modules);
        let (recording, overlay) = (self.recording, Arc::clone(&self.overlay));
        let slot: Option<ReservedSlot> = run.reserved.take();
        let (reservation, version) = slot.map(|slot| (slot.reservation, slot.version)).unzip();
        Box::pin(async move {
            let began = clock.now();
            let limits = limits(&run.dispatched);
            let parent = run.not_after.unwrap_or(Monotonic::NEVER);
            // If both pass at once, the passed deadline of the asker is the more useful cause.
            let too_late_at = Some(began.after(run.schedule_to_start));
            let too_late_at = too_late_at.filter(|at| *at < parent).unwrap_or(Monotonic::NEVER);
            let loaded = tokio::select! {
                biased;
                request = run.stop.killed() => Err(stopped(request)),
                loaded = modules.load(&host, &run, version, &limits) => loaded.map_err(rejected),
                () = timer::until(&*clock, too_late_at) => {
                    let waited = clock.now().since(began);
                    let report = never_ran(&host, &run, too_late(&run), waited);
                    return RunReport { overruns: vec![started_too_late(&run, waited)], ..report };
                }
                () = timer::until(&*clock, parent) => return expired(&host, &run, began, clock.now()),
            };
            let compile = clock.now().since(began);
            match loaded {
                Ok(integration) => {
                    let begun = Begun { reservation, compile, recording, overlay, limits };
                    dispatch((&host, &clock), &integration, &run, begun).await
                }
                Err(never) => never_ran(&host, &run, never, compile),
            }
        })
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        // An unknown module is rejected when its handler would start.
        let present = self.modules.named(&dispatched.module);
        let Some(version) = present else { return Ok(Reserved::default()) };
        let hash = version.module.hash();
        let of = ReserveFor::new(version.module.manifest(), tenant);
        let reservation = self.host.reserve(of)?;
        Ok(Reserved::of(ReservedSlot { reservation, version }).for_module(hash))
    }

    fn doing(&self, dispatch: DispatchId) -> Option<HandlerNow> {
        handler_now(&self.host, dispatch)
    }

    fn on_activity(&self, dispatch: DispatchId, waiter: &Arc<Notify>) {
        self.host.on_activity(dispatch, Arc::clone(waiter));
    }

    fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> FramesFuture {
        let host = self.host.clone();
        Box::pin(async move { host.resolve_frames(module, frames).await })
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.modules.named(module).map(|present| present.module.hash())
    }
}

/// What the handler of `dispatch` is doing in `host`.
#[must_use]
pub fn handler_now(host: &Host, dispatch: DispatchId) -> Option<HandlerNow> {
    let RunNow { doing, since, active, .. } = host.live_run(dispatch)?;
    let now = host.clock().now();
    let place = doing.as_str().to_owned();
    let active = active.map(|active| (now.since(active), active));
    Some(HandlerNow { place, since: now.since(since), active })
}

/// What the name of an adapter begins with, in the place of a module.
const ADAPTER: &str = "adapter:";

/// The name of the module that executes the handler: that of its record, and of an adapter with the
/// fields of the entity.
fn module_name(run: &HandlerRun) -> Result<Cow<'_, str>, Rejection> {
    let name = run.dispatched.module.as_str();
    match name.strip_prefix(ADAPTER) {
        Some(adapter) if templates(adapter).next().is_some() => {
            let state = json!({ "fields": fields(run) });
            Ok(format!("{ADAPTER}{}", replace_fields("adapter", adapter, &state)?).into())
        }
        _ => Ok(name.into()),
    }
}

/// The fields of the entity as its handler sees them.
fn fields(run: &HandlerRun) -> Map<String, Value> {
    let Dispatched { state, variables, .. } = &*run.dispatched;
    // Variables come last: a parameter of the name of a variable may have set it, or not.
    let mut fields: Map<String, Value> =
        run.fields.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
    fields.extend(variables.iter().map(owned));
    fields.insert("Id".to_owned(), run.entity.id().into());
    fields.insert("Status".to_owned(), state.as_str().into());
    fields
}

/// The state of the entity as its handler sees it. Guests of early versions find there, too, what
/// failed before.
fn entity_state(run: &HandlerRun, recovery: Option<&Value>) -> Value {
    let Dispatched { state, variables, .. } = &*run.dispatched;
    let of = |is_of_kind: fn(&Value) -> bool| -> Map<String, Value> {
        variables.iter().filter(|(_, value)| is_of_kind(value)).map(owned).collect()
    };
    let mut state = json!({
        "entity_type": run.entity.entity_type(),
        "entity_id": run.entity.id(),
        "status": state,
        "sequence_nr": sequence(&run.dispatched),
        "fields": fields(run),
        "counters": of(Value::is_u64),
        "booleans": of(Value::is_boolean),
        "lists": of(Value::is_array),
    });
    if let Some(recovery) = recovery {
        state["recovery"] = recovery.clone();
    }
    state
}

/// Overlays `state` by `given`. As in the state of an entity, the fields contain the status and all
/// variables, unless `given` states another value for a field.
fn overlay_state(state: &mut Value, given: &Object) {
    for (key, value) in given {
        match (&mut state[key], value) {
            (Value::Object(into), Value::Object(more)) => into.extend(more.clone()),
            (replaced, value) => *replaced = value.clone(),
        }
    }
    let stated = |key: &str| given.get(key).and_then(Value::as_object).into_iter().flatten();
    let variables = ["counters", "booleans", "lists"].into_iter().flat_map(stated).map(owned);
    let status = given.get("status").map(|status| ("Status".to_owned(), status.clone()));
    let is_stated = |name: &str| stated("fields").any(|(field, _)| field == name);
    let implied = variables.chain(status).filter(|(name, _)| !is_stated(name));
    if let Some(Value::Object(fields)) = state.get_mut("fields") {
        fields.extend(implied);
    }
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

/// The entity's sequence when its handler was dispatched: by a transition, unless it is a later
/// attempt.
fn sequence(dispatched: &Dispatched) -> Sequence {
    let decided_at = dispatched.expected.unwrap_or_default();
    if dispatched.attempt == 1 { decided_at.next() } else { decided_at }
}

/// What failed before, with a sentence for a prompt.
fn recovery_context(run: &HandlerRun) -> Option<Value> {
    let recovery = run.recovery.as_deref()?;
    let mut context = json!(recovery);
    context["preamble"] = json!(preamble(recovery));
    Some(context)
}

/// How a dispatch stands once its module is compiled.
struct Begun {
    reservation: Option<Reservation>,
    compile: Duration,
    recording: Option<RecordingLimits>,
    overlay: Arc<Object>,
    limits: DispatchLimits,
}

/// The limits that the config of an integration sets. Specs are checked for values that are not numbers.
fn limits(dispatched: &Dispatched) -> DispatchLimits {
    let limit = |key| dispatched.config.get(key).and_then(|limit: &String| limit.parse().ok());
    DispatchLimits {
        memory_bytes: limit("max_memory"),
        fuel: limit("max_fuel"),
        response_bytes: limit("max_response_bytes"),
    }
}

/// What the guest of a handler is called with.
fn context(run: &HandlerRun, overlay: &Object) -> Context {
    let recovery = recovery_context(run);
    let mut entity_state = entity_state(run, recovery.as_ref());
    overlay_state(&mut entity_state, overlay);
    Context {
        tenant: run.tenant.clone(),
        params: run.dispatched.params.clone(),
        entity_state,
        config: run.dispatched.config.clone(),
        session_id: run.session_id.clone(),
        recovery,
        ..Context::default()
    }
}

async fn dispatch(
    (host, clock): (&Host, &Arc<dyn Clock>),
    integration: &Integration,
    run: &HandlerRun,
    Begun { reservation, compile, recording, overlay, limits }: Begun,
) -> RunReport {
    let dispatched = &run.dispatched;
    let clocks = Clocks { host: host.clone(), runtime: Arc::clone(clock) };
    let mut deadline = DispatchDeadline::after(run.budget);
    if let Some(not_after) = run.not_after {
        deadline = deadline.within(clocks.on_the_host(not_after));
    }
    let context = context(run, &overlay);
    let mut dispatch = Dispatch::new(run.entity.clone(), dispatched.action.clone(), context)
        .deadline(deadline)
        // The time that compiling has left.
        .schedule_to_start(run.schedule_to_start.saturating_sub(compile))
        .integration(&*dispatched.integration)
        .attempt(dispatched.attempt)
        .identity(dispatched.dispatch, dispatched.trace)
        .signals(Arc::new(SignalAdaptor {
            signals: run.signals.clone(),
            entity_type: run.entity.entity_type().to_owned(),
            metrics: host.telemetry().metrics.clone(),
            clock: Arc::clone(clock),
        }))
        .asks(Arc::new(HostAsks { asks: run.asks.clone(), clocks }))
        .call_limits(CallLimits { all: run.host_calls.all, of: run.host_calls.of.clone() })
        .limits(limits)
        .compiled_in(compile);
    if let Some(limits) = recording {
        dispatch = dispatch.recorded(limits);
    }
    if let Some(reservation) = reservation {
        dispatch = dispatch.reserved(reservation);
    }
    if let Some(parent) = run.parent {
        dispatch = dispatch.parent(parent);
    }
    let (handle, asked) = (dispatch.stop_handle(), dispatch.stop_handle());
    run.stop.on_stop_request(move || asked.request_stop());
    run.stop.on_kill(move |request| {
        handle.stop(request.cause, &request.reason);
    });
    match host.run_from_here(integration, dispatch).await {
        Ok(report) => report,
        Err(error) => match refused(&error) {
            Some(never) => never_ran(host, run, never, compile),
            None => lost(&run.dispatched),
        },
    }
}
