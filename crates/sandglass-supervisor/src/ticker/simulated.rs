//! Deadlines in simulated time: that of a tokio runtime of one thread, whose time is paused. It stands
//! still while a task runs, and jumps to the next timer when none does. So a deadline must be a timer
//! of that runtime; another thread could not wake a run in time.

use std::sync::Arc;
use std::time::Duration;

use sandglass_model::{Clock, Monotonic};
use tokio::task::AbortHandle;

use super::SLICE;
use crate::run::Run;

/// Wakes `run` once `clock` has passed `at`. With `then`, that is for the notice of the run, which is
/// woken again once `then` has passed.
pub(super) fn watch(
    clock: Arc<dyn Clock>,
    run: &Arc<Run>,
    at: Monotonic,
    then: Option<Monotonic>,
) -> AbortHandle {
    let run = Arc::downgrade(run);
    let watching = tokio::spawn(async move {
        wait_until_passed(&*clock, at).await;
        if let Some(then) = then {
            let Some(run) = run.upgrade() else { return };
            run.set_notice_due();
            run.wake();
            wait_until_passed(&*clock, then).await;
        }
        if let Some(run) = run.upgrade() {
            run.wake();
        }
    });
    watching.abort_handle()
}

/// The simulated time of a host.
#[derive(Debug)]
pub struct Simulated {
    /// The simulated clock.
    pub clock: Arc<dyn Clock>,
    /// How long a guest may compute, in real time, before it counts as endless; `None` if every guest
    /// computes until its deadline.
    pub compute_max: Option<Duration>,
}

impl Simulated {
    /// How far time advances when a guest yields after it has computed for `slices`: by the two slices
    /// since it last yielded, or past its `deadline` if it counts as endless.
    pub fn time_to_advance(&self, slices: u64, deadline: Monotonic) -> Duration {
        let computed = SLICE.saturating_mul(u32::try_from(slices).unwrap_or(u32::MAX));
        let hangs = self.compute_max.is_some_and(|most| computed >= most);
        let left = deadline.since(self.clock.now());
        // A deadline has passed one nanosecond after it.
        if hangs { left + Duration::from_nanos(1) } else { 2 * SLICE }
    }
}

async fn wait_until_passed(clock: &dyn Clock, at: Monotonic) {
    // A deadline has passed one nanosecond after it.
    let passes = at.after(Duration::from_nanos(1));
    while clock.now() < passes {
        wait(passes.since(clock.now())).await;
    }
}

/// Waits for `time` in simulated time.
#[allow(clippy::disallowed_methods, reason = "this is simulated time")]
pub async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}
