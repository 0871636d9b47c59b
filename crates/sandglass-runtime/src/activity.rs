//! Activity of handlers that no record shows: their host calls, and what the entities do that they
//! wait for.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_model::{DispatchId, EntityRef, LastSignal, Monotonic, WallTime};
use tokio::sync::Notify;

use crate::actor::Handle;
use crate::other_hosts::{OtherHosts, RemoteActivity, RemoteRequest, RemoteResponse};
use crate::panics::catch_panic;
use crate::publish::Snapshot;
use crate::shared::Shared;
use crate::timer;

/// The kind of activity of an entity that a handler waits for.
const ASKED: &str = "asked";

/// How often the host of an entity is asked for its activity while a handler of this host waits for it.
const ELSEWHERE_EVERY: Duration = Duration::from_secs(5);

/// The last activity of entities of other hosts that handlers of this one wait for: one entry for each open
/// ask.
#[derive(Debug, Default)]
pub(crate) struct ActiveElsewhere(Mutex<Watched>);

#[derive(Debug, Default)]
struct Watched {
    asked: BTreeMap<u64, (EntityRef, Option<Seen>)>,
    next: u64,
}

/// An activity of an entity of another host.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// When it was, on the clock of this host.
    at: Monotonic,
    number: i64,
}

impl ActiveElsewhere {
    fn lock(&self) -> MutexGuard<'_, Watched> {
        // No code between two changes of one critical section can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One entry. It ends when this is dropped.
struct Entry<'a> {
    of: &'a ActiveElsewhere,
    key: u64,
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.of.lock().asked.remove(&self.key);
    }
}

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
        let of_asked = asked.iter().filter_map(|snapshot| self.last_active_of(snapshot, now));
        let own = handlers.filter_map(|handler| self.last_call(handler));
        let elsewhere = self.last_active_elsewhere(entity);
        own.chain(of_asked).chain(elsewhere).min_by_key(|active| active.ago)
    }

    /// The last activity of an entity that a handler waits for.
    fn last_active_of(&self, snapshot: &Snapshot, now: WallTime) -> Option<Active> {
        let of = || snapshot.entity.to_string();
        let calls = snapshot.handlers().filter_map(|handler| self.last_call(handler));
        let calls = calls.map(|call| Active { kind: ASKED, of: of(), ..call });
        let recorded = snapshot.watched().map(|watched| {
            let at = watched.active_since();
            let identity = Identity::Record(snapshot.entity.clone(), at);
            Active { ago: now.since(at), kind: ASKED, of: of(), identity }
        });
        calls.chain(recorded).min_by_key(|active| active.ago)
    }

    /// The last activity of entities of other hosts that `entity` waits for, as far as they have reported it.
    fn last_active_elsewhere(&self, entity: &EntityRef) -> Option<Active> {
        if self.active_elsewhere.lock().asked.is_empty() {
            return None;
        }
        let (names, now) = (self.wait_graph.awaited_by(entity), self.clock.now());
        let watched = self.active_elsewhere.lock();
        let of = watched.asked.values().filter(|(of, _)| names.contains(of));
        let seen = of.filter_map(|(of, seen)| seen.map(|seen| (of, seen)));
        let active = seen.map(|(of, Seen { at, number })| {
            let identity = Identity::Record(of.clone(), WallTime::from_millis(number));
            Active { ago: now.since(at), kind: ASKED, of: of.to_string(), identity }
        });
        active.min_by_key(|active| active.ago)
    }

    /// The last activity of `entity`, and of those that it waits for, for another host.
    pub(crate) fn activity_of(&self, entity: &EntityRef) -> Option<RemoteActivity> {
        let now = self.clock.wall();
        let own = self.table.lock().awake(entity).and_then(Handle::snapshot);
        let asked = self.awaited_by(entity);
        let here =
            own.iter().chain(&asked).filter_map(|snapshot| self.last_active_of(snapshot, now));
        let last =
            here.chain(self.last_active_elsewhere(entity)).min_by_key(|active| active.ago)?;
        let number = match last.identity {
            Identity::Call(_, at) => i64::try_from(at.as_nanos()).unwrap_or(i64::MAX),
            Identity::Record(_, at) => at.as_millis(),
        };
        let ago_ms = u64::try_from(last.ago.as_millis()).unwrap_or(u64::MAX);
        Some(RemoteActivity { ago_ms, number })
    }

    /// Keeps asking for the activity of an entity of another host until this is dropped.
    pub(crate) async fn watch_elsewhere(
        self: &Arc<Self>,
        hosts: &dyn OtherHosts,
        entity: &EntityRef,
    ) {
        let key = {
            let mut watched = self.active_elsewhere.lock();
            let key = watched.next;
            watched.next += 1;
            watched.asked.insert(key, (entity.clone(), None));
            key
        };
        let _entry = Entry { of: &self.active_elsewhere, key };
        let (clock, here) = (&*self.clock, self.here());
        let request = RemoteRequest::Activity(entity.clone());
        loop {
            timer::until(clock, clock.now().after(ELSEWHERE_EVERY)).await;
            let active = tokio::select! {
                biased;
                active = hosts.send(&here, &request) => active,
                () = timer::until(clock, clock.now().after(ELSEWHERE_EVERY)) => continue,
            };
            let Ok(RemoteResponse::Activity(Some(RemoteActivity { ago_ms, number }))) = active
            else {
                continue;
            };
            let at = clock.now().before(Duration::from_millis(ago_ms));
            if let Some((_, seen)) = self.active_elsewhere.lock().asked.get_mut(&key) {
                *seen = Some(Seen { at, number });
            }
        }
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
