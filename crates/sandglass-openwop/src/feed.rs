//! The logs of runs that are being read, kept up to date with the records while they are watched.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use sandglass_journal::Journals;
use sandglass_model::{EntityRef, Event as RecordedEvent, Partition};
use sandglass_runtime::{Event, Runtime};
use tokio::task::JoinHandle;

use crate::breach::Breaches;
use crate::engine::Engine;
use crate::log::{ReadError, RunLog, Stage};
use crate::recent::RecentLogs;
use crate::sync::lock;
use crate::{REPLAY_TYPE, RUN_TYPE};

/// After how many new logs the unused ones are removed.
const SWEEP_EVERY: usize = 256;

#[derive(Debug)]
pub(crate) struct Feeds {
    runtime: Runtime,
    journals: Journals,
    logs: Arc<Mutex<Logs>>,
    /// Held so that the next request of a client that polls does not read them from the beginning.
    recent: Arc<Mutex<RecentLogs>>,
    following: JoinHandle<()>,
    /// What all logs take in memory, in bytes.
    held: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct Logs {
    by_run: BTreeMap<String, Weak<RunLog>>,
    since_sweep: usize,
}

impl Feeds {
    /// Of what `runtime` records, which executes the runs of `engine`. Needs a tokio runtime.
    pub(crate) fn of(runtime: &Runtime, engine: &Arc<Engine>) -> Self {
        let logs = Arc::<Mutex<Logs>>::default();
        let recent = Arc::<Mutex<RecentLogs>>::default();
        let mut events = runtime.subscribe();
        let mut breaches = Breaches::new(engine.host.telemetry().tracer.clone());
        let journals = engine.journals.clone();
        let engine = Arc::clone(engine);
        let following = tokio::spawn({
            let (logs, recent) = (Arc::clone(&logs), Arc::clone(&recent));
            let runtime = runtime.clone();
            async move {
                while let Some(event) = events.next().await {
                    match event {
                        Ok(Event::Recorded(record)) => {
                            let Some(entity) = &record.entity else { continue };
                            if is_run(entity) {
                                breaches.observe(entity, &record);
                                let is_end = matches!(record.event, RecordedEvent::RunStopped(_));
                                if let Some(log) = lock(&logs).get(entity) {
                                    log.notify();
                                    if is_end {
                                        log.release();
                                    }
                                }
                                if is_end {
                                    engine.contexts.forget(entity);
                                    lock(&recent).sweep();
                                }
                            }
                        }
                        Ok(Event::Unserved(partition)) => {
                            engine.contexts.forget_partition(partition);
                            lock(&logs).leave(|run| Partition::of(run) == partition);
                            lock(&recent).sweep();
                        }
                        Ok(_) => {}
                        // The missed events may be about any run.
                        Err(_) => {
                            engine.contexts.forget_all();
                            lock(&logs).leave(|run| !runtime.serves(Partition::of(run)));
                            lock(&logs).all().for_each(|log| {
                                log.notify();
                                log.release();
                            });
                            lock(&recent).sweep();
                        }
                    }
                }
            }
        });
        Self { runtime: runtime.clone(), journals, logs, recent, following, held: Arc::default() }
    }

    /// Whether the log of `run` may be read: if all logs take fewer than `max_bytes`, or if it is being
    /// read already. If there is no room, those that were read last are freed first.
    pub(crate) fn has_room(&self, run: &EntityRef, max_bytes: usize) -> bool {
        let is_below = || self.held.load(Ordering::Relaxed) < max_bytes;
        if is_below() {
            return true;
        }
        let freed = mem::take(&mut *lock(&self.recent));
        // Without the lock, because this may be much.
        drop(freed);
        is_below() || lock(&self.logs).get(run).is_some()
    }

    /// The log of `run` with all records so far, which is kept up to date while it is watched.
    pub(crate) async fn log(&self, run: &EntityRef) -> Result<Arc<RunLog>, ReadError> {
        loop {
            let log = self.enter(run);
            match log.catch_up(&self.journals).await {
                Err(ReadError::IdReused) => lock(&self.logs).discard(&log),
                read => {
                    read?;
                    lock(&self.recent).note(&log);
                    return Ok(log);
                }
            }
        }
    }

    /// The log of `run`, as far as it was read.
    fn enter(&self, run: &EntityRef) -> Arc<RunLog> {
        let (log, is_new) = lock(&self.logs).enter(run, &self.held);
        if is_new {
            // Before anything that may fail: a simultaneous request receives the same log.
            tokio::spawn(RunLog::follow(Arc::downgrade(&log), self.journals.clone()));
        }
        // Checked after the log was entered: if the partition is lost from now on, the log is found.
        if !self.runtime.serves(Partition::of(run)) {
            log.leave();
        }
        log
    }
}

impl Drop for Feeds {
    fn drop(&mut self) {
        self.following.abort();
        // The tasks that follow logs end when those are dropped, or when they are notified.
        lock(&self.logs).all().for_each(|log| log.notify());
    }
}

/// Whether `entity` is a run of a workflow.
pub(crate) fn is_run(entity: &EntityRef) -> bool {
    [RUN_TYPE, REPLAY_TYPE].contains(&entity.entity_type())
}

impl Logs {
    fn get(&self, run: &EntityRef) -> Option<Arc<RunLog>> {
        self.by_run.get(run.id()).and_then(Weak::upgrade)
    }

    /// Sends the readers of the runs for which `is_elsewhere` is true to other hosts.
    fn leave(&self, is_elsewhere: impl Fn(&EntityRef) -> bool) {
        self.all().filter(|log| is_elsewhere(&log.run)).for_each(|log| log.leave());
    }

    /// Forgets `log`, whose run was removed, and sends its readers to the run that has its id now.
    fn discard(&mut self, log: &Arc<RunLog>) {
        log.leave();
        self.by_run.retain(|_, known| known.as_ptr() != Arc::as_ptr(log));
    }

    fn all(&self) -> impl Iterator<Item = Arc<RunLog>> {
        self.by_run.values().filter_map(Weak::upgrade)
    }

    fn enter(&mut self, run: &EntityRef, held: &Arc<AtomicUsize>) -> (Arc<RunLog>, bool) {
        let known = self.get(run);
        // The partition may have come back since a log was left.
        if let Some(log) = known.filter(|log| log.stage() != Stage::Elsewhere) {
            return (log, false);
        }
        self.since_sweep += 1;
        if self.since_sweep >= SWEEP_EVERY {
            self.since_sweep = 0;
            self.by_run.retain(|_, log| log.strong_count() > 0);
        }
        let log = Arc::new(RunLog::new(run.clone(), Arc::clone(held)));
        self.by_run.insert(run.id().to_owned(), Arc::downgrade(&log));
        (log, true)
    }
}
