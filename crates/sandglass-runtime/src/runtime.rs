//! The runtime as its users see it: creates entities by name, and sends them actions, signals,
//! stops and retries. What only reads is in `reading.rs`.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_journal::{Journal, Journals};
use sandglass_liveness::{self as liveness, Input, Refusal, Spec};
use sandglass_model::{
    Cause, DispatchId, Dispatched, EntityRef, Event as RecordedEvent, Incarnation, Monotonic,
    Object, Retried, WallTime,
};
use tokio::sync::oneshot;

use crate::actor::{self, Message, View, channels};
use crate::builder::Builder;
use crate::error::ActorError;
use crate::inner::Inner;
use crate::publish::Snapshot;
use crate::reading::seen;
use crate::request::{Accepted, NewEntity, Request, Retry, Signal};
use crate::serving::Origin;
use crate::specs::{self, ReloadError, Reloaded};
use crate::table::Sleep;
use crate::{timer, waking, watch};

/// The entities of one store. Cheap to clone; when the last clone is dropped,
/// everything stops at once and the journal stays as it is.
#[derive(Clone)]
pub struct Runtime(pub(crate) Arc<Inner>);

/// An entity that is being created.
pub(crate) struct CreationInProgress {
    pub(crate) view: watch::Receiver<View>,
    /// Whether it was created, and at what time; and why it did not take its first action, if it was
    /// spawned and refused that.
    pub(crate) created: oneshot::Receiver<Result<(WallTime, Option<String>), ActorError>>,
}

/// How a creation began.
pub(crate) enum Begun {
    Started(CreationInProgress),
    /// An entity of this name is being read from the journal, which may not have one.
    LookedUp(Box<actor::Creation>, watch::Receiver<View>),
}

impl Runtime {
    /// A builder of a runtime over `journal`.
    pub fn builder(journal: Arc<dyn Journal>) -> Builder {
        Self::builder_over(journal.into())
    }

    /// A builder of a runtime over all journals of a store.
    pub fn builder_over(journals: Journals) -> Builder {
        Builder::new(journals)
    }

    /// Creates an entity for the tenant [`sandglass_model::DEFAULT_TENANT`].
    ///
    /// # Errors
    /// It exists already, the runtime has no spec of its type, or the journal takes no appends.
    pub async fn create(&self, entity: EntityRef) -> Result<Arc<Snapshot>, ActorError> {
        self.create_as(entity, NewEntity::default()).await
    }

    /// Creates an entity for `tenant`, a name of at most
    /// [`NAME_MAX_BYTES`](sandglass_model::id::NAME_MAX_BYTES) bytes. Its handlers are given the
    /// name and count towards the limits of that tenant.
    ///
    /// # Errors
    /// As [`Runtime::create`], or the name of the tenant is invalid.
    pub async fn create_for(
        &self,
        entity: EntityRef,
        tenant: impl Into<String>,
    ) -> Result<Arc<Snapshot>, ActorError> {
        let tenant = Some(tenant.into());
        self.create_as(entity, NewEntity { tenant, ..NewEntity::default() }).await
    }

