//! Activity of handlers that no record shows: their host calls, and what the entities do that they
//! wait for.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{DispatchId, EntityRef, LastSignal, Monotonic, WallTime};
use tokio::sync::Notify;

use crate::actor::Handle;
use crate::panics::catch_panic;
use crate::publish::Snapshot;
use crate::shared::Shared;

/// The kind of activity of an entity that a handler waits for.
const ASKED: &str = "asked";

/// The last activity of handlers, as it was found at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Active {
    /// How long ago it was then.
    pub(crate) ago: Duration,
    kind: &'static str,
    of: String,
    pub(crate) identity: Identity,
}

/// Identifies one activity. How long ago it was differs a little with each reading, because the
/// executor has a clock of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Identity {
    /// A host call of a handler, by the clock of its executor.
    Call(DispatchId, Monotonic),
    /// A record of an entity.
    Record(EntityRef, WallTime),
}

impl Active {
    /// The activity, if it was found `now`.
    pub(crate) fn signal(self, now: WallTime) -> LastSignal {
        LastSignal { kind: self.kind.to_owned(), of: Some(self.of), at: now.before(self.ago) }
    }
}

impl Shared {
    /// The last host call of `handlers`, which are in flight of `entity`, or the last activity of
    /// the entities that they wait for; `None` if none is known.
    pub(crate) fn last_active<'a>(
        &self,
        entity: &EntityRef,
        handlers: impl Iterator<Item = (DispatchId, &'a str)>,
    ) -> Option<Active> {
        let now = self.clock.wall();
        let asked = self.awaited_by(entity);
        let of_asked = asked.iter().flat_map(|snapshot| {
            let of = || snapshot.entity.to_string();
            let calls = snapshot.handlers().filter_map(|handler| self.last_call(handler));
            let calls = calls.map(|call| Active { kind: ASKED, of: of(), ..call });
            let recorded = snapshot.watched().map(|watched| {
                let at = watched.active_since();
                let identity = Identity::Record(snapshot.entity.clone(), at);
                Active { ago: now.since(at), kind: ASKED, of: of(), identity }
            });
            calls.chain(recorded).min_by_key(|active| active.ago)
        });
        let own = handlers.filter_map(|handler| self.last_call(handler));
        own.chain(of_asked).min_by_key(|active| active.ago)
    }

    fn last_call(&self, (dispatch, handler): (DispatchId, &str)) -> Option<Active> {
        let doing = catch_panic(|| self.handlers.doing(dispatch)).flatten()?;
        let (ago, at) = doing.active?;
        let identity = Identity::Call(dispatch, at);
        Some(Active { ago, kind: "host_call", of: handler.to_owned(), identity })
    }

    /// Notifies `waiter` when `handlers`, or those of the entities that they wait for, show
    /// activity next.
    pub(crate) fn on_activity(
        &self,
        entity: &EntityRef,
        handlers: impl Iterator<Item = DispatchId>,
        waiter: &Arc<Notify>,
    ) {
        let asked = self.awaited_by(entity);
        let of_asked = asked.iter().flat_map(|snapshot| snapshot.handlers());
        for dispatch in handlers.chain(of_asked.map(|(dispatch, _)| dispatch)) {
            catch_panic(|| self.handlers.on_activity(dispatch, waiter));
        }
    }

    /// The entities that handlers of `entity` wait for.
    fn awaited_by(&self, entity: &EntityRef) -> Vec<Arc<Snapshot>> {
        let names = self.wait_graph.awaited_by(entity);
        if names.is_empty() {
            return Vec::new();
        }
        let entities = self.table.lock();
        let awake = names.iter().filter_map(|name| entities.awake(name));
        awake.filter_map(Handle::snapshot).collect()
    }
}

impl Snapshot {
    /// The handlers that are queued or in flight, with their integrations.
    pub(crate) fn handlers(&self) -> impl Iterator<Item = (DispatchId, &str)> {
        self.in_flight.iter().map(|run| (run.dispatch, &*run.integration))
    }
}
