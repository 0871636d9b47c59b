//! The inside of a runtime: the tasks of its entities, and how each is reached, woken and started.
//! All of them live on the threads that the runtime was built on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Monotonic};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinSet;

use crate::actor::{Handle, View, channels};
use crate::error::ActorError;
use crate::serving::{Hold, Origin};
use crate::shared::Shared;
use crate::specs::Specs;
use crate::table::{Entities, Sleep};
use crate::waking;
use crate::watch;

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// Aborted when this is dropped.
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// The threads that entities live on, whichever thread wakes them: an ask arrives on a thread
    /// for guests.
    pub(crate) threads: tokio::runtime::Handle,
    pub(crate) closing: watch::Sender<bool>,
    /// Held while specs are replaced, and while the journal of a partition gets those that it lacks.
    pub(crate) reloading: tokio::sync::Mutex<()>,
    /// One for each journal. Held while its partition is adopted or released.
    pub(crate) moving: Vec<tokio::sync::Mutex<()>>,
    /// Held while shutting down.
    pub(crate) shutdown: tokio::sync::Mutex<()>,
}

impl Inner {
    /// Applies `then` to an entity, which is woken if it sleeps. The entity cannot fall asleep
    /// meanwhile, nor before it has checked its mailbox. If the table does not contain it, its task
    /// finds out whether it exists.
    pub(crate) fn reach<T>(
        &self,
        entity: &EntityRef,
        origin: Origin,
        then: impl FnOnce(&Handle) -> T,
    ) -> Result<T, ActorError> {
        let mut entities = self.shared.table.lock();
        entities.serving.check(entity, origin)?;
        if entities.awake(entity).is_none() {
            if entities.is_leaving(entity) {
                return Err(ActorError::UnknownEntity(entity.clone()));
            }
            self.wake(&mut entities, entity, Sleep::stored(None, Monotonic::NEVER), None);
        }
        entities.awake(entity).map(then).ok_or(ActorError::Closed)
    }

    /// Wakes an entity whose timer is due at `now`.
    pub(crate) fn wake_due(&self, permit: OwnedSemaphorePermit) {
        let mut entities = self.shared.table.lock();
        if let Some(entity) = entities.due(self.shared.clock.now()) {
            let stored = Sleep::stored(None, Monotonic::NEVER);
            self.wake(&mut entities, &entity, stored, Some(permit));
        }
    }

    /// Wakes an entity that the journal has as one that obeys `spec`, unless it is awake.
    pub(crate) fn wake_stored(
        &self,
        entity: &EntityRef,
        spec: Option<Arc<Spec>>,
        permit: OwnedSemaphorePermit,
    ) {
        let mut entities = self.shared.table.lock();
        if entities.awake(entity).is_none() && entities.serving.is_open(entity) {
            let stored = Sleep::stored(spec, Monotonic::NEVER);
            self.wake(&mut entities, entity, stored, Some(permit));
        }
    }

    /// Wakes the first entity behind `after` that obeys another spec than `specs` has for its type,
    /// and returns which.
    pub(crate) fn wake_outdated(
        &self,
        after: Option<&EntityRef>,
        specs: &Specs,
        permit: OwnedSemaphorePermit,
    ) -> Option<EntityRef> {
        let mut entities = self.shared.table.lock();
        let entity = entities.outdated(after, specs)?;
        let stored = Sleep::stored(None, Monotonic::NEVER);
        self.wake(&mut entities, &entity, stored, Some(permit));
        Some(entity)
    }

    /// Starts the task of an entity that is not awake, unless the runtime is shutting down or does not
    /// serve its partition. `stored`
    /// is what is known of one without an entry.
    fn wake(
        &self,
        entities: &mut Entities,
        entity: &EntityRef,
        stored: Sleep,
        permit: Option<OwnedSemaphorePermit>,
    ) {
        if *self.closing.borrow() {
            return;
        }
        let Some(hold) = entities.serving.hold(entity) else { return };
        let (handle, channels) = channels(View::Waking, hold.clone());
        if let Some(sleep) = entities.rouse(entity, handle, stored) {
            let shared = Arc::clone(&self.shared);
            let life = waking::wake(shared, entity.clone(), sleep, channels, permit);
            self.spawn_life((entity.clone(), hold), life);
        }
    }

    /// Starts the task of an entity. If it unwinds, the entity is put to sleep.
    pub(crate) fn spawn_life(
        &self,
        (entity, hold): (EntityRef, Hold),
        life: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(waking::unless_lost(Arc::clone(&self.shared), (entity, hold), life));
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.sweep();
        self.tasks().spawn_on(task, &self.threads);
    }

    /// Removes tasks that have ended.
    pub(crate) fn sweep(&self) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
    }

    pub(crate) fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
