//! Gauges that count what exists at present. Guards count, so that everything is subtracted however it
//! ends.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{Limit, StopCause};

use super::family::{GaugeHandle, Handle as _, OVERFLOW};
use super::sessions::NONE;
use super::{Inner, Metrics};
use crate::table::Families;

/// Defines each level with its gauge and the labels of its series.
macro_rules! levels {
    ($($(#[$doc:meta])+ $level:ident => $family:ident($($label:expr),*),)+) => {
        /// Something that is counted while it exists.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Level { $($(#[$doc])+ $level,)+ }

        impl Level {
            const ALL: [Self; <[&str]>::len(&[$(stringify!($level)),+])] = [$(Self::$level),+];

            fn gauge(self, families: &Families) -> GaugeHandle {
                match self { $(Self::$level => families.$family.handle([$($label),*]),)+ }
            }
        }
    };
}

levels! {
    /// Dispatches that wait for an admission permit.
    Queued => queued(),
    /// Handlers that wait in an ask to another entity, without an admission permit.
    Asking => asking(),
    /// Guests that execute or wait in a host call.
    InFlight => in_flight(),
    /// Dispatches that are not yet torn down completely.
    LiveDispatches => live_dispatches(),
    /// Stores that exist.
    LiveStores => live_stores(),
    /// Blocking host calls that have outlived their handler.
    LingeringCalls => lingering_calls(),
    /// Host calls that wait for the lease of their host.
    ParkedCalls => parked_calls(),
    /// Entities in memory.
    Entities => entities(),
    /// Sessions that are awake, without those below.
    SessionsRunning => sessions("running", NONE),
    /// Sessions that are silent: a warning about their inactivity was recorded.
    SessionsSilent => sessions("silent", NONE),
    /// Sessions whose run is being stopped, and waits for handlers in flight.
    SessionsStopping => sessions("stopping", NONE),
    /// Blocked sessions, awake or asleep, whose run took too long.
    BlockedByWatchdog => sessions("blocked", Limit::RunTimeout.stop_reason_code()),
    /// Blocked sessions that made no progress.
    BlockedWithoutProgress => sessions("blocked", Limit::ProgressTimeout.stop_reason_code()),
    /// Blocked sessions whose host was shut down.
    BlockedByShutdown => sessions("blocked", StopCause::Shutdown.code()),
    /// Sessions that are blocked for another reason.
    BlockedOtherwise => sessions("blocked", OVERFLOW),
}

/// The counts of all levels.
pub(super) struct Levels([Count; Level::ALL.len()]);

/// The count of one level.
pub(super) struct Count {
    gauge: GaugeHandle,
    /// The present value, for a gauge that cannot be incremented.
    value: Mutex<f64>,
}

impl Levels {
    pub(super) fn new(families: &Families) -> Self {
        Self(Level::ALL.map(|level| {
            let count = Count { gauge: level.gauge(families), value: Mutex::default() };
            // Exported from the start.
            count.gauge.report(0.0);
            count
        }))
    }
}

impl Count {
    fn add(&self, difference: f64) {
        match &self.gauge {
            GaugeHandle::Handle(gauge) => gauge.increment(difference),
            GaugeHandle::Renewed(..) => {
                // The gauge is set under the lock: otherwise an older value could be set last.
                let mut value = self.value.lock().unwrap_or_else(PoisonError::into_inner);
                *value += difference;
                self.gauge.report(*value);
            }
        }
    }
}

impl Inner {
    fn count(&self, level: Level) -> &Count {
        &self.levels.0[level as usize]
    }
}

impl Metrics {
    /// Counts one more of `level` until the guard is dropped.
    pub fn hold(&self, level: Level) -> LevelGuard {
        if let Some(inner) = &self.0 {
            inner.count(level).add(1.0);
        }
        LevelGuard(self.0.clone(), level)
    }

    /// As [`Metrics::hold`], but cheaper, because the guard borrows these metrics.
    pub fn hold_scoped(&self, level: Level) -> ScopedLevelGuard<'_> {
        let count = self.0.as_deref().map(|inner| inner.count(level));
        if let Some(count) = count {
            count.add(1.0);
        }
        ScopedLevelGuard(count, level)
    }
}

/// One of a [`Level`], counted until this is dropped.
#[must_use = "it is only counted until this is dropped"]
pub struct LevelGuard(Option<Arc<Inner>>, Level);

impl Drop for LevelGuard {
    fn drop(&mut self) {
        if let Some(inner) = &self.0 {
            inner.count(self.1).add(-1.0);
        }
    }
}

impl fmt::Debug for LevelGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LevelGuard").field(&self.0.as_ref().map(|_| self.1)).finish()
    }
}

/// One of a [`Level`], counted until this is dropped.
#[must_use = "it is only counted until this is dropped"]
pub struct ScopedLevelGuard<'a>(Option<&'a Count>, Level);

impl Drop for ScopedLevelGuard<'_> {
    fn drop(&mut self) {
        if let Some(count) = self.0 {
            count.add(-1.0);
        }
    }
}

impl fmt::Debug for ScopedLevelGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ScopedLevelGuard").field(&self.0.map(|_| self.1)).finish()
    }
}
