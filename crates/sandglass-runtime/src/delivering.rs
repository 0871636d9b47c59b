//! What handlers of other hosts request of the entities of this one, as it arrives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_journal as journal;
use sandglass_model::{
    Answered, AskError, AskUntil, DispatchId, EntityRef, SignalError, SpawnObstacle, SpawnResult,
};
use tokio::sync::oneshot;

use crate::actor::Message;
use crate::asking::{
    IncomingAsk, ParentBudget, WaitingAsker, gone, put, settle, to_asker, to_sender,
};
use crate::error::ActorError;
use crate::handlers::Stop;
use crate::other_hosts::{
    RemoteAsk, RemoteRequest, RemoteResponse, RemoteSessionOver, RemoteSignal, RemoteSpawn,
    RemoteSpawned,
};
use crate::quota::Lineage;
use crate::request::Signal;
use crate::runtime::Runtime;
use crate::serving::Origin;
use crate::shared::Shared;
use crate::spawning::SpawnEnded;

/// The asks of other hosts that wait until entities of this one have settled. Each is one open request,
/// so their number is bounded by that of the connections.
#[derive(Default)]
pub(crate) struct OpenAsks(Mutex<Asks>);

#[derive(Default)]
struct Asks {
    /// What stands for the asking handler here, by handler and attempt, and a number of its own.
    open: BTreeMap<(DispatchId, u32, u64), Stop>,
    next: u64,
}

/// An open ask. It ends when this is dropped.
struct OpenAsk<'a> {
    asks: &'a OpenAsks,
    key: (DispatchId, u32, u64),
}

impl OpenAsks {
    fn lock(&self) -> MutexGuard<'_, Asks> {
        // No code between two changes of one critical section can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, (dispatch, attempt): (DispatchId, u32), stop: Stop) -> OpenAsk<'_> {
        let mut asks = self.lock();
        let key = (dispatch, attempt, asks.next);
        asks.next += 1;
        asks.open.insert(key, stop);
        OpenAsk { asks: self, key }
    }

    /// The session of this handler is over: the entities that it has asked get the reason when their asks
    /// end.
    fn end_session(&self, over: &RemoteSessionOver) {
        let of = |number| (over.dispatch, over.attempt, number);
        let why: Arc<str> = over.why.as_str().into();
        let asks = self.lock();
        asks.open.range(of(0)..=of(u64::MAX)).for_each(|(_, stop)| stop.set_session_over(&why));
    }
}

impl Drop for OpenAsk<'_> {
    fn drop(&mut self) {
        self.asks.lock().open.remove(&self.key);
    }
}

impl Shared {
    /// As [`Runtime::deliver`].
    pub(crate) async fn deliver(
        self: &Arc<Self>,
        request: RemoteRequest,
    ) -> Result<RemoteResponse, ActorError> {
        self.wait_until_adopted(request.target()).await;
        match request {
            RemoteRequest::Ask(ask) => self.deliver_ask(*ask).await.map(RemoteResponse::Ask),
            RemoteRequest::Signal(signal) => {
                self.deliver_signal(*signal).await.map(RemoteResponse::Signal)
            }
            RemoteRequest::Spawn(spawn) => {
                self.deliver_spawn(*spawn).await.map(RemoteResponse::Spawn)
            }
            RemoteRequest::SessionOver(over) => {
                self.open_asks.end_session(&over);
                Ok(RemoteResponse::SessionOver)
            }
            RemoteRequest::Waits(entity) => {
                let waits = self.waits_of(&entity);
                waits.map(RemoteResponse::Waits).ok_or(ActorError::Elsewhere(entity))
            }
            RemoteRequest::Activity(entity) => {
                self.check_served(&entity, Origin::Inside)?;
                Ok(RemoteResponse::Activity(self.activity_of(&entity)))
            }
        }
    }

