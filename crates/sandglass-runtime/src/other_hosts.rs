//! Asks, signals and spawns for entities of other hosts: what is sent, and the way there, which the
//! embedder supplies. The receiving side is in `delivering.rs`.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sandglass_model::{
    Answered, AskError, Asked, DispatchId, EntityRef, Object, SignalError, Spawn, SpawnResult,
    SpawnedBy, TraceContext, WallTime,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::ActorError;
use crate::runtime::Runtime;
use crate::serving::Origin;
use crate::shared::Shared;

/// The other hosts of a store, as a runtime uses them for its handlers.
pub trait OtherHosts: Send + Sync + 'static {
    /// Sends `request` to the host that owns its [target](RemoteRequest::target), which passes it to
    /// [`Runtime::deliver`], and returns the response of that. While the owner is unknown, or does not own
    /// the entity any more ([`ActorError::Elsewhere`]), this searches for it, for at most a few seconds; if
    /// it is [this host](Here) by now, the request is delivered here. If the future is dropped, so must be
    /// the one of the receiver: handlers that work for the sender end then.
    ///
    /// A request that was perhaps received is not sent again, unless it [can be](RemoteRequest::is_repeatable).
    ///
    /// # Errors
    /// There is no response.
    fn send<'a>(
        &'a self,
        here: &'a Here,
        request: &'a RemoteRequest,
    ) -> BoxFuture<'a, Result<RemoteResponse, Undelivered>>;
}

/// Why there is no response of another host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Undelivered {
    /// The owner was not found in time. Nothing was done.
    #[error("the entity is moving to another host, and nothing was done; try again later")]
    Moving,
    /// The request cannot be sent, or the owner does not accept it. Nothing was done.
    #[error("the host that owns the entity does not accept the request: {0}")]
    Refused(String),
    /// It may have been done.
    #[error("the host that owns the entity did not respond; the request may have been done")]
    Unknown,
}

/// What a handler, or an entity that spawns another one, sends to an entity of another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RemoteRequest {
    /// An ask.
    Ask(Box<RemoteAsk>),
    /// The session whose handler asks is over; sent before the ask is ended.
    SessionOver(RemoteSessionOver),
    /// A signal.
    Signal(Box<RemoteSignal>),
    /// A spawn.
    Spawn(Box<RemoteSpawn>),
    /// A question: for which entities the handlers of this one wait.
    Waits(EntityRef),
    /// A question: when this entity, or one that it waits for, was last active.
    Activity(EntityRef),
}

/// What the owner responds to a request of the same kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum RemoteResponse {
    /// The result of the ask.
    Ask(Result<Answered, AskError>),
    /// It is noted.
    SessionOver,
    /// Whether the signal is recorded.
    Signal(Result<(), SignalError>),
    /// What became of the spawn; or why that is not known yet, so that it must be sent again.
    Spawn(Result<RemoteSpawned, String>),
    /// For which entities the handlers wait.
    Waits(RemoteWaits),
    /// Its last activity; none if none is known.
    Activity(Option<RemoteActivity>),
}

/// An ask for an entity of another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteAsk {
    /// The entity that is to take the action.
    pub target: EntityRef,
    /// The action.
    pub action: String,
    /// The action's parameters.
    pub params: Object,
    /// The span of the ask.
    pub trace: TraceContext,
    /// The handler that asks, with the time that it has left as the request is sent.
    pub asked: Asked,
    /// The tenant of the handler's entity.
    pub tenant: String,
    /// The time of what the ask follows from, on the clock of the sender.
    pub caused_at: WallTime,
}

/// The end of a session whose handler asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSessionOver {
    /// The entity that the handler has asked.
    pub target: EntityRef,
    /// The handler.
    pub dispatch: DispatchId,
    /// Its attempt.
    pub attempt: u32,
    /// Why the session is over.
    pub why: String,
}

/// A signal to an entity of another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSignal {
    /// The entity that is to record it.
    pub target: EntityRef,
    /// Its name.
    pub name: String,
    /// The entity whose handler sends it.
    pub from: EntityRef,
    /// Its content.
    pub payload: Value,
    /// The tenant of the sender.
    pub tenant: String,
    /// The time of what the signal follows from, on the clock of the sender.
    pub caused_at: WallTime,
}

/// The spawn of an entity of another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSpawn {
    /// The entity, and its first action.
    pub spawn: Spawn,
    /// The transition that spawns it, which identifies the spawn.
    pub origin: SpawnedBy,
    /// The tenant of the parent.
    pub tenant: String,
    /// How many first actions in a row led to the spawn; none if the parent does not count among the
    /// spawned entities of its tenant that have something to do.
    pub first_actions: Option<u32>,
    /// How long the parent has counted among these, in milliseconds.
    pub parent_age_ms: u64,
    /// The time of what the spawn follows from, on the clock of the sender.
    pub caused_at: WallTime,
}

/// What became of a spawn on another host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSpawned {
    /// What became of it.
    pub result: SpawnResult,
    /// The time of the first record of the entity, on the clock of its host; none if it has none.
    pub created_at: Option<WallTime>,
}

/// For which entities the handlers of an entity wait, as far as its host knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteWaits {
    /// These, directly or through others.
    pub on: Vec<EntityRef>,
    /// Those of them that the host does not own: it does not know what they wait for.
    pub elsewhere: Vec<EntityRef>,
    /// The entity and those of `on` whose handlers have not yet sent an ask, because they find out whether
    /// it would be a cycle.
    pub probing: Vec<EntityRef>,
}

/// The last activity of an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteActivity {
    /// How long ago it was, in milliseconds.
    pub ago_ms: u64,
    /// Distinguishes it from other activities of the entity.
    pub number: i64,
}

