//! What others may see of entities: snapshots of each, and all that happens.

use std::sync::Arc;

use sandglass_liveness::session::{Shown, StatusView};
use sandglass_liveness::{Entity, Session};
use sandglass_model::{
    DispatchId, EntityRef, Incarnation, Object, Record, RunReport, Sequence, SpecDigest, WallTime,
};
use serde_json::Value;
use tokio::sync::broadcast;

/// Events that a subscriber may be behind before it misses some: a terminal that
/// redraws ten times a second keeps up with ten thousand a second.
pub const SUBSCRIPTION_MAX: usize = 1_024;

/// Something that happened. What was recorded is durable when it is published.
#[derive(Clone, Debug)]
pub enum Event {
    /// A record was appended.
    Recorded(Arc<Record>),
    /// A handler's run has ended; its record follows.
    RunEnded {
        /// The entity.
        entity: EntityRef,
        /// The run.
        report: Arc<RunReport>,
    },
    /// A handler told something that isn't recorded, its run having told much.
    Told {
        /// The entity.
        entity: EntityRef,
        /// The handler.
        dispatch: DispatchId,
        /// What kind.
        name: String,
        /// What.
        payload: Arc<Value>,
    },
}

/// Receives what happens from now on.
#[derive(Debug)]
pub struct Subscription(pub(crate) broadcast::Receiver<Event>);

impl Subscription {
    /// The next event, or how many were missed since the last; none where the
    /// runtime is gone.
    pub async fn next(&mut self) -> Option<Result<Event, u64>> {
        match self.0.recv().await {
            Ok(event) => Some(Ok(event)),
            Err(broadcast::error::RecvError::Lagged(missed)) => Some(Err(missed)),
            Err(broadcast::error::RecvError::Closed) => None,
        }
    }
}

/// An entity as it is at one moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// The entity.
    pub entity: EntityRef,
    /// The spec that it obeys.
    pub spec: SpecDigest,
    /// This life of it.
    pub incarnation: Incarnation,
    /// On whose behalf it lives.
    pub tenant: String,
    /// Its state.
    pub state: String,
    /// Its variables.
    pub variables: Object,
    /// How many transitions it has taken.
    pub sequence: Sequence,
    /// The handlers that are queued or in flight, in the order of their dispatch.
    pub in_flight: Vec<RunView>,
    /// How many actions are scheduled for later.
    pub schedules: usize,
    /// What it is as a session, where it is one.
    pub session: Option<Box<Session>>,
    /// Why it has not gone over to the version of its spec that new entities of its type
    /// obey, where that doesn't fit it.
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
    /// How it stands as a session at `now`; none where it is none.
    #[must_use]
    pub fn status(&self, now: WallTime) -> Option<StatusView> {
        let shown = Shown {
            name: &self.entity,
            state: &self.state,
            sequence: self.sequence,
            session: self.session.as_deref()?,
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
            sequence: entity.sequence,
            in_flight: entity.in_flight().into_iter().map(view).collect(),
            schedules: entity.schedules().len(),
            session: entity.session().cloned().map(Box::new),
            held_back: None,
        }
    }
}
