//! The runtime as its users see it: entities by name, and what can be asked of them.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_journal::{Journal, PAGE_MAX_ENTRIES, Page};
use sandglass_liveness::{self as liveness, Input, Spec};
use sandglass_model::{
    Cause, Decision, DispatchId, Dispatched, EntityRef, Event as RecordedEvent, Incarnation,
    Object, Outcome, Position, Retried, Sequence, TraceContext,
};
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, oneshot, watch};
use tokio::task::JoinSet;

use crate::actor::{Actor, Handle, Message, Shared, View, seat};
use crate::builder::Builder;
use crate::error::ActorError;
use crate::publish::{RunView, Snapshot, Subscription};
use crate::specs::{self, ReloadError, Reloaded, Specs};
use crate::table::Entities;
use crate::{timer, waking};

/// Entries read at once in search of an outcome.
const SEARCH_PAGE: usize = 256;

/// The entities of one journal. Cheap to clone; when the last clone is dropped,
/// everything stops at once and the journal stays as it is.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    /// Aborted when this is dropped.
    pub(crate) tasks: Mutex<JoinSet<()>>,
    /// The threads that entities live on, whosever thread wakes them: a handler that asks
    /// does so on a thread for guests.
    pub(crate) threads: tokio::runtime::Handle,
    pub(crate) closing: watch::Sender<bool>,
    /// Held while specs are replaced.
    pub(crate) reloading: tokio::sync::Mutex<()>,
    /// Held while shutting down.
    pub(crate) shutdown: tokio::sync::Mutex<()>,
}

/// An action that is asked of an entity.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The action.
    pub action: String,
    /// Its parameters.
    pub params: Object,
    /// The span that asks; none starts a trace.
    pub trace: Option<TraceContext>,
    /// Where the entity has to be; none where that doesn't matter.
    pub expected: Option<Sequence>,
}

impl Request {
    /// A request for `action`, without parameters.
    pub fn new(action: impl Into<String>) -> Self {
        Self { action: action.into(), params: Object::new(), trace: None, expected: None }
    }

    /// With these parameters.
    #[must_use]
    pub fn params(self, params: Object) -> Self {
        Self { params, ..self }
    }

    /// As part of this trace.
    #[must_use]
    pub fn trace(self, trace: TraceContext) -> Self {
        Self { trace: Some(trace), ..self }
    }

    /// Only if the entity is at `sequence`.
    #[must_use]
    pub fn expecting(self, sequence: Sequence) -> Self {
        Self { expected: Some(sequence), ..self }
    }
}

/// Something that is told to an entity and is no action.
#[derive(Clone, Debug, PartialEq)]
pub struct Signal {
    /// What kind.
    pub name: String,
    /// The other entity that sends it, if one does.
    pub from: Option<EntityRef>,
    /// What it says.
    pub payload: Value,
}

/// One more attempt that is asked for of a handler that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    /// For how long it may run, in whole milliseconds; none for as long as the last
    /// attempt.
    pub budget: Option<Duration>,
    /// Who asks for it: at most [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES).
    pub by: String,
    /// Why, for people: at most
    /// [`REASON_MAX_BYTES`](sandglass_liveness::decide::REASON_MAX_BYTES).
    pub reason: String,
    /// The attempt that whoever asks saw end: refused where it isn't the last any more, so
    /// that of two who ask at once only one is heard. None where any will do.
    pub expected_attempt: Option<u32>,
}

/// An action that was taken, or a retry: it is durable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The entity's sequence after it.
    pub sequence: Sequence,
    /// Its state after it.
    pub state: String,
    /// The handlers that it started.
    pub dispatches: Vec<DispatchId>,
    /// The place of its record.
    pub position: Position,
}

impl Runtime {
    /// A builder of a runtime over `journal`.
    pub fn builder(journal: Arc<dyn Journal>) -> Builder {
        Builder::new(journal)
    }

    /// Creates an entity of a type whose spec was given to the builder, for the tenant
    /// [`sandglass_model::DEFAULT_TENANT`].
    ///
    /// # Errors
    /// It exists, its type is unknown, or the journal takes no appends.
    pub async fn create(&self, entity: EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        self.born(entity, None).await
    }

    /// The same, for the tenant `tenant`: at most
    /// [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES) bytes. Its handlers are
    /// told of it, and find room among that tenant's.
    ///
    /// # Errors
    /// As [`Runtime::create`], or the tenant's name can't be one.
    pub async fn create_for(
        &self,
        entity: EntityRef,
        tenant: impl Into<String>,
    ) -> Result<Arc<Snapshot>, ActorError> {
        self.born(entity, Some(tenant.into())).await
    }