impl RemoteRequest {
    /// The entity whose owner gets it.
    #[must_use]
    pub fn target(&self) -> &EntityRef {
        match self {
            Self::Ask(ask) => &ask.target,
            Self::SessionOver(over) => &over.target,
            Self::Signal(signal) => &signal.target,
            Self::Spawn(spawn) => &spawn.spawn.entity,
            Self::Waits(entity) | Self::Activity(entity) => entity,
        }
    }

    /// Whether it can be sent again if it may have been done: a spawn finds what it has created.
    #[must_use]
    pub const fn is_repeatable(&self) -> bool {
        !matches!(self, Self::Ask(_) | Self::Signal(_))
    }

    /// Whether the sender sends it again by itself, so that nothing is gained by a search for the owner.
    #[must_use]
    pub const fn comes_again(&self) -> bool {
        matches!(self, Self::Spawn(_))
    }

    /// How long its response may take at most by the deadline of an ask; `None` for others, which take no
    /// longer than any request.
    #[must_use]
    pub fn budget(&self) -> Option<Duration> {
        match self {
            Self::Ask(ask) => Some(Duration::from_millis(ask.asked.remaining_ms)),
            _ => None,
        }
    }

    /// The request as it is sent `waited` after it was made: less time is left then.
    #[must_use]
    pub fn after(mut self, waited: Duration) -> Self {
        if let Self::Ask(ask) = &mut self {
            let waited_ms = u64::try_from(waited.as_millis()).unwrap_or(u64::MAX);
            ask.asked.remaining_ms = ask.asked.remaining_ms.saturating_sub(waited_ms);
        }
        self
    }
}

/// The runtime that sends a request. It does not keep the runtime alive.
#[derive(Clone)]
pub struct Here(Weak<Shared>);

impl Here {
    /// As [`Runtime::deliver`].
    ///
    /// # Errors
    /// As [`Runtime::deliver`], or the runtime is gone ([`ActorError::Closed`]).
    pub async fn deliver(&self, request: RemoteRequest) -> Result<RemoteResponse, ActorError> {
        let shared = self.0.upgrade().ok_or(ActorError::Closed)?;
        shared.deliver(request).await
    }
}

impl fmt::Debug for Here {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Here").finish_non_exhaustive()
    }
}

/// The way to other hosts, once there is one.
#[derive(Default)]
pub(crate) struct Way(RwLock<Option<Arc<dyn OtherHosts>>>);

impl Way {
    pub(crate) fn open(&self) -> Option<Arc<dyn OtherHosts>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn close(&self) {
        self.set(None);
    }

    fn set(&self, hosts: Option<Arc<dyn OtherHosts>>) {
        // One assignment, so a panic cannot leave half of it. What was there is dropped without the lock.
        let before =
            std::mem::replace(&mut *self.0.write().unwrap_or_else(PoisonError::into_inner), hosts);
        drop(before);
    }
}

impl Runtime {
    /// Sets the way to the other hosts of the store, for asks, signals and spawns whose entities this
    /// process does not serve. Without one they fail ([`AskError::Unavailable`]), or wait. To be called
    /// before a partition is adopted. It is dropped by [`Runtime::shutdown`].
    pub fn set_other_hosts(&self, hosts: Arc<dyn OtherHosts>) {
        self.0.shared.way.set(Some(hosts));
    }

    /// Carries out what a handler of another host requests of an entity, as if it were a handler of this
    /// one, and returns when that has its result. To be called by the receiving side of [`OtherHosts`]. If
    /// the future of an ask that waits until the entity has settled is dropped, the asker has gone, and
    /// handlers that work for it end.
    ///
    /// # Errors
    /// This host does not own the entity ([`ActorError::Elsewhere`]). Nothing was done.
    pub async fn deliver(&self, request: RemoteRequest) -> Result<RemoteResponse, ActorError> {
        self.0.shared.deliver(request).await
    }
}

impl Shared {
    /// The way to the host that owns `entity`; `None` if that is this one, or no other can be reached.
    /// Waits until the partition of the entity is adopted, if that is happening.
    pub(crate) async fn way_to(&self, entity: &EntityRef) -> Option<Arc<dyn OtherHosts>> {
        let hosts = self.way.open()?;
        self.wait_until_adopted(entity).await;
        let is_here = self.table.lock().serving.check(entity, Origin::Inside).is_ok();
        (!is_here).then_some(hosts)
    }

    pub(crate) fn here(self: &Arc<Self>) -> Here {
        Here(Arc::downgrade(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_they_were_written_and_nothing_else_is() {
        let request = RemoteRequest::Waits("Session/1".parse().expect("a name"));
        let text = serde_json::to_string(&request).expect("text");
        assert_eq!(text, r#"{"waits":"Session/1"}"#);
        assert_eq!(serde_json::from_str::<RemoteRequest>(&text).expect("the same"), request);
        let over = RemoteRequest::SessionOver(RemoteSessionOver {
            target: "Session/1".parse().expect("a name"),
            dispatch: DispatchId::from_bytes([1; 16]),
            attempt: 1,
            why: "stopped".to_owned(),
        });
        let text = serde_json::to_string(&over).expect("text");
        assert_eq!(serde_json::from_str::<RemoteRequest>(&text).expect("the same"), over);
        let more = text.replace("\"attempt\":1", "\"attempt\":1,\"more\":1");
        for bad in [&more, "{}", r#"{"waits":1}"#, r#"{"waits":"Session/1","ask":1}"#, "null"] {
            serde_json::from_str::<RemoteRequest>(bad).expect_err(bad);
        }
    }
}
