//! A bounded cache of the host, in which an integration keeps bytes from run to run, separately for
//! each tenant. Entries may disappear at any time. If the cache is full, entries of the tenant with
//! the most are evicted, so that no tenant evicts the entries of one with less.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use sandglass_model::ModuleHash;

use crate::covered;
use crate::opaque::opaque;
use crate::sync::lock;

/// Most entries: their keys and indexes occupy some megabytes besides the values.
const ENTRIES_MAX: usize = 10_000;

/// The part of the cache that one scope may use: one in this many.
const SHARE: u64 = 4;

/// What an entry counts besides its key and value, in bytes.
const OVERHEAD_BYTES: u64 = 128;

/// Longest key, in bytes: a name.
const KEY_MAX_BYTES: usize = 256;

/// The owner of entries. No other tenant, integration or module can read them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Scope {
    /// The tenant.
    pub tenant: Arc<str>,
    /// The integration.
    pub integration: Arc<str>,
    /// The hash of the module.
    pub module: ModuleHash,
}

/// Why the cache refuses an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The key has too many bytes: this many.
    #[error("a key has from 1 to {KEY_MAX_BYTES} bytes, and this one has {0}")]
    InvalidKey(usize),
    /// The value is larger than the share of one integration, in bytes.
    #[error("the cache takes at most {0} bytes of one integration")]
    TooLarge(u64),
}

/// The cache of one host.
pub struct Cache {
    max_bytes: u64,
    entries: Mutex<Entries>,
}

type Key = (Scope, String);

#[derive(Default)]
struct Entries {
    tenants: BTreeMap<Arc<str>, TenantEntries>,
    bytes: u64,
    count: usize,
    uses: u64,
}

/// The entries of one tenant.
#[derive(Default)]
struct TenantEntries {
    values: BTreeMap<Key, (Bytes, u64)>,
    /// Keys by when they were last used.
    by_use: BTreeMap<u64, Key>,
    bytes_of: BTreeMap<Scope, u64>,
    bytes: u64,
}

/// The part of a cache that one run can use.
#[derive(Clone, Debug)]
pub struct CacheView {
    cache: Arc<Cache>,
    scope: Scope,
}

// Entries are charged to the tenant.
covered!(CacheView: cache, scope);

impl Cache {
    /// Creates an empty cache of at most `max_bytes`.
    pub fn new(max_bytes: u64) -> Self {
        Self { max_bytes, entries: Mutex::default() }
    }

    /// The part of the cache for runs of `scope`.
    pub fn view(self: &Arc<Self>, scope: Scope) -> CacheView {
        CacheView { cache: Arc::clone(self), scope }
    }
}

opaque!(Cache as "Cache" { max_bytes });

impl CacheView {
    /// Whether there is an entry for `key`.
    ///
    /// # Errors
    /// The key is invalid; likewise below.
    pub fn contains(&self, key: &str) -> Result<bool, CacheError> {
        let key = self.key(key)?;
        let held = lock(&self.cache.entries);
        let own = held.tenants.get(&self.scope.tenant);
        Ok(own.is_some_and(|own| own.values.contains_key(&key)))
    }

    /// Returns the value of `key`, if it is still there.
    pub fn find(&self, key: &str) -> Result<Option<Bytes>, CacheError> {
        let key = self.key(key)?;
        let mut held = lock(&self.cache.entries);
        held.uses += 1;
        let use_number = held.uses;
        let Some(own) = held.tenants.get_mut(&self.scope.tenant) else { return Ok(None) };
        let Some((bytes, used)) = own.values.get_mut(&key) else { return Ok(None) };
        own.by_use.remove(used);
        *used = use_number;
        own.by_use.insert(use_number, key);
        Ok(Some(bytes.clone()))
    }

    /// Stores `bytes` under `key`, and evicts the least recently used entries if necessary.
    ///
    /// # Errors
    /// They exceed the share of one scope.
    pub fn keep(&self, key: &str, bytes: Bytes) -> Result<(), CacheError> {
        let key = self.key(key)?;
        let cost = cost(&key, &bytes);
        let share = self.cache.max_bytes / SHARE;
        if cost > share {
            return Err(CacheError::TooLarge(share));
        }
        let mut held = lock(&self.cache.entries);
        held.remove(&key);
        while held.bytes_of(&self.scope) + cost > share {
            held.remove_oldest(&self.scope.tenant, |(scope, _)| *scope == self.scope);
        }
        while held.bytes + cost > self.cache.max_bytes {
            let Some(most) = held.tenant_with_most(|own| own.bytes) else { break };
            held.remove_oldest(&most, |_| true);
        }
        while held.count >= ENTRIES_MAX {
            let Some(most) = held.tenant_with_most(|own| own.values.len() as u64) else { break };
            held.remove_oldest(&most, |_| true);
        }
        held.insert(key, bytes, cost);
        Ok(())
    }

