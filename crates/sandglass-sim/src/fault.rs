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
    /// The database does not compare the epoch that an append proves.
    StaleEpoch,
    /// The lease is measured on a clock that is set back while the process is paused.
    LeaseByWallClock,
    /// Other hosts are declared dead after half a TTL.
    EarlyTakeover,
    /// Host calls do not wait for the lease.
    UnparkedZombie,
    /// A batch of unknown outcome is appended again.
    ResentAppend,
    /// A reader of the feed continues behind what is written while it gets a page.
    SkippingReader,
    /// A host continues from its memory when the database has lost what it had acknowledged.
    WriteOverLoss,
    /// After an outage, other hosts are not observed anew.
    ClaimAfterOutage,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 24] = [
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
        Self::StaleEpoch,
        Self::LeaseByWallClock,
        Self::EarlyTakeover,
        Self::UnparkedZombie,
        Self::ResentAppend,
        Self::SkippingReader,
        Self::WriteOverLoss,
        Self::ClaimAfterOutage,
    ];

    /// Whether it is a fault of worlds of several hosts.
    #[must_use]
    pub const fn needs_hosts(self) -> bool {
        matches!(
            self,
            Self::StaleEpoch
                | Self::LeaseByWallClock
                | Self::EarlyTakeover
                | Self::UnparkedZombie
                | Self::ResentAppend
                | Self::SkippingReader
                | Self::WriteOverLoss
                | Self::ClaimAfterOutage
        )
    }

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
            Self::StaleEpoch => "stale-epoch",
            Self::LeaseByWallClock => "lease-by-wall-clock",
            Self::EarlyTakeover => "early-takeover",
            Self::UnparkedZombie => "unparked-zombie",
            Self::ResentAppend => "resent-append",
            Self::SkippingReader => "skipping-reader",
            Self::WriteOverLoss => "write-over-loss",
            Self::ClaimAfterOutage => "claim-after-outage",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
