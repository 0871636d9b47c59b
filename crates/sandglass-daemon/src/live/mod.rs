//! The live view: what the handlers are doing at this moment. Snapshots are only taken while clients
//! watch, and all watchers share them.

mod others;
mod sessions;
mod snapshot;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_host::Host;
use sandglass_model::{Clock, Monotonic};
use sandglass_runtime::Runtime;

use crate::recent_kills::RecentKills;
use crate::view::ReasonCode;

pub(crate) use others::{Others, OthersNow, Watching};
pub(crate) use snapshot::{LiveSnapshot, LiveView};

/// How long watchers share a snapshot: much less than [`crate::route`] waits between two snapshots for
/// one watcher, so that its next snapshot contains everything that was recorded before it waited.
const SHARED_FOR: Duration = Duration::from_millis(100);

/// The last snapshot, and the kills that a snapshot of the present cannot show.
#[derive(Debug)]
pub(crate) struct Live {
    kills: Arc<RecentKills>,
    last: Mutex<Option<Arc<LiveSnapshot>>>,
}

impl Live {
    pub(crate) fn new(kills: Arc<RecentKills>) -> Self {
        Self { kills, last: Mutex::default() }
    }

    /// A snapshot that was taken now or a moment ago.
    pub(crate) fn snapshot(
        &self,
        runtime: &Runtime,
        host: &Host,
        clock: &dyn Clock,
        unhealthy: impl FnOnce() -> Vec<ReasonCode>,
    ) -> Arc<LiveSnapshot> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = clock.now();
        if let Some(snapshot) = &*last
            && now.since(snapshot.taken_at) < SHARED_FOR
        {
            return Arc::clone(snapshot);
        }
        let mut taken = LiveSnapshot::take(runtime, host, clock, unhealthy(), self.kills.all());
        taken.follow(last.as_deref());
        Arc::clone(last.insert(Arc::new(taken)))
    }
}

/// In whole milliseconds, rounded down.
fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// The time from `now` to `until` in milliseconds, negative if `until` has passed.
fn remaining_ms(until: Monotonic, now: Monotonic) -> i64 {
    let signed = |time: Duration| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
    if until >= now { signed(until.since(now)) } else { -signed(now.since(until)) }
}
