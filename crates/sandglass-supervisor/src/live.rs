//! The runs of a host that are queued or in flight, for live views and for shutdown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sandglass_model::{Cause, DispatchId, Monotonic};

use crate::functions::Functions;
use crate::present::Doing;
use crate::run::Run;
use crate::sync::lock;

/// The runs that are queued or in flight.
#[derive(Debug, Default)]
pub struct Live {
    next: AtomicU64,
    runs: Mutex<BTreeMap<u64, Entry>>,
    ended: tokio::sync::Notify,
}

#[derive(Debug)]
struct Entry {
    run: Weak<Run>,
    dispatch: DispatchId,
    queued_at: Monotonic,
    functions: Arc<Functions>,
}

/// One run that is queued or in flight, until this is dropped.
#[derive(Debug)]
pub struct LiveRun {
    live: Arc<Live>,
    key: u64,
}

/// The runs of a host at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveRuns {
    /// The runs, ordered by deadline; queued ones last.
    pub runs: Vec<RunNow>,
    /// How many more there are.
    pub more: usize,
}

/// A run that is queued or in flight, at one moment. Moments are on the host's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunNow {
    /// Which dispatch.
    pub dispatch: DispatchId,
    /// When its budget began, and its deadline; `None` while it is queued.
    pub budget: Option<(Monotonic, Monotonic)>,
    /// What it is doing.
    pub doing: Doing,
    /// Since when, to a microsecond.
    pub since: Monotonic,
}

impl Live {
    /// Adds `run`, whose guest can call `functions`.
    pub fn enter(
        self: Arc<Self>,
        run: &Arc<Run>,
        dispatch: DispatchId,
        queued_at: Monotonic,
        functions: Arc<Functions>,
    ) -> LiveRun {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Entry { run: Arc::downgrade(run), dispatch, queued_at, functions };
        lock(&self.runs).insert(key, entry);
        LiveRun { live: self, key }
    }

    /// Returns up to `most` of the runs.
    pub fn snapshot(&self, most: usize) -> LiveRuns {
        let entries = lock(&self.runs);
        let live = entries.values().filter_map(|entry| Some((entry.run.upgrade()?, entry)));
        let mut live: Vec<_> = live.map(|(run, entry)| (run.deadline(), run, entry)).collect();
        // The sort is stable, so queued runs stay in order of arrival.
        live.sort_by_key(|(deadline, ..)| *deadline);
        let more = live.len().saturating_sub(most);
        let runs = live.iter().take(most).map(|(_, run, entry)| entry.now(run)).collect();
        LiveRuns { runs, more }
    }

    /// Stops all runs.
    pub fn stop_all(&self) {
        let runs: Vec<_> =
            lock(&self.runs).values().filter_map(|entry| entry.run.upgrade()).collect();
        for run in runs {
            run.stop(Cause::Shutdown, "");
        }
    }

    /// Waits until all runs have ended.
    pub async fn none_left(&self) {
        loop {
            let ended = self.ended.notified();
            if lock(&self.runs).is_empty() {
                return;
            }
            ended.await;
        }
    }
}

impl Entry {
    fn now(&self, run: &Run) -> RunNow {
        let (doing, since) = run.present.read(&self.functions);
        let since = since.unwrap_or(self.queued_at);
        RunNow { dispatch: self.dispatch, budget: run.budget(), doing, since }
    }
}

impl Drop for LiveRun {
    fn drop(&mut self) {
        let none_left = {
            let mut runs = lock(&self.live.runs);
            runs.remove(&self.key);
            runs.is_empty()
        };
        if none_left {
            self.live.ended.notify_waiters();
        }
    }
}
