//! Builds a host from its settings, its clock, its telemetry, and the embedder's own host functions.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sandglass_model::{Clock, SystemClock};
use sandglass_telemetry::{Telemetry, metrics};

use super::sandboxes::Sandboxes;
use super::{Host, Inner, Shared};
use crate::compiled_folder::CompiledFolder;
use crate::compiling::{self, CompileHelper, Compiler};
use crate::error::BuildError;
use crate::evaluation::{EVALUATIONS_MAX, Evaluation, SpecEvaluator};
use crate::host::brief::CallersThreads;
use crate::host_function::{BlockingCalls, HostFunction, Registry};
use crate::module::ModuleCache;
use crate::sandbox::{self, EngineKind};
use sandglass_supervisor::admission::Admission;
use sandglass_supervisor::capability::cache::Cache;
use sandglass_supervisor::capability::http::{self, HttpClient};
use sandglass_supervisor::capability::open_requests::OpenRequests;
use sandglass_supervisor::capability::tenant_rate::Rates;
use sandglass_supervisor::executor::Executor;
use sandglass_supervisor::identities::Identities;
use sandglass_supervisor::kernel::KernelFeatures;
use sandglass_supervisor::lease::Lease;
use sandglass_supervisor::recording::RecordingMemory;
use sandglass_supervisor::run_clock;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::ticker::{Simulated, Ticker};

/// Builds a [`Host`].
#[derive(Debug)]
pub struct Builder {
    settings: Settings,
    clock: Arc<dyn Clock>,
    is_simulated: bool,
    compute_max: Option<Duration>,
    lease: Lease,
    telemetry: Telemetry,
    /// `None` stands for the network.
    http: Option<Arc<dyn HttpClient>>,
    functions: Vec<HostFunction>,
    evaluator: Option<Arc<dyn SpecEvaluator>>,
    compiler: Compiler,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            clock: Arc::new(SystemClock::new()),
            is_simulated: false,
            compute_max: None,
            lease: Lease::default(),
            telemetry: Telemetry::disabled(),
            http: None,
            functions: Vec::new(),
            evaluator: None,
            compiler: Compiler::InProcess,
        }
    }

    /// Sets the bounds.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Sets where metrics and spans go. By default, there is no telemetry.
    #[must_use]
    pub fn telemetry(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Sets the clock by which deadlines are measured.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_simulated: false, ..self }
    }

    /// Lets the host run in simulated time: that of a tokio runtime of one thread whose time is paused,
    /// which `clock` must follow. Time stands still while anything executes, and jumps to the next
    /// timer when nothing does, so that a guest that waits for an hour finishes at once.
    ///
    /// Guests are then executed on the tasks of their callers, as by [`Host::run_in_place`], which
    /// must be on that runtime. A guest that computes takes about as long as in real time. While
    /// anything waits for the outside (a disk, a network), the caller must prevent time from jumping;
    /// tokio does so while a blocking task runs.
    #[must_use]
    pub fn simulated_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_simulated: true, ..self }
    }

    /// Sets how long a guest may compute, in real time, before it counts as one that never ends, in a
    /// host in simulated time ([`Builder::simulated_clock`]): then the time jumps to its deadline, and
    /// the guest is killed there as usual. By default, it computes until its deadline.
    #[must_use]
    pub fn simulated_compute_max(self, compute_max: Duration) -> Self {
        Self { compute_max: Some(compute_max), ..self }
    }

    /// Sets the lease of this host in its cluster: a host call with effects outside of this process (a
    /// request, an ask, a signal, a secret, an embedder's function that may wait) begins only while the
    /// lease is valid. Otherwise it waits, within the deadline of its handler, until the lease is
    /// extended. Default: a lease without an end, for a host that is alone.
    #[must_use]
    pub fn lease(self, lease: Lease) -> Self {
        Self { lease, ..self }
    }

    /// Sets the client that sends the guests' HTTP requests. The default is a client of this crate, or
    /// without the feature `network` one whose requests all fail.
    #[must_use]
    pub fn http_client(self, http: Arc<dyn HttpClient>) -> Self {
        Self { http: Some(http), ..self }
    }

    /// Registers one of the embedder's own host functions.
    #[must_use]
    pub fn function(mut self, function: HostFunction) -> Self {
        self.functions.push(function);
        self
    }

    /// Sets what decides actions of specs that guests pass to `host_evaluate_spec`. A spec is evaluated
    /// on a thread of its own, within the handler's deadline. A host evaluates at most four specs at the
    /// same time, in addition to [`Settings::max_blocking_calls`]; further calls wait. By default, each
    /// such call returns an error.
    #[must_use]
    pub fn spec_evaluator(self, evaluator: Arc<dyn SpecEvaluator>) -> Self {
        Self { evaluator: Some(evaluator), ..self }
    }

    /// Validates and compiles modules with this program, in a child process for each, which is killed at
    /// its limits. Use it if modules come from people whom you do not trust. By default, modules are
    /// compiled in this process, where nothing bounds the time and memory that one takes (minutes and
    /// gigabytes, for a small module that is made to do so).
    #[must_use]
    pub fn compile_in(self, helper: CompileHelper) -> Self {
        Self { compiler: Compiler::Helper(helper), ..self }
    }

    /// Starts the host's threads and sets up its sandbox.
    ///
    /// # Errors
    /// The operating system has too little address space or no threads, or a host function cannot be
    /// registered.
    pub fn build(mut self) -> Result<Host, BuildError> {
        let metrics = self.telemetry.metrics.clone();
        let functions = std::mem::take(&mut self.functions);
        let settings = &self.settings;
        let blocking = BlockingCalls::new(settings.max_blocking_calls, metrics.clone());
        let blocking = Arc::new(blocking);
        let evaluations = Arc::new(BlockingCalls::new(EVALUATIONS_MAX, metrics.clone()));
        let registry = Registry::new(functions, blocking)?;
        let compiled_folder = compiled_folder(settings, &self.clock, &metrics)?;
        run_clock::find_rate();
        let ticker = self.start_ticker()?;
        let sandboxes = Sandboxes::new(settings.clone(), Arc::clone(&ticker), registry);
        sandboxes.get_or_make(EngineKind::USUAL).map_err(|error| BuildError::Sandbox {
            max_runs: settings.slots(),
            why: format!("{error:#}"),
        })?;
        let blocking_threads = settings.max_blocking_calls.saturating_add(EVALUATIONS_MAX);
        let executor = Executor::start(settings.guest_threads, blocking_threads, &self.clock)
            .map_err(BuildError::Threads)?;
        metrics.ticker_health(metrics::Health::Healthy);
        metrics.kills_overdue(0);
        let shared = Shared {
            cache: Arc::new(Cache::new(settings.cache_bytes)),
            rates: Arc::new(Rates::new(&self.clock)),
            recordings: RecordingMemory::new(settings.recording_bytes, metrics.clone()),
            settings: self.settings,
            clock: self.clock,
            telemetry: self.telemetry,
            ticker,
            lease: self.lease,
            evaluation: Arc::new(Evaluation { evaluator: self.evaluator, calls: evaluations }),
        };
        let settings = &shared.settings;
        let without_telemetry = Shared { telemetry: Telemetry::disabled(), ..shared.clone() };
        Ok(Host(Arc::new(Inner {
            kernel: kernel_features(settings, &shared.ticker),
            sandboxes,
            in_progress: Arc::default(),
            compiler: self.compiler,
            turns: compiling::turns(),
            compiled_folder,
            modules: ModuleCache::new(settings.module_cache_bytes),
            http: self.http.unwrap_or_else(|| http_client(settings, &shared.lease)),
            open_requests: OpenRequests::new(settings.open_requests()),
            executor,
            callers_threads: CallersThreads::of_this_machine(),
            admission: Arc::new(Admission::new(settings, Arc::clone(&shared.clock), metrics)),
            live: Arc::default(),
            identities: Identities::default(),
            closed: AtomicBool::new(false),
            ticker_failed: AtomicBool::new(false),
            without_telemetry: Arc::new(without_telemetry),
            shared: Arc::new(shared),
        })))
    }

    fn start_ticker(&self) -> Result<Arc<Ticker>, BuildError> {
        let (clock, metrics) = (Arc::clone(&self.clock), self.telemetry.metrics.clone());
        let ticker = if self.is_simulated {
            Ticker::start_simulated(Simulated { clock, compute_max: self.compute_max }, metrics)
        } else {
            Ticker::start(clock, metrics, self.settings.kernel_features)
        };
        ticker.map_err(BuildError::Threads)
    }
}

