//! Faults that the simulator injects around the product, not in it. Each imitates a defect of a
//! certain kind, and an invariant must detect it.

use std::fmt;

/// A fault, which is injected again and again while it is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// The timer of a state is not disarmed when a handler is dispatched, and fires.
    LostDisarm,
    /// A handler that returns after its deadline is recorded as completed.
    LateSuccess,
    /// The journal answers before a batch is durable.
    EarlyAnswer,
    /// After a restart, the handlers of the previous process are started again.
    DoubledDispatch,
    /// After a restart, some entities at rest are forgotten, and so are their timers.
    LostTimer,
    /// Some batches expect another last position than the entity has.
    WrongPosition,
    /// The disk reports batches as synced, and a crash loses the last ones.
    FalseSync,
    /// A crash keeps only a part of a batch.
    TornBatch,
    /// Two records of a batch are swapped.
    SwappedRecords,
    /// A handler that a stop holds is recorded as dropped.
    OtherDecision,
    /// A task of the process never waits.
    BusyTask,
    /// Host calls of handlers do not count as activity.
    LostActivity,
    /// A host call that reaches its time limit is reported twice while its handler is running.
    DoubledCall,
    /// An entity that was spawned is recorded as refused.
    LostSpawn,
    /// The state that a guard has read is recorded as another one.
    FalseRead,
    /// Spawned entities that have something to do are not bounded.
    LostQuota,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 16] = [
        Self::LostDisarm,
        Self::LateSuccess,
        Self::EarlyAnswer,
        Self::DoubledDispatch,
        Self::LostTimer,
        Self::WrongPosition,
        Self::FalseSync,
        Self::TornBatch,
        Self::SwappedRecords,
        Self::OtherDecision,
        Self::BusyTask,
        Self::LostActivity,
        Self::DoubledCall,
        Self::LostSpawn,
        Self::FalseRead,
        Self::LostQuota,
    ];

    /// The name, as options spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LostDisarm => "lost-disarm",
            Self::LateSuccess => "late-success",
            Self::EarlyAnswer => "early-answer",
            Self::DoubledDispatch => "doubled-dispatch",
            Self::LostTimer => "lost-timer",
            Self::WrongPosition => "wrong-position",
            Self::FalseSync => "false-sync",
            Self::TornBatch => "torn-batch",
            Self::SwappedRecords => "swapped-records",
            Self::OtherDecision => "other-decision",
            Self::BusyTask => "busy-task",
            Self::LostActivity => "lost-activity",
            Self::DoubledCall => "doubled-call",
            Self::LostSpawn => "lost-spawn",
            Self::FalseRead => "false-read",
            Self::LostQuota => "lost-quota",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
