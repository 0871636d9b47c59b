//! Bounds the spawned entities of each tenant that have something to do: entities that spawn others again
//! and again would grow in number until the host has no memory left.
//!
//! An entity counts from the moment when it is to be created until it has come to rest, so a chain of
//! entities that each spawn the next one may continue forever. If a tenant has too many, those that counted
//! at that time spawn nothing for [`PAUSE`]. Without that pause, each one that comes to rest would be replaced,
//! and the number of all entities would grow for as long as the disk has space.
//!
//! Nothing of this is recorded, except for the refusals: a restart counts the entities that it finds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Entity;
use sandglass_model::Monotonic;

/// How many spawned entities of one tenant may have something to do by default. One that is awake takes
/// about 20 KiB, so these take some 200 MiB.
pub const BUSY_SPAWNED_MAX: u32 = 10_000;
/// Most first actions in a row that spawn entities: no entity of such a chain has anything to wait for, so
/// an endless one would be as fast as the disk.
const FIRST_ACTIONS_MAX: u32 = 256;
/// An entity whose next timer fires within this time has something to do. Otherwise entities that spawn
/// others by short timers would hardly count, because they sleep in between.
const SOON: Duration = Duration::from_secs(60);
/// How long entities spawn nothing after their tenant had too many. It is longer than most handlers take,
/// so entities that spawn their own type as they end have come to rest by then.
const PAUSE: Duration = Duration::from_secs(600);

/// Counts the spawned entities that have something to do.
#[derive(Debug)]
pub(crate) struct SpawnQuota {
    max: u32,
    tenants: Mutex<BTreeMap<String, Tenant>>,
}

/// A tenant with entities that count.
#[derive(Debug, Default)]
struct Tenant {
    busy: u32,
    /// When it last had too many.
    exceeded_at: Option<Monotonic>,
}

/// Counts one spawned entity until it is dropped.
#[derive(Debug)]
pub(crate) struct SpawnSlot {
    quota: Arc<SpawnQuota>,
    tenant: String,
    since: Monotonic,
    /// How many first actions in a row led to what the entity spawns now.
    first_actions: u32,
}

/// What counts of the entity that spawns another one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lineage {
    /// How many first actions in a row led to what it spawns now.
    pub(crate) first_actions: u32,
    /// Since when it has counted.
    pub(crate) since: Monotonic,
}

impl SpawnSlot {
    pub(crate) const fn lineage(&self) -> Lineage {
        Lineage { first_actions: self.first_actions, since: self.since }
    }
}

impl SpawnQuota {
    pub(crate) fn new(max: u32) -> Arc<Self> {
        Arc::new(Self { max, tenants: Mutex::default() })
    }

    fn tenants(&self) -> MutexGuard<'_, BTreeMap<String, Tenant>> {
        // No code between two changes of one critical section can panic.
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an entity that is to be created for `tenant`; `None` if it must not be spawned. `parent` is
    /// the lineage of the entity that spawns it, if that counts.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        tenant: &str,
        parent: Option<Lineage>,
        now: Monotonic,
    ) -> Option<SpawnSlot> {
        let first_actions = parent.map_or(0, |parent| parent.first_actions);
        if first_actions >= FIRST_ACTIONS_MAX.min(self.max) {
            return None;
        }
        let mut tenants = self.tenants();
        if let Some(of_tenant) = tenants.get_mut(tenant) {
            let paused_since = of_tenant.exceeded_at.filter(|at| now < at.after(PAUSE));
            if of_tenant.busy >= self.max {
                if paused_since.is_none() {
                    warn_of_too_many(tenant, self.max);
                }
                of_tenant.exceeded_at = Some(now);
                return None;
            }
            if parent.zip(paused_since).is_some_and(|(parent, at)| parent.since <= at) {
                return None;
            }
        }
        let mut slot = self.count(&mut tenants, tenant, now);
        slot.first_actions = first_actions + 1;
        Some(slot)
    }

    fn count(
        self: &Arc<Self>,
        tenants: &mut BTreeMap<String, Tenant>,
        tenant: &str,
        since: Monotonic,
    ) -> SpawnSlot {
        tenants.entry(tenant.to_owned()).or_default().busy += 1;
        let (quota, tenant) = (Arc::clone(self), tenant.to_owned());
        SpawnSlot { quota, tenant, since, first_actions: 0 }
    }

    /// The slot of `entity`, whose next timer fires at `next_timer`, in place of the one that it has;
    /// `None` if it does not count.
    pub(crate) fn follow(
        self: &Arc<Self>,
        slot: Option<SpawnSlot>,
        entity: &Entity,
        next_timer: Monotonic,
        now: Monotonic,
    ) -> Option<SpawnSlot> {
        entity.spawned_by()?;
        if entity.is_at_rest() && next_timer > now.after(SOON) {
            return None;
        }
        let mut slot = slot.unwrap_or_else(|| self.count(&mut self.tenants(), &entity.tenant, now));
        if entity.spawning().len() == 0 {
            slot.first_actions = 0;
        }
        Some(slot)
    }
}

fn warn_of_too_many(tenant: &str, max: u32) {
    tracing::warn!(
        tenant,
        max,
        "the tenant has too many spawned entities that have something to do; further spawns are \
         refused, and these entities spawn nothing for 10 minutes. If that many are intended, raise \
         `max_busy_spawned_per_tenant`"
    );
}

impl Drop for SpawnSlot {
    fn drop(&mut self) {
        let mut tenants = self.quota.tenants();
        if let Some(of_tenant) = tenants.get_mut(&self.tenant) {
            of_tenant.busy = of_tenant.busy.saturating_sub(1);
            if of_tenant.busy == 0 {
                tenants.remove(&self.tenant);
            }
        }
    }
}
