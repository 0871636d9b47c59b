//! The host, which an embedder builds once. It loads integrations and executes their dispatches.

pub(crate) mod brief;
mod builder;
mod loading;
mod sandboxes;

use std::collections::BTreeSet;
use std::fmt;
use std::future::poll_fn;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures_util::FutureExt as _;
use sandglass_model::{
    Allocation, Busy, Cause, Clock, DispatchId, Frame, ModuleHash, Monotonic, Outcome, Rejection,
    RejectionKind, RunReport, TraceContext,
};
use sandglass_telemetry::trace::{Kind, SpanStart, names};
use sandglass_telemetry::{Span, Telemetry, metrics};
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::abi;
use crate::compiled_folder::CompiledFolder;
use crate::compiling::{Compiler, Turns};
use crate::error::Error;
use crate::evaluation::Evaluation;
use crate::execution::Execution;
use crate::host_function::Signature;
use crate::integration::Integration;
use crate::module::{self, Compiled, InProgress, ModuleCache};
use crate::sandbox::{self, Concurrency, EngineKind, Metering, Sandbox, Target};
use crate::symbols;
use sandglass_supervisor::admission::{
    Admission, AdmittedDispatch, PermitWait, Reservation, ReserveFor,
};
use sandglass_supervisor::capability::Grants;
use sandglass_supervisor::capability::cache::Cache;
use sandglass_supervisor::capability::http::HttpClient;
use sandglass_supervisor::capability::open_requests::OpenRequests;
use sandglass_supervisor::capability::tenant_rate::Rates;
use sandglass_supervisor::dispatch::{Dispatch, DispatchLimits};
use sandglass_supervisor::executor::{Begin, Executor};
use sandglass_supervisor::functions::Functions;
use sandglass_supervisor::kernel::KernelFeatures;
use sandglass_supervisor::lease::Lease;
use sandglass_supervisor::manifest::{Manifest, OnDenied};
use sandglass_supervisor::recording::RecordingMemory;
use sandglass_supervisor::rejection::rejection;
use sandglass_supervisor::run::Run;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::ticker::{Ticker, TickerHealth};

use brief::CallersThreads;
pub use builder::Builder;
use sandboxes::Sandboxes;
use sandglass_supervisor::identities::Identities;
use sandglass_supervisor::live::{Live, LiveRun, LiveRuns, RunNow};

/// Executes guests, each within its deadline. It is cheap to clone; dropping the last clone ends the
/// host's threads.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    /// For replays, which emit no telemetry, because the original handler run already did.
    without_telemetry: Arc<Shared>,
    sandboxes: Sandboxes,
    modules: ModuleCache,
    in_progress: Arc<InProgress>,
    compiler: Compiler,
    turns: Arc<Turns>,
    /// Keeps compiled code for the next process.
    compiled_folder: Option<CompiledFolder>,
    /// Sends the requests of every integration.
    http: Arc<dyn HttpClient>,
    open_requests: Arc<OpenRequests>,
    executor: Executor,
    callers_threads: CallersThreads,
    admission: Arc<Admission>,
    live: Arc<Live>,
    identities: Identities,
    closed: AtomicBool,
    /// Whether the ticker was unhealthy at the last check.
    ticker_failed: AtomicBool,
    kernel: KernelFeatures,
}

/// What all handler runs share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) telemetry: Telemetry,
    pub(crate) ticker: Arc<Ticker>,
    /// Until when host calls may begin effects outside of this process.
    pub(crate) lease: Lease,
    pub(crate) cache: Arc<Cache>,
    /// How much tenants may write to the log.
    pub(crate) rates: Arc<Rates>,
    /// The memory for recordings.
    pub(crate) recordings: Arc<RecordingMemory>,
    /// Decides actions of specs that guests pass.
    pub(crate) evaluation: Arc<Evaluation>,
}