    async fn born(
        &self,
        entity: EntityRef,
        tenant: Option<String>,
    ) -> Result<Arc<Snapshot>, ActorError> {
        let spec = self.spec(entity.entity_type()).ok_or_else(|| ActorError::UnknownType {
            entity_type: entity.entity_type().to_owned(),
        })?;
        let incarnation = Incarnation::random().map_err(|_| ActorError::NoRandomness)?;
        let birth = Input::Create { incarnation, tenant };
        let (handle, seat) = seat(View::New, self.0.closing.subscribe());
        let view = handle.watch();
        let (reply, created) = oneshot::channel();
        let (shared, name) = (Arc::clone(&self.0.shared), entity.clone());
        // On a task of its own: a caller that goes away leaves no entity behind that
        // is in the journal and has no timer.
        let life = async move {
            match Actor::create(&shared, spec, name.clone(), birth).await {
                Ok(restored) => {
                    let actor = Actor::new(shared, restored, seat);
                    let _ = reply.send(Ok(()));
                    Box::pin(actor.live()).await;
                }
                Err(error) => {
                    shared.table.lock().forget(&name);
                    seat.refuse(&ActorError::UnknownEntity(name));
                    let _ = reply.send(Err(error));
                }
            }
        };
        {
            let mut entities = self.0.shared.table.lock();
            if *self.0.closing.borrow() {
                return Err(ActorError::Closed);
            }
            if !entities.enter(entity.clone(), handle) {
                return Err(ActorError::EntityExists(entity));
            }
            // Before the lock is let go, so that a shutdown waits for it.
            self.0.spawn_life(entity, life);
        }
        created.await.map_err(|_| ActorError::Closed)??;
        seen(view, |_| true).await
    }

    /// Asks `entity` to take `action`. Answered when that is durable and its handlers
    /// are started; they run in the background.
    ///
    /// # Errors
    /// It was not taken, and nothing has changed.
    pub async fn send(
        &self,
        entity: &EntityRef,
        action: &str,
        params: Object,
    ) -> Result<Accepted, ActorError> {
        self.request(entity, Request::new(action).params(params)).await
    }

    /// The same, with a trace or an expected sequence.
    ///
    /// # Errors
    /// It was not taken, and nothing has changed.
    pub async fn request(
        &self,
        entity: &EntityRef,
        request: Request,
    ) -> Result<Accepted, ActorError> {
        self.ask(entity, |reply| Message::Act { request, reply }).await
    }

    /// The same, and waits until the entity has settled.
    ///
    /// # Errors
    /// It was not taken, or a handler that it started timed out: then
    /// [`ActorError::HandlerDeadlineExceeded`].
    pub async fn send_and_settle(
        &self,
        entity: &EntityRef,
        request: Request,
    ) -> Result<Arc<Snapshot>, ActorError> {
        let accepted = self.request(entity, request).await?;
        let snapshot = self.settled(entity).await?;
        for dispatch in accepted.dispatches {
            self.outcome_from(entity, dispatch, accepted.position).await?;
        }
        Ok(snapshot)
    }

    /// Tells `entity` something that is no action. It changes no state and no
    /// sequence; where it comes from another entity and the state's `reset_on` lists
    /// it, it restarts the state's timer.
    ///
    /// # Errors
    /// It was not recorded.
    pub async fn signal(&self, entity: &EntityRef, signal: Signal) -> Result<(), ActorError> {
        self.ask(entity, |reply| Message::Signal { signal, reply }).await
    }

    /// Asks the handler of `dispatch`, or all of the entity's, to end as cancelled;
    /// answers how many were asked. It waits for no mailbox and no disk.
    ///
    /// # Errors
    /// There is no such entity.
    pub fn cancel(
        &self,
        entity: &EntityRef,
        dispatch: Option<DispatchId>,
        reason: &str,
    ) -> Result<usize, ActorError> {
        let stops = {
            let entities = self.0.shared.table.lock();
            let stops = entities.awake(entity).map(|handle| handle.stops.clone());
            if stops.is_none() && !entities.contains(entity) {
                return Err(ActorError::UnknownEntity(entity.clone()));
            }
            stops
        };
        // None of an entity that sleeps is in flight.
        Ok(stops.map_or(0, |stops| stops.request(dispatch, Cause::Cancel, reason)))
    }

