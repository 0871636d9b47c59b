//! What callers read of a runtime: its entities, what is in flight, its records, and how a handler
//! ended. Nothing here changes anything.

use std::sync::Arc;

use sandglass_journal::{Merged, Page, Select, SelectedPlace};
use sandglass_liveness::Spec;
use sandglass_model::{
    Cursor, Decision, DispatchId, EntityRef, Event as RecordedEvent, Frame, ModuleHash, Outcome,
    Position,
};

use crate::actor::{Handle, View};
use crate::error::ActorError;
use crate::publish::{RunView, Snapshot, Subscription};
use crate::runtime::Runtime;
use crate::serving::Origin;
use crate::watch;

/// Entries read at once in search of an outcome.
const SEARCH_PAGE: usize = 256;

impl Runtime {
    /// The entity as it is now.
    ///
    /// # Errors
    /// There is no such entity, or the journal cannot be read.
    pub async fn entity(&self, entity: &EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        seen(self.0.reach(entity, Origin::Outside, Handle::watch)?, |_| true).await
    }

    /// Up to `limit` entities (at most [`sandglass_journal::SELECTED_MAX`]) behind `after` in the order of their
    /// names, awake or asleep; from the first one on if `after` is `None`.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn entities(
        &self,
        after: Option<&EntityRef>,
        limit: usize,
    ) -> Result<Vec<EntityRef>, ActorError> {
        let after = after.cloned().map(SelectedPlace::of_name);
        let page = self.0.shared.journal.select(Select::All, after, limit).await?;
        Ok(page.entries.into_iter().map(|entry| entry.entity).collect())
    }

    /// All handlers that are queued or in flight: at most
    /// [`IN_FLIGHT_MAX`](sandglass_liveness::decide::IN_FLIGHT_MAX) of each entity.
    #[must_use]
    pub fn in_flight(&self) -> Vec<(EntityRef, RunView)> {
        let entities = self.0.shared.table.lock();
        entities
            .all_awake()
            .filter_map(Handle::snapshot)
            .flat_map(|snapshot| {
                let runs = snapshot.in_flight.clone().into_iter();
                runs.map(move |run| (snapshot.entity.clone(), run))
            })
            .collect()
    }

    /// The entities with handlers that are queued or in flight.
    #[must_use]
    pub fn busy(&self) -> Vec<Arc<Snapshot>> {
        let entities = self.0.shared.table.lock();
        let snapshots = entities.all_awake().filter_map(Handle::snapshot);
        snapshots.filter(|snapshot| !snapshot.in_flight.is_empty()).collect()
    }

    /// Up to `limit` of the entity's records (at most
    /// [`sandglass_journal::PAGE_MAX_ENTRIES`], and of some [`sandglass_journal::PAGE_MAX_BYTES`] together)
    /// from `from` on, in the order of their positions.
    ///
    /// # Errors
    /// There is no such entity, or the journal cannot be read.
    pub async fn history(
        &self,
        entity: &EntityRef,
        from: Position,
        limit: usize,
    ) -> Result<Page, ActorError> {
        if !self.0.shared.is_known(entity).await? {
            return Err(ActorError::UnknownEntity(entity.clone()));
        }
        Ok(self.0.shared.journal.read_entity(entity.clone(), from, limit).await?)
    }

    /// Up to `limit` records of all journals behind `after`: specs, and records of all entities.
    ///
    /// # Errors
    /// A journal cannot be read.
    pub async fn records(&self, after: Cursor, limit: usize) -> Result<Merged, ActorError> {
        Ok(self.0.shared.journal.read_behind(after, None, limit).await?)
    }

    /// The entity of `dispatch` and the position of its first record, whether it has ended or not;
    /// `None` if there is no such dispatch.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub async fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Result<Option<(EntityRef, Position)>, ActorError> {
        Ok(self.0.shared.journal.find_dispatch(dispatch).await?)
    }

    /// The spec that new entities of a type obey.
    #[must_use]
    pub fn spec(&self, entity_type: &str) -> Option<Arc<Spec>> {
        self.0.shared.specs().types.get(entity_type).cloned()
    }

    /// Resolves frames of a run of `module` that were recorded as offsets: the functions, files
    /// and lines that were not known within the time that a record waits for them.
    pub async fn resolve_frames(&self, module: ModuleHash, frames: Vec<Frame>) -> Vec<Frame> {
        self.0.shared.handlers.resolve_frames(module, frames).await
    }

    /// Waits until no handler of the entity is queued or in flight, and the entities that it spawns are
    /// created.
    ///
    /// # Errors
    /// There is no such entity, or the runtime is shut down first.
    pub async fn settled(&self, entity: &EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        self.wait_until(entity, Snapshot::is_settled).await
    }

    /// Waits until `holds` for the entity. Waiting keeps it awake, unless its partition is given away. It may
    /// begin while a partition is being given away, because a request that was accepted before may wait.
    ///
    /// # Errors
    /// There is no such entity, its partition is given away or lost ([`ActorError::Elsewhere`]), or the
    /// runtime is shut down first.
    pub async fn wait_until(
        &self,
        entity: &EntityRef,
        holds: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, ActorError> {
        seen(self.0.reach(entity, Origin::Inside, Handle::watch)?, holds).await
    }

    /// Waits until a handler has ended, and returns its outcome.
    ///
    /// # Errors
    /// [`ActorError::HandlerDeadlineExceeded`] if it timed out;
    /// [`ActorError::UnknownDispatch`] if the entity never had it.
    pub async fn outcome(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
    ) -> Result<Outcome, ActorError> {
        self.outcome_from(entity, dispatch, Position(0)).await
    }

    /// Subscribes to all events from now on. A subscriber that is [`crate::SUBSCRIPTION_MAX`]
    /// events behind misses some, and learns how many.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        Subscription(self.0.shared.events.subscribe())
    }

    pub(crate) async fn outcome_from(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
        from: Position,
    ) -> Result<Outcome, ActorError> {
        let ended =
            |snapshot: &Snapshot| snapshot.in_flight.iter().all(|run| run.dispatch != dispatch);
        self.wait_until(entity, ended).await?;
        let (mut next, mut last) = (Some(from), None);
        while let Some(from) = next {
            let page = self.0.shared.journal.read_entity(entity.clone(), from, SEARCH_PAGE).await?;
            next = page.next;
            for entry in page.entries {
                let record = entry.into_record()?;
                // A retried handler has ended more than once.
                last = outcome_of(record.event, dispatch).or(last);
            }
        }
        match last {
            Some(Outcome::TimedOut(exceeded)) => Err(ActorError::HandlerDeadlineExceeded(exceeded)),
            Some(other) => Ok(other),
            None => Err(ActorError::UnknownDispatch { entity: entity.clone(), dispatch }),
        }
    }
}