    fn key(&self, key: &str) -> Result<Key, CacheError> {
        match key.len() {
            1..=KEY_MAX_BYTES => Ok((self.scope.clone(), key.to_owned())),
            len => Err(CacheError::InvalidKey(len)),
        }
    }
}

fn cost((scope, key): &Key, bytes: &Bytes) -> u64 {
    let names = scope.tenant.len() + scope.integration.len() + key.len();
    (names + bytes.len()) as u64 + OVERHEAD_BYTES
}

impl Entries {
    fn bytes_of(&self, scope: &Scope) -> u64 {
        let own = self.tenants.get(&scope.tenant);
        own.and_then(|own| own.bytes_of.get(scope)).copied().unwrap_or(0)
    }

    /// The tenant with the most, by this measure.
    fn tenant_with_most(&self, measure: impl Fn(&TenantEntries) -> u64) -> Option<Arc<str>> {
        let most = self.tenants.iter().max_by_key(|(_, own)| measure(own));
        most.map(|(tenant, _)| Arc::clone(tenant))
    }

    /// Adds an entry as the most recently used one.
    fn insert(&mut self, key: Key, bytes: Bytes, cost: u64) {
        self.uses += 1;
        self.bytes += cost;
        self.count += 1;
        let own = self.tenants.entry(Arc::clone(&key.0.tenant)).or_default();
        own.bytes += cost;
        *own.bytes_of.entry(key.0.clone()).or_default() += cost;
        own.by_use.insert(self.uses, key.clone());
        own.values.insert(key, (bytes, self.uses));
    }

    fn remove(&mut self, key: &Key) {
        let Some(own) = self.tenants.get_mut(&key.0.tenant) else { return };
        let Some((bytes, used)) = own.values.remove(key) else { return };
        let cost = cost(key, &bytes);
        own.by_use.remove(&used);
        own.bytes -= cost;
        self.bytes -= cost;
        self.count -= 1;
        if let Some(of_scope) = own.bytes_of.get_mut(&key.0) {
            *of_scope -= cost;
            if *of_scope == 0 {
                own.bytes_of.remove(&key.0);
            }
        }
        if own.values.is_empty() {
            self.tenants.remove(&key.0.tenant);
        }
    }

