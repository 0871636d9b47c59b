//! Gauges that say how many of something there are now: counted by guards, so
//! that whatever way a thing ends, it is counted out.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Gauges, Inner, Metrics};
use crate::table::Families;

/// Something of which there are more and fewer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Dispatches that wait for a place on the guest executor.
    Queued,
    /// Guests that wait in an ask to another entity, without a place to run.
    Asking,
    /// Guests that are running or waiting in a host call.
    InFlight,
    /// Dispatches that are not yet fully torn down.
    LiveDispatches,
    /// Stores that exist.
    LiveStores,
    /// Blocking host calls that have outlived their run.
    LingeringCalls,
    /// Entities in memory.
    Entities,
}

impl Level {
    pub(super) const ALL: [Self; 7] = [
        Self::Queued,
        Self::Asking,
        Self::InFlight,
        Self::LiveDispatches,
        Self::LiveStores,
        Self::LingeringCalls,
        Self::Entities,
    ];

    const fn gauge(self, families: &Families) -> &Gauges<0> {
        match self {
            Self::Queued => &families.queued,
            Self::Asking => &families.asking,
            Self::InFlight => &families.in_flight,
            Self::LiveDispatches => &families.live_dispatches,
            Self::LiveStores => &families.live_stores,
            Self::LingeringCalls => &families.lingering_calls,
            Self::Entities => &families.entities,
        }
    }
}

/// How many of each level are held.
#[derive(Debug, Default)]
pub(super) struct Levels([Mutex<u64>; Level::ALL.len()]);

impl Inner {
    fn change(&self, level: Level, change: impl FnOnce(u64) -> u64) {
        let held = &self.levels.0[level as usize];
        // The gauge is set under the lock: otherwise an older figure could be set last.
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = change(*held);
        level.gauge(&self.families).set([], *held as f64);
    }
}

impl Metrics {
    /// Counts one more of `level`, until the guard is dropped.
    pub fn hold(&self, level: Level) -> Held {
        let held = self.0.clone().map(|inner| (inner, level));
        if let Some((inner, level)) = &held {
            inner.change(*level, |held| held.saturating_add(1));
        }
        Held(held)
    }
}

/// One of a [`Level`], counted while this lives.
#[must_use = "it is counted out when this is dropped"]
pub struct Held(Option<(Arc<Inner>, Level)>);

impl Drop for Held {
    fn drop(&mut self) {
        if let Some((inner, level)) = &self.0 {
            inner.change(*level, |held| held.saturating_sub(1));
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.0.as_ref().map(|(_, level)| level)).finish()
    }
}
