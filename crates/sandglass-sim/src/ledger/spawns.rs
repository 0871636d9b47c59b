//! What became of each spawn: one entity, whose first record names the spawn, or a recorded refusal.

use std::collections::BTreeMap;

use sandglass_liveness::Entity;
use sandglass_model::{EntityRef, Event, Incarnation, Sequence, SpawnObstacle, TransitionCause};

use super::Finding;
use crate::invariant::Invariant;

/// The parent, its life, the sequence of the transition and the number within it.
type Key = (EntityRef, Incarnation, Sequence, u32);

#[derive(Debug)]
struct Record {
    child: EntityRef,
    has_action: bool,
    /// Why the child did not take its first action, once it is created.
    created: Option<Option<String>>,
    has_acted: bool,
    is_over: bool,
}

/// All spawns of a seed.
#[derive(Debug, Default)]
pub(crate) struct Spawns {
    spawns: BTreeMap<Key, Record>,
    /// The spawn of each spawned entity.
    by_child: BTreeMap<EntityRef, Key>,
    /// The spawned entities that have not come to rest since they were created, with their tenants.
    restless: BTreeMap<EntityRef, String>,
    /// How many spawned entities may have something to do.
    busy_max: usize,
    /// Whether more than that existed or were to be created at some time, so that there may have been too
    /// many: spawns are refused for some time after that, too. Which of them had something to do is not known
    /// here.
    was_full: bool,
}

impl Spawns {
    pub(crate) fn bounded(busy_max: u32) -> Self {
        let busy_max = usize::try_from(busy_max).unwrap_or(usize::MAX);
        Self { busy_max, ..Self::default() }
    }

    /// The task of an entity unwinds: it does not count until its entity is read from the log again.
    pub(crate) fn note_panic(&mut self, entity: &EntityRef) {
        self.restless.remove(entity);
    }

    /// Checks the bound after a batch of `entity`. Entities that come to rest and have something to do
    /// again may exceed it.
    pub(super) fn commit(&mut self, entity: &Entity) -> Finding {
        if entity.is_at_rest() {
            self.restless.remove(&entity.entity);
        }
        if let Some(tenant) = self.restless.get_mut(&entity.entity) {
            tenant.clone_from(&entity.tenant);
        }
        let of_tenant = self.restless.values().filter(|tenant| **tenant == entity.tenant);
        let (restless, max) = (of_tenant.count(), self.busy_max);
        (restless > max).then(|| {
            let what =
                format!("{restless} spawned entities have something to do, of at most {max}");
            (Invariant::SpawnedOnce, what)
        })
    }

    /// Checks the next record of `name`, which is `parent` before it; `exists` says whether there is an
    /// entity of a name.
    pub(super) fn record(
        &mut self,
        name: &EntityRef,
        parent: Option<&Entity>,
        event: &Event,
        exists: impl Fn(&EntityRef) -> bool,
    ) -> Finding {
        let key_of = |spawned_at, index| {
            parent.map(|parent| (name.clone(), parent.incarnation, spawned_at, index))
        };
        let what = match event {
            Event::Spawning(spawn) => {
                let key = key_of(parent?.sequence, spawn.index)?;
                let (child, has_action) = (spawn.entity.clone(), spawn.action.is_some());
                let (created, has_acted, is_over) = (None, false, false);
                let record = Record { child, has_action, created, has_acted, is_over };
                let doubled = self.spawns.insert(key, record);
                let spawned =
                    self.spawns.values().filter(|spawn| spawn.created.is_some() || !spawn.is_over);
                self.was_full |= spawned.count() > self.busy_max;
                doubled.map(|_| format!("{name} spawns {} twice", spawn.entity))
            }
            Event::Created { spawned_by: Some(by), .. } => {
                let key = (by.parent.clone(), by.incarnation, by.sequence, by.index);
                self.created(name, key, by.action_refused.as_ref())
            }
            Event::Transition { cause: TransitionCause::Spawned, .. } => {
                let spawn = self.by_child.get(name).and_then(|key| self.spawns.get_mut(key));
                match spawn {
                    Some(spawn) if spawn.has_action && !spawn.has_acted => {
                        spawn.has_acted = true;
                        None
                    }
                    _ => Some(format!("{name} takes a first action that no spawn gives it")),
                }
            }
            Event::Spawned { spawned_at, index, action_refused, .. } => {
                self.end(&key_of(*spawned_at, *index)?, |spawn| {
                    let takes = spawn.has_action && action_refused.is_none();
                    spawn.created.as_ref() == Some(action_refused) && takes == spawn.has_acted
                })
            }
            Event::SpawnRefused { spawned_at, index, reason, .. } => {
                let was_full = self.was_full;
                self.end(&key_of(*spawned_at, *index)?, |spawn| {
                    let is_true = match reason {
                        SpawnObstacle::Exists => exists(&spawn.child),
                        SpawnObstacle::TooMany => was_full,
                        SpawnObstacle::UnknownType | SpawnObstacle::NotRecorded => true,
                    };
                    spawn.created.is_none() && is_true
                })
            }
            _ => None,
        };
        what.map(|what| (Invariant::SpawnedOnce, what))
    }

    fn created(&mut self, name: &EntityRef, key: Key, refused: Option<&String>) -> Option<String> {
        match self.spawns.get_mut(&key) {
            Some(spawn) if spawn.child == *name && spawn.created.is_none() && !spawn.is_over => {
                spawn.created = Some(refused.cloned());
                self.by_child.insert(name.clone(), key);
                // Its tenant is added with the rest of the batch.
                self.restless.insert(name.clone(), String::new());
                None
            }
            spawn => Some(format!("{name} is created by {key:?}, of which is known: {spawn:?}")),
        }
    }

    /// Ends a spawn that has not ended, if what is recorded `is_true`.
    fn end(&mut self, key: &Key, is_true: impl FnOnce(&Record) -> bool) -> Option<String> {
        match self.spawns.get_mut(key) {
            Some(spawn) if !spawn.is_over && is_true(spawn) => {
                spawn.is_over = true;
                None
            }
            spawn => Some(format!("the end of {key:?} is not true: {spawn:?}")),
        }
    }

    /// A spawn that never ended.
    pub(super) fn close(&self) -> Finding {
        let open = self.spawns.iter().find(|(_, spawn)| !spawn.is_over);
        open.map(|(key, spawn)| (Invariant::SpawnedOnce, format!("{key:?} never ends: {spawn:?}")))
    }
}
