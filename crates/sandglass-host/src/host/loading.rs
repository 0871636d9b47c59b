//! Loads integrations: checks their manifests, and compiles each module once, however many callers
//! load it at the same time.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sandglass_model::{Allocation, ModuleHash, Rejection, RejectionKind};

use super::{Host, Inner};
use crate::compiled_folder::Entry;
use crate::compiling::Turn;
use crate::detection::check_module;
use crate::integration::Integration;
use crate::module::{
    self, Compilation, CompileResult, CompiledBefore, Compiling, Found, Key, NotCompiled,
};
use crate::sandbox::{self, Concurrency, EngineKind, Metering, Target, Tier};
use sandglass_supervisor::admission::IntegrationKey;
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::rejection::rejection;

type CompileAttempt = Result<module::Compiled, Rejection>;

/// The tenant of callers that name none.
const NO_TENANT: &str = "";

impl Host {
    /// Compiles `bytes`, text or binary, with the grants of `manifest`. Bytes that were loaded before
    /// are not compiled again, and callers that load the same bytes at the same time wait for one
    /// compilation. This blocks for as long as compiling takes: seconds, for a module of some
    /// megabytes ([`Host::load_async`] does not block).
    ///
    /// A host that runs modules of several tenants loads them by [`Host::load_for`].
    ///
    /// # Errors
    /// This host does not run the bytes, or the manifest grants more than this host has. The
    /// rejection states what is wrong, where, and what to do.
    pub fn load(&self, bytes: &[u8], manifest: Manifest) -> Result<Integration, Rejection> {
        self.load_for(NO_TENANT, bytes, manifest)
    }

    /// As [`Host::load`], on behalf of `tenant`. Only a few modules are compiled at the same time;
    /// tenants that wait take turns, so that a tenant whose modules take long delays only its own.
    ///
    /// # Errors
    /// As [`Host::load`].
    pub fn load_for(
        &self,
        tenant: &str,
        bytes: &[u8],
        manifest: Manifest,
    ) -> Result<Integration, Rejection> {
        let key = self.0.key(bytes, &manifest)?;
        let compile = |compilation: Compilation, turn: Turn| async {
            let _turn = turn;
            compilation.finish(self.0.compile(key, bytes))
        };
        let compiled = block_on(self.0.find_or_compile(key, tenant, compile))?;
        self.0.integration(compiled, manifest)
    }

    /// As [`Host::load`], compiled on one of a few threads of the host, so that a slow compilation
    /// blocks neither the caller's threads nor those that execute guests. If the future is dropped, a
    /// compilation that has begun continues, for callers that load the same bytes later. Any executor
    /// may poll it.
    ///
    /// # Errors
    /// As [`Host::load`].
    pub async fn load_async(
        &self,
        bytes: impl Into<Arc<[u8]>>,
        manifest: Manifest,
    ) -> Result<Integration, Rejection> {
        self.load_async_for(NO_TENANT, bytes, manifest).await
    }

    /// As [`Host::load_async`], on behalf of `tenant` ([`Host::load_for`]).
    ///
    /// # Errors
    /// As [`Host::load`].
    pub async fn load_async_for(
        &self,
        tenant: &str,
        bytes: impl Into<Arc<[u8]>>,
        manifest: Manifest,
    ) -> Result<Integration, Rejection> {
        let bytes = bytes.into();
        let key = self.0.key(&bytes, &manifest)?;
        let compile = |compilation: Compilation, turn: Turn| {
            let inner = Arc::clone(&self.0);
            let compiling = self.0.executor.handle().spawn_blocking(move || {
                let _turn = turn;
                compilation.finish(inner.compile(key, &bytes))
            });
            async { compiling.await.unwrap_or_else(|_| Err(compiler_panicked())) }
        };
        let compiled = self.0.find_or_compile(key, tenant, compile).await?;
        self.0.integration(compiled, manifest)
    }
}

