//! The host: what an embedder builds once, loads integrations into, and
//! dispatches to.

mod builder;
mod loading;
mod sandboxes;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use sandglass_model::{
    Busy, Cause, Clock, DispatchId, Frame, ModuleHash, Monotonic, Outcome, Rejection, RunReport,
    TraceContext,
};
use sandglass_telemetry::trace::{Kind, SpanStart, names};
use sandglass_telemetry::{Span, Telemetry, metrics};
use tokio::sync::oneshot;

use crate::compiled_folder::CompiledFolder;
use crate::compiling::{Compiler, Turns};
use crate::error::Error;
use crate::execution::Execution;
use crate::host_function::Signature;
use crate::in_place::InPlace;
use crate::integration::Integration;
use crate::module::{Flights, ModuleCache};
use crate::sandbox::{EngineKind, Sandbox};
use crate::symbols;
use sandglass_supervisor::admission::{Admission, Place, Reservation, ReserveFor, Turn};
use sandglass_supervisor::capability::Grants;
use sandglass_supervisor::capability::cache::Cache;
use sandglass_supervisor::capability::http::HttpClient;
use sandglass_supervisor::capability::open_requests::OpenRequests;
use sandglass_supervisor::capability::tenant_rate::Rates;
use sandglass_supervisor::dispatch::Dispatch;
use sandglass_supervisor::executor::Executor;
use sandglass_supervisor::kernel::KernelFeatures;
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::recording::Room;
use sandglass_supervisor::run::Run;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::ticker::{Ticker, TickerHealth};

pub use builder::Builder;
use sandboxes::Sandboxes;
use sandglass_supervisor::identities::Identities;
use sandglass_supervisor::live::{Live, LiveRun, LiveRuns};

/// Runs guests, each inside its deadline. Cheap to clone; the last clone to be
/// dropped ends the host's threads.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    shared: Arc<Shared>,
    /// The same for runs that are had again, of which nobody is told: they were told of.
    unheard: Arc<Shared>,
    sandboxes: Sandboxes,
    modules: ModuleCache,
    flights: Arc<Flights>,
    compiler: Compiler,
    turns: Arc<Turns>,
    /// Where compiled code outlives the process.
    compiled_folder: Option<CompiledFolder>,
    /// What sends the requests of every integration.
    http: Arc<dyn HttpClient>,
    open_requests: Arc<OpenRequests>,
    executor: Executor,
    admission: Arc<Admission>,
    live: Arc<Live>,
    identities: Identities,
    closed: AtomicBool,
    /// Whether the ticker was not healthy when it was last asked.
    ticker_failed: AtomicBool,
    kernel: KernelFeatures,
}

/// What every execution shares.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) telemetry: Telemetry,
    pub(crate) ticker: Arc<Ticker>,
    pub(crate) cache: Arc<Cache>,
    /// What tenants may write to the log.
    pub(crate) rates: Arc<Rates>,
    /// The memory for what is kept of runs for their replay.
    pub(crate) recordings: Arc<Room>,
}

impl Host {
    /// Begins a host with [`Settings::default`], the system's clocks, real HTTP,
    /// and no telemetry.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs `dispatch` on a fresh instance of `integration`, and answers how it
    /// ended. Dropping the future stops the run.
    ///
    /// # Errors
    /// The host could not do its work; whatever the guest does is an [`Outcome`].
    pub async fn dispatch(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<Outcome, Error> {
        Ok(self.run(integration, dispatch).await?.outcome)
    }

    /// As [`Host::dispatch`], with everything that is known of the run.
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
        let Started { execution, caller, live } = self.0.start(integration, dispatch)?;
        let (answer, report) = oneshot::channel();
        self.0.executor.start_run(Box::new(move || {
            Box::pin(async move {
                let report = execution.run().await;
                drop(live);
                // A caller who has gone takes no report; the run was accounted for.
                drop(answer.send(report));
            })
        }));
        let report = report.await.map_err(|_| Error::Lost);
        // The run has its cause by now, so this stops nothing.
        drop(caller);
        report
    }