/// The snapshot of an entity, once `holds` for it.
pub(crate) async fn seen(
    mut view: watch::Receiver<View>,
    mut holds: impl FnMut(&Snapshot) -> bool,
) -> Result<Arc<Snapshot>, ActorError> {
    let found = view.wait_for(|view| match view {
        View::New | View::Waking => false,
        View::Live(snapshot) => holds(snapshot),
        View::Last(_) | View::Moved(_) | View::Gone(_) => true,
    });
    let found = found.await.map_err(|_| ActorError::Closed)?;
    match found {
        View::Live(snapshot) => Ok(snapshot),
        View::Last(snapshot) | View::Moved(snapshot) if holds(&snapshot) => Ok(snapshot),
        View::Moved(snapshot) => Err(ActorError::Elsewhere(snapshot.entity.clone())),
        View::Gone(error) => Err(error),
        View::New | View::Waking | View::Last(_) => Err(ActorError::Closed),
    }
}

/// The final outcome of `dispatch`, if `event` records it.
fn outcome_of(event: RecordedEvent, dispatch: DispatchId) -> Option<Outcome> {
    match event {
        RecordedEvent::Ended(ended)
            if ended.dispatch == dispatch && ended.decision != Decision::Rerun =>
        {
            Some(Arc::unwrap_or_clone(ended.end).outcome)
        }
        _ => None,
    }
}