impl Host {
    /// Returns a builder with [`Settings::default`], the system's clock, real HTTP, and no telemetry.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Executes `dispatch` on a new instance of `integration`, and returns its outcome. Dropping the
    /// future stops the handler.
    ///
    /// # Errors
    /// The host could not do its work. Everything that a guest does is an [`Outcome`].
    pub async fn dispatch(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<Outcome, Error> {
        Ok(self.run(integration, dispatch).await?.outcome)
    }

    /// As [`Host::dispatch`], but returns the whole report.
    ///
    /// # Errors
    /// As [`Host::dispatch`].
    pub async fn run(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<RunReport, Error> {
        if self.0.shared.ticker.is_simulated() {
            return self.run_in_place(integration, dispatch).await;
        }
        let admitted = self.0.admit(integration, dispatch)?;
        self.0.run_to_end(admitted, |executor, _, begin| executor.start_run(begin)).await
    }

    /// As [`Host::run`], but executed on the caller's task instead of the host's own threads, so that a
    /// dispatch costs no change of threads. In exchange, a guest that spins holds the caller's thread,
    /// which it yields after each slice of 1 ms. Use this if the callers' threads have nothing else to
    /// do, or if guests are trusted to be short. Everything else is the same: admission, the
    /// deadline, the report.
    ///
    /// Any executor may poll the future: what the host itself waits for (timers, requests, blocking
    /// functions) is on the host's own threads. Dropping the future stops the handler, and releases
    /// everything that it held before the drop returns.
    ///
    /// # Errors
    /// As [`Host::dispatch`].
    pub async fn run_in_place(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<RunReport, Error> {
        let Admitted { execution, caller, live } = self.0.admit(integration, dispatch)?;
        // Its timers and requests are on the host's runtime, because connections that are kept for
        // other handlers must outlive the caller's. Simulated time is that of the caller's runtime.
        let executor = (!self.0.shared.ticker.is_simulated()).then(|| self.0.executor.handle());
        // A panic of an embedder's function ends the handler and not the caller's task, as on the
        // host's threads.
        let mut running = Box::pin(AssertUnwindSafe(execution.run()).catch_unwind());
        // Dropped before `running`, so that a handler that is dropped has its cause first.
        let _caller = caller;
        let report = poll_fn(|context| {
            let _entered = executor.map(Handle::enter);
            running.as_mut().poll(context)
        });
        let report = report.await.map_err(|_| Error::Lost);
        drop(live);
        report
    }

    /// As [`Host::run`], but a handler begins on the caller's thread if the last ones of its module were
    /// brief, which saves the two changes of threads that take longer than such a handler. It continues
    /// on the host's threads when it first waits, and when its time slice of 1 ms ends. At most half as
    /// many handlers as there are cores begin like this at the same time, so callers need as many threads
    /// as there are cores, and a guest whose memory limit is above 64 MiB never does.
    ///
    /// Any executor may poll the future, as for [`Host::run_in_place`].
    ///
    /// # Errors
    /// As [`Host::dispatch`].
    pub async fn run_from_here(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<RunReport, Error> {
        if self.0.shared.ticker.is_simulated() {
            return self.run_in_place(integration, dispatch).await;
        }
        let admitted = self.0.admit(integration, dispatch)?;
        let brief = &integration.compiled.brief;
        let limits = &admitted.execution.integration.manifest.limits;
        let occupied = match brief.is_likely(limits.memory_bytes) {
            true => self.0.callers_threads.occupy_soon().await,
            false => None,
        };
        let start = |executor: &Executor, run: &Run, begin| {
            // It is released before the end of the handler is awaited.
            let Some(_occupied) = occupied else { return executor.start_run(begin) };
            if executor.start_here(begin).is_pending() && run.present.is_in_guest() {
                brief.note_slice_over();
            }
        };
        self.0.run_to_end(admitted, start).await
    }

    /// Reserves a slot for a later dispatch, which takes it by [`Dispatch::reserved`]. Dropping the
    /// reservation releases the slot.
    ///
    /// # Errors
    /// The host, the integration or the tenant has no free slot.
    pub fn reserve(&self, of: ReserveFor) -> Result<Reservation, Busy> {
        self.0.admission.reserve(of).map(Reservation)
    }

    /// Resolves the frames of a report or a record that are only offsets in the file of `module`,
    /// because its symbols were not parsed within [`Settings::symbols_wait`]. Waits until they are, for
    /// some seconds at most. Frames stay as they are if the host does not have the module any more, or
    /// if its debug information exceeds what a host parses.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> Vec<Frame> {
        match self.0.modules.with_hash(module) {
            Some(module) => module.symbols.resolve(frames, symbols::WAIT_MAX).await,
            None => frames,
        }
    }

    /// The clock by which deadlines are measured.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.shared.clock
    }

    /// The telemetry of this host.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.0.shared.telemetry
    }

    /// Whether deadlines are enforced.
    #[must_use]
    pub fn ticker_health(&self) -> TickerHealth {
        self.0.shared.ticker.health()
    }

    /// How many handlers are more than a second past their deadline and have not ended. Any is a fault
    /// of the host.
    #[must_use]
    pub fn kills_overdue(&self) -> usize {
        self.0.shared.ticker.kills_overdue()
    }

    /// The handlers that are queued or in flight, at most `most` of them, and the count of all others.
    /// Those with the nearest deadline come first, queued ones last.
    #[must_use]
    pub fn live_runs(&self, most: usize) -> LiveRuns {
        self.0.live.snapshot(most)
    }

    /// The handler of `dispatch`, if it is queued or in flight.
    #[must_use]
    pub fn live_run(&self, dispatch: DispatchId) -> Option<RunNow> {
        self.0.live.of(dispatch)
    }

    /// Notifies `waiter` once, when the handler of `dispatch` shows activity next (see
    /// [`RunNow::active`]). Does nothing if it is neither queued nor in flight.
    pub fn on_activity(&self, dispatch: DispatchId, waiter: Arc<Notify>) {
        self.0.live.on_activity(dispatch, waiter);
    }

    /// The features of the kernel that this host uses: those that its settings allow and the kernel
    /// has.
    #[must_use]
    pub fn kernel_features(&self) -> KernelFeatures {
        self.0.kernel
    }

    /// Refuses new dispatches, stops those that are queued or in flight, and waits until each has
    /// released what it held.
    pub async fn shutdown(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.live.stop_all();
        self.0.live.none_left().await;
    }

    /// The host functions whose calls can have time limits of their own, because a guest can wait in
    /// them, by their names in reports. (Waits in WASI end only with the handler.)
    ///
    /// # Errors
    /// The operating system has too little address space for an engine.
    pub fn timed_functions(&self) -> Result<BTreeSet<&'static str>, Rejection> {
        let sandbox = self.0.sandboxes.for_module(EngineKind::USUAL)?;
        let mut of_tasks = Functions::default();
        abi::concurrent::list(&mut of_tasks);
        let all = [&sandbox.functions, &sandbox.component_functions, &of_tasks];
        Ok(all.into_iter().flat_map(|functions| functions.timed()).collect())
    }

