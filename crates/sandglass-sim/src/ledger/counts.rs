//! How often things happened in simulations.

use sandglass_model::{Event, OutcomeKind, TransitionCause};
use serde::Serialize;

/// How often things happened in one seed, or in several together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Records in the log.
    pub records: u64,
    /// Entities that were created.
    pub entities: u64,
    /// Handlers that were dispatched, each attempt counted.
    pub dispatches: u64,
    /// Handlers that completed.
    pub completed: u64,
    /// Handlers that timed out.
    pub timed_out: u64,
    /// Handlers that were cancelled.
    pub cancelled: u64,
    /// Handlers that a crash interrupted.
    pub interrupted: u64,
    /// Actions that handlers asked for.
    pub asked: u64,
    /// State timers that fired.
    pub idle: u64,
    /// Scheduled actions that came due.
    pub due: u64,
    /// Entities that were spawned.
    pub spawned: u64,
    /// Spawns that were refused.
    pub spawns_refused: u64,
    /// Decisions that have read other entities.
    pub read: u64,
    /// Breaches of limits.
    pub breaches: u64,
    /// Runs of sessions that were stopped.
    pub stopped: u64,
    /// Sessions that were resumed.
    pub resumed: u64,
    /// Requests that were acknowledged.
    pub acknowledged: u64,
    /// Appends that failed.
    pub failed_appends: u64,
    /// Snapshots of entities that became durable.
    pub snapshots: u64,
    /// Crashes of the process.
    pub crashes: u64,
    /// Graceful restarts.
    pub restarts: u64,
}

impl Counts {
    /// Counts one more record.
    pub(crate) fn count(&mut self, event: &Event) {
        self.records += 1;
        self.read += u64::from(!event.observed().is_empty());
        match event {
            Event::Created { .. } => self.entities += 1,
            Event::Dispatched(_) => self.dispatches += 1,
            Event::StateIdle { .. } => self.idle += 1,
            Event::ScheduleDue { .. } => self.due += 1,
            Event::Spawned { .. } => self.spawned += 1,
            Event::SpawnRefused { .. } => self.spawns_refused += 1,
            Event::LimitBreached(_) => self.breaches += 1,
            Event::RunStopping(_) => self.stopped += 1,
            Event::SessionResumed { .. } => self.resumed += 1,
            Event::Transition { cause: TransitionCause::Asked(_), .. } => self.asked += 1,
            Event::Ended(ended) => match ended.outcome.kind() {
                OutcomeKind::Completed => self.completed += 1,
                OutcomeKind::TimedOut => self.timed_out += 1,
                OutcomeKind::Cancelled => self.cancelled += 1,
                OutcomeKind::Interrupted => self.interrupted += 1,
                OutcomeKind::Failed
                | OutcomeKind::Trapped
                | OutcomeKind::Limit
                | OutcomeKind::Rejected => {}
            },
            _ => {}
        }
    }
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.records += other.records;
        self.entities += other.entities;
        self.dispatches += other.dispatches;
        self.completed += other.completed;
        self.timed_out += other.timed_out;
        self.cancelled += other.cancelled;
        self.interrupted += other.interrupted;
        self.asked += other.asked;
        self.idle += other.idle;
        self.due += other.due;
        self.spawned += other.spawned;
        self.spawns_refused += other.spawns_refused;
        self.read += other.read;
        self.breaches += other.breaches;
        self.stopped += other.stopped;
        self.resumed += other.resumed;
        self.acknowledged += other.acknowledged;
        self.failed_appends += other.failed_appends;
        self.snapshots += other.snapshots;
        self.crashes += other.crashes;
        self.restarts += other.restarts;
    }
}
