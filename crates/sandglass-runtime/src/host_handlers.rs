//! Runs handlers as WASM guests: finds the module that an integration names,
//! compiles it once, and dispatches to the host.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use sandglass_host::{
    Answer, Answered, Ask, AskError, Asks, Context, Dispatch, DispatchDeadline, Error, Host,
    Integration, Manifest, Reservation, ReserveFor, Signal,
};
use sandglass_model::{
    Busy, Cause, Clock, DeadlineOwner, DeadlineReport, Dispatched, HandlerDeadlineExceeded,
    ModuleHash, Monotonic, Outcome, Rejection, RejectionKind, RunReport, TimeSplit,
};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::DispatchEnded;
use serde_json::json;

use crate::asking::{Asking, answered_or_failed};
use crate::handlers::{
    HandlerRun, Handlers, Reserved, RunFuture, Signals, lost, stopped, unreported,
};
use crate::made_once::MadeOnce;
use crate::timer;

/// A module's bytes and what its integration is granted.
#[derive(Clone, Debug)]
pub struct Module {
    bytes: Arc<[u8]>,
    hash: ModuleHash,
    manifest: Manifest,
}

impl Module {
    /// The module of these bytes, text or binary, with these grants. Hashes them, which
    /// takes a while where they are many.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<[u8]>>, manifest: Manifest) -> Self {
        let bytes = bytes.into();
        Self { hash: ModuleHash::of(&bytes), bytes, manifest }
    }

    /// The same bytes with these grants.
    #[must_use]
    pub fn granted(self, manifest: Manifest) -> Self {
        Self { manifest, ..self }
    }

    /// Its bytes.
    #[must_use]
    pub const fn bytes(&self) -> &Arc<[u8]> {
        &self.bytes
    }

    /// What it is granted.
    #[must_use]
    pub const fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The hash of its bytes.
    #[must_use]
    pub const fn hash(&self) -> ModuleHash {
        self.hash
    }
}

/// Runs handlers in a [`Host`]. Modules are compiled when they are first asked
/// for, once, and away from the threads of the runtime. Cheap to clone.
#[derive(Clone, Debug)]
pub struct HostHandlers {
    host: Host,
    clock: Arc<dyn Clock>,
    modules: Arc<Modules>,
}

/// The modules by name, in the version that new dispatches take: as many as the embedder
/// has named.
#[derive(Debug, Default)]
struct Modules(RwLock<BTreeMap<String, Arc<Loadable>>>);

/// The room of one run, and the version of its module that its record names, which is kept
/// for as long as the run needs it, whatever takes its place meanwhile.
#[derive(Debug)]
struct Room {
    reservation: Reservation,
    version: Arc<Loadable>,
}

#[derive(Debug)]
struct Loadable {
    module: Module,
    loaded: MadeOnce<Result<Integration, Rejection>>,
}

impl HostHandlers {
    /// Runs the modules of these names in `host`; `clock` is the runtime's.
    #[must_use]
    pub fn new(
        host: Host,
        clock: Arc<dyn Clock>,
        modules: impl IntoIterator<Item = (String, Module)>,
    ) -> Self {
        let table = Modules::default();
        table.put(modules.into_iter().map(|(name, module)| (name, Loadable::of(module))));
        Self { host, clock, modules: Arc::new(table) }
    }

    /// Compiles every module now, so that no dispatch waits for it. One that can't be
    /// compiled rejects its dispatches, and says why.
    pub async fn compile(&self) {
        for (name, loadable) in self.modules.present() {
            if let Err(rejection) = loadable.load(&self.host, &name).await {
                tracing::warn!(module = name, "the module can't be run: {rejection}");
            }
        }
    }

    /// Gives new dispatches this version of the module called `name`, or a new module;
    /// those in flight finish on theirs. It is compiled and checked before it is taken.
    ///
    /// # Errors
    /// It can't be run; nothing has changed.
    pub async fn put(&self, name: &str, module: Module) -> Result<ModuleHash, Rejection> {
        let hash = module.hash;
        let one = [(name.to_owned(), module)];
        self.put_all(one).await.map(|()| hash).map_err(|(_, rejection)| rejection)
    }

    /// The same for several modules, of which all are taken at once, or none.
    ///
    /// # Errors
    /// One can't be run: its name, and why. Nothing has changed.
    pub async fn put_all(
        &self,
        modules: impl IntoIterator<Item = (String, Module)>,
    ) -> Result<(), (String, Rejection)> {
        let mut compiled = Vec::new();
        for (name, module) in modules {
            let loadable = Loadable::of(module);
            match loadable.load(&self.host, &name).await {
                Ok(_) => compiled.push((name, loadable)),
                Err(rejection) => return Err((name, rejection)),
            }
        }
        self.modules.put(compiled);
        Ok(())
    }

