//! What others see of entities: a snapshot of each, and events.

use std::sync::Arc;

use sandglass_liveness::session::{HandlerWatch, Shown, StatusView, Watched};
use sandglass_liveness::{Entity, Fields, Session};
use sandglass_model::{
    DispatchId, EntityRef, Incarnation, LastSignal, Object, Partition, Record, RunReport, Sequence,
    SpecDigest, WallTime,
};
use serde_json::Value;
use tokio::sync::broadcast;

/// How many events a subscriber may be behind before it misses some: a terminal that redraws ten
/// times a second keeps up with ten thousand events a second.
pub const SUBSCRIPTION_MAX: usize = 1_024;

/// An event. Records are durable when they are published.
#[derive(Clone, Debug)]
pub enum Event {
    /// A record was appended.
    Recorded(Arc<Record>),
    /// A handler has ended; its record follows.
    RunEnded {
        /// The entity.
        entity: EntityRef,
        /// Its report.
        report: Arc<RunReport>,
    },
    /// A signal that is not recorded, because its handler has sent so many.
    UnrecordedSignal {
        /// The entity.
        entity: EntityRef,
        /// The handler.
        dispatch: DispatchId,
        /// Its kind.
        name: String,
        /// Its content.
        payload: Arc<Value>,
    },
    /// A partition of a shared store is not served any more: it was lost, or given away. Records of its
    /// entities are published by its next owner.
    Unserved(Partition),
}

/// Receives events from the subscription on.
#[derive(Debug)]
pub struct Subscription(pub(crate) broadcast::Receiver<Event>);

impl Subscription {
    /// The next event, or how many were missed since the last one; `None` if the runtime is gone.
    pub async fn next(&mut self) -> Option<Result<Event, u64>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// An entity at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The entity.
    pub entity: EntityRef,
    /// The version of the spec that it obeys.
    pub spec: SpecDigest,
    /// Distinguishes this life of it from others of the same name.
    pub incarnation: Incarnation,
    /// The tenant that it belongs to.
    pub tenant: String,
    /// Its state.
    pub state: String,
    /// Its variables.
    pub variables: Object,
    /// Its fields: the last values of the parameters of all actions that it took. A variable of the
    /// same name takes precedence.
    pub fields: Fields,
    /// How many transitions it has taken.
    pub sequence: Sequence,
    /// The handlers that are queued or in flight, in the order of their dispatch.
    pub in_flight: Vec<RunView>,
    /// How many actions are scheduled for later.
    pub schedules: usize,
    /// The entities that it spawns and whose creation it has not recorded yet.
    pub spawning: Vec<EntityRef>,
    /// Its session, if it is one.
    pub session: Option<Box<Session>>,
    /// The inactivity of its handlers in flight, if it is not a session.
    pub watch: Option<Box<HandlerWatch>>,
    /// Why it keeps its version of the spec although there is a newer one, if that does not fit it.
    pub held_back: Option<String>,
}

/// A handler in flight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunView {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// The integration.
    pub integration: String,
    /// The action that triggered it.
    pub action: String,
    /// Which attempt.
    pub attempt: u32,
    /// Its budget, in milliseconds.
    pub budget_ms: u64,
}

impl Snapshot {
    /// Whether no handler is queued or in flight, and no entity that it spawns is still to be created.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.in_flight.is_empty() && self.spawning.is_empty()
    }

    /// Whose inactivity is measured, as [`Entity::watched`].
    #[must_use]
    pub fn watched(&self) -> Option<Watched<'_>> {
        let handlers = || self.watch.as_deref().map(Watched::Handlers);
        self.session.as_deref().map(Watched::Session).or_else(handlers)
    }

    /// The status at `now`, if the last host call of its handlers was `active`; `None` if it is not a
    /// session and has no handlers in flight that are watched.
    #[must_use]
    pub fn status(&self, now: WallTime, active: Option<LastSignal>) -> Option<StatusView> {
        let shown = Shown {
            name: &self.entity,
            state: &self.state,
            sequence: self.sequence,
            watched: self.watched()?,
            active,
            handlers: self.in_flight.iter().map(|run| run.integration.clone()).collect(),
        };
        Some(shown.status(now))
    }

    pub(crate) fn of(entity: &Entity) -> Self {
        let view = |run: &sandglass_liveness::InFlight| RunView {
            dispatch: run.dispatched.dispatch,
            integration: run.dispatched.integration.clone(),
            action: run.dispatched.action.clone(),
            attempt: run.dispatched.attempt,
            budget_ms: run.dispatched.budget_ms,
        };
        Self {
            entity: entity.entity.clone(),
            spec: entity.spec,
            incarnation: entity.incarnation,
            tenant: entity.tenant.clone(),
            state: entity.state.clone(),
            variables: entity.variables.clone(),
            fields: entity.fields().clone(),
            sequence: entity.sequence,
            in_flight: entity.in_flight().into_iter().map(view).collect(),
            schedules: entity.schedules().len(),
            spawning: entity.spawning().map(|(_, spawn)| spawn.entity.clone()).collect(),
            session: entity.session().cloned().map(Box::new),
            watch: match entity.watched() {
                Some(Watched::Handlers(handlers)) => Some(Box::new(handlers.clone())),
                Some(Watched::Session(_)) | None => None,
            },
            held_back: None,
        }
    }
}