    /// Creates an entity with what `new` states. If it is a session, its first run starts.
    ///
    /// # Errors
    /// As [`Runtime::create_for`], or it refuses its first action; then it is not created.
    pub async fn create_as(
        &self,
        entity: EntityRef,
        new: NewEntity,
    ) -> Result<Arc<Snapshot>, ActorError> {
        let NewEntity { tenant, limits, first } = new;
        let spec = self.spec(entity.entity_type()).ok_or_else(|| ActorError::UnknownType {
            entity_type: entity.entity_type().to_owned(),
        })?;
        let incarnation =
            Incarnation::drawn(&*self.0.shared.entropy).map_err(|_| ActorError::NoRandomness)?;
        let create = Input::Create { name: entity.clone(), incarnation, tenant, spawned_by: None };
        let ceilings = self.0.shared.ceilings();
        let limits = ceilings.makes_sessions(&spec).then(|| ceilings.effective(&spec, &limits));
        let first = first.map(actor::First::Requested);
        let mut creation = actor::Creation { create, limits, first, slot: None };
        let begun = loop {
            self.0.shared.table.lock().serving.check(&entity, Origin::Outside)?;
            if self.0.shared.is_known(&entity).await? {
                return Err(ActorError::EntityExists(entity));
            }
            match self.begin(entity.clone(), Arc::clone(&spec), creation, Origin::Outside)? {
                Begun::Started(begun) => break begun,
                Begun::LookedUp(back, view) => {
                    creation = *back;
                    // The next turn finds what this shows.
                    let _ = seen(view, |_| true).await;
                }
            }
        };
        begun.created.await.map_err(|_| ActorError::Closed)??;
        seen(begun.view, |_| true).await
    }

    /// Enters `entity` into the table, and creates it on a task of its own: if the caller goes away, no
    /// entity stays behind that is in the journal but has no task.
    pub(crate) fn begin(
        &self,
        entity: EntityRef,
        spec: Arc<Spec>,
        creation: actor::Creation,
        origin: Origin,
    ) -> Result<Begun, ActorError> {
        let mut entities = self.0.shared.table.lock();
        if *self.0.closing.borrow() {
            return Err(ActorError::Closed);
        }
        entities.serving.check(&entity, origin)?;
        let hold = entities.serving.hold(&entity);
        let hold = hold.ok_or_else(|| ActorError::Elsewhere(entity.clone()))?;
        if let Some(looked_up) = entities.awake(&entity).filter(|handle| handle.is_waking()) {
            return Ok(Begun::LookedUp(Box::new(creation), looked_up.watch()));
        }
        let (handle, channels) = channels(View::New, hold.clone());
        let view = handle.watch();
        if !entities.enter(entity.clone(), handle) {
            return Err(ActorError::EntityExists(entity));
        }
        let (reply, created) = oneshot::channel();
        let (shared, name) = (Arc::clone(&self.0.shared), entity.clone());
        let life = |creation: actor::Creation| async move {
            let hold = channels.hold.clone();
            match creation.append(&shared, spec, (name.clone(), &hold)).await {
                Ok(created) => {
                    let (at, action_refused) = (created.at, created.action_refused.clone());
                    let actor = created.begin(shared, channels);
                    let _ = reply.send(Ok((at, action_refused)));
                    Box::pin(actor.run_loop()).await;
                }
                Err(error @ ActorError::EntityExists(_)) => {
                    let _ = reply.send(Err(error));
                    // The journal has one, and requests to it may be in the mailbox.
                    let stored = Sleep::stored(None, Monotonic::NEVER);
                    waking::wake(shared, name, stored, channels, None).await;
                }
                Err(error) => {
                    let is_here = shared.table.forget(&name, &hold);
                    let refused =
                        if is_here { ActorError::UnknownEntity } else { ActorError::Elsewhere };
                    channels.refuse(&refused(name));
                    let _ = reply.send(Err(error));
                }
            }
        };
        let life = life(creation);
        // Before the lock is released, so that a shutdown waits for it.
        self.0.spawn_life((entity, hold), life);
        Ok(Begun::Started(CreationInProgress { view, created }))
    }

    /// Sends `action` to `entity`. Returns once it is durable and its handlers are started; they
    /// execute in the background.
    ///
    /// # Errors
    /// The action was not taken, and nothing has changed.
    pub async fn send(
        &self,
        entity: &EntityRef,
        action: &str,
        params: Object,
    ) -> Result<Accepted, ActorError> {
        self.request(entity, Request::new(action).params(params)).await
    }