    /// The host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }
}

impl Handlers for HostHandlers {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let host = self.host.clone();
        let clock = Arc::clone(&self.clock);
        let modules = Arc::clone(&self.modules);
        let room: Option<Room> = run.reserved.take();
        let (reservation, version) = room.map(|room| (room.reservation, room.version)).unzip();
        Box::pin(async move {
            let began = clock.now();
            let parent = run.not_after.unwrap_or(Monotonic::NEVER);
            // Where both come together, whoever asked has nothing left, which says more.
            let too_late_at = Some(began.after(run.schedule_to_start));
            let too_late_at = too_late_at.filter(|at| *at < parent).unwrap_or(Monotonic::NEVER);
            let loaded = tokio::select! {
                biased;
                request = run.stop.wait() => Err(stopped(request)),
                loaded = modules.load(&host, &run, version) => loaded.map_err(rejected),
                () = timer::until(&*clock, too_late_at) => Err(too_late(&run)),
                () = timer::until(&*clock, parent) => return expired(&host, &run, began, clock.now()),
            };
            let compile = clock.now().since(began);
            match loaded {
                Ok(integration) => {
                    let room = (reservation, compile);
                    dispatch((&host, &clock), &integration, &run, room).await
                }
                Err(never) => never_ran(&host, &run, never, compile),
            }
        })
    }

    fn reserve(&self, dispatched: &Dispatched, tenant: &str) -> Result<Reserved, Busy> {
        // One that is unknown is rejected where it would start.
        let present = self.modules.read().get(&dispatched.module).cloned();
        let Some(version) = present else { return Ok(Reserved::default()) };
        let hash = version.module.hash;
        let of = ReserveFor::new(&version.module.manifest, tenant);
        let reservation = self.host.reserve(of)?;
        Ok(Reserved::of(Room { reservation, version }).for_module(hash))
    }

    fn module_hash(&self, module: &str) -> Option<ModuleHash> {
        self.modules.read().get(module).map(|present| present.module.hash)
    }
}

impl Loadable {
    fn of(module: Module) -> Arc<Self> {
        Arc::new(Self { module, loaded: MadeOnce::new(is_kept) })
    }

    /// The integration, compiled when it is first asked for; where the host can't compile
    /// now, when it is next asked for.
    async fn load(&self, host: &Host, name: &str) -> Result<Integration, Rejection> {
        let (host, module) = (host.clone(), self.module.clone());
        let loaded = self.loaded.value(move || host.load(&module.bytes, module.manifest)).await;
        loaded.unwrap_or_else(|| {
            let message = format!("compiling the module `{name}` failed in the compiler itself");
            Err(Rejection { kind: RejectionKind::InvalidModule, message })
        })
    }
}

/// Whether loading a module again would come to the same. What the host lacks for a while
/// says nothing of the module.
fn is_kept(loaded: &Result<Integration, Rejection>) -> bool {
    let rejection = loaded.as_ref().err();
    rejection.is_none_or(|rejection| rejection.kind != RejectionKind::HostUnavailable)
}

impl Modules {
    /// The integration of a run, in the version that its record names: the one that is
    /// kept for it, or, where none is, the present one.
    async fn load(
        &self,
        host: &Host,
        run: &HandlerRun,
        kept: Option<Arc<Loadable>>,
    ) -> Result<Integration, Rejection> {
        let Dispatched { module: name, module_hash: recorded, .. } = &run.dispatched;
        let version = kept.or_else(|| self.read().get(name).cloned());
        let Some(version) = version else { return Err(self.unknown(name)) };
        match recorded {
            Some(recorded) if *recorded != version.module.hash => Err(replaced(name)),
            _ => version.load(host, name).await,
        }
    }

    fn unknown(&self, name: &str) -> Rejection {
        let modules = self.read();
        let known: Vec<&str> = modules.keys().map(String::as_str).take(20).collect();
        Rejection {
            kind: RejectionKind::UnknownModule,
            message: format!(
                "no module is called `{name}`; register it with the runtime (known are: {})",
                known.join(", ")
            ),
        }
    }

    fn put(&self, modules: impl IntoIterator<Item = (String, Arc<Loadable>)>) {
        self.write().extend(modules);
    }