    /// The embedder's own host functions, in the order in which they were registered.
    #[must_use]
    pub fn functions(&self) -> Vec<Signature> {
        let functions = self.0.sandboxes.registry.functions();
        functions.iter().map(|function| function.signature.clone()).collect()
    }

    /// The sandbox of most guests.
    ///
    /// # Errors
    /// The operating system has too little address space for it.
    pub(crate) fn usual_sandbox(&self) -> Result<Arc<Sandbox>, Rejection> {
        self.0.sandboxes.for_module(EngineKind::USUAL)
    }

    /// The sandbox of asynchronous components, for questions about their imports.
    ///
    /// # Errors
    /// The operating system has too little address space for it.
    pub(crate) fn sandbox_for_tasks(&self) -> Result<Arc<Sandbox>, Rejection> {
        let target = Target { concurrency: Concurrency::SeveralCalls, ..EngineKind::USUAL.target };
        self.0.sandboxes.for_module(EngineKind { target, allocation: Allocation::OnDemand })
    }

    /// Most memory that a manifest can grant, in bytes.
    pub(crate) fn max_memory_bytes(&self) -> u64 {
        self.0.shared.settings.max_memory_bytes
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host")
            .field("settings", &self.0.shared.settings)
            .field("ticker", &self.ticker_health())
            .finish_non_exhaustive()
    }
}

