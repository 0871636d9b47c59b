//! Runs cases: in a host as it is, on a tokio runtime whose time is paused.

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
use crate::difference::{Difference, differences, found};
use crate::function::function;
use crate::world::{Shared, World};

/// A host that lives in virtual time, and whose world is scripted.
pub struct Kit {
    host: Host,
    world: Arc<World>,
    clock: Arc<PausedClock>,
    /// None while it is dropped.
    runtime: Option<tokio::runtime::Runtime>,
}

/// A guest that cases can be run of.
#[derive(Clone, Debug)]
pub struct Guest {
    integration: Integration,
}

/// What came of a case.
#[derive(Clone, Debug)]
pub struct Ran {
    /// What the host reports of it. Its times are virtual.
    pub report: RunReport,
    /// What of it isn't what was expected.
    pub differences: Vec<Difference>,
    /// What came, in the terms of what is expected.
    pub found: Expected,
    /// How long it took really.
    pub took: Duration,
}

impl Ran {
    /// Whether all came as expected.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.differences.is_empty()
    }
}

/// Why nothing can be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unusable {
    /// The operating system gives too little for a host, or a function can't be registered.
    #[error(transparent)]
    Host(#[from] BuildError),
    /// The operating system gives no runtime.
    #[error("no runtime can be started: {0}")]
    Runtime(#[from] std::io::Error),
    /// The host rejects the module.
    #[error("{}", .0.message)]
    Rejected(Rejection),
    /// The host can't run it now.
    #[error(transparent)]
    Dispatch(#[from] sandglass_host::Error),
}

impl Kit {
    /// A kit with the host functions that every host has, for guests of up to 4 GiB.
    ///
    /// # Errors
    /// The operating system gives too little for a host.
    pub fn new() -> Result<Self, Unusable> {
        Self::builder().build()
    }

    /// The same, with more said of it.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            functions: Vec::new(),
            scripted: Vec::new(),
            compiled_cache_dir: None,
            compile_in: None,
        }
    }

    fn of(builder: Builder) -> Result<Self, Unusable> {
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
            .http_client(Arc::new(Shared(Arc::clone(&world))));
        if let Some(helper) = compile_in {
            builder = builder.compile_in(helper);
        }
        let scripted = scripted.into_iter().map(|signature| function(&world, signature));
        for function in functions.into_iter().chain(scripted) {
            builder = builder.function(function);
        }
        Ok(Self { host: builder.build()?, world, clock, runtime: Some(runtime) })
    }

    /// Loads a module with its grants. Whatever secrets `manifest` grants, their values are
    /// the case's.
    ///
    /// # Errors
    /// The host rejects it.
    pub fn load(&self, module: &[u8], manifest: Manifest) -> Result<Guest, Unusable> {
        let manifest = manifest.secrets(Arc::new(Shared(Arc::clone(&self.world))));
        self.loaded(module, manifest)
    }

    /// Loads a module with the grants of the manifest that was found for it.
    ///
    /// # Errors
    /// The host rejects it.
    pub fn load_found(&self, found: &Found, module: &[u8]) -> Result<Guest, Unusable> {
        let secrets = Arc::new(Shared(Arc::clone(&self.world)));
        self.loaded(module, found.file().manifest(secrets))
    }

    fn loaded(&self, module: &[u8], manifest: Manifest) -> Result<Guest, Unusable> {
        let integration = self.host.load(module, manifest).map_err(Unusable::Rejected)?;
        Ok(Guest { integration })
    }

    /// Runs one case. It needs no runtime of its own, and may be called in one: it blocks the
    /// thread until the run has ended, mostly for a millisecond, and for a guest that
    /// computes until it is taken for one that never ends ([`Case::COMPUTE_MAX`]).
    ///
    /// # Errors
    /// The host can't run it.
    ///
    /// # Panics
    /// A host function of the embedder's own can't be kept from it.
    pub fn run(&mut self, guest: &Guest, case: &Case) -> Result<Ran, Unusable> {
        // A thread that is inside another runtime can't enter this one.
        std::thread::scope(|scope| {
            let ran = scope.spawn(|| self.run_here(guest, case)).join();
            ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    #[allow(clippy::disallowed_methods, reason = "how long a case took really")]
    fn run_here(&self, guest: &Guest, case: &Case) -> Result<Ran, Unusable> {
        let begun = Instant::now();
        self.world.begin(&case.answers, &case.secrets);
        let world = || Arc::new(Shared(Arc::clone(&self.world)));
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
        };
        let dispatch = Dispatch::new(case.entity.clone(), case.action.clone(), context)
            .deadline(DispatchDeadline::after(case.deadline))
            .attempt(case.attempt)
            .identity(DispatchId::from_bytes([1; 16]), TraceContext::root([1; 24]))
            .streams(streams)
            .signals(world())
            .asks(world());
        let runtime = self.runtime.as_ref().expect("it goes with the kit");
        let report = runtime.block_on(async {
            self.clock.show(case.now);
            self.host.run(&guest.integration, dispatch).await
        })?;
        let (met, unwanted) = self.world.end();
        Ok(Ran {
            differences: differences(case, &report, &met, &unwanted),
            found: found(&report, &met),
            report,
            took: begun.elapsed(),
        })
    }
}

/// Makes a [`Kit`].
#[derive(Debug)]
pub struct Builder {
    functions: Vec<HostFunction>,
    scripted: Vec<Signature>,
    compiled_cache_dir: Option<PathBuf>,
    compile_in: Option<CompileHelper>,
}

impl Builder {
    /// Adds a host function of the embedder's own, for the guests that are granted it.
    #[must_use]
    pub fn function(mut self, function: HostFunction) -> Self {
        self.functions.push(function);
        self
    }

    /// Adds a host function of the embedder's own by its signature alone: what it answers is the
    /// case's.
    #[must_use]
    pub fn scripted(mut self, signature: Signature) -> Self {
        self.scripted.push(signature);
        self
    }

    /// Keeps compiled code in this folder, which must be this user's alone and is made where
    /// there is none: an interpreter takes seconds to compile.
    #[must_use]
    pub fn compiled_cache_dir(self, folder: Option<PathBuf>) -> Self {
        Self { compiled_cache_dir: folder, ..self }
    }

    /// Compiles modules by this program, in processes of their own
    /// ([`sandglass_host::Builder::compile_in`]).
    #[must_use]
    pub fn compile_in(self, helper: CompileHelper) -> Self {
        Self { compile_in: Some(helper), ..self }
    }

    /// Makes it.
    ///
    /// # Errors
    /// The operating system gives too little for a host, a function can't be registered, or
    /// the folder can't be used.
    pub fn build(self) -> Result<Kit, Unusable> {
        Kit::of(self)
    }
}

impl Drop for Kit {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // Inside another runtime nobody may wait for what it leaves; it leaves nothing.
            runtime.shutdown_background();
        }
    }
}

impl fmt::Debug for Kit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kit").finish_non_exhaustive()
    }
}
