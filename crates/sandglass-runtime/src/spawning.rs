//! Creates an entity that another one spawns, exactly once: its first record names the spawn.

use std::time::Duration;

use sandglass_journal::{self as journal, Entry};
use sandglass_liveness::Input;
use sandglass_liveness::session::LimitSettings;
use sandglass_model::{
    EntityRef, Event as RecordedEvent, Position, Record, Spawn, SpawnObstacle, SpawnResult,
    SpawnedBy, WallTime,
};

use crate::actor::{Creation, First, Handle, View};
use crate::error::ActorError;
use crate::other_hosts::{OtherHosts, RemoteRequest, RemoteResponse, RemoteSpawn, RemoteSpawned};
use crate::quota::Lineage;
use crate::reading::seen;
use crate::runtime::{Begun, CreationInProgress, Runtime};
use crate::serving::Origin;
use crate::{timer, watch};

/// How long another host may take to create an entity.
const ELSEWHERE_MAX: Duration = Duration::from_secs(2);

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
    /// Creates the entity of `spawn` for `tenant` on the host that owns it, unless it exists. `parent` is
    /// the lineage of the entity that spawns it, if that counts as one that was spawned.
    pub(crate) async fn create_spawned(
        &self,
        spawn: &Spawn,
        origin: SpawnedBy,
        tenant: &str,
        parent: Option<Lineage>,
    ) -> Result<SpawnEnded, ActorError> {
        match self.0.shared.way_to(&spawn.entity).await {
            Some(hosts) => self.create_elsewhere(&*hosts, spawn, origin, tenant, parent).await,
            None => self.create_here(spawn, origin, tenant, parent, Origin::Inside).await,
        }
    }

    /// Has another host create the entity of `spawn`.
    async fn create_elsewhere(
        &self,
        hosts: &dyn OtherHosts,
        spawn: &Spawn,
        origin: SpawnedBy,
        tenant: &str,
        parent: Option<Lineage>,
    ) -> Result<SpawnEnded, ActorError> {
        let shared = &self.0.shared;
        let age = parent.map_or(Duration::ZERO, |parent| shared.clock.now().since(parent.since));
        let request = RemoteRequest::Spawn(Box::new(RemoteSpawn {
            spawn: spawn.clone(),
            origin,
            tenant: tenant.to_owned(),
            first_actions: parent.map(|parent| parent.first_actions),
            parent_age_ms: u64::try_from(age.as_millis()).unwrap_or(u64::MAX),
            caused_at: shared.clock.wall(),
        }));
        // The task of the parent waits for this. If it takes too long, it is sent again, and finds what
        // the first one has created.
        let limit = shared.clock.now().after(ELSEWHERE_MAX);
        let here = shared.here();
        let sent = tokio::select! {
            biased;
            sent = hosts.send(&here, &request) => sent.map_err(|error| error.to_string()),
            () = timer::until(&*shared.clock, limit) => Err("it takes too long".to_owned()),
        };
        let why = match sent {
            Ok(RemoteResponse::Spawn(Ok(RemoteSpawned { result, created_at }))) => {
                if let Some(at) = created_at {
                    shared.wait_behind_other_host(at).await;
                }
                return Ok(SpawnEnded { result, created_at, view: None });
            }
            Ok(RemoteResponse::Spawn(Err(why))) | Err(why) => why,
            Ok(_) => "its host gave another kind of response".to_owned(),
        };
        tracing::debug!(entity = %spawn.entity, why, "an entity of another host is not created yet");
        Err(ActorError::Elsewhere(spawn.entity.clone()))
    }

    /// Creates the entity of `spawn`, unless it exists. This host owns it.
    pub(crate) async fn create_here(
        &self,
        spawn: &Spawn,
        origin: SpawnedBy,
        tenant: &str,
        parent: Option<Lineage>,
        from: Origin,
    ) -> Result<SpawnEnded, ActorError> {
        loop {
            // One that exists may be that of this spawn, so it is not refused before that is known.
            if !self.0.shared.is_known(&spawn.entity).await? {
                match self.create_absent(spawn, &origin, tenant, parent, from).await {
                    Err(ActorError::EntityExists(_)) => {}
                    ended => return ended,
                }
            }
            let reached = self.0.reach(&spawn.entity, from, Handle::watch);
            let elsewhere = reached.as_ref().err().filter(|error| is_elsewhere(error)).cloned();
            let view = reached.ok();
            if let Some(first) = self.first_record(&spawn.entity).await? {
                let (created_at, result) = (Some(first.at), result_of(first.event, &origin));
                return Ok(SpawnEnded { result, created_at, view });
            }
            if let Some(elsewhere) = elsewhere {
                return Err(elsewhere);
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
        parent: Option<Lineage>,
        from: Origin,
    ) -> Result<SpawnEnded, ActorError> {
        let refused = |obstacle| {
            let result = SpawnResult::Refused(obstacle);
            Ok(SpawnEnded { result, created_at: None, view: None })
        };
        let Some((spec, creation)) = self.creation_of(spawn, origin, tenant) else {
            return refused(SpawnObstacle::UnknownType);
        };
        let shared = &self.0.shared;
        shared.table.lock().serving.check(&spawn.entity, from)?;
        let Some(slot) = shared.spawn_quota.reserve(tenant, parent, shared.clock.now()) else {
            return refused(SpawnObstacle::TooMany);
        };
        let creation = Creation { slot: Some(slot), ..creation };
        let begun = self.begin(spawn.entity.clone(), spec, creation, from)?;
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

const fn is_elsewhere(error: &ActorError) -> bool {
    matches!(error, ActorError::Elsewhere(_))
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