    async fn deliver_ask(&self, ask: RemoteAsk) -> Result<Result<Answered, AskError>, ActorError> {
        let RemoteAsk { target, action, params, trace, asked, tenant, caused_at } = ask;
        // Before the wait for the clocks, which is part of the asker's time.
        let budget = Duration::from_millis(asked.remaining_ms);
        let not_after = Some(self.clock.now().after(budget));
        let from = origin_of_ask(asked.depth);
        self.check_served(&target, from)?;
        self.wait_behind_other_host(caused_at).await;
        let (until, stop) = (asked.until, Stop::default());
        let (answered, waiting) = WaitingAsker::new(&asked, stop.clone());
        let waiting = (until == AskUntil::Settled).then_some(waiting);
        let _open =
            waiting.is_some().then(|| self.open_asks.open((asked.dispatch, asked.attempt), stop));
        let parent_budget = ParentBudget { not_after, waiting };
        let tenant = tenant.into();
        let incoming = IncomingAsk { action, params, trace, asked, tenant, parent_budget };
        let (reply, taken) = oneshot::channel();
        let message = Message::Ask { incoming: Box::new(incoming), reply };
        let view = match put(self, &target, from, message).await {
            Ok(view) => view,
            Err(error @ ActorError::Elsewhere(_)) => return Err(error),
            Err(error) => return Ok(Err(to_asker(error))),
        };
        let taken = match taken.await.map_err(|_| gone()).and_then(|taken| taken) {
            Ok(taken) if until == AskUntil::Settled => taken,
            taken => return Ok(taken),
        };
        Ok(settle(&target, view, &taken, &answered).await)
    }

    async fn deliver_signal(
        &self,
        signal: RemoteSignal,
    ) -> Result<Result<(), SignalError>, ActorError> {
        let RemoteSignal { target, name, from, payload, tenant, caused_at } = signal;
        self.check_served(&target, Origin::Inside)?;
        self.wait_behind_other_host(caused_at).await;
        let signal = Box::new(Signal { name, from: Some(from), payload });
        let (reply, recorded) = oneshot::channel();
        let message = Message::Signal { signal, tenant: Some(tenant.into()), reply };
        match put(self, &target, Origin::Inside, message).await {
            Ok(_) => {}
            Err(error @ ActorError::Elsewhere(_)) => return Err(error),
            Err(error) => return Ok(Err(to_sender(error))),
        }
        match recorded.await.unwrap_or(Err(ActorError::Closed)) {
            Ok(()) => Ok(Ok(())),
            // It left its mailbox unread.
            Err(error @ ActorError::Elsewhere(_)) => Err(error),
            Err(error) => Ok(Err(to_sender(error))),
        }
    }

    async fn deliver_spawn(
        &self,
        spawn: RemoteSpawn,
    ) -> Result<Result<RemoteSpawned, String>, ActorError> {
        let RemoteSpawn { spawn, origin, tenant, first_actions, parent_age_ms, caused_at } = spawn;
        self.check_served(&spawn.entity, Origin::Outside)?;
        self.wait_behind_other_host(caused_at).await;
        let since = self.clock.now().before(Duration::from_millis(parent_age_ms));
        let parent = first_actions.map(|first_actions| Lineage { first_actions, since });
        let runtime = self.runtime.borrow().as_ref().and_then(std::sync::Weak::upgrade);
        let Some(runtime) = runtime.map(Runtime) else {
            return Ok(Err(ActorError::Closed.to_string()));
        };
        let created = runtime.create_here(&spawn, origin, &tenant, parent, Origin::Outside).await;
        match created {
            Ok(SpawnEnded { result, created_at, .. }) => {
                Ok(Ok(RemoteSpawned { result, created_at }))
            }
            Err(error @ ActorError::Elsewhere(_)) => Err(error),
            // As for a spawn of this host.
            Err(ActorError::Journal(error)) if !matches!(error, journal::Error::Damaged { .. }) => {
                let parent = spawn.entity;
                tracing::error!(
                    entity = %parent, %error,
                    "the journal refuses the records of a spawned entity; its parent records that"
                );
                let result = SpawnResult::Refused(SpawnObstacle::NotRecorded);
                Ok(Ok(RemoteSpawned { result, created_at: None }))
            }
            Err(error) => Ok(Err(error.to_string())),
        }
    }

    fn check_served(&self, entity: &EntityRef, from: Origin) -> Result<(), ActorError> {
        self.table.lock().serving.check(entity, from)
    }
}

/// How an ask of another host reaches its entity. One that is part of a chain of asks may be what a handler
/// of a partition that is given away waits for; others wait until it has moved.
const fn origin_of_ask(depth: u32) -> Origin {
    if depth > 1 { Origin::Inside } else { Origin::Outside }
}