    /// As [`Host::run`], polled by the caller and not on the host's own threads: a
    /// dispatch costs no change of threads. What is given up for it is rule 8: a guest
    /// that spins holds the caller's thread, and yields it after each slice of 1 ms. So
    /// it is for callers whose threads have nothing else to do, or guests that they
    /// trust to be short. Everything else holds: admission, the deadline, the report.
    ///
    /// Any executor may poll it: what the host itself waits for (timers, requests,
    /// blocking functions) is on its own threads. Dropping the future stops the run,
    /// and what it held is given back before the drop returns.
    ///
    /// # Errors
    /// As [`Host::dispatch`].
    pub async fn run_in_place(
        &self,
        integration: &Integration,
        dispatch: Dispatch,
    ) -> Result<RunReport, Error> {
        let Started { execution, caller, live } = self.0.start(integration, dispatch)?;
        // Simulated time is the caller's.
        let executor = (!self.0.shared.ticker.is_simulated()).then(|| self.0.executor.handle());
        let running = InPlace::new(executor, caller, execution.run());
        let report = running.await.ok_or(Error::Lost);
        drop(live);
        report
    }

    /// Holds a place in the queue for a dispatch that is not made yet: it goes into
    /// [`Dispatch::reserved`]. Dropping it gives the place back.
    ///
    /// # Errors
    /// There is no room for one more, in the host, in the integration or for the
    /// tenant.
    pub fn reserve(&self, of: ReserveFor) -> Result<Reservation, Busy> {
        self.0.admission.reserve(of).map(Reservation)
    }

