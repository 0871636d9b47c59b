//! The entities that an entity spawns: they are created once the transition that spawns them is
//! durable, and what became of each is recorded.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sandglass_journal as journal;
use sandglass_liveness::{Input, SpawnEnd};
use sandglass_model::{Sequence, Spawn, SpawnObstacle, SpawnResult};

use super::reservations::Reservations;
use super::{Actor, Ownership};
use crate::error::ActorError;
use crate::quota::SpawnSlot;
use crate::runtime::Runtime;
use crate::spawning::SpawnEnded;

/// The wait before entities of other hosts are tried again: their partitions may come to this one.
const ELSEWHERE_AGAIN: Duration = Duration::from_millis(500);

impl Actor {
    /// Creates the entities that it spawns, and records that. What the journal does not take is tried
    /// again later; an entity that exists by then is recognized by the spawn that it names.
    pub(super) async fn create_spawned(&mut self) {
        if self.entity.spawning().len() == 0 {
            self.spawns_again = None;
            return;
        }
        if self.ownership != Ownership::Owner
            || self.is_closing
            || self.pending.retry_at().is_some()
            || self.spawns_again.is_some_and(|at| at > self.shared.clock.now())
        {
            return;
        }
        self.spawns_again = None;
        let runtime = self.shared.runtime.borrow().as_ref().and_then(std::sync::Weak::upgrade);
        let Some(runtime) = runtime.map(Runtime) else { return };
        let spawning = self.entity.spawning();
        let spawning: Vec<(Sequence, Arc<Spawn>)> =
            spawning.map(|(spawned_at, spawn)| (spawned_at, Arc::clone(spawn))).collect();
        let (shared, parent, runtime) = (&*self.shared, &self.entity, &runtime);
        let lineage = self.spawn_slot.as_ref().map(SpawnSlot::lineage);
        let decided_at = shared.clock.wall();
        let created = spawning.iter().map(|(spawned_at, spawn)| async move {
            shared.wait_behind(decided_at, &parent.entity, &spawn.entity).await;
            let origin = parent.origin_of(*spawned_at, spawn);
            let created = runtime.create_spawned(spawn, origin, &parent.tenant, lineage).await;
            let created_at = created.as_ref().ok().and_then(|ended| ended.created_at);
            if let Some(at) = created_at {
                shared.wait_behind(at, &spawn.entity, &parent.entity).await;
            }
            created
        });
        let created = join_all(created).await;
        let (mut inputs, mut failed, mut held) = (Vec::new(), None, Vec::new());
        let mut is_elsewhere = false;
        for ((spawned_at, spawn), created) in spawning.into_iter().zip(created) {
            let result = match created {
                Ok(SpawnEnded { result, view, .. }) => {
                    held.extend(view);
                    result
                }
                Err(ActorError::JournalUnavailable { what }) => {
                    failed = Some(what);
                    continue;
                }
                // The entity may exist, and cannot be read now.
                Err(ActorError::Journal(error @ journal::Error::Damaged { .. })) => {
                    failed = Some(error.to_string());
                    continue;
                }
                Err(ActorError::Journal(error)) => {
                    tracing::error!(
                        entity = %spawn.entity, parent = %self.entity.entity, %error,
                        "the journal refuses the records of a spawned entity; its parent records that"
                    );
                    SpawnResult::Refused(SpawnObstacle::NotRecorded)
                }
                Err(ActorError::Elsewhere(_)) => {
                    is_elsewhere = true;
                    continue;
                }
                // The runtime is shutting down: the next start creates it.
                Err(_) => continue,
            };
            inputs.push(Input::SpawnEnded(SpawnEnd { spawned_at, index: spawn.index, result }));
        }
        if !inputs.is_empty() {
            let at = self.shared.clock.wall();
            let (decided, _) = self.decide_all(inputs, at);
            if let Err(error) = self.commit(decided, Reservations::default(), at, None).await {
                let entity = &self.entity.entity;
                tracing::warn!(%entity, %error, "the ends of the spawns of an entity are not recorded; they are recorded later");
            }
        }
        if let Some(what) = failed {
            self.pending.failed(&what, self.shared.clock.now());
        }
        if is_elsewhere {
            self.spawns_again = Some(self.shared.clock.now().after(ELSEWHERE_AGAIN));
        }
    }

    /// Counts it among the spawned entities of its tenant while it has something to do.
    pub(super) fn count_spawned(&mut self) {
        let (slot, now) = (self.spawn_slot.take(), self.shared.clock.now());
        if self.ownership == Ownership::Owner {
            let next = self.timers.next();
            self.spawn_slot = self.shared.spawn_quota.follow(slot, &self.entity, next, now);
        }
    }

    /// Whether it spawns entities that cannot be created before all others are recovered.
    pub(super) fn awaits_recovery(&self) -> bool {
        self.entity.spawning().len() > 0 && self.shared.runtime.borrow().is_none()
    }
}
