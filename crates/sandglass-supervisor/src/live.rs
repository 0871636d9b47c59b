//! The runs of a host that are queued or in flight, for live views and for shutdown.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sandglass_model::{Cause, DispatchId, Monotonic};
use tokio::sync::Notify;

use crate::functions::Functions;
use crate::present::Doing;
use crate::run::Run;
use crate::sync::lock;

/// Identifies a run: its dispatch, and a number that grows with each run of the host.
type Key = (DispatchId, u64);

/// The runs that are queued or in flight.
#[derive(Debug, Default)]
pub struct Live {
    next: AtomicU64,
    runs: Mutex<BTreeMap<Key, Entry>>,
    ended: Notify,
}

#[derive(Debug)]
struct Entry {
    run: Weak<Run>,
    queued_at: Monotonic,
    functions: Arc<Functions>,
}

/// One run that is queued or in flight, until this is dropped.
#[derive(Debug)]
pub struct LiveRun {
    live: Arc<Live>,
    key: Key,
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
    /// The calls that are in flight while its guest goes on, at most 16, the oldest first; and since
    /// when.
    pub in_flight: Vec<(String, Monotonic)>,
    /// Since when, to a microsecond.
    pub since: Monotonic,
    /// When its last host call began or ended; `None` if there was none. A call that only sends a
    /// synthetic signal does not count.
    pub active: Option<Monotonic>,
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
        let key = (dispatch, self.next.fetch_add(1, Ordering::Relaxed));
        let entry = Entry { run: Arc::downgrade(run), queued_at, functions };
        lock(&self.runs).insert(key, entry);
        LiveRun { live: self, key }
    }

    /// Returns up to `most` of the runs.
    pub fn snapshot(&self, most: usize) -> LiveRuns {
        let entries = lock(&self.runs);
        let live =
            entries.iter().filter_map(|(key, entry)| Some((entry.run.upgrade()?, key, entry)));
        let mut live: Vec<_> =
            live.map(|(run, key, entry)| (run.deadline(), run, key, entry)).collect();
        // Queued runs have no deadline yet, and are in order of arrival.
        live.sort_by_key(|(deadline, _, (_, arrival), _)| (*deadline, *arrival));
        let more = live.len().saturating_sub(most);
        let runs = live.iter().take(most);
        let runs = runs.map(|(_, run, (dispatch, _), entry)| entry.now(run, *dispatch)).collect();
        LiveRuns { runs, more }
    }

    /// The latest run of `dispatch`, if one is queued or in flight.
    pub fn of(&self, dispatch: DispatchId) -> Option<RunNow> {
        self.with(dispatch, |entry, run| entry.now(run, dispatch))
    }

    /// Notifies `waiter` once, when the latest run of `dispatch` shows activity next.
    pub fn on_activity(&self, dispatch: DispatchId, waiter: Arc<Notify>) {
        self.with(dispatch, |_, run| run.present.on_activity(waiter));
    }

    fn with<T>(&self, dispatch: DispatchId, read: impl FnOnce(&Entry, &Run) -> T) -> Option<T> {
        let entries = lock(&self.runs);
        let (_, entry) = entries.range((dispatch, 0)..=(dispatch, u64::MAX)).next_back()?;
        let run = entry.run.upgrade()?;
        Some(read(entry, &run))
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
    fn now(&self, run: &Run, dispatch: DispatchId) -> RunNow {
        let (doing, since) = run.present.read(&self.functions);
        let since = since.unwrap_or(self.queued_at);
        let active = run.present.last_active(&self.functions);
        let in_flight = run.present.in_flight(&self.functions);
        RunNow { dispatch, budget: run.budget(), doing, in_flight, since, active }
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