    /// Resolves frames that a report or a record has as offsets in the file of `module`: its
    /// symbols were not parsed within [`Settings::symbols_wait`]. Waits until they are, some
    /// seconds at most. Frames stay as they are if the host has no such module any more, or its
    /// author's debug information exceeds what a host parses.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> Vec<Frame> {
        match self.0.modules.with_hash(module) {
            Some(module) => module.symbols.resolve(frames, symbols::WAIT_MAX).await,
            None => frames,
        }
    }

    /// The clock that deadlines are measured by.
    #[must_use]
    pub fn clock(&self) -> &dyn Clock {
        &*self.0.shared.clock
    }

    /// Where this host's metrics and spans go.
    #[must_use]
    pub fn telemetry(&self) -> &Telemetry {
        &self.0.shared.telemetry
    }

    /// Whether deadlines are being kept.
    #[must_use]
    pub fn ticker_health(&self) -> TickerHealth {
        self.0.shared.ticker.health()
    }

    /// How many handler runs are more than a second past their deadline, and have not ended: a
    /// fault of the host.
    #[must_use]
    pub fn kills_overdue(&self) -> usize {
        self.0.shared.ticker.kills_overdue()
    }

    /// The runs that are queued or in flight, at most `most` of them, and how many more there
    /// are. Those whose deadline is nearest come first, and the queued ones last.
    #[must_use]
    pub fn live_runs(&self, most: usize) -> LiveRuns {
        self.0.live.look(most)
    }

    /// Which features of the kernel this host uses: those that its settings allow and
    /// the kernel has.
    #[must_use]
    pub fn kernel_features(&self) -> KernelFeatures {
        self.0.kernel
    }

    /// Refuses new dispatches, stops those that are queued or in flight, and
    /// waits until each has given back what it held.
    pub async fn shutdown(&self) {
        self.0.closed.store(true, Ordering::Release);
        self.0.live.stop_all();
        self.0.live.none_left().await;
    }

    /// The functions that a guest can wait in, so that a call of them may have a time limit of
    /// its own: by the names that reports carry. (Those of WASI end with the run alone.)
    ///
    /// # Errors
    /// The operating system gives too little to find them out.
    pub fn timed_functions(&self) -> Result<BTreeSet<&'static str>, Rejection> {
        let sandbox = self.0.sandboxes.for_module(EngineKind::USUAL)?;
        let all = [&sandbox.functions, &sandbox.component_functions];
        Ok(all.into_iter().flat_map(|functions| functions.timed()).collect())
    }

    /// The host functions of the embedder's own, in the order in which they were registered.
    #[must_use]
    pub fn functions(&self) -> Vec<Signature> {
        let functions = self.0.sandboxes.registry().functions();
        functions.iter().map(|function| Signature::of(function)).collect()
    }

    /// What most guests run in.
    ///
    /// # Errors
    /// The operating system gives too little for it.
    pub(crate) fn usual_sandbox(&self) -> Result<Arc<Sandbox>, Rejection> {
        self.0.sandboxes.for_module(EngineKind::USUAL)
    }

    /// Most memory that a guest can be granted, in bytes.
    pub(crate) fn max_memory_bytes(&self) -> u64 {
        self.0.shared.settings.max_memory_bytes
    }

    /// The names of the embedder's own functions, as manifests grant them.
    pub(crate) fn own_functions(&self) -> impl Iterator<Item = String> {
        self.0.sandboxes.registry().functions().iter().map(|function| function.full_name())
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

/// A dispatch that was let in, and has not begun.
struct Started {
    execution: Execution,
    caller: CallerGuard,
    live: LiveRun,
}

impl Inner {
    /// Lets a dispatch in, and gathers what its run needs.
    fn start(&self, integration: &Integration, mut dispatch: Dispatch) -> Result<Started, Error> {
        let queued_at = self.shared.clock.now();
        let (place, turn) = self.admit(integration, &mut dispatch, queued_at)?;
        let shared = if dispatch.is_replay() { &self.unheard } else { &self.shared };
        let metrics = &shared.telemetry.metrics;
        let entity_type = dispatch.entity.entity_type();
        let metrics = integration.compiled.announce(metrics, entity_type, &dispatch.action);
        let caller = CallerGuard(Arc::clone(&dispatch.run));
        let (id, trace) = dispatch
            .identity
            .map_or_else(|| self.identities.draw().map_err(Error::Unavailable), Ok)?;
        let functions = integration.compiled.sandbox.functions(&integration.compiled.code);
        let live = Arc::clone(&self.live).enter(&dispatch.run, id, queued_at, functions);
        // A shutdown that began in between has not seen this run.
        if self.closed.load(Ordering::Acquire) {
            return Err(Error::ShuttingDown);
        }
        let execution = Execution {
            span: Arc::new(span(&shared.telemetry, &dispatch, integration, (id, trace))),
            shared: Arc::clone(shared),
            metrics,
            integration: integration.clone(),
            id,
            trace,
            queued_at,
            began: OnceLock::new(),
            turn,
            place: Arc::new(place),
            dispatch: Arc::new(dispatch),
        };
        Ok(Started { execution, caller, live })
    }

    fn grants(&self, manifest: &Manifest) -> Grants {
        Grants {
            integration: manifest.name.as_str().into(),
            open_requests: Arc::clone(&self.open_requests),
            destinations: manifest.destinations.clone(),
            secrets: Arc::clone(&manifest.secrets),
            http: Arc::clone(&self.http),
            response_bytes: manifest.limits.response_bytes,
            scratch_bytes: manifest.scratch_bytes,
            host_memory_bytes: manifest.limits.host_memory_for(manifest.scratch_bytes),
            stream_bytes: manifest.limits.memory_bytes,
            host_call_timeout: self.shared.settings.host_call_timeout,
            host_call_timeouts: manifest.host_call_timeouts.clone(),
        }
    }

    /// Lets a dispatch in, unless there are too many, or nobody would end it. It joins the
    /// line here and not on the guests' threads, so that the order in which those come to it
    /// decides nothing.
    fn admit(
        &self,
        integration: &Integration,
        dispatch: &mut Dispatch,
        now: Monotonic,
    ) -> Result<(Place, Turn), Error> {
        let metrics = &self.shared.telemetry.metrics;
        if self.closed.load(Ordering::Acquire) {
            metrics.dispatch_refused(metrics::Refusal::ShuttingDown);
            return Err(Error::ShuttingDown);
        }
        match self.shared.ticker.health_at(now) {
            TickerHealth::Healthy => {
                // Looked at before it is written, which every dispatch would else.
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
            Some(Reservation(place)) if place.is_of(&self.admission) => {
                let turn = place.line_up(integration.allocation(), now);
                Ok((place, turn))
            }
            _ => {
                let tenant = &dispatch.context.tenant;
                let counted = (integration.counts_as.clone(), integration.allocation());
                Ok(self.admission.line_up(counted, tenant, now)?)
            }
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.live.stop_all();
    }
}

/// Stops the run of a caller who goes away before it has ended.
pub(crate) struct CallerGuard(Arc<Run>);

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
    async fn no_guest_starts_without_a_ticker_and_the_metric_says_so() {
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
