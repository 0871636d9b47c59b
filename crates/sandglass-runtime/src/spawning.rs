//! Creates an entity that another one spawns, exactly once: its first record names the spawn.

use sandglass_journal as journal;
use sandglass_liveness::Input;
use sandglass_liveness::session::LimitSettings;
use sandglass_model::{
    EntityRef, Event as RecordedEvent, Position, Spawn, SpawnObstacle, SpawnResult, SpawnedBy,
};

use crate::actor::{Creation, First, Handle, View};
use crate::error::ActorError;
use crate::reading::seen;
use crate::runtime::{CreationInProgress, Runtime};
use crate::watch;

/// What became of a spawn, and the view of the entity. While that is held, the entity stays awake, so that
/// it is not removed before its parent has recorded its creation.
pub(crate) type SpawnEnded = (SpawnResult, Option<watch::Receiver<View>>);

impl Runtime {
    /// Creates the entity of `spawn` for `tenant`, unless it exists.
    pub(crate) async fn create_spawned(
        &self,
        spawn: &Spawn,
        origin: SpawnedBy,
        tenant: &str,
    ) -> Result<SpawnEnded, ActorError> {
        if spawn.share == 0 {
            return Ok((SpawnResult::Refused(SpawnObstacle::TooMany), None));
        }
        loop {
            let Some(creation) = self.creation_of(spawn, &origin, tenant) else {
                return Ok((SpawnResult::Refused(SpawnObstacle::UnknownType), None));
            };
            let (spec, creation) = creation;
            match self.begin(spawn.entity.clone(), spec, creation) {
                Ok(CreationInProgress { view, created }) => {
                    match created.await.map_err(|_| ActorError::Closed)? {
                        Ok(action_refused) => {
                            return Ok((SpawnResult::Created { action_refused }, Some(view)));
                        }
                        Err(ActorError::EntityExists(_)) => {}
                        Err(error) => return Err(error),
                    }
                }
                Err(ActorError::EntityExists(_)) => {}
                Err(error) => return Err(error),
            }
            let view = self.0.reach(&spawn.entity, Handle::watch).ok();
            if let Some(first) = self.first_record(&spawn.entity).await? {
                return Ok((result_of(first, &origin), view));
            }
            // It is being created by a request that may still fail.
            if let Some(view) = view {
                let _ = seen(view, |_| true).await;
            }
        }
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
        Some((spec, Creation { create, limits, first }))
    }

    /// The first record of `entity`; `None` if it has none.
    async fn first_record(
        &self,
        entity: &EntityRef,
    ) -> Result<Option<RecordedEvent>, journal::Error> {
        let page = self.0.shared.journal.read_entity(entity.clone(), Position(0), 1).await?;
        let entry = page.entries.into_iter().next();
        entry.map(|entry| Ok(entry.into_record()?.event)).transpose()
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