impl Inner {
    /// Checks what can be checked before anything is compiled.
    fn key(&self, bytes: &[u8], manifest: &Manifest) -> Result<Key, Rejection> {
        let kind = module::Kind::of(bytes);
        let allowed = kind.allowed_bytes(&manifest.limits);
        if bytes.len() as u64 > allowed {
            return Err(rejection(
                RejectionKind::ModuleTooLarge,
                format!("{kind} has {} bytes, and {allowed} are allowed", bytes.len()),
            ));
        }
        check_module(manifest, bytes)?;
        let has_fuel = manifest.limits.fuel.is_some();
        let fits = manifest.limits.memory_bytes <= self.shared.settings.slot_memory_bytes;
        let metering = if has_fuel { Metering::Fuel } else { Metering::Unmetered };
        // Until the bytes are read.
        let concurrency = Concurrency::OneCall;
        // Baseline code counts less fuel for bulk instructions.
        let may_be_baseline =
            !has_fuel && manifest.limits.memory_bytes <= module::BASELINE_MEMORY_BYTES;
        let tier = match may_be_baseline && self.compiler.begins_with_baseline(bytes) {
            true => Tier::Baseline,
            false => Tier::Optimizing,
        };
        let engine = EngineKind {
            target: Target { metering, concurrency, tier },
            allocation: if fits { Allocation::Pooled } else { Allocation::OnDemand },
        };
        Ok((ModuleHash::of(bytes), engine))
    }

    /// Finds the module of `key`, or calls `compile` when it is the turn of `tenant`.
    async fn find_or_compile<C: Future<Output = CompileResult>>(
        &self,
        key: Key,
        tenant: &str,
        compile: impl FnOnce(Compilation, Turn) -> C,
    ) -> CompileResult {
        let tenant = Arc::from(tenant);
        loop {
            match self.in_progress.find(key, &tenant, || self.modules.find(key)) {
                Found::Compiled(compiled) => return Ok(compiled),
                Found::Missing(compilation) => {
                    let turn = self.turns.take(&tenant).await;
                    return compile(compilation, turn).await;
                }
                Found::InProgress(pending) => {
                    if let Some(result) = pending.wait().await {
                        return result;
                    }
                }
            }
        }
    }

    /// Compiles `bytes`, and keeps the result. What is too large for a slot of the pool is compiled
    /// for an engine without one.
    fn compile(&self, key: Key, bytes: &[u8]) -> CompileResult {
        // While this caller waited for its turn, another tenant may have compiled it.
        if let Some(compiled) = self.modules.find(key) {
            return Ok(compiled);
        }
        let slot_memory_bytes = sandbox::slot_memory_bytes(&self.shared.settings);
        let engine = module::engine_for(key.1, bytes, slot_memory_bytes);
        let module = (key.0, bytes);
        let baseline = match engine.target.tier {
            Tier::Baseline => self.compile_baseline(engine, module),
            Tier::Optimizing => None,
        };
        let compiled = match baseline {
            Some(compiled) => compiled?,
            None => {
                let target = Target { tier: Tier::Optimizing, ..engine.target };
                let engine = self.with_or_without_pool(EngineKind { target, ..engine });
                self.compile_for_either(engine, module)?
            }
        };
        let is_pack = matches!(compiled.code, module::Code::NodePack(_));
        if compiled.sandbox.kind.allocation == Allocation::OnDemand && !is_pack {
            tracing::warn!(
                module = %compiled.hash,
                "the module may be larger than a slot of the pool (in memories, tables, modules, component instances, \
                 globals or granted memory), so it runs on demand, which is slower"
            );
        }
        Ok(self.modules.add(key, compiled))
    }

