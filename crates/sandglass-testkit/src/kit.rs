//! Runs cases in a real host, on a tokio runtime whose time is paused.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_host::manifest::Found;
use sandglass_host::{
    BuildError, CompileHelper, Context, Dispatch, DispatchDeadline, Host, HostFunction,
    Integration, Manifest, Settings, Signature, Streams,
};
use sandglass_model::{DispatchId, Rejection, RunReport, TraceContext};

use crate::case::{Case, Expected};
use crate::clock::PausedClock;
use crate::difference::{Difference, actual, differences};
use crate::function::scripted_function;
use crate::world::{SharedWorld, World};

/// A host with virtual time and a scripted world.
pub struct Kit {
    host: Host,
    world: Arc<World>,
    clock: Arc<PausedClock>,
    /// `None` only while the kit is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// A loaded guest, for [`Kit::run`].
#[derive(Clone, Debug)]
pub struct Guest {
    integration: Integration,
}

/// The result of a case.
#[derive(Clone, Debug)]
pub struct CaseResult {
    /// The host's report. Its times are virtual.
    pub report: RunReport,
    /// Everything that differs from what was expected.
    pub differences: Vec<Difference>,
    /// What happened, in the form of an expectation.
    pub actual: Expected,
    /// How long the case took in real time.
    pub took: Duration,
}

impl CaseResult {
    /// Whether everything was as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Why a kit cannot run cases.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The host cannot be built: too few system resources, or an invalid host function.
    #[error(transparent)]
    Host(#[from] BuildError),
    /// The tokio runtime cannot be started.
    #[error("the tokio runtime cannot be started: {0}")]
    Runtime(#[from] std::io::Error),
    /// The host rejected the module.
    #[error("{}", .0.message)]
    Rejected(Rejection),
    /// The host could not run the handler.
    #[error(transparent)]
    Dispatch(#[from] sandglass_host::Error),
}

impl Kit {
    /// Creates a kit with the built-in host functions, for guests of up to 4 GiB.
    ///
    /// # Errors
    /// Errors if there are too few system resources for a host.
    pub fn new() -> Result<Self, Error> {
        Self::builder().build()
    }

    /// Returns a builder, for host functions of an embedder and other settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            functions: Vec::new(),
            scripted: Vec::new(),
            compiled_cache_dir: None,
            compile_in: None,
        }
    }

    fn from_builder(builder: Builder) -> Result<Self, Error> {
        let Builder { functions, scripted, compiled_cache_dir, compile_in } = builder;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .start_paused(true)
            .build()?;
        let entered = runtime.enter();
        let clock = Arc::new(PausedClock::new());
        drop(entered);
        let world = Arc::new(World::default());
        let settings = Settings {
            max_runs: 1,
            guest_threads: 1,
            max_memory_bytes: u64::from(u32::MAX) + 1,
            compiled_cache_dir,
            ..Settings::default()
        };
        let mut builder = Host::builder()
            .settings(settings)
            .simulated_clock(Arc::clone(&clock) as _)
            .simulated_compute_max(Case::COMPUTE_MAX)
            .http_client(Arc::new(SharedWorld(Arc::clone(&world))));
        if let Some(helper) = compile_in {
            builder = builder.compile_in(helper);
        }
        let scripted = scripted.into_iter().map(|signature| scripted_function(&world, signature));
        for function in functions.into_iter().chain(scripted) {
            builder = builder.function(function);
        }
        Ok(Self { host: builder.build()?, world, clock, runtime: Some(runtime) })
    }

    /// Loads a module with its grants. The case provides the values of the secrets that `manifest`
    /// grants.
    ///
    /// # Errors
    /// Errors if the host rejects the module.
    pub fn load(&self, module: &[u8], manifest: Manifest) -> Result<Guest, Error> {
        let manifest = manifest.secrets(Arc::new(SharedWorld(Arc::clone(&self.world))));
        let integration = self.host.load(module, manifest).map_err(Error::Rejected)?;
        Ok(Guest { integration })
    }

    /// Loads a module with the grants of its manifest file.
    ///
    /// # Errors
    /// Errors if the host rejects the module.
    pub fn load_found(&self, found: &Found, module: &[u8]) -> Result<Guest, Error> {
        let secrets = Arc::new(SharedWorld(Arc::clone(&self.world)));
        self.load(module, found.file().manifest(secrets))
    }

    /// Runs one case. It needs no tokio runtime, and may be called inside one. It blocks the thread
    /// until the handler has ended: usually for about a millisecond, and at most for
    /// [`Case::COMPUTE_MAX`] if the guest computes without end.
    ///
    /// # Errors
    /// Errors if the host cannot run the handler.
    ///
    /// # Panics
    /// Panics if a host function of the embedder panics.
    pub fn run(&mut self, guest: &Guest, case: &Case) -> Result<CaseResult, Error> {
        // A thread that is inside another runtime cannot enter this one.
        std::thread::scope(|scope| {
            let result = scope.spawn(|| self.run_here(guest, case)).join();
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[allow(clippy::disallowed_methods, reason = "it measures how long a case took in real time")]
    fn run_here(&self, guest: &Guest, case: &Case) -> Result<CaseResult, Error> {
        let started = Instant::now();
        self.world.begin(&case.answers, &case.secrets);
        let world = || Arc::new(SharedWorld(Arc::clone(&self.world)));
        let streams = Streams::new();
        for (name, bytes) in &case.streams {
            streams.put(name.clone(), bytes.clone());
        }
        let context = Context {
            tenant: case.tenant.clone(),
            params: case.input.clone(),
            entity_state: case.state.clone(),
            config: case.config.clone(),
            agent_id: case.agent_id.clone(),
            session_id: case.session_id.clone(),
            recovery: case.state.get("recovery").cloned(),
            ..Context::default()
        };
        let dispatch = Dispatch::new(case.entity.clone(), case.action.clone(), context)
            .deadline(DispatchDeadline::after(case.deadline))
            .attempt(case.attempt)
            .identity(DispatchId::from_bytes([1; 16]), TraceContext::root([1; 24]))
            .streams(streams)
            .signals(world())
            .asks(world());
        let runtime = self.runtime.as_ref().expect("it is dropped with the kit");
        let report = runtime.block_on(async {
            self.clock.set_wall(case.now);
            self.host.run(&guest.integration, dispatch).await
        })?;
        let (observed, unused) = self.world.end();
        let actual = actual(&report, &observed);
        Ok(CaseResult {
            differences: differences(case, &actual, &report, &observed, &unused),
            actual,
            report,
            took: started.elapsed(),
        })
    }
}

/// Builds a [`Kit`].
#[derive(Debug)]
pub struct Builder {
    functions: Vec<HostFunction>,
    scripted: Vec<Signature>,
    compiled_cache_dir: Option<PathBuf>,
    compile_in: Option<CompileHelper>,
}

impl Builder {
    /// Adds a host function of the embedder, for guests that are granted it.
    #[must_use]
    pub fn function(mut self, function: HostFunction) -> Self {
        self.functions.push(function);
        self
    }

    /// Adds a host function of the embedder by its signature only. The cases script what it returns.
    #[must_use]
    pub fn scripted(mut self, signature: Signature) -> Self {
        self.scripted.push(signature);
        self
    }

    /// Caches compiled code in this folder, because an interpreter takes seconds to compile. The folder is
    /// created if it does not exist; only this user may have access to it.
    #[must_use]
    pub fn compiled_cache_dir(self, folder: Option<PathBuf>) -> Self {
        Self { compiled_cache_dir: folder, ..self }
    }

    /// Compiles modules in child processes of this program
    /// ([`sandglass_host::Builder::compile_in`]).
    #[must_use]
    pub fn compile_in(self, helper: CompileHelper) -> Self {
        Self { compile_in: Some(helper), ..self }
    }

    /// Builds the kit.
    ///
    /// # Errors
    /// Errors if there are too few system resources for a host, if a host function is invalid, or if
    /// the folder cannot be used.
    pub fn build(self) -> Result<Kit, Error> {
        Kit::from_builder(self)
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Dropping a runtime inside another one panics, because it waits; this one has nothing to
            // wait for.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Kit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kit").finish_non_exhaustive()
    }
}
