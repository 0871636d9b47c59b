//! Gauges that say how many of something there are now: counted by guards, so
//! that whatever way a thing ends, it is counted out.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{Limit, StopCause};

use super::family::{KeptGauge, OVERFLOW};
use super::sessions::NONE;
use super::{Inner, Metrics};
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
    /// Sessions that are awake and whose run goes on, without those that are silent.
    SessionsRunning,
    /// Sessions whose silence was warned of, and goes on.
    SessionsSilent,
    /// Sessions whose run is to stop, and waits for what is in flight.
    SessionsStopping,
    /// Sessions that wait to be resumed, awake or asleep, because a run took too long.
    BlockedByWatchdog,
    /// The same, because they made no progress.
    BlockedWithoutProgress,
    /// The same, because their host was shut down.
    BlockedByShutdown,
    /// The same, for another reason.
    BlockedOtherwise,
}

impl Level {
    pub(super) const ALL: [Self; 14] = [
        Self::Queued,
        Self::Asking,
        Self::InFlight,
        Self::LiveDispatches,
        Self::LiveStores,
        Self::LingeringCalls,
        Self::Entities,
        Self::SessionsRunning,
        Self::SessionsSilent,
        Self::SessionsStopping,
        Self::BlockedByWatchdog,
        Self::BlockedWithoutProgress,
        Self::BlockedByShutdown,
        Self::BlockedOtherwise,
    ];

    fn gauge(self, families: &Families) -> KeptGauge {
        let sessions = |status, code| families.sessions.handle([status, code]);
        let blocked = |code| sessions("blocked", code);
        match self {
            Self::Queued => families.queued.handle([]),
            Self::Asking => families.asking.handle([]),
            Self::InFlight => families.in_flight.handle([]),
            Self::LiveDispatches => families.live_dispatches.handle([]),
            Self::LiveStores => families.live_stores.handle([]),
            Self::LingeringCalls => families.lingering_calls.handle([]),
            Self::Entities => families.entities.handle([]),
            Self::SessionsRunning => sessions("running", NONE),
            Self::SessionsSilent => sessions("silent", NONE),
            Self::SessionsStopping => sessions("stopping", NONE),
            Self::BlockedByWatchdog => blocked(Limit::RunTimeout.stop_reason_code()),
            Self::BlockedWithoutProgress => blocked(Limit::ProgressTimeout.stop_reason_code()),
            Self::BlockedByShutdown => blocked(StopCause::Shutdown.code()),
            Self::BlockedOtherwise => blocked(OVERFLOW),
        }
    }
}

/// How many of each level are held.
pub(super) struct Levels([Count; Level::ALL.len()]);

struct Count {
    gauge: KeptGauge,
    /// How many are held, where the gauge doesn't know.
    held: Mutex<u64>,
}

impl Levels {
    pub(super) fn new(families: &Families) -> Self {
        Self(Level::ALL.map(|level| {
            let count = Count { gauge: level.gauge(families), held: Mutex::default() };
            // Exported from the start.
            count.gauge.set(0.0);
            count
        }))
    }
}

impl fmt::Debug for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Levels").finish_non_exhaustive()
    }
}

impl Count {
    fn one_more(&self) {
        match &self.gauge {
            KeptGauge::Handle(gauge) => gauge.increment(1.0),
            renewed @ KeptGauge::AskedFor(..) => {
                self.change(renewed, |held| held.saturating_add(1));
            }
        }
    }

    fn one_less(&self) {
        match &self.gauge {
            KeptGauge::Handle(gauge) => gauge.decrement(1.0),
            renewed @ KeptGauge::AskedFor(..) => {
                self.change(renewed, |held| held.saturating_sub(1));
            }
        }
    }

    fn change(&self, gauge: &KeptGauge, change: impl FnOnce(u64) -> u64) {
        // The gauge is set under the lock: otherwise an older figure could be set last.
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        *held = change(*held);
        gauge.set(*held as f64);
    }
}

impl Inner {
    fn count(&self, level: Level) -> &Count {
        &self.levels.0[level as usize]
    }
}

impl Metrics {
    /// Counts one more of `level`, until the guard is dropped.
    pub fn hold(&self, level: Level) -> LevelGuard {
        if let Some(inner) = &self.0 {
            inner.count(level).one_more();
        }
        LevelGuard(self.0.clone(), level)
    }

    /// The same, for a guard that goes before these metrics: it costs less.
    pub fn hold_scoped(&self, level: Level) -> ScopedLevelGuard<'_> {
        let count = self.0.as_deref().map(|inner| inner.count(level));
        if let Some(count) = count {
            count.one_more();
        }
        ScopedLevelGuard(count, level)
    }
}

/// One of a [`Level`], counted while this lives.
#[must_use = "it is counted out when this is dropped"]
pub struct LevelGuard(Option<Arc<Inner>>, Level);

impl Drop for LevelGuard {
    fn drop(&mut self) {
        if let Some(inner) = &self.0 {
            inner.count(self.1).one_less();
        }
    }
}

impl fmt::Debug for LevelGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LevelGuard").field(&self.0.as_ref().map(|_| self.1)).finish()
    }
}

/// One of a [`Level`], counted while this lives.
#[must_use = "it is counted out when this is dropped"]
pub struct ScopedLevelGuard<'a>(Option<&'a Count>, Level);

impl Drop for ScopedLevelGuard<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.one_less();
        }
    }
}

impl fmt::Debug for ScopedLevelGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedLevelGuard").field(&self.0.map(|_| self.1)).finish()
    }
}