    /// Sends an action that may name a trace, an expected sequence and an idempotency key. If the entity
    /// remembers the key, returns what the same request got before, and nothing changes.
    ///
    /// # Errors
    /// The action was not taken, and nothing has changed; or it was taken before, and its records
    /// cannot be read.
    pub async fn request(
        &self,
        entity: &EntityRef,
        request: Request,
    ) -> Result<Accepted, ActorError> {
        let answer = self
            .send_message(entity, Origin::Outside, |reply| Message::Act { request, reply })
            .await;
        match answer {
            Err(ActorError::Refused { refusal: Refusal::TakenBefore { sequence }, .. }) => {
                self.accepted_before(entity, sequence).await
            }
            answer => answer,
        }
    }

    /// Sends an action and waits until the entity has settled.
    ///
    /// # Errors
    /// The action was not taken, or a handler that it started timed out
    /// ([`ActorError::HandlerDeadlineExceeded`]).
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

    /// Sends `entity` a signal, which changes no state and no sequence. If the state's `reset_on` lists
    /// it, it restarts the state's timer, unless `from` is the entity itself.
    ///
    /// # Errors
    /// The signal was not recorded. One from outside is refused if its name is reserved, and if the
    /// entity has ended or the run of its session is stopping or has stopped.
    pub async fn signal(&self, entity: &EntityRef, signal: Signal) -> Result<(), ActorError> {
        self.send_message(entity, Origin::Outside, |reply| Message::Signal {
            signal: Box::new(signal),
            tenant: None,
            reply,
        })
        .await
    }

    /// Kills the handler of `dispatch`, or all handlers of the entity, as cancelled, and returns
    /// how many that were. It waits for no mailbox, and for the disk only if the entity sleeps.
    ///
    /// # Errors
    /// There is no such entity, another host owns it, or it sleeps and the journal cannot be read.
    pub async fn cancel(
        &self,
        entity: &EntityRef,
        dispatch: Option<DispatchId>,
        reason: &str,
    ) -> Result<usize, ActorError> {
        let stops = {
            let entities = self.0.shared.table.lock();
            entities.serving.check(entity, Origin::Inside)?;
            let awake = entities.awake(entity).filter(|handle| !handle.is_waking());
            awake.map(|handle| handle.stops.clone())
        };
        match stops {
            Some(stops) => Ok(stops.kill(dispatch, Cause::Cancel, reason)),
            // An entity that sleeps has nothing in flight.
            None if self.0.shared.is_known(entity).await? => Ok(0),
            None => Err(ActorError::UnknownEntity(entity.clone())),
        }
    }

