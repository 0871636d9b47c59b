//! Makes a host: its settings, its clock, where its telemetry goes, and the host
//! functions of the embedder's own.

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
use crate::host_function::{BlockingCalls, HostFunction, Registry};
use crate::module::ModuleCache;
use crate::sandbox::{self, EngineKind};
use sandglass_supervisor::admission::Admission;
use sandglass_supervisor::capability::cache::Cache;
use sandglass_supervisor::capability::http::{HttpClient, NetworkClient};
use sandglass_supervisor::capability::open_requests::OpenRequests;
use sandglass_supervisor::capability::tenant_rate::Rates;
use sandglass_supervisor::executor::Executor;
use sandglass_supervisor::identities::Identities;
use sandglass_supervisor::kernel::KernelFeatures;
use sandglass_supervisor::recording::Room;
use sandglass_supervisor::run_clock;
use sandglass_supervisor::settings::Settings;
use sandglass_supervisor::ticker::{Simulated, Ticker};

/// Makes a [`Host`].
#[derive(Debug)]
pub struct Builder {
    settings: Settings,
    clock: Arc<dyn Clock>,
    is_simulated: bool,
    compute_max: Option<Duration>,
    telemetry: Telemetry,
    /// `None` for the network.
    http: Option<Arc<dyn HttpClient>>,
    functions: Vec<HostFunction>,
    compiler: Compiler,
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            clock: Arc::new(SystemClock::new()),
            is_simulated: false,
            compute_max: None,
            telemetry: Telemetry::disabled(),
            http: None,
            functions: Vec::new(),
            compiler: Compiler::InProcess,
        }
    }

    /// Sets the bounds.
    #[must_use]
    pub fn settings(self, settings: Settings) -> Self {
        Self { settings, ..self }
    }

    /// Sets where metrics and spans go; nowhere, unless it is said.
    #[must_use]
    pub fn telemetry(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    /// Sets the clock that deadlines are measured by.
    #[must_use]
    pub fn clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_simulated: false, ..self }
    }

    /// Has the host live in simulated time: that of a tokio runtime of one thread whose time
    /// is paused, which `clock` must follow. It stands while anything runs, and jumps to the
    /// next timer when nothing does, so that a guest that waits for an hour is through with
    /// it at once.
    ///
    /// Guests then run where their callers poll them, as by [`Host::run_in_place`], which
    /// must be on that runtime; and a guest that computes takes about as long as it takes.
    /// While somebody waits for what is outside (a disk, a network), time has to be kept from
    /// jumping; tokio does so while a blocking task runs.
    #[must_use]
    pub fn simulated_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, is_simulated: true, ..self }
    }

    /// Takes a guest that has computed for so long, in real time, for one that never ends, where
    /// the host lives in simulated time ([`Builder::simulated_clock`]): it is killed at its
    /// deadline as ever, and the time jumps there. Without, it computes until then.
    #[must_use]
    pub fn simulated_compute_max(self, compute_max: Duration) -> Self {
        Self { compute_max: Some(compute_max), ..self }
    }

    /// Sets what sends the guests' HTTP requests.
    #[must_use]
    pub fn http_client(self, http: Arc<dyn HttpClient>) -> Self {
        Self { http: Some(http), ..self }
    }

    /// Registers a host function of the embedder's own.
    #[must_use]
    pub fn function(mut self, function: HostFunction) -> Self {
        self.functions.push(function);
        self
    }

    /// Validates and compiles modules by this program, in a child process for each, which is
    /// killed at its limits: so it should be where modules come from people whom you do not
    /// trust. Without it, modules are compiled in this process, where nothing bounds the time
    /// and memory that one takes (minutes and gigabytes, for a small module made to do so).
    #[must_use]
    pub fn compile_in(self, helper: CompileHelper) -> Self {
        Self { compiler: Compiler::Helper(helper), ..self }
    }

    /// Starts the host's threads and sets up its sandbox.
    ///
    /// # Errors
    /// The operating system gives too little address space or no threads, or a host
    /// function can't be registered.
    pub fn build(self) -> Result<Host, BuildError> {
        let Self {
            settings,
            clock,
            is_simulated,
            compute_max,
            telemetry,
            http,
            functions,
            compiler,
        } = self;
        let blocking = BlockingCalls::new(settings.max_blocking_calls, telemetry.metrics.clone());
        let registry = Registry::new(functions, blocking)?;
        let compiled_folder = compiled_folder(&settings, &clock, &telemetry.metrics)?;
        run_clock::find_rate();
        let wanted = settings.kernel_features;
        let (of, metrics) = (Arc::clone(&clock), telemetry.metrics.clone());
        let ticker = if is_simulated {
            Ticker::start_simulated(Simulated { clock: of, compute_max }, metrics)
        } else {
            Ticker::start(of, metrics, wanted)
        };
        let ticker = ticker.map_err(BuildError::Threads)?;
        let sandboxes = Sandboxes::new(settings.clone(), Arc::clone(&ticker), registry);
        sandboxes.of(EngineKind::USUAL).map_err(|error| BuildError::Sandbox {
            max_runs: settings.slots(),
            why: format!("{error:#}"),
        })?;
        let executor = Executor::start(settings.guest_threads, settings.max_blocking_calls, &clock)
            .map_err(BuildError::Threads)?;
        telemetry.metrics.ticker_health(metrics::Health::Healthy);
        telemetry.metrics.kills_overdue(0);
        let kernel =
            KernelFeatures { pagemap_scan: sandbox::scans_pages(&settings), ..ticker.kernel() };
        tracing::info!(
            pagemap_scan = kernel.pagemap_scan,
            scheduler_slice = kernel.scheduler_slice,
            timer_slack = kernel.timer_slack,
            "features of the kernel in use"
        );
        let admission = Admission::new(&settings, Arc::clone(&clock), telemetry.metrics.clone());
        let cache = Arc::new(Cache::new(settings.cache_bytes));
        let recordings = Room::new(settings.recording_bytes, telemetry.metrics.clone());
        let rates = Arc::new(Rates::new(&clock));
        let shared = Shared { cache, rates, recordings, settings, clock, telemetry, ticker };
        let settings = &shared.settings;
        let unheard = Shared { telemetry: Telemetry::disabled(), ..shared.clone() };
        Ok(Host(Arc::new(Inner {
            sandboxes,
            flights: Arc::default(),
            compiler,
            turns: compiling::turns(),
            compiled_folder,
            modules: ModuleCache::new(settings.module_cache_bytes),
            http: http.unwrap_or_else(|| Arc::new(NetworkClient::new(settings.open_requests()))),
            open_requests: OpenRequests::new(settings.open_requests()),
            executor,
            admission: Arc::new(admission),
            live: Arc::default(),
            identities: Identities::default(),
            closed: AtomicBool::new(false),
            ticker_failed: AtomicBool::new(false),
            kernel,
            unheard: Arc::new(unheard),
            shared: Arc::new(shared),
        })))
    }
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
