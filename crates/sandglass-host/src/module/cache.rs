//! Keeps what was compiled for the next load of the same bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::ModuleHash;

use super::Compiled;
use crate::sandbox::Metering;

/// Compiled modules, by the hash of their bytes. The one that was used longest
/// ago makes room.
pub(crate) struct ModuleCache {
    capacity: usize,
    held: Mutex<Held>,
}

type Key = (ModuleHash, Metering);

#[derive(Default)]
struct Held {
    modules: BTreeMap<Key, (u64, Arc<Compiled>)>,
    uses: u64,
}

impl ModuleCache {
    pub(crate) fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), held: Mutex::default() }
    }

    pub(crate) fn find(&self, key: Key) -> Option<Arc<Compiled>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.uses += 1;
        let now = held.uses;
        let (used, module) = held.modules.get_mut(&key)?;
        *used = now;
        Some(Arc::clone(module))
    }

    /// Keeps `module`; where somebody else was sooner, that one is kept and answered.
    pub(crate) fn keep(&self, module: Compiled) -> Arc<Compiled> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        held.uses += 1;
        let now = held.uses;
        let key = (module.hash, module.metering);
        let (_, kept) = held.modules.entry(key).or_insert_with(|| (now, Arc::new(module)));
        let kept = Arc::clone(kept);
        if held.modules.len() > self.capacity {
            let oldest =
                held.modules.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                held.modules.remove(&oldest);
            }
        }
        kept
    }
}