    fn present(&self) -> Vec<(String, Arc<Loadable>)> {
        self.read().iter().map(|(name, present)| (name.clone(), Arc::clone(present))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Loadable>>> {
        // Each change is made whole before anything can panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Arc<Loadable>>> {
        // As above.
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a report names where a run died before it was instantiated: the nearest of the
/// names that there are.
const INSTANTIATE: &str = "instantiate";

type NeverRan = (Outcome, Cause);

fn rejected(rejection: Rejection) -> NeverRan {
    (Outcome::Rejected(rejection), Cause::NotStarted)
}

/// Nothing of the version that a record names was kept for its run.
fn replaced(name: &str) -> Rejection {
    let message = format!(
        "another version of the module `{name}` has taken the place of the one that the \
         dispatch names; dispatch it again"
    );
    Rejection { kind: RejectionKind::UnknownModule, message }
}

fn too_late(run: &HandlerRun) -> NeverRan {
    rejected(Rejection {
        kind: RejectionKind::HostUnavailable,
        message: format!(
            "module `{}` was not compiled within the {} ms of schedule_to_start_timeout",
            run.dispatched.module,
            run.schedule_to_start.as_millis()
        ),
    })
}

async fn dispatch(
    (host, clock): (&Host, &Arc<dyn Clock>),
    integration: &Integration,
    run: &HandlerRun,
    (reservation, compile): (Option<Reservation>, Duration),
) -> RunReport {
    let dispatched = &run.dispatched;
    let context = Context {
        tenant: run.tenant.clone(),
        params: dispatched.params.clone(),
        entity_state: json!({ "status": dispatched.state, "fields": dispatched.variables }),
        config: dispatched.config.clone(),
        ..Context::default()
    };
    let clocks = Clocks { host: host.clone(), runtime: Arc::clone(clock) };
    let mut deadline = DispatchDeadline::after(run.budget);
    if let Some(not_after) = run.not_after {
        deadline = deadline.within(clocks.on_the_host(not_after));
    }
    let mut dispatch = Dispatch::new(run.entity.clone(), dispatched.action.clone(), context)
        .deadline(deadline)
        // What compiling has left of it.
        .schedule_to_start(run.schedule_to_start.saturating_sub(compile))
        .integration(&*dispatched.integration)
        .attempt(dispatched.attempt)
        .identity(dispatched.dispatch, dispatched.trace)
        .signals(Arc::new(SignalAdaptor {
            signals: run.signals.clone(),
            entity_type: run.entity.entity_type().to_owned(),
            metrics: host.telemetry().metrics.clone(),
        }))
        .asks(Arc::new(HostAsks { asks: run.asks.clone(), clocks }))
        .compiled_in(compile);
    if let Some(reservation) = reservation {
        dispatch = dispatch.reserved(reservation);
    }
    if let Some(parent) = run.parent {
        dispatch = dispatch.parent(parent);
    }
    let handle = dispatch.stop_handle();
    run.stop.on_request(move |request| {
        handle.stop(request.cause, &request.reason);
    });
    match host.run(integration, dispatch).await {
        Ok(report) => report,
        Err(error) => match refused(&error) {
            Some(never) => never_ran(host, run, never, compile),
            None => lost(&run.dispatched),
        },
    }
}

/// What becomes of a run that the host didn't start; none where it did.
fn refused(error: &Error) -> Option<NeverRan> {
    if let Error::Lost = error {
        return None;
    }
    let message = error.to_string();
    Some(rejected(Rejection { kind: RejectionKind::HostUnavailable, message }))
}

/// The report of a run that the host never saw, counted as the host would. (One that
/// was lost is counted when its end is recorded, as one is that a restart finds.)
fn never_ran(host: &Host, run: &HandlerRun, never: NeverRan, compile: Duration) -> RunReport {
    let (outcome, cause) = never;
    host.telemetry().metrics.dispatch_ended(&DispatchEnded {
        entity_type: run.entity.entity_type(),
        action: &run.dispatched.action,
        outcome: outcome.kind(),
        budget: Duration::from_millis(run.dispatched.budget_ms),
        duration: Duration::ZERO,
        overrun: Duration::ZERO,
    });
    let time_split_us = TimeSplit { compile: micros(compile), ..TimeSplit::default() };
    RunReport { time_split_us, ..unreported(&run.dispatched, outcome, cause) }
}

/// The report of a run whose asker's deadline came while it was compiled. It died on the way
/// to its instantiation, which is what its report names, as the host's does of one that
/// was queued.
fn expired(host: &Host, run: &HandlerRun, began: Monotonic, now: Monotonic) -> RunReport {
    let parent = run.not_after.unwrap_or(now);
    let dispatched = &run.dispatched;
    let waited = now.since(began);
    let deadline = DeadlineReport {
        budget_ms: u64::try_from(parent.since(began).as_millis()).unwrap_or(u64::MAX),
        elapsed_ms: u64::try_from(waited.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX),
        overrun_us: micros(now.since(parent)),
        owner: DeadlineOwner::Parent,
    };
    let time_split_us = TimeSplit { compile: micros(waited), ..TimeSplit::default() };
    let exceeded = HandlerDeadlineExceeded {
        integration: dispatched.integration.clone(),
        entity_type: run.entity.entity_type().to_owned(),
        entity_id: run.entity.id().to_owned(),
        action: dispatched.action.clone(),
        attempt: dispatched.attempt,
        budget_ms: deadline.budget_ms,
        elapsed_ms: deadline.elapsed_ms,
        overrun_us: deadline.overrun_us,
        owner: deadline.owner,
        dying_span: INSTANTIATE.to_owned(),
        backtrace: Vec::new(),
        host_calls: 0,
        time_split_us,
        trace_id: dispatched.trace.trace_id,
    };
    let metrics = &host.telemetry().metrics;
    metrics.deadline_exceeded(run.entity.entity_type(), &dispatched.action, INSTANTIATE);
    let never = (Outcome::TimedOut(Box::new(exceeded)), Cause::ParentDeadline);
    let report = never_ran(host, run, never, waited);
    RunReport { deadline, dying_span: Some(INSTANTIATE.to_owned()), ..report }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The host's clock and the runtime's, whose points mean nothing to each other.
#[derive(Clone, Debug)]
struct Clocks {
    host: Host,
    runtime: Arc<dyn Clock>,
}

impl Clocks {
    fn on_the_host(&self, at: Monotonic) -> Monotonic {
        self.host.clock().now().after(at.since(self.runtime.now()))
    }

    fn on_the_runtime(&self, at: Monotonic) -> Monotonic {
        self.runtime.now().after(at.since(self.host.clock().now()))
    }
}

/// Passes on what a guest asks.
#[derive(Debug)]
struct HostAsks {
    asks: Asking,
    clocks: Clocks,
}

impl Asks for HostAsks {
    fn knows(&self, entity_type: &str, action: &str) -> bool {
        self.asks.knows(entity_type, action)
    }

    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>> {
        let (asks, clocks) = (self.asks.clone(), self.clocks.clone());
        // The clocks are the embedder's, and may panic.
        answered_or_failed(Box::pin(async move {
            let not_after = clocks.on_the_runtime(ask.not_after);
            asks.ask(Ask { not_after, ..ask }).await
        }))
    }
}

/// Passes on what a guest tells; what the entity can't keep up with is dropped
/// and counted.
#[derive(Debug)]
struct SignalAdaptor {
    signals: Signals,
    entity_type: String,
    metrics: Metrics,
}

impl sandglass_host::Signals for SignalAdaptor {
    fn signal(&self, signal: Signal) {
        let told = match signal {
            Signal::Progress(progress) => self.signals.tell("progress", progress),
            Signal::Heartbeat => self.signals.tell("heartbeat", serde_json::Value::Null),
            Signal::Status(status) => self.signals.tell("status", status.into()),
        };
        if !told {
            self.metrics.signal_dropped(&self.entity_type);
        }
    }
}

#[cfg(test)]
mod tests {
    use sandglass_model::{Busy, BusyScope, OutcomeKind};

    use super::*;

    #[test]
    fn what_the_host_lacks_for_a_while_is_not_held_against_a_module() {
        for (kind, kept) in
            [(RejectionKind::HostUnavailable, false), (RejectionKind::InvalidModule, true)]
        {
            let rejection = Rejection { kind, message: String::new() };
            assert_eq!(is_kept(&Err(rejection)), kept, "{kind:?}");
        }
    }

    #[test]
    fn only_a_run_that_was_not_started_is_rejected() {
        let busy = Busy { scope: BusyScope::Host, limit: 1, retry_after_ms: 50 };
        assert_eq!(refused(&Error::Lost), None, "its effects may have landed");
        for error in [Error::Busy(busy), Error::ShuttingDown] {
            let never = refused(&error).map(|(outcome, cause)| (outcome.kind(), cause));
            assert_eq!(never, Some((OutcomeKind::Rejected, Cause::NotStarted)), "{error}");
        }
    }
}
