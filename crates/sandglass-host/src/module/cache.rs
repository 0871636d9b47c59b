//! Keeps compiled modules for the next load of the same bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandglass_model::ModuleHash;

use super::Compiled;
use crate::sandbox::EngineKind;

/// Compiled modules, by the hash of their bytes. Each is here as long as an integration uses it. The
/// ones that were used last are kept beyond that, up to a size, so that a module that a new version
/// has replaced goes away.
pub(crate) struct ModuleCache {
    max_bytes: u64,
    modules: Mutex<Modules>,
}

/// Which module, and the engine that the caller needs, which may not be the one that it fits.
pub(crate) type Key = (ModuleHash, EngineKind);

#[derive(Default)]
struct Modules {
    known: BTreeMap<Key, Weak<Compiled>>,
    /// The one that was used last is at the end.
    kept: Vec<Arc<Compiled>>,
}

impl ModuleCache {
    /// Keeps modules that are not used any more, up to `max_bytes` together.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, modules: Mutex::default() }
    }

    pub(crate) fn find(&self, key: Key) -> Option<Arc<Compiled>> {
        let mut modules = self.lock();
        let module = modules.known.get(&key)?.upgrade()?;
        modules.mark_used(&module, self.max_bytes);
        Some(module)
    }

    /// The module with this hash, for whichever engine it was compiled. It does not count as used.
    pub(crate) fn with_hash(&self, hash: ModuleHash) -> Option<Arc<Compiled>> {
        let modules = self.lock();
        let mut known = modules.known.iter().filter(|((known, _), _)| *known == hash);
        known.find_map(|(_, module)| module.upgrade())
    }

    /// Keeps `module` and returns it; or the one that another caller has added before.
    pub(crate) fn add(&self, key: Key, module: Compiled) -> Arc<Compiled> {
        let mut modules = self.lock();
        modules.known.retain(|_, module| module.strong_count() > 0);
        let before = modules.known.get(&key).and_then(Weak::upgrade);
        let module = before.unwrap_or_else(|| Arc::new(module));
        modules.known.insert(key, Arc::downgrade(&module));
        modules.mark_used(&module, self.max_bytes);
        module
    }

    fn lock(&self) -> MutexGuard<'_, Modules> {
        // Each change is complete before anything can panic.
        self.modules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Modules {
    /// Moves `module` to the end, and removes from the beginning what does not fit any more.
    fn mark_used(&mut self, module: &Arc<Compiled>, max_bytes: u64) {
        self.kept.retain(|kept| !Arc::ptr_eq(kept, module));
        self.kept.push(Arc::clone(module));
        let mut bytes = 0_u64;
        let fitting = self.kept.iter().rev().take_while(|kept| {
            bytes = bytes.saturating_add(kept.code_bytes);
            bytes <= max_bytes
        });
        let fitting = fitting.count();
        self.kept.drain(..self.kept.len() - fitting);
    }
}