    /// Starts one more attempt of a handler that has ended without success: with the dispatch id
    /// (the guest's idempotency key), parameters and configuration of the earlier ones, in the
    /// present state of the entity.
    ///
    /// # Errors
    /// Nothing was started or changed: the entity has no such dispatch, it is in flight or has
    /// completed, the expected attempt is not its last one, or the present state does not accept
    /// all of its endings.
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
        self.send_message(entity, Origin::Outside, |reply| Message::Retry { retry, reply }).await
    }

    /// The first record of the entity's dispatch.
    async fn dispatched(
        &self,
        entity: &EntityRef,
        dispatch: DispatchId,
    ) -> Result<Dispatched, ActorError> {
        let journal = &self.0.shared.journal;
        let found = journal.find_dispatch(dispatch).await?;
        let unknown = || ActorError::UnknownDispatch { entity: entity.clone(), dispatch };
        let (_, at) = found.filter(|(of, _)| of == entity).ok_or_else(unknown)?;
        let page = journal.read_entity(entity.clone(), at, 1).await?;
        let record = page.entries.into_iter().next().ok_or_else(unknown)?;
        match record.into_record()?.event {
            RecordedEvent::Dispatched(dispatched) => Ok(*dispatched),
            _ => Err(unknown()),
        }
    }

    /// Replaces all specs by `specs`, or none.
    ///
    /// New entities obey them. An existing entity changes to the new version of its spec as soon as
    /// none of its handlers is in flight; the change is a record, and restarts the timer of its
    /// state. If its state, a variable or a scheduled action is missing in the new version, it
    /// keeps its version, and [`Snapshot::held_back`] states why. Entities that have ended, and
    /// those whose type has no spec any more, do not change.
    ///
    /// Returns when the specs are durable. Entities that sleep are woken one after the other from
    /// then on; if the runtime ends before, the next start continues.
    ///
    /// # Errors
    /// Nothing was changed. At most [`sandglass_journal::BATCH_MAX_RECORDS`] specs can be new at
    /// once.
    pub async fn reload(
        &self,
        specs: impl IntoIterator<Item = impl Into<Arc<Spec>>>,
    ) -> Result<Reloaded, ReloadError> {
        let types = specs::by_type(specs.into_iter().map(Into::into).collect());
        let types = types.map_err(ReloadError::DoubledType)?;
        let (inner, shared) = (&self.0, &self.0.shared);
        let _one_at_a_time = inner.reloading.lock().await;
        let before = shared.specs();
        let (specs, reloaded) = before.reloaded(types);
        let registered = specs::register(shared, &specs.new_since(&before)).await;
        registered.map_err(|error| ReloadError::NotRecorded(error.into()))?;
        let specs = Arc::new(specs);
        specs::expect(&shared.telemetry.metrics, &specs, &shared.ceilings());
        shared.specs.send_replace(Arc::clone(&specs));
        let _nobody_comes = shared.table.lock();
        if !*inner.closing.borrow() {
            let (weak, closing) = (Arc::downgrade(inner), inner.closing.subscribe());
            inner.spawn(waking::wake_outdated(Arc::clone(shared), weak, specs, None, closing));
        }
        Ok(reloaded)
    }

    /// Whether it is shutting down, or has shut down.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        *self.0.closing.borrow()
    }

    /// Takes no more requests, kills all handlers, records how they ended, and closes the journal.
    /// Handlers that have not ended and been recorded within `grace` are dropped; the next start
    /// finds them as interrupted. If it is shutting down already, waits for that, with the grace of
    /// the first call.
    pub async fn shutdown(&self, grace: Duration) {
        let _one_at_a_time = self.0.shutdown.lock().await;
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.0.shared.shutdown_grace_ms.store(grace_ms, Ordering::Relaxed);
        {
            let mut nobody_comes = self.0.shared.table.lock();
            self.0.closing.send_replace(true);
            nobody_comes.serving.close();
        }
        let mut tasks = std::mem::take(&mut *self.0.tasks());
        let clock = Arc::clone(&self.0.shared.clock);
        let over = clock.now().after(grace);
        let all = async { while tasks.join_next().await.is_some() {} };
        tokio::select! {
            biased;
            () = all => {}
            () = timer::until(&*clock, over) => tracing::warn!("handlers outlived the grace"),
        }
        tasks.shutdown().await;
        // It usually leads back to this runtime.
        self.0.shared.way.close();
        self.0.shared.write_last_rests().await;
        self.0.shared.journal.close().await;
    }

    pub(crate) async fn send_message<T>(
        &self,
        entity: &EntityRef,
        origin: Origin,
        message: impl FnOnce(oneshot::Sender<Result<T, ActorError>>) -> Message,
    ) -> Result<T, ActorError> {
        use tokio::sync::mpsc::error::TrySendError;
        let (reply, answer) = oneshot::channel();
        let message = message(reply);
        match self.0.reach(entity, origin, |handle| handle.mailbox.try_send(message))? {
            Ok(()) => answer.await.map_err(|_| ActorError::Closed)?,
            Err(TrySendError::Full(_)) => Err(ActorError::MailboxFull(entity.clone())),
            Err(TrySendError::Closed(_)) => Err(ActorError::Closed),
        }
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
        // The tasks that wait for alarms, load entities, note rests and change specs, and the last
        // creation.
        assert!(runtime.0.tasks().len() <= 5, "{}", runtime.0.tasks().len());
        assert_eq!(runtime.entities(None, 10).await, Ok(vec![]));
    }
}
