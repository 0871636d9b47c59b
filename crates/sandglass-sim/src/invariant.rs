//! The invariants that hold in every world, each with a name, and the report of a violation.

use std::fmt;

use serde::Serialize;

/// A property that every simulated world must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Invariant {
    /// Every handler run has exactly one decision, which agrees with how the handler really ended.
    OneDecision,
    /// A handler run that returned in time has the outcome that it returned; one that returned late
    /// timed out; one that was stopped before was cancelled.
    TrueEnding,
    /// Nothing is stuck: an entity that may not stay in its state has a timer, a handler or a
    /// schedule, and comes to rest once the world leaves it alone.
    NobodyStuck,
    /// No state timer fires while a handler of that entity is queued or in flight.
    NoIdleInFlight,
    /// The state that an entity shows is the fold of its records so far.
    StateIsFold,
    /// Replaying the log leads to the decisions that the log records.
    ReplayAgrees,
    /// Inputs that one entity gets at one instant are decided in one order, so that some pairs of
    /// triggers never occur: those in `coverage/simultaneous.rs`.
    OneOrder,
    /// Every acknowledged request is in the log exactly once, and no request is there twice.
    AcknowledgedOnce,
    /// A refused request has no effect.
    RefusedIsNothing,
    /// No attempt of a handler starts twice, and there is no attempt that neither a spec nor a
    /// client asked for.
    AtMostOnce,
    /// Nothing is started, answered or shown before its record is durable.
    DurableFirst,
    /// Appends of the only process always fit the journal.
    AppendsFit,
    /// A run of a session has at most one stop, by the first cause, and one end, when nothing of it
    /// is in flight; the next run has the next number.
    OneStop,
    /// While the run of a session is stopping or has stopped, no action is taken, and a handler
    /// that is dispatched ends at once.
    NothingWhileStopped,
    /// A handler that can be killed ends at once when the grace of its run's stop is over.
    KilledInTime,
    /// A run starts no more handlers and no more loop iterations than its limits allow, counted as
    /// its spec says; a breach is recorded for the first one beyond the limit.
    WithinBounds,
    /// A session, or an entity without a session whose handlers are in flight, is silent only for as
    /// long as none of its handlers has made a host call; handlers without a session are warned of
    /// after the default time, once in each silence.
    TrulySilent,
    /// Each host call of a session's handler that reached its time limit is recorded and counted once:
    /// when it happened, or with the end of the handler.
    CountedOnce,
    /// Each spawn ends once: an entity was created whose first record names the spawn, and took its first
    /// action or refused it, or the spawn was refused for a reason that is true. There are no more spawned
    /// entities that have not come to rest than may have something to do.
    SpawnedOnce,
    /// A state of another entity that a guard has read was that entity's state shortly before, and one that
    /// did not exist for it did not exist then in its tenant.
    TrueReads,
    /// The epochs that the appends to a partition prove never fall along its positions.
    OneOwnerAppends,
    /// No effect begins on a host that does not own the entity's partition, or was declared dead.
    NoEffectPastLease,
    /// While nothing goes wrong, each partition is served within a TTL and a few beats.
    TakenOverInTime,
    /// A reader of the feed of all partitions that connects to one host after the other gets each record
    /// once.
    FedOnce,
    /// An ask of a handler is in the log once, if it was answered, and at most once if not.
    AskOnce,
    /// A request of a client is in the log once, if it was acknowledged, and at most once if not, however
    /// often it was sent with its key.
    RequestOnce,
    /// A planned move interrupts no handler, and no host ends handlers of partitions that it owns.
    QuietMoves,
    /// Acknowledged records that a failover has lost are reported.
    LostIsReported,
    /// A host that could beat all the time is not declared dead.
    NoNeedlessDeath,
    /// Simulating a seed again leads to the same clock, next random number and log.
    Reproducible,
    /// No state timer fires that the old rule would not have fired, given that handlers re-armed
    /// the old timer.
    OldRuleFires,
}

impl Invariant {
    /// The name in reports.
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
            Self::TrulySilent => "truly-silent",
            Self::CountedOnce => "counted-once",
            Self::SpawnedOnce => "spawned-once",
            Self::TrueReads => "true-reads",
            Self::OneOwnerAppends => "one-owner-appends",
            Self::NoEffectPastLease => "no-effect-past-lease",
            Self::TakenOverInTime => "taken-over-in-time",
            Self::FedOnce => "fed-once",
            Self::AskOnce => "ask-once",
            Self::RequestOnce => "request-once",
            Self::QuietMoves => "quiet-moves",
            Self::LostIsReported => "lost-is-reported",
            Self::NoNeedlessDeath => "no-needless-death",
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

/// A violation of an invariant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The violated invariant.
    pub invariant: Invariant,
    /// What was observed.
    pub what: String,
    /// The step of the simulation when it was observed.
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