    /// Runs a handler of the entity once more that has ended and not completed: the same
    /// dispatch id, which is the guest's idempotency key, parameters and configuration,
    /// and the attempt after the last, in the entity's state as it is now.
    ///
    /// # Errors
    /// It was not started, and nothing has changed: the entity has no such dispatch, it is
    /// in flight or has completed, the attempt expected isn't its last, or the present
    /// state doesn't take all of its endings.
    pub async fn retry(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
        retry: Retry,
    ) -> Result<Accepted, ActorError> {
        let Retry { budget, by, reason, expected_attempt } = retry;
        let millis = |budget: Duration| u64::try_from(budget.as_millis()).unwrap_or(u64::MAX);
        let retried = Retried { by, reason, budget_ms: budget.map(millis) };
        let dispatched = Box::new(self.dispatched(entity, dispatch).await?);
        let retry = Box::new(liveness::Retry { dispatched, retried, expected_attempt });
        self.ask(entity, |reply| Message::Retry { retry, reply }).await
    }

    /// How the entity's dispatch was first asked for.
    async fn dispatched(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
    ) -> Result<Dispatched, ActorError> {
        let journal = &self.0.shared.journal;
        let found = journal.find_dispatch(dispatch).await.map_err(ActorError::journal)?;
        let unknown = || ActorError::UnknownDispatch { entity: entity.clone(), dispatch };
        let (_, at) = found.filter(|(of, _)| of == entity).ok_or_else(unknown)?;
        let page = journal.read(at, 1).await.map_err(ActorError::journal)?;
        let record = page.entries.into_iter().next().ok_or_else(unknown)?;
        match record.into_record().map_err(ActorError::journal)?.event {
            RecordedEvent::Dispatched(dispatched) => Ok(*dispatched),
            _ => Err(unknown()),
        }
    }

    /// The entity as it is now.
    ///
    /// # Errors
    /// There is no such entity, or the journal can't be read.
    pub async fn entity(&self, entity: &EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        self.wait_until(entity, |_| true).await
    }

    /// Up to `limit` entities (at most [`PAGE_MAX_ENTRIES`]) behind `after` in the order
    /// of their names; from the first on where there is no `after`.
    #[must_use]
    pub fn entities(&self, after: Option<&EntityRef>, limit: usize) -> Vec<EntityRef> {
        let entities = self.0.shared.table.lock();
        entities.names(after).take(limit.min(PAGE_MAX_ENTRIES)).cloned().collect()
    }

    /// All handlers that are queued or in flight: as many as were let in, which is at
    /// most [`IN_FLIGHT_MAX`](sandglass_liveness::decide::IN_FLIGHT_MAX) of each entity.
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

    /// Up to `limit` of the entity's records (at most
    /// [`PAGE_MAX_ENTRIES`], and of some [`sandglass_journal::PAGE_MAX_BYTES`] together)
    /// from `from` on, in the order of their positions.
    ///
    /// # Errors
    /// There is no such entity, or the journal can't be read.
    pub async fn history(
        &self,
        entity: &EntityRef,
        from: Position,
        limit: usize,
    ) -> Result<Page, ActorError> {
        if !self.0.shared.table.lock().contains(entity) {
            return Err(ActorError::UnknownEntity(entity.clone()));
        }
        let page = self.0.shared.journal.read_entity(entity.clone(), from, limit).await;
        page.map_err(ActorError::journal)
    }