#[cfg(feature = "network")]
fn http_client(settings: &Settings, lease: &Lease) -> Arc<dyn HttpClient> {
    Arc::new(http::NetworkClient::new(settings.open_requests(), lease.clone()))
}

#[cfg(not(feature = "network"))]
fn http_client(_: &Settings, _: &Lease) -> Arc<dyn HttpClient> {
    Arc::new(http::NoClient)
}

/// The features of the kernel that are in use.
fn kernel_features(settings: &Settings, ticker: &Ticker) -> KernelFeatures {
    let pagemap_scan = sandbox::scans_pages(settings);
    let kernel = KernelFeatures { pagemap_scan, ..ticker.kernel() };
    tracing::info!(
        pagemap_scan = kernel.pagemap_scan,
        scheduler_slice = kernel.scheduler_slice,
        timer_slack = kernel.timer_slack,
        "features of the kernel in use"
    );
    kernel
}

fn compiled_folder(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    metrics: &metrics::Metrics,
) -> Result<Option<CompiledFolder>, BuildError> {
    let Some(folder) = &settings.compiled_cache_dir else { return Ok(None) };
    let (max_bytes, clock) = (settings.compiled_cache_bytes, Arc::clone(clock));
    match CompiledFolder::open(folder, max_bytes, clock, metrics.clone()) {
        Ok(opened) => Ok(Some(opened)),
        Err(why) if why.is_for_lack_of_room() => {
            tracing::warn!(?folder, "no compiled code is kept: {why}");
            Ok(None)
        }
        Err(why) => Err(BuildError::CompiledCache { folder: folder.clone(), why: why.to_string() }),
    }
}
