//! Loads integrations: checks what is asked for, and has each module compiled once,
//! however many ask for it at a time.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use sandglass_model::{Allocation, ModuleHash, Rejection, RejectionKind};

use super::{Host, Inner};
use crate::detection::check_module;
use crate::integration::Integration;
use crate::module::{self, Boarding, Compiling, Made, MadeElsewhere, NotCompiled};
use crate::sandbox::{self, EngineKind, Metering};
use sandglass_supervisor::admission::IntegrationKey;
use sandglass_supervisor::manifest::Manifest;
use sandglass_supervisor::rejection::rejection;

type Key = module::Key;

/// The tenant of loads that name none.
const NO_TENANT: &str = "";

impl Host {
    /// Compiles `bytes`, text or binary, with the grants of `manifest`. Bytes that
    /// were loaded before are not compiled again, and who asks for those that are being
    /// compiled waits for that. It blocks for as long as compiling takes: seconds, for a
    /// module of some megabytes ([`Host::load_async`] doesn't).
    ///
    /// A host that runs modules of several tenants loads them by [`Host::load_for`].
    ///
    /// # Errors
    /// The bytes are no module that this host runs, or the manifest grants more
    /// than this host gives. The rejection says what, where, and what to do.
    pub fn load(&self, bytes: &[u8], manifest: Manifest) -> Result<Integration, Rejection> {
        self.load_for(NO_TENANT, bytes, manifest)
    }

    /// As [`Host::load`], on behalf of `tenant`. Of the few modules that are compiled at the
    /// same time, each tenant has its part, and the tenants that wait take turns: one whose
    /// modules take long delays its own modules only.
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
        let tenant = Arc::from(tenant);
        let compiled = loop {
            match self.0.board(key, &tenant) {
                Boarding::There(compiled) => break compiled,
                Boarding::First(flight) => {
                    let _turn = waited(self.0.turns.take(&tenant));
                    break flight.land(self.0.compile(key, bytes))?;
                }
                Boarding::Behind(other) => match waited(other.landed()) {
                    Some(made) => break made?,
                    None => continue,
                },
            }
        };
        self.0.integration(compiled, manifest)
    }

    /// As [`Host::load`], compiled on a thread of the host's own, of which there are few:
    /// neither the caller's threads nor those that run guests are held up by a slow
    /// compile. Dropping the future leaves a compile that has begun to those who ask next.
    /// Any executor may poll it.
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
        let tenant = Arc::from(tenant);
        let compiled = loop {
            match self.0.board(key, &tenant) {
                Boarding::There(compiled) => break compiled,
                Boarding::First(flight) => {
                    let turn = self.0.turns.take(&tenant).await;
                    let (inner, bytes) = (Arc::clone(&self.0), Arc::clone(&bytes));
                    let compiling = self.0.executor.handle().spawn_blocking(move || {
                        let _turn = turn;
                        flight.land(inner.compile(key, &bytes))
                    });
                    break compiling.await.unwrap_or_else(|_| Err(gave_up()))?;
                }
                Boarding::Behind(other) => match other.landed().await {
                    Some(made) => break made?,
                    None => continue,
                },
            }
        };
        self.0.integration(compiled, manifest)
    }
}

impl Inner {
    /// Checks what can be told before anything is compiled.
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
        let engine = EngineKind {
            metering: if has_fuel { Metering::Fuel } else { Metering::Unmetered },
            allocation: if fits { Allocation::Pooled } else { Allocation::OnDemand },
        };
        Ok((ModuleHash::of(bytes), engine))
    }

    fn board(&self, key: Key, tenant: &Arc<str>) -> Boarding {
        self.flights.board(key, tenant, || self.modules.find(key))
    }

    /// Compiles `bytes`, and keeps what comes of it. What is too large for a slot of the
    /// pool is compiled for an engine that has none; and so is a pack of nodes, whose runs have
    /// two stacks where a slot has one.
    fn compile(&self, key: Key, bytes: &[u8]) -> Made {
        // While this one waited for its turn, another tenant may have had it compiled.
        if let Some(compiled) = self.modules.find(key) {
            return Ok(compiled);
        }
        let on_demand = EngineKind { allocation: Allocation::OnDemand, ..key.1 };
        let slot_memory_bytes = sandbox::slot_memory_bytes(&self.shared.settings);
        let compiled = match key.1.allocation {
            Allocation::Pooled if module::needs_no_slot(bytes, slot_memory_bytes) => {
                self.compile_for(on_demand, bytes, None)
            }
            Allocation::Pooled => match self.compile_for(key.1, bytes, None) {
                Err(NotCompiled::TooLargeForSlot(_, made)) => {
                    self.compile_for(on_demand, bytes, Some(&made))
                }
                other => other,
            },
            Allocation::OnDemand => self.compile_for(key.1, bytes, None),
        };
        let compiled = compiled.map_err(NotCompiled::rejection)?;
        let is_pack = matches!(compiled.code, module::Code::NodePack(_));
        if compiled.sandbox.kind.allocation == Allocation::OnDemand && !is_pack {
            tracing::warn!(
                module = %compiled.hash,
                "the module may be larger than a slot of the pool (in memories, tables, modules, \
                 globals or granted memory), so it runs on demand, which is slower"
            );
        }
        Ok(self.modules.keep(key, compiled))
    }

    fn compile_for(
        &self,
        engine: EngineKind,
        bytes: &[u8],
        made: Option<&MadeElsewhere>,
    ) -> Result<module::Compiled, NotCompiled> {
        let sandbox = self.sandboxes.for_module(engine)?;
        let (folder, shared) = (self.compiled_folder.as_ref(), &self.shared);
        let (metrics, clock) = (&shared.telemetry.metrics, &*shared.clock);
        let (compiler, closed) = (&self.compiler, &self.closed);
        let how = Compiling { compiler, closed, made, folder, metrics, clock };
        module::compile(sandbox, bytes, how)
    }

    fn integration(
        &self,
        compiled: Arc<module::Compiled>,
        manifest: Manifest,
    ) -> Result<Integration, Rejection> {
        module::check_functions(&compiled, &manifest)?;
        module::check_limits(&compiled, &manifest.limits, self.shared.settings.max_memory_bytes)?;
        let grants = Arc::new(self.grants(&manifest));
        let counts_as = IntegrationKey::of(&manifest);
        Ok(Integration { compiled, manifest: Arc::new(manifest), grants, counts_as })
    }
}

/// Of a compile that panicked.
fn gave_up() -> Rejection {
    rejection(RejectionKind::InvalidModule, "the compiler failed on the module")
}

/// What `future` answers; this thread waits for it, whatever else it may be part of.
fn waited<T>(future: impl Future<Output = T>) -> T {
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
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}
