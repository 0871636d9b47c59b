//! Mistakes that the simulator makes on purpose, around the product and not in it: each
//! is what a defect of a certain kind would look like, and has to be found.

use std::fmt;

/// One mistake, made again and again while it is switched on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Fault {
    /// A state's timer isn't disarmed when a handler is dispatched, and fires.
    LostDisarm,
    /// A handler that returns after its deadline is taken as completed.
    LateSuccess,
    /// The journal answers before what it was given is durable.
    EarlyAnswer,
    /// After a crash, what was in flight is started again by nobody's wish.
    DoubledDispatch,
    /// After a restart, some entities that rest are forgotten, and their timers with them.
    LostTimer,
    /// Some batches expect another sequence than the entity has.
    WrongSequence,
    /// The disk says that it has synced, and a crash takes the last of it away.
    FalseSync,
    /// A crash keeps a part of a batch.
    TornBatch,
    /// Two records of a batch change places.
    SwappedRecords,
    /// A handler that a stop holds is recorded as dropped.
    OtherDecision,
    /// A task of the process never waits for anything.
    BusyTask,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::LostDisarm,
        Self::LateSuccess,
        Self::EarlyAnswer,
        Self::DoubledDispatch,
        Self::LostTimer,
        Self::WrongSequence,
        Self::FalseSync,
        Self::TornBatch,
        Self::SwappedRecords,
        Self::OtherDecision,
        Self::BusyTask,
    ];

    /// Its name, as options spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::LostDisarm => "lost-disarm",
            Self::LateSuccess => "late-success",
            Self::EarlyAnswer => "early-answer",
            Self::DoubledDispatch => "doubled-dispatch",
            Self::LostTimer => "lost-timer",
            Self::WrongSequence => "wrong-sequence",
            Self::FalseSync => "false-sync",
            Self::TornBatch => "torn-batch",
            Self::SwappedRecords => "swapped-records",
            Self::OtherDecision => "other-decision",
            Self::BusyTask => "busy-task",
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
