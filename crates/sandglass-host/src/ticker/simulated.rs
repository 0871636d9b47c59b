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
            run.notice_is_due();
            run.wake();
            passed(&*clock, then).await;
        }
        if let Some(run) = run.upgrade() {
            run.wake();
        }
    });
    watching.abort_handle()
}

/// Has the time go on that a guest has computed for since it last gave way: it is looked at
/// after every other slice.
pub(crate) async fn pass() {
    wait(2 * SLICE).await;
}

async fn passed(clock: &dyn Clock, at: Monotonic) {
    // A deadline has passed one nanosecond after it.
    let passes = at.after(Duration::from_nanos(1));
    while clock.now() < passes {
        wait(passes.since(clock.now())).await;
    }
}

#[allow(clippy::disallowed_methods, reason = "this is simulated time")]
async fn wait(time: Duration) {
    tokio::time::sleep(time).await;
}
