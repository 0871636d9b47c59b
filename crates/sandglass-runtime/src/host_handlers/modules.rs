//! The modules by name: each is compiled once, in the version that new dispatches use.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use sandglass_host::{DispatchLimits, Host, Integration, Manifest};
use sandglass_model::{ModuleHash, Rejection, RejectionKind};
use sandglass_source::shortened;

use crate::computed_once::ComputedOnce;
use crate::handlers::HandlerRun;

/// A module's bytes and grants.
#[derive(Clone, Debug)]
pub struct Module {
    bytes: Arc<[u8]>,
    hash: ModuleHash,
    manifest: Manifest,
}

impl Module {
    /// A module of these bytes, text or binary, with these grants. Hashes the bytes, which takes a
    /// while if they are many.
    #[must_use]
    pub fn new(bytes: impl Into<Arc<[u8]>>, manifest: Manifest) -> Self {
        let bytes = bytes.into();
        Self { hash: ModuleHash::of(&bytes), bytes, manifest }
    }

    /// Replaces the grants.
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

/// The modules by name, in the version that new dispatches use: as many as the embedder has named.
#[derive(Debug, Default)]
pub(super) struct Modules(RwLock<BTreeMap<String, Arc<Loadable>>>);

/// Longest name in a message, in characters.
const QUOTED_CHARS: usize = 200;

/// One version of a module, compiled when it is first needed.
#[derive(Debug)]
pub(super) struct Loadable {
    pub(super) module: Module,
    loaded: ComputedOnce<Result<Integration, Rejection>>,
    /// Compiled to count fuel, for integrations that limit it although the manifest does not.
    metered: ComputedOnce<Result<Integration, Rejection>>,
}

impl Loadable {
    pub(super) fn of(module: Module) -> Arc<Self> {
        let (loaded, metered) = (ComputedOnce::new(is_kept), ComputedOnce::new(is_kept));
        Arc::new(Self { module, loaded, metered })
    }

    /// The integration, compiled on behalf of `tenant` if it was not yet. If the host cannot
    /// compile at the moment, the next call tries again. It counts fuel if its manifest or `limits`
    /// set fuel.
    pub(super) async fn load(
        &self,
        host: &Host,
        name: &str,
        tenant: &str,
        limits: &DispatchLimits,
    ) -> Result<Integration, Rejection> {
        let is_metered = limits.fuel.is_some() && self.module.manifest.limits.fuel.is_none();
        let loaded = if is_metered { &self.metered } else { &self.loaded };
        if let Some(loaded) = loaded.present() {
            return loaded;
        }
        let (host, mut module, tenant) = (host.clone(), self.module.clone(), tenant.to_owned());
        if is_metered {
            module.manifest.limits.fuel = Some(u64::MAX);
        }
        let load = move || host.load_for(&tenant, &module.bytes, module.manifest);
        let loaded = loaded.value(load).await;
        loaded.unwrap_or_else(|| {
            let message = format!("compiling the module `{name}` failed in the compiler itself");
            Err(Rejection { kind: RejectionKind::InvalidModule, message })
        })
    }
}

/// Whether loading a module again would give the same result. A host that cannot compile at the
/// moment proves nothing about the module.
fn is_kept(loaded: &Result<Integration, Rejection>) -> bool {
    let rejection = loaded.as_ref().err();
    rejection.is_none_or(|rejection| rejection.kind != RejectionKind::HostUnavailable)
}

impl Modules {
    /// The integration of a handler, in the version that its record names: the reserved one, or
    /// else the present one.
    pub(super) async fn load(
        &self,
        host: &Host,
        run: &HandlerRun,
        kept: Option<Arc<Loadable>>,
        limits: &DispatchLimits,
    ) -> Result<Integration, Rejection> {
        let name = &*super::module_name(run)?;
        let recorded = run.dispatched.module_hash;
        let version = kept.or_else(|| self.named(name));
        let Some(version) = version else { return Err(self.unknown(name)) };
        match recorded {
            Some(recorded) if recorded != version.module.hash => Err(replaced(name)),
            _ => version.load(host, name, &run.tenant, limits).await,
        }
    }

    /// The version that new dispatches use.
    pub(super) fn named(&self, name: &str) -> Option<Arc<Loadable>> {
        self.read().get(name).cloned()
    }

    fn unknown(&self, name: &str) -> Rejection {
        // That of an adapter may come from a field.
        let name = shortened(name, QUOTED_CHARS);
        // What specs declare that is no module: see `Integration::module` of a spec.
        if let Some((kind, of)) = name.split_once(':') {
            let message = format!(
                "this host has no {kind} `{of}`: only an embedder can provide one, by `Handlers` \
                 that execute `{name}`, or by a module of that name"
            );
            return Rejection { kind: RejectionKind::UnknownModule, message };
        }
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

    pub(super) fn put(&self, modules: impl IntoIterator<Item = (String, Arc<Loadable>)>) {
        self.write().extend(modules);
    }

    pub(super) fn present(&self) -> Vec<(String, Arc<Loadable>)> {
        self.read().iter().map(|(name, present)| (name.clone(), Arc::clone(present))).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<String, Arc<Loadable>>> {
        // No code between two changes of one critical section can panic.
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<String, Arc<Loadable>>> {
        // As above.
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The version that a record names was not reserved for its handler.
fn replaced(name: &str) -> Rejection {
    let message = format!(
        "another version of the module `{name}` has taken the place of the one that the \
         dispatch names; dispatch it again"
    );
    Rejection { kind: RejectionKind::UnknownModule, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_an_embedder_can_execute_is_refused_with_its_name() {
        let rejection = Modules::default().unknown("adapter:http");
        assert_eq!(rejection.kind, RejectionKind::UnknownModule);
        assert!(rejection.message.starts_with("this host has no adapter `http`"), "{rejection}");
    }

    #[test]
    fn a_module_is_loaded_again_after_the_host_was_unavailable() {
        for (kind, kept) in
            [(RejectionKind::HostUnavailable, false), (RejectionKind::InvalidModule, true)]
        {
            let rejection = Rejection { kind, message: String::new() };
            assert_eq!(is_kept(&Err(rejection)), kept, "{kind:?}");
        }
    }
}
