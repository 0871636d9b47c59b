//! Keeps what was compiled for the next load of the same bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use sandglass_model::ModuleHash;

use super::Compiled;
use crate::sandbox::EngineKind;

/// Compiled modules, by the hash of their bytes. Each is here as long as an integration
/// has it. Beyond that, those that were used last are kept, up to a size: a module that
/// another version has replaced is gone sooner or later.
pub(crate) struct ModuleCache {
    max_bytes: u64,
    held: Mutex<Held>,
}

/// Which module, for which engine: the one that was asked for, which may not be the one
/// that it fits.
pub(crate) type Key = (ModuleHash, EngineKind);

#[derive(Default)]
struct Held {
    known: BTreeMap<Key, Weak<Compiled>>,
    /// The one that was used last is at the end.
    kept: Vec<Arc<Compiled>>,
}

impl ModuleCache {
    /// One that keeps modules of `max_bytes` together that nobody has any more.
    pub(crate) fn new(max_bytes: u64) -> Self {
        Self { max_bytes, held: Mutex::default() }
    }

    pub(crate) fn find(&self, key: Key) -> Option<Arc<Compiled>> {
        let mut held = self.lock();
        let module = held.known.get(&key)?.upgrade()?;
        held.used(&module, self.max_bytes);
        Some(module)
    }

    /// The module with this hash, whichever engine it was compiled for. It does not count as used.
    pub(crate) fn with_hash(&self, hash: ModuleHash) -> Option<Arc<Compiled>> {
        let held = self.lock();
        let mut known = held.known.iter().filter(|((known, _), _)| *known == hash);
        known.find_map(|(_, module)| module.upgrade())
    }

    /// Keeps `module`; where somebody else was sooner, that one is kept and answered.
    pub(crate) fn keep(&self, key: Key, module: Compiled) -> Arc<Compiled> {
        let mut held = self.lock();
        held.known.retain(|_, module| module.strong_count() > 0);
        let sooner = held.known.get(&key).and_then(Weak::upgrade);
        let module = sooner.unwrap_or_else(|| Arc::new(module));
        held.known.insert(key, Arc::downgrade(&module));
        held.used(&module, self.max_bytes);
        module
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // Each change is made whole before anything can panic.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Puts `module` at the end, and lets those go that are too many by then.
    fn used(&mut self, module: &Arc<Compiled>, max_bytes: u64) {
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
