//! Creates an entity that another one spawns, exactly once: its first record names the spawn.

use sandglass_journal::{self as journal, Entry};
use sandglass_liveness::Input;
use sandglass_liveness::session::LimitSettings;
use sandglass_model::{
    EntityRef, Event as RecordedEvent, Position, Record, Spawn, SpawnObstacle, SpawnResult,
    SpawnedBy, WallTime,
};

use crate::actor::{Creation, First, Handle, View};
use crate::error::ActorError;
use crate::quota::SpawnSlot;
use crate::reading::seen;
use crate::runtime::{Begun, CreationInProgress, Runtime};
use crate::watch;

/// What became of a spawn.
pub(crate) struct SpawnEnded {
    pub(crate) result: SpawnResult,
    /// The time of the first record of the entity; `None` if it has none.
    pub(crate) created_at: Option<WallTime>,
    /// While this is held, the entity stays awake, so that it is not removed before its parent has
    /// recorded its creation.
    pub(crate) view: Option<watch::Receiver<View>>,
}

impl Runtime {
    /// Creates the entity of `spawn` for `tenant`, unless it exists. `parent` is the slot of the entity
    /// that spawns it, if that counts as one that was spawned.
    pub(crate) async fn create_spawned(
        &self,
        spawn: &Spawn,
        origin: SpawnedBy,
        tenant: &str,
        parent: Option<&SpawnSlot>,
    ) -> Result<SpawnEnded, ActorError> {
        loop {
            // One that exists may be that of this spawn, so it is not refused before that is known.
            if !self.0.shared.is_known(&spawn.entity).await? {
                match self.create_absent(spawn, &origin, tenant, parent).await {
                    Err(ActorError::EntityExists(_)) => {}
                    ended => return ended,
                }
            }
            let view = self.0.reach(&spawn.entity, Handle::watch).ok();
            if let Some(first) = self.first_record(&spawn.entity).await? {
                let (created_at, result) = (Some(first.at), result_of(first.event, &origin));
                return Ok(SpawnEnded { result, created_at, view });
            }
            // It is being created by a request that may still fail.
            if let Some(view) = view {
                let _ = seen(view, |_| true).await;
            }
        }
    }

    /// Creates the entity of `spawn`, which is not known.
    async fn create_absent(
        &self,
        spawn: &Spawn,
        origin: &SpawnedBy,
        tenant: &str,
        parent: Option<&SpawnSlot>,
    ) -> Result<SpawnEnded, ActorError> {
        let refused = |obstacle| {
            let result = SpawnResult::Refused(obstacle);
            Ok(SpawnEnded { result, created_at: None, view: None })
        };
        let Some((spec, creation)) = self.creation_of(spawn, origin, tenant) else {
            return refused(SpawnObstacle::UnknownType);
        };
        let shared = &self.0.shared;
        let Some(slot) = shared.spawn_quota.reserve(tenant, parent, shared.clock.now()) else {
            return refused(SpawnObstacle::TooMany);
        };
        let creation = Creation { slot: Some(slot), ..creation };
        let begun = self.begin(spawn.entity.clone(), spec, creation)?;
        // Otherwise it is being looked up for another request, or created by one.
        let Begun::Started(CreationInProgress { view, created }) = begun else {
            return Err(ActorError::EntityExists(spawn.entity.clone()));
        };
        let (at, action_refused) = created.await.map_err(|_| ActorError::Closed)??;
        let result = SpawnResult::Created { action_refused };
        Ok(SpawnEnded { result, created_at: Some(at), view: Some(view) })
    }

    fn creation_of(
        &self,
        spawn: &Spawn,
        origin: &SpawnedBy,
        tenant: &str,
    ) -> Option<(std::sync::Arc<sandglass_liveness::Spec>, Creation)> {
        let spec = self.spec(spawn.entity.entity_type())?;
        let create = Input::Create {
            name: spawn.entity.clone(),
            incarnation: origin.derive_incarnation(),
            tenant: Some(tenant.to_owned()),
            spawned_by: Some(Box::new(origin.clone())),
        };
        let ceilings = self.0.shared.ceilings();
        let own = LimitSettings::default();
        let limits = ceilings.makes_sessions(&spec).then(|| ceilings.effective(&spec, &own));
        let first = spawn.action.as_ref().map(|action| {
            let (action, params) = (action.clone(), spawn.params.clone());
            First::Spawned(Input::FirstAction { action, params, trace: spawn.trace })
        });
        Some((spec, Creation { create, limits, first, slot: None }))
    }

    /// The first record of `entity`; `None` if it has none.
    async fn first_record(&self, entity: &EntityRef) -> Result<Option<Record>, journal::Error> {
        let page = self.0.shared.journal.read_entity(entity.clone(), Position(0), 1).await?;
        let entry = page.entries.into_iter().next();
        entry.map(Entry::into_record).transpose()
    }
}

/// What became of the spawn `origin`, if an entity of its name began with `first`.
fn result_of(first: RecordedEvent, origin: &SpawnedBy) -> SpawnResult {
    match first {
        RecordedEvent::Created { spawned_by: Some(by), .. } if by.is_same_spawn(origin) => {
            SpawnResult::Created { action_refused: by.action_refused }
        }
        _ => SpawnResult::Refused(SpawnObstacle::Exists),
    }
}
