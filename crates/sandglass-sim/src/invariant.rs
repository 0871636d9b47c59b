//! What has to hold in every world, each with its name, and what is told where one doesn't.

use std::fmt;

use serde::{Serialize, Serializer};

/// What has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Every run has exactly one decision, and that is about how it really ended.
    OneDecision,
    /// A run that returned in time is what it answered; one that returned late timed out;
    /// one that was stopped first was cancelled.
    TrueEnding,
    /// Nobody is stuck: what may not last has a timer, a handler or a schedule, and comes to
    /// rest once the world leaves it alone.
    NobodyStuck,
    /// No state's timer fires while a handler of that entity is queued or in flight.
    NoIdleInFlight,
    /// What an entity shows is the fold of its records so far.
    StateIsFold,
    /// Deciding again from the log gives the log.
    ReplayAgrees,
    /// What falls at one instant for one entity is decided in one order, so that some pairs of
    /// triggers never come: those of `coverage/simultaneous.rs`.
    OneOrder,
    /// What was acknowledged is in the log exactly once; nothing is there twice.
    AcknowledgedOnce,
    /// What was refused did nothing.
    RefusedIsNothing,
    /// No handler runs twice by itself.
    AtMostOnce,
    /// No handler starts, nothing is answered or shown, before it is durable.
    DurableFirst,
    /// What the one process appends always fits what is there.
    AppendsFit,
    /// A run of a session has one stop at most, by the first cause, and one end, once nothing
    /// of it is in flight; the next one is numbered after it.
    OneStop,
    /// While the run of a session is to stop or has stopped, nothing is taken and nothing is
    /// dispatched but to end at once.
    NothingWhileStopped,
    /// A handler that can be killed ends at once when the grace of its run's stop is over.
    KilledInTime,
    /// A run starts no more handlers, and no more turns of a loop, than it may, each counted as
    /// its spec says; what breaches that is the first that is too many.
    WithinBounds,
    /// The same seed ends at the same clock, next random number and log.
    Reproducible,
    /// No state's timer fires that the old rule, with handlers that re-armed it, would not
    /// have fired.
    OldRuleFires,
}

impl Invariant {
    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OneDecision => "one-decision",
            Self::TrueEnding => "true-ending",
            Self::NobodyStuck => "nobody-stuck",
            Self::NoIdleInFlight => "no-idle-in-flight",
            Self::StateIsFold => "state-is-fold",
            Self::ReplayAgrees => "replay-agrees",
            Self::OneOrder => "one-order",
            Self::AcknowledgedOnce => "acknowledged-once",
            Self::RefusedIsNothing => "refused-is-nothing",
            Self::AtMostOnce => "at-most-once",
            Self::DurableFirst => "durable-first",
            Self::AppendsFit => "appends-fit",
            Self::OneStop => "one-stop",
            Self::NothingWhileStopped => "nothing-while-stopped",
            Self::KilledInTime => "killed-in-time",
            Self::WithinBounds => "within-bounds",
            Self::Reproducible => "reproducible",
            Self::OldRuleFires => "old-rule-fires",
        }
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Invariant {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

/// That an invariant doesn't hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// What was seen.
    pub what: String,
    /// The step of the driver by which it was seen.
    pub step: usize,
    /// The simulated time since the start of the seed, in milliseconds.
    pub at_ms: i64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, what, step, at_ms } = self;
        write!(f, "{invariant} at step {step}, {at_ms} ms: {what}")
    }
}
