//! The runs of a host that are queued or in flight, to be stopped when it shuts down.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sandglass_model::Cause;

use crate::run::Run;

/// The runs that are queued or in flight.
#[derive(Default)]
pub(super) struct Live {
    next: AtomicU64,
    runs: Mutex<BTreeMap<u64, Weak<Run>>>,
    ended: tokio::sync::Notify,
}

/// One run that is queued or in flight, until this is dropped.
pub(super) struct LiveRun {
    live: Arc<Live>,
    key: u64,
}

impl Live {
    /// Takes `run` in.
    pub(super) fn enter(self: Arc<Self>, run: &Arc<Run>) -> LiveRun {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        self.runs.lock().unwrap_or_else(PoisonError::into_inner).insert(key, Arc::downgrade(run));
        LiveRun { live: self, key }
    }

    /// Stops them all.
    pub(super) fn stop_all(&self) {
        let runs: Vec<_> = {
            let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            runs.values().filter_map(Weak::upgrade).collect()
        };
        for run in runs {
            run.stop(Cause::Shutdown, "");
        }
    }

    /// Waits until there are none.
    pub(super) async fn none_left(&self) {
        loop {
            let ended = self.ended.notified();
            if self.runs.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        self.live.runs.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        self.live.ended.notify_waiters();
    }
}