    /// The same of the whole journal: the specs, and the records of all entities.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn records(&self, from: Position, limit: usize) -> Result<Page, ActorError> {
        self.0.shared.journal.read(from, limit).await.map_err(ActorError::journal)
    }

    /// The entity that asked for `dispatch`, also where that has ended, and the position
    /// of its first record; none where nobody did.
    ///
    /// # Errors
    /// The journal can't be read.
    pub async fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Result<Option<(EntityRef, Position)>, ActorError> {
        let found = self.0.shared.journal.find_dispatch(dispatch).await;
        found.map_err(ActorError::journal)
    }

    /// The spec that new entities of a type obey.
    #[must_use]
    pub fn spec(&self, entity_type: &str) -> Option<Arc<Spec>> {
        self.0.shared.specs().types.get(entity_type).cloned()
    }

    /// Puts `specs` in the place of all that there are: all of them, or none.
    ///
    /// New entities obey them. An existing one goes over to the new version of its spec
    /// when it rests: when no handler of its is in flight, which may be at once, and which
    /// is a record of its own. Its state's timer then begins anew. It stays with the version
    /// that it obeys, and [`Snapshot::held_back`] says why, where its state, a variable or
    /// an action that it has scheduled isn't in the new one. Entities that have ended, and
    /// those whose type has no spec any more, stay as they are.
    ///
    /// This answers when the specs are durable; the entities that sleep are woken one after
    /// the other from then on, and go on in the next start where this one ends before.
    ///
    /// # Errors
    /// Nothing was changed. Most specs that are new at once are
    /// [`sandglass_journal::BATCH_MAX_RECORDS`].
    pub async fn reload(
        &self,
        specs: impl IntoIterator<Item = Spec>,
    ) -> Result<Reloaded, ReloadError> {
        let types = specs::by_type(specs.into_iter().map(Arc::new).collect());
        let types = types.map_err(ReloadError::DoubledType)?;
        let (inner, shared) = (&self.0, &self.0.shared);
        let _one_at_a_time = inner.reloading.lock().await;
        let before = shared.specs();
        let (specs, told) = before.reloaded(types);
        let registered = specs::register(shared, &specs.new_since(&before)).await;
        registered.map_err(|error| ReloadError::NotRecorded(ActorError::journal(error)))?;
        let specs = Arc::new(specs);
        shared.specs.send_replace(Arc::clone(&specs));
        let _nobody_comes = shared.table.lock();
        if !*inner.closing.borrow() {
            let (weak, closing) = (Arc::downgrade(inner), inner.closing.subscribe());
            inner.spawn(waking::wake_outdated(Arc::clone(shared), weak, specs, closing));
        }
        Ok(told)
    }

    /// Waits until no handler of the entity is queued or in flight.
    ///
    /// # Errors
    /// There is no such entity, or the runtime is shut down first.
    pub async fn settled(&self, entity: &EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        self.wait_until(entity, |snapshot| snapshot.in_flight.is_empty()).await
    }

    /// Waits until `holds` for the entity. It stays awake as long as somebody waits.
    ///
    /// # Errors
    /// There is no such entity, or the runtime is shut down first.
    pub async fn wait_until(
        &self,
        entity: &EntityRef,
        holds: impl FnMut(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, ActorError> {
        let view = self.0.reach(entity, Handle::watch)?;
        seen(view, holds).await
    }

    /// Waits until a handler has ended and answers how.
    ///
    /// # Errors
    /// [`ActorError::HandlerDeadlineExceeded`] where it timed out;
    /// [`ActorError::UnknownDispatch`] where the entity never had it.
    pub async fn outcome(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
    ) -> Result<Outcome, ActorError> {
        self.outcome_from(entity, dispatch, Position(0)).await
    }

    /// All that happens from now on. One who is [`crate::SUBSCRIPTION_MAX`] events
    /// behind misses some, and is told how many.
    #[must_use]
    pub fn subscribe(&self) -> Subscription {
        Subscription(self.0.shared.events.subscribe())
    }

    /// Takes no more requests, asks all handlers to end, records how they did, and
    /// closes the journal. What hasn't ended and been recorded within `grace` is
    /// dropped, and found as interrupted by the next start. Where it is shutting down
    /// already, waits until that is done, for the grace that was given first.
    pub async fn shutdown(&self, grace: Duration) {
        let _one_at_a_time = self.0.shutdown.lock().await;
        {
            let _nobody_comes = self.0.shared.table.lock();
            self.0.closing.send_replace(true);
        }
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        let clock = Arc::clone(&self.0.shared.clock);
        let over = clock.now().after(grace);
        let all = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            () = all => {}
            () = timer::until(&*clock, over) => tracing::warn!("handlers outlived the grace"),
        }
        tasks.shutdown().await;
        self.0.shared.journal.close().await;
    }

    async fn ask<T>(
        &self,
        entity: &EntityRef,
        message: impl FnOnce(oneshot::Sender<Result<T, ActorError>>) -> Message,
    ) -> Result<T, ActorError> {
        use tokio::sync::mpsc::error::TrySendError;
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        match self.0.reach(entity, |handle| handle.mailbox.try_send(message))? {
            Ok(()) => answer.await.map_err(|_| ActorError::Closed)?,
            Err(TrySendError::Full(_)) => Err(ActorError::MailboxFull(entity.clone())),
            Err(TrySendError::Closed(_)) => Err(ActorError::Closed),
        }
    }

    async fn outcome_from(
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
            let page = self.0.shared.journal.read_entity(entity.clone(), from, SEARCH_PAGE).await;
            let page = page.map_err(ActorError::journal)?;
            next = page.next;
            for entry in page.entries {
                let record = entry.into_record().map_err(ActorError::journal)?;
                // One that was retried has ended more than once.
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

/// What an entity shows once `holds` for it.
pub(crate) async fn seen(
    mut view: watch::Receiver<View>,
    mut holds: impl FnMut(&Snapshot) -> bool,
) -> Result<Arc<Snapshot>, ActorError> {
    let found = view.wait_for(|view| match view {
        View::New | View::Waking => false,
        View::Live(snapshot) => holds(snapshot),
        View::Last(_) | View::Gone(_) => true,
    });
    let found = found.await.map_err(|_| ActorError::Closed)?.clone();
    match found {
        View::Live(snapshot) => Ok(snapshot),
        View::Last(snapshot) if holds(&snapshot) => Ok(snapshot),
        View::Gone(error) => Err(error),
        View::New | View::Waking | View::Last(_) => Err(ActorError::Closed),
    }
}

/// The final outcome of `dispatch`, where `event` records it.
fn outcome_of(event: RecordedEvent, dispatch: DispatchId) -> Option<Outcome> {
    match event {
        RecordedEvent::Ended(ended)
            if ended.dispatch == dispatch && ended.decision != Decision::Rerun =>
        {
            Some(ended.outcome)
        }
        _ => None,
    }
}

impl Inner {
    /// What `then` makes of an entity, which is woken where it sleeps. The entity can't
    /// fall asleep meanwhile, nor before it has looked at what was put into its mailbox.
    pub(crate) fn reach<T>(
        &self,
        entity: &EntityRef,
        then: impl FnOnce(&Handle) -> T,
    ) -> Result<T, ActorError> {
        let mut entities = self.shared.table.lock();
        if entities.awake(entity).is_none() {
            if !entities.contains(entity) {
                return Err(ActorError::UnknownEntity(entity.clone()));
            }
            self.wake(&mut entities, entity, None);
        }
        entities.awake(entity).map(then).ok_or(ActorError::Closed)
    }

    /// Wakes an entity whose timer rings by now.
    pub(crate) fn wake_due(&self, room: OwnedSemaphorePermit) {
        let mut entities = self.shared.table.lock();
        if let Some(entity) = entities.due(self.shared.clock.now()) {
            self.wake(&mut entities, &entity, Some(room));
        }
    }

    /// Wakes the first entity behind `after` that obeys another spec than its type has in
    /// `specs`; answers which.
    pub(crate) fn wake_outdated(
        &self,
        after: Option<&EntityRef>,
        specs: &Specs,
        room: OwnedSemaphorePermit,
    ) -> Option<EntityRef> {
        let mut entities = self.shared.table.lock();
        let entity = entities.outdated(after, specs)?;
        self.wake(&mut entities, &entity, Some(room));
        Some(entity)
    }

    /// Starts the task of an entity that sleeps, unless the runtime is shutting down.
    fn wake(
        &self,
        entities: &mut Entities,
        entity: &EntityRef,
        room: Option<OwnedSemaphorePermit>,
    ) {
        if *self.closing.borrow() {
            return;
        }
        let (handle, seat) = seat(View::Waking, self.closing.subscribe());
        if let Some(sleep) = entities.rouse(entity, handle) {
            let shared = Arc::clone(&self.shared);
            let life = waking::wake(shared, entity.clone(), sleep, seat, room);
            self.spawn_life(entity.clone(), life);
        }
    }

    /// Starts the task of an entity, which is put to sleep where that unwinds.
    pub(crate) fn spawn_life(
        &self,
        entity: EntityRef,
        life: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn(waking::unless_lost(Arc::clone(&self.shared), entity, life));
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.sweep();
        self.tasks().spawn_on(task, &self.threads);
    }

    /// Lets go of tasks that have ended.
    pub(crate) fn sweep(&self) {
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entities = self.0.shared.table.lock().len();
        f.debug_struct("Runtime").field("entities", &entities).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sandglass_journal::MemoryJournal;

    use super::*;

    #[tokio::test]
    async fn creations_that_fail_leave_nothing_behind() {
        let source = "[automaton]\nname = \"Door\"\nstates = [\"Shut\"]\ninitial = \"Shut\"\n\
                      allow_indefinite_states = [\"Shut\"]\n";
        let spec = Spec::parse(source).spec.expect("sound");
        let journal = Arc::new(MemoryJournal::new());
        let runtime = Runtime::builder(Arc::clone(&journal) as _).specs([spec]).build().await;
        let runtime = runtime.expect("an empty journal");
        journal.set_failing(Some("disk full".to_owned()));
        for number in 0..10 {
            let name = format!("Door/{number}").parse().expect("a valid name");
            runtime.create(name).await.expect_err("no disk");
        }
        // The one that waits for alarms, and the last creation.
        assert!(runtime.0.tasks().len() <= 2, "{}", runtime.0.tasks().len());
        assert_eq!(runtime.entities(None, 10), []);
    }
}
