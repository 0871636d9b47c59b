//! The sessions that wait to be resumed, awake or asleep: which, why and since when. Each is added
//! when it begins to wait and removed when it is resumed, so no search is needed.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::{Entity, session};
use sandglass_model::{Directive, EntityRef, WallTime};

use crate::runtime::Runtime;

/// A session that waits to be resumed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockedSession {
    /// The session.
    pub entity: EntityRef,
    /// The run that has stopped.
    pub run_seq: u32,
    /// Why it stopped, as a code.
    pub stop_reason_code: String,
    /// What was decided about the session then.
    pub directive: Option<Directive>,
    /// When it stopped.
    pub since: WallTime,
}

/// The sessions of a runtime that wait to be resumed: at most as many as it has entities.
#[derive(Debug, Default)]
pub(crate) struct Blocked(Mutex<BTreeMap<Place, Listed>>);

/// In the order in which they began to wait.
type Place = (WallTime, EntityRef);

#[derive(Debug)]
struct Listed {
    session: BlockedSession,
    /// How many entries it has: more than one while it falls asleep or wakes.
    entries: usize,
}

/// Keeps a session listed until it is dropped.
pub(crate) struct Entry {
    list: Arc<Blocked>,
    place: Place,
}

impl Blocked {
    /// Lists `entity`, if it is a session that waits to be resumed.
    pub(crate) fn enter(self: &Arc<Self>, entity: &Entity) -> Option<Entry> {
        let session = entity.session().filter(|session| session.is_blocked())?;
        let session::RunPhase::Stopped(stopped) = &session.phase else { return None };
        let since = session.run_started.after(Duration::from_millis(stopped.elapsed_ms));
        let place = (since, entity.entity.clone());
        let session = || BlockedSession {
            entity: entity.entity.clone(),
            run_seq: stopped.run_seq,
            stop_reason_code: stopped.stop_reason_code.clone(),
            directive: stopped.directive,
            since,
        };
        let new = || Listed { session: session(), entries: 0 };
        self.lock().entry(place.clone()).or_insert_with(new).entries += 1;
        Some(Entry { list: Arc::clone(self), place })
    }

    /// Up to `most` sessions, the latest first, and how many there are in all.
    fn last(&self, most: usize) -> (Vec<BlockedSession>, usize) {
        let list = self.lock();
        let last = list.values().rev().take(most).map(|listed| listed.session.clone());
        (last.collect(), list.len())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Place, Listed>> {
        // No code between two changes of one critical section can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        let mut list = self.list.lock();
        let Some(listed) = list.get_mut(&self.place) else { return };
        listed.entries -= 1;
        if listed.entries == 0 {
            list.remove(&self.place);
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Entry").field(&self.place).finish()
    }
}

impl Runtime {
    /// Up to `most` of the sessions that wait to be resumed, the latest first, and how many there
    /// are. It reads no entity.
    #[must_use]
    pub fn blocked_sessions(&self, most: usize) -> (Vec<BlockedSession>, usize) {
        self.0.shared.blocked.last(most)
    }
}