fn span(
    telemetry: &Telemetry,
    dispatch: &Dispatch,
    integration: &Integration,
    (id, trace): (DispatchId, TraceContext),
) -> Span {
    if !telemetry.tracer.is_enabled() {
        return Span::disabled();
    }
    let id = id.to_string();
    let name = dispatch.integration_name(&integration.manifest);
    telemetry.tracer.start(&SpanStart {
        name: names::DISPATCH,
        kind: Kind::Internal,
        context: trace,
        parent: dispatch.parent,
        links: &[],
        attributes: &[
            (names::ENTITY_TYPE, dispatch.entity.entity_type().into()),
            (names::ENTITY_ID, dispatch.entity.id().into()),
            (names::ACTION, dispatch.action.as_str().into()),
            (names::INTEGRATION, name.into()),
            (names::DISPATCH_ID, id.as_str().into()),
        ],
    })
}

/// A dispatch that was admitted and has not begun.
struct Admitted {
    execution: Execution,
    caller: CallerGuard,
    live: LiveRun,
}

impl Inner {
    /// Admits a dispatch, and gathers what its handler run needs.
    fn admit(&self, integration: &Integration, mut dispatch: Dispatch) -> Result<Admitted, Error> {
        let queued_at = self.shared.clock.now();
        let (slot, permit) = self.queue(integration, &mut dispatch, queued_at)?;
        let shared = if dispatch.is_replay() { &self.without_telemetry } else { &self.shared };
        let metrics = &shared.telemetry.metrics;
        let entity_type = dispatch.entity.entity_type();
        let metrics = integration.compiled.announce(metrics, entity_type, &dispatch.action);
        let caller = CallerGuard(Arc::clone(&dispatch.run));
        let (id, trace) = dispatch
            .identity
            .map_or_else(|| self.identities.draw().map_err(Error::Unavailable), Ok)?;
        let functions =
            Arc::clone(integration.compiled.sandbox.functions_of(&integration.compiled.code));
        let live = Arc::clone(&self.live).enter(&dispatch.run, id, queued_at, functions);
        // A shutdown that began in between has not stopped this handler run.
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShuttingDown);
        }
        let (integration, invalid) = match self.limited(integration, &dispatch) {
            Ok(limited) => (limited, None),
            Err(rejection) => (integration.clone(), Some(rejection)),
        };
        let execution = Execution {
            span: Arc::new(span(&shared.telemetry, &dispatch, &integration, (id, trace))),
            shared: Arc::clone(shared),
            metrics,
            integration,
            invalid,
            id,
            trace,
            queued_at,
            began: OnceLock::new(),
            permit,
            slot: Arc::new(slot),
            dispatch: Arc::new(dispatch),
        };
        Ok(Admitted { execution, caller, live })
    }

    /// Executes a handler that `start` begins, until its end.
    async fn run_to_end(
        &self,
        Admitted { execution, caller, live }: Admitted,
        start: impl FnOnce(&Executor, &Run, Begin),
    ) -> Result<RunReport, Error> {
        let (sender, report) = oneshot::channel();
        let begin: Begin = Box::new(move || {
            Box::pin(async move {
                let report = execution.run().await;
                drop(live);
                // If the caller has gone, the report is dropped; metrics and spans have it.
                drop(sender.send(report));
            })
        });
        start(&self.executor, &caller.0, begin);
        let report = report.await.map_err(|_| Error::Lost);
        // The handler run has its cause by now, so this stops nothing.
        drop(caller);
        report
    }

    /// The integration with the limits of `dispatch`.
    ///
    /// # Errors
    /// The dispatch is invalid, or its limits do not allow what the module needs.
    fn limited(
        &self,
        integration: &Integration,
        dispatch: &Dispatch,
    ) -> Result<Integration, Rejection> {
        dispatch.check_context()?;
        if dispatch.limits == DispatchLimits::default() {
            return Ok(integration.clone());
        }
        let Integration { compiled, manifest, counts_as, .. } = integration;
        let kind = compiled.sandbox.kind;
        if dispatch.limits.fuel.is_some() && kind.target.metering == Metering::Unmetered {
            let message = "the dispatch limits fuel, which its module does not count; load it with \
                           a manifest that sets fuel";
            return Err(rejection(RejectionKind::InvalidDispatch, message));
        }
        let settings = &self.shared.settings;
        let most = match kind.allocation {
            Allocation::Pooled => sandbox::slot_memory_bytes(settings),
            Allocation::OnDemand => settings.max_memory_bytes,
        };
        let limits = manifest.limits_of(&dispatch.limits, most);
        module::check_limits(compiled, &limits, settings.max_memory_bytes)?;
        let manifest = Arc::new(Manifest { limits, ..Manifest::clone(manifest) });
        let grants = Arc::new(self.grants(&manifest, compiled));
        let (compiled, counts_as) = (Arc::clone(compiled), counts_as.clone());
        Ok(Integration { compiled, manifest, grants, counts_as })
    }

    fn grants(&self, manifest: &Manifest, compiled: &Compiled) -> Grants {
        let default = OnDenied::default_of(compiled.code.abi());
        let on_denied = manifest.on_denied.unwrap_or(default);
        Grants {
            integration: manifest.name.as_str().into(),
            module: compiled.hash,
            open_requests: Arc::clone(&self.open_requests),
            destinations: manifest.destinations.clone(),
            spans: manifest.spans.clone(),
            secrets: Arc::clone(&manifest.secrets),
            http: Arc::clone(&self.http),
            fails_if_denied: on_denied == OnDenied::Fail,
            response_bytes: manifest.limits.response_bytes,
            scratch_bytes: manifest.scratch_bytes,
            host_memory_bytes: manifest.limits.host_memory_for(manifest.scratch_bytes),
            stream_bytes: manifest.limits.memory_bytes,
            host_call_timeout: self.shared.settings.host_call_timeout,
            host_call_timeouts: manifest.host_call_timeouts.clone(),
        }
    }

    /// Queues a dispatch, unless there are too many or no deadline could be enforced. It is queued here,
    /// and not on the guests' threads, so that dispatches start in the order of their calls.
    fn queue(
        &self,
        integration: &Integration,
        dispatch: &mut Dispatch,
        now: Monotonic,
    ) -> Result<(AdmittedDispatch, PermitWait), Error> {
        let metrics = &self.shared.telemetry.metrics;
        if self.closed.load(Ordering::Acquire) {
            metrics.dispatch_refused(metrics::Refusal::ShuttingDown);
            return Err(Error::ShuttingDown);
        }
        match self.shared.ticker.health_at(now) {
            TickerHealth::Healthy => {
                // Read before it is written, because a write for each dispatch would contend.
                if self.ticker_failed.load(Ordering::Acquire)
                    && self.ticker_failed.swap(false, Ordering::AcqRel)
                {
                    metrics.ticker_health(metrics::Health::Healthy);
                }
            }
            unhealthy => {
                self.ticker_failed.store(true, Ordering::Release);
                metrics.ticker_health(metrics::Health::Unhealthy);
                metrics.dispatch_refused(metrics::Refusal::TickerUnhealthy);
                return Err(Error::TickerUnhealthy(unhealthy));
            }
        }
        match dispatch.reservation.take() {
            Some(Reservation(slot)) if slot.is_of(&self.admission) => {
                let permit = slot.request_permit(integration.allocation(), now);
                Ok((slot, permit))
            }
            _ => {
                let tenant = &dispatch.context.tenant;
                let counted = (integration.counts_as.clone(), integration.allocation());
                Ok(self.admission.admit(counted, tenant, now)?)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.live.stop_all();
    }
}

/// Stops the handler run if its caller goes away before it has ended.
struct CallerGuard(Arc<Run>);

impl Drop for CallerGuard {
    fn drop(&mut self) {
        self.0.stop(Cause::CallerGone, "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Context, Settings};

    #[tokio::test]
    async fn without_a_ticker_no_guest_starts_and_the_metric_is_zero() {
        let exporter =
            sandglass_telemetry::prometheus::Exporter::new(sandglass_telemetry::Prefix::default());
        let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
        let settings = Settings { max_runs: 2, ..Settings::default() };
        let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
        let guest = br#"(module (memory (export "memory") 1)
            (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;
        let integration = host.load(guest, Manifest::default()).expect("a guest");
        host.0.shared.ticker.end();
        let dispatch =
            Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default());
        let refused = host.run(&integration, dispatch).await;
        assert!(matches!(refused, Err(Error::TickerUnhealthy(TickerHealth::Dead))), "{refused:?}");
        let scrape = exporter.render();
        assert!(scrape.contains("temper_wasm_epoch_ticker_healthy 0"), "{scrape}");
    }
}