    fn remove_oldest(&mut self, tenant: &str, of: impl Fn(&Key) -> bool) {
        let own = self.tenants.get(tenant);
        let oldest = own.and_then(|own| own.by_use.values().find(|key| of(key)).cloned());
        if let Some(key) = oldest {
            self.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(tenant: &str, integration: &str, module: &[u8]) -> Scope {
        let module = ModuleHash::of(module);
        Scope { tenant: tenant.into(), integration: integration.into(), module }
    }

    #[test]
    fn entries_are_private_to_their_tenant_integration_and_module() {
        let cache = Arc::new(Cache::new(1 << 20));
        let own = cache.view(scope("a", "x", b"1"));
        own.keep("k", Bytes::from_static(b"mine")).expect("small");
        for other in [scope("b", "x", b"1"), scope("a", "y", b"1"), scope("a", "x", b"2")] {
            let other = cache.view(other);
            assert_eq!((other.contains("k"), other.find("k")), (Ok(false), Ok(None)));
            other.keep("k", Bytes::from_static(b"theirs")).expect("small");
        }
        let found = cache.view(scope("a", "x", b"1")).find("k");
        assert_eq!(found, Ok(Some(Bytes::from_static(b"mine"))));
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted_first() {
        let cache = Arc::new(Cache::new(4 * 2000));
        let view = cache.view(scope("a", "x", b"1"));
        for key in ["1", "2"] {
            view.keep(key, Bytes::from(vec![0; 800])).expect("it fits a share");
        }
        assert!(matches!(view.find("1"), Ok(Some(_))), "now 2 is the older");
        view.keep("3", Bytes::from(vec![0; 800])).expect("it fits a share");
        assert_eq!(["1", "2", "3"].map(|key| view.contains(key)), [Ok(true), Ok(false), Ok(true)]);
        assert_eq!(view.keep("4", Bytes::from(vec![0; 2000])), Err(CacheError::TooLarge(2000)));
    }

    #[test]
    fn keys_are_bounded() {
        let view = Arc::new(Cache::new(1 << 20)).view(scope("a", "x", b"1"));
        for key in [String::new(), "x".repeat(KEY_MAX_BYTES + 1)] {
            let refused = CacheError::InvalidKey(key.len());
            assert_eq!(view.keep(&key, Bytes::new()), Err(refused));
            assert_eq!((view.find(&key), view.contains(&key)), (Err(refused), Err(refused)));
        }
        assert_eq!(view.keep(&"x".repeat(KEY_MAX_BYTES), Bytes::new()), Ok(()));
    }

    #[test]
    fn one_scope_takes_no_more_than_its_share() {
        let cache = Arc::new(Cache::new(4 * 2000));
        let calm = cache.view(scope("calm", "x", b"1"));
        calm.keep("k", Bytes::from(vec![0; 800])).expect("it fits a share");
        let flood = cache.view(scope("flood", "x", b"1"));
        for nth in 0..1000 {
            flood.keep(&nth.to_string(), Bytes::from(vec![0; 100])).expect("small");
        }
        assert_eq!(calm.contains("k"), Ok(true));
        let held = lock(&cache.entries);
        assert!(held.bytes <= 2 * 2000);
        assert!(held.tenants.values().all(|own| own.values.len() == own.by_use.len()));
    }

    #[test]
    fn no_tenant_evicts_entries_of_one_with_less() {
        let cache = Arc::new(Cache::new(4 * 2000));
        let calm = cache.view(scope("calm", "x", b"1"));
        calm.keep("k", Bytes::from(vec![0; 800])).expect("it fits a share");
        for nth in 0_u32..1000 {
            let module = nth.to_le_bytes();
            let flood = cache.view(scope("flood", &format!("x{nth}"), &module));
            flood.keep("k", Bytes::from(vec![0; 800])).expect("it fits a share");
        }
        assert_eq!(calm.contains("k"), Ok(true), "whatever integrations and modules it has");
        let other = cache.view(scope("other", "x", b"1"));
        other.keep("k", Bytes::from(vec![0; 1500])).expect("it fits a share");
        assert_eq!((calm.contains("k"), other.contains("k")), (Ok(true), Ok(true)));
    }

    #[test]
    fn no_tenant_evicts_others_by_many_small_values() {
        let cache = Arc::new(Cache::new(1 << 30));
        let calm = cache.view(scope("calm", "x", b"1"));
        calm.keep("k", Bytes::new()).expect("small");
        let flood = cache.view(scope("flood", "x", b"1"));
        for nth in 0..2 * ENTRIES_MAX {
            flood.keep(&nth.to_string(), Bytes::new()).expect("small");
        }
        assert_eq!(calm.contains("k"), Ok(true));
        assert_eq!(lock(&cache.entries).count, ENTRIES_MAX);
    }

    #[test]
    fn totals_are_right_after_values_are_replaced_and_scopes_vanish() {
        let cache = Arc::new(Cache::new(4 * 1000));
        for nth in 0..100 {
            let view = cache.view(scope(&nth.to_string(), "x", b"1"));
            view.keep("k", Bytes::from(vec![0; 300])).expect("it fits a share");
            view.keep("k", Bytes::from(vec![0; 500])).expect("it fits a share");
        }
        let held = lock(&cache.entries);
        let all = || held.tenants.values();
        let values = all().flat_map(|own| &own.values);
        let bytes: u64 = values.map(|(key, (bytes, _))| cost(key, bytes)).sum();
        let of_scopes: u64 = all().flat_map(|own| own.bytes_of.values()).sum();
        let of_tenants: u64 = all().map(|own| own.bytes).sum();
        assert_eq!((held.bytes, of_scopes, of_tenants), (bytes, bytes, bytes));
        assert_eq!(all().map(|own| own.values.len()).sum::<usize>(), held.count);
        assert!(all().all(|own| !own.values.is_empty() && own.bytes_of.len() == own.values.len()));
    }
}