    /// `engine`, or the same without a pool if the system has no room for a second one, because that of
    /// the other guests is large.
    fn with_or_without_pool(&self, engine: EngineKind) -> EngineKind {
        let is_second = engine.target.concurrency == Concurrency::SeveralCalls;
        if is_second
            && engine.allocation == Allocation::Pooled
            && let Err(error) = self.sandboxes.get_or_make(engine)
        {
            tracing::warn!(
                "asynchronous components run on demand, which is slower, because there is no room \
                 for their pool: {error:#}"
            );
            return EngineKind { allocation: Allocation::OnDemand, ..engine };
        }
        engine
    }

    /// Compiles `bytes` by the baseline compiler. `None` if they have to be compiled with optimizations, or
    /// have been.
    fn compile_baseline(
        &self,
        engine: EngineKind,
        (hash, bytes): (ModuleHash, &[u8]),
    ) -> Option<CompileAttempt> {
        let optimizing = Target { tier: Tier::Optimizing, ..engine.target };
        let entry =
            Entry::of(&sandbox::engine_to_compile(optimizing).ok()?, hash, module::Kind::of(bytes));
        if self.compiled_folder.as_ref().is_some_and(|folder| folder.has(&entry)) {
            return None;
        }
        let on_demand = EngineKind { allocation: Allocation::OnDemand, ..engine };
        // There is none on some processors, and no room for a second pool on some machines.
        let usable = |engine: &EngineKind| self.sandboxes.get_or_make(*engine).is_ok();
        let engine = [engine, on_demand].into_iter().find(usable)?;
        match self.compile_for_either(engine, (hash, bytes)) {
            Ok(compiled) => {
                tracing::info!(
                    module = %hash,
                    "the module's code is that of the baseline compiler, which is slower"
                );
                Some(Ok(compiled))
            }
            // The optimizing compiler takes more of everything.
            Err(why)
                if [RejectionKind::CompileLimit, RejectionKind::HostUnavailable]
                    .contains(&why.kind) =>
            {
                Some(Err(why))
            }
            Err(why) => {
                tracing::debug!(module = %hash, "not compiled by the baseline compiler: {}", why.message);
                None
            }
        }
    }

    /// Compiles `bytes` for `engine`, or without a pool if they are too large for a slot of it.
    fn compile_for_either(
        &self,
        engine: EngineKind,
        module: (ModuleHash, &[u8]),
    ) -> CompileAttempt {
        let compiled = match (engine.allocation, self.compile_for(engine, module, None)) {
            (Allocation::Pooled, Err(NotCompiled::TooLargeForSlot(_, compiled))) => {
                let on_demand = EngineKind { allocation: Allocation::OnDemand, ..engine };
                self.compile_for(on_demand, module, Some(&compiled))
            }
            (_, compiled) => compiled,
        };
        compiled.map_err(NotCompiled::rejection)
    }

    fn compile_for(
        &self,
        engine: EngineKind,
        module: (ModuleHash, &[u8]),
        compiled_before: Option<&CompiledBefore>,
    ) -> Result<module::Compiled, NotCompiled> {
        let sandbox = self.sandboxes.for_module(engine)?;
        let compiling = Compiling {
            compiler: &self.compiler,
            closed: &self.closed,
            compiled_before,
            folder: self.compiled_folder.as_ref(),
            metrics: &self.shared.telemetry.metrics,
            clock: &*self.shared.clock,
        };
        module::compile(sandbox, module, compiling)
    }

    fn integration(
        &self,
        compiled: Arc<module::Compiled>,
        manifest: Manifest,
    ) -> Result<Integration, Rejection> {
        module::check_functions(&compiled, &manifest)?;
        module::check_limits(&compiled, &manifest.limits, self.shared.settings.max_memory_bytes)?;
        let grants = Arc::new(self.grants(&manifest, &compiled));
        let counts_as = IntegrationKey::of(&manifest);
        Ok(Integration { compiled, manifest: Arc::new(manifest), grants, counts_as })
    }
}

fn compiler_panicked() -> Rejection {
    rejection(RejectionKind::InvalidModule, "the compiler failed on the module")
}

/// Waits for `future` on this thread, even if it is a thread of an async runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}
