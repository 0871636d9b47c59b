//! Deadlines in simulated time: that of a tokio runtime of one thread whose time is paused.
//! It stands while anything runs and jumps to the next timer when nothing does, so a
//! deadline has to be a timer of that runtime; no other thread could wake anybody in time.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Clock, Monotonic};
use tokio::task::AbortHandle;

use super::SLICE;
use crate::run::Run;

/// Wakes `run` once `clock` has passed `at`; where that is only to tell that it still runs,
/// once more when it has passed `then`.
pub(super) fn watch(
    clock: Arc<dyn Clock>,
    run: &Arc<Run>,
    at: Monotonic,
    then: Option<Monotonic>,
) -> AbortHandle {
    let run = Arc::downgrade(run);
    let watching = tokio::spawn(async move {
        passed(&*clock, at).await;
        if let Some(then) = then {
            let Some(run) = run.upgrade() else { return };
            run.set_notice_due();
            run.wake();
            passed(&*clock, then).await;
        }
        if let Some(run) = run.upgrade() {
            run.wake();
        }
    });
    watching.abort_handle()
}

/// The time that a host lives in.
#[derive(Debug)]
pub struct Simulated {
    /// The simulated clock.
    pub clock: Arc<dyn Clock>,
    /// How long a guest may compute, in real time, before it is taken for one that never ends;
    /// none where each computes until its deadline.
    pub compute_max: Option<Duration>,
}

impl Simulated {
    /// How far the time goes on for a guest that has computed for `slices` and gives way: as
    /// long as it has since it last did, after every other slice; or to its `deadline`, where
    /// nobody waits for it longer.
    pub fn goes_on(&self, slices: u64, deadline: Monotonic) -> Duration {
        let computed = SLICE.saturating_mul(u32::try_from(slices).unwrap_or(u32::MAX));
        let hangs = self.compute_max.is_some_and(|most| computed >= most);
        let left = deadline.since(self.clock.now());
        // A deadline has passed one nanosecond after it.
        if hangs { left + Duration::from_nanos(1) } else { 2 * SLICE }
    }
}

async fn passed(clock: &dyn Clock, at: Monotonic) {
    // A deadline has passed one nanosecond after it.
    let passes = at.after(Duration::from_nanos(1));
    while clock.now() < passes {
        wait(passes.since(clock.now())).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "this is simulated time")]
/// Waits until `moment` of the simulated clock.
pub async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}
