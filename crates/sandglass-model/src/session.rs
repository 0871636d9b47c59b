//! What records say of sessions: the limits of a run, what breaches them, how a run stops,
//! and what follows from that.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::WallTime;
use crate::id::EntityRef;
use crate::signature::Signature;

/// Longest reason that whoever stops or resumes a session gives, in bytes: a note for
/// people, kept in the journal.
pub const STOP_REASON_MAX_BYTES: usize = 4 << 10;

/// What a limit belongs to. Each holds the ones behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// An entity from its creation on.
    Session,
    /// The time from a start or resume of it until the next stop.
    Run,
    /// One attempt of one handler.
    Handler,
    /// One call of a host function.
    HostCall,
}

/// What a limit measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Meter {
    /// Milliseconds since something.
    Elapsed,
    /// How often something was done.
    Count,
}

/// What a breach does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is recorded, and nothing else.
    Record,
    /// What the limit holds is stopped; what becomes of a session then is its directive.
    Stop,
}

impl Action {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Record => "record",
            Self::Stop => "stop",
        }
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $scope:ident, $meter:ident;)+) => {
        /// A limit, of whatever scope. The names are those of spec files, settings, requests
        /// and records.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
        )]
        #[serde(rename_all = "snake_case")]
        pub enum Limit {
            $($(#[$doc])* $name,)+
        }

        impl Limit {
            /// All limits, the outermost last.
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$name),+];

            /// As it is written.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What it belongs to.
            #[must_use]
            pub const fn scope(self) -> Scope {
                match self { $(Self::$name => Scope::$scope,)+ }
            }

            /// What it measures.
            #[must_use]
            pub const fn meter(self) -> Meter {
                match self { $(Self::$name => Meter::$meter,)+ }
            }
        }
    };
}

limits! {
    /// Of a call of a host function, since it began. A breach ends the call, not the run.
    HostCallTimeout = "host_call_timeout", HostCall, Elapsed;
    /// From the dispatch of a handler until its guest may run.
    ScheduleToStartTimeout = "schedule_to_start_timeout", Handler, Elapsed;
    /// The budget of a handler, since its guest might run.
    Deadline = "deadline", Handler, Elapsed;
    /// Silence while work is in flight or queued, which is warned of.
    InactivityWarn = "inactivity_warn", Run, Elapsed;
    /// Silence while work is in flight or queued, which stops the run.
    InactivityTimeout = "inactivity_timeout", Run, Elapsed;
    /// Work without progress.
    ProgressTimeout = "progress_timeout", Run, Elapsed;
    /// A run, since it started.
    RunTimeout = "run_timeout", Run, Elapsed;
    /// A session, since its first run started.
    ExecutionTimeout = "execution_timeout", Session, Elapsed;
    /// Handlers that were asked to end, since then.
    AbortTimeout = "abort_timeout", Run, Elapsed;
    /// The turns of a loop: the handlers that a spec calls so, and where it calls none so, those
    /// that followed from the end of another, by themselves.
    MaxLoopIterations = "max_loop_iterations", Run, Count;
    /// Handlers that a run starts, without those that go on with another's work.
    MaxHandlerRuns = "max_handler_runs", Run, Count;
    /// Failures of the same shape.
    RepeatThreshold = "repeat_threshold", Session, Count;
}

impl Limit {
    /// Whether a breach stops the run.
    #[must_use]
    pub const fn stops_runs(self) -> bool {
        matches!(
            self,
            Self::RunTimeout
                | Self::ExecutionTimeout
                | Self::InactivityTimeout
                | Self::ProgressTimeout
                | Self::MaxLoopIterations
                | Self::MaxHandlerRuns
        )
    }

    /// The limit of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.as_str() == name)
    }

    /// What its breach does, where nothing else is said.
    #[must_use]
    pub const fn action(self) -> Action {
        match self {
            Self::InactivityWarn | Self::RepeatThreshold => Action::Record,
            Self::HostCallTimeout
            | Self::ScheduleToStartTimeout
            | Self::Deadline
            | Self::RunTimeout
            | Self::ProgressTimeout
            | Self::InactivityTimeout
            | Self::ExecutionTimeout
            | Self::AbortTimeout
            | Self::MaxLoopIterations
            | Self::MaxHandlerRuns => Action::Stop,
        }
    }

    /// Why a run stopped that it stops: one of an open set of codes.
    #[must_use]
    pub const fn stop_reason_code(self) -> &'static str {
        match self {
            Self::RunTimeout => "watchdog_wall_clock_exceeded",
            Self::ExecutionTimeout => "execution_timeout_exceeded",
            Self::InactivityTimeout => "inactivity_timeout_exceeded",
            Self::ProgressTimeout => "no_progress",
            Self::MaxLoopIterations => "loop_limit_exceeded",
            Self::MaxHandlerRuns => "handler_run_limit_exceeded",
            Self::HostCallTimeout
            | Self::ScheduleToStartTimeout
            | Self::Deadline
            | Self::InactivityWarn
            | Self::AbortTimeout
            | Self::RepeatThreshold => self.as_str(),
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The limits that hold one run, once everybody who has a say was heard. Times are in
/// milliseconds; none is off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunLimits {
    /// [`Limit::InactivityWarn`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactivity_warn_ms: Option<u64>,
    /// [`Limit::InactivityTimeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inactivity_timeout_ms: Option<u64>,
    /// [`Limit::ProgressTimeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub progress_timeout_ms: Option<u64>,
    /// [`Limit::RunTimeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_timeout_ms: Option<u64>,
    /// [`Limit::ExecutionTimeout`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution_timeout_ms: Option<u64>,
    /// [`Limit::AbortTimeout`].
    pub abort_timeout_ms: u64,
    /// [`Limit::MaxLoopIterations`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_loop_iterations: Option<u64>,
    /// [`Limit::MaxHandlerRuns`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_handler_runs: Option<u64>,
    /// [`Limit::RepeatThreshold`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repeat_threshold: Option<u64>,
    /// From when on a session without a sign of life is marked STUCK: it ends nothing.
    pub stuck_after_ms: u64,
}

/// What a handler was doing at some moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doing {
    /// The integration.
    pub handler: String,
    /// The host function that it was in, or `guest`, or what else it could be in; none
    /// where it had not been started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<String>,
    /// Since when it did that; where nobody knows, since it was asked for.
    pub since: WallTime,
}

/// The last sign of life of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSignal {
    /// What it was: the name of a signal, `action`, `dispatched` or `ended`.
    pub kind: String,
    /// Which action or handler it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// When.
    pub at: WallTime,
}

/// That a limit was breached: the one event for every breach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBreached {
    /// Whose.
    pub session: EntityRef,
    /// In which run of it.
    pub run_seq: u32,
    /// What the limit belongs to.
    pub scope: Scope,
    /// Which limit.
    pub limit: Limit,
    /// What it measures.
    pub kind: Meter,
    /// What it allows: milliseconds, or how many.
    pub threshold: u64,
    /// What was measured, always above `threshold`: milliseconds, rounded up, or how many.
    pub observed: u64,
    /// When that was noticed.
    pub at: WallTime,
    /// The last sign of life before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_signal: Option<LastSignal>,
    /// What was going on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<Doing>,
    /// What follows.
    pub action: Action,
    /// How often that came to be in one run of a handler, where it was more than once: the
    /// rest is of the first time.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: u64,
}

const fn once() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_once(times: &u64) -> bool {
    *times == 1
}

/// What stopped a run: the first that was named.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StopCause {
    /// A limit was breached.
    Limit {
        /// Which.
        limit: Limit,
    },
    /// An operator asked for it.
    Operator {
        /// Who.
        by: String,
        /// Why; may be empty.
        #[serde(default)]
        reason: String,
    },
    /// Whoever it works for stopped.
    Parent {
        /// Who that is, where it is an entity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<EntityRef>,
        /// Why; may be empty.
        #[serde(default)]
        reason: String,
    },
    /// The host was shut down, in whatever way it is told to.
    Shutdown,
    /// A trap of a handler ended the session.
    Trap,
    /// The session came to an end of its own.
    Completion,
}

impl StopCause {
    /// Why the run stopped, as one of an open set of codes.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Limit { limit } => limit.stop_reason_code(),
            Self::Operator { .. } => "operator_cancelled",
            Self::Parent { .. } => "parent_stopped",
            Self::Shutdown => "host_shutdown",
            Self::Trap => "trap",
            Self::Completion => "completed",
        }
    }

    /// The limit that it is the breach of, where it is one.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Limit { limit } => Some(*limit),
            _ => None,
        }
    }

    /// Whether handlers in flight are asked to end before they are killed.
    #[must_use]
    pub const fn has_grace(&self) -> bool {
        match self {
            // A bound of how often something is done leaves nothing to finish.
            Self::Limit { limit } => matches!(limit.meter(), Meter::Elapsed),
            Self::Parent { .. } | Self::Shutdown => true,
            Self::Operator { .. } | Self::Trap | Self::Completion => false,
        }
    }
}

/// What is to become of a session whose run has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Directive {
    /// It waits to be resumed.
    Wait,
    /// It is resumed at once.
    Retry,
    /// Somebody has to look after it, and it waits until then.
    Unstuck,
    /// It is over.
    Cancel,
}

impl Directive {
    /// Whether the session goes on, at once or when somebody resumes it.
    #[must_use]
    pub const fn goes_on(self) -> bool {
        match self {
            Self::Wait | Self::Retry | Self::Unstuck => true,
            Self::Cancel => false,
        }
    }

    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Retry => "retry",
            Self::Unstuck => "unstuck",
            Self::Cancel => "cancel",
        }
    }
}

/// A failure that came more than once in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// What it is.
    pub signature: Signature,
    /// How often it came, of the whole session.
    pub count: u64,
    /// What the last one was given: redacted, and cut to what people read.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sample: String,
    /// What all of them took together, in milliseconds.
    pub cost_ms: u64,
}

/// What the next run of a session is told of the one before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The run that stopped.
    pub prior_run: u32,
    /// What it stopped by.
    pub cause: String,
    /// Its most frequent failure, if it had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Repeated>,
}

/// That a run is to stop: recorded before anything is done about it. The first holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStopping {
    /// Which run.
    pub run_seq: u32,
    /// Why.
    pub cause: StopCause,
    /// The same as a code.
    pub stop_reason_code: String,
    /// What is to become of the session, decided once.
    pub directive: Directive,
    /// How long its handlers have to end by themselves, in milliseconds.
    pub grace_ms: u64,
}

/// That a run has stopped, and nothing of it is in flight any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStopped {
    /// Which run.
    pub run_seq: u32,
    /// Why.
    pub cause: StopCause,
    /// The same as a code.
    pub stop_reason_code: String,
    /// What becomes of the session; none where it came to an end by itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<Directive>,
    /// How long the run lasted, in milliseconds, as the records tell.
    pub elapsed_ms: u64,
    /// Its most frequent failure, where that came often enough to be one of a kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Repeated>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_written_by_their_names() {
        for limit in Limit::ALL {
            let text = serde_json::to_value(limit).expect("plain data");
            assert_eq!(text, limit.as_str());
            assert_eq!(Limit::named(limit.as_str()), Some(limit));
        }
        assert_eq!(Limit::named("run_timout"), None);
    }

    #[test]
    fn bounds_and_operators_leave_no_grace() {
        let by_limit = |limit| StopCause::Limit { limit }.has_grace();
        assert!(by_limit(Limit::RunTimeout) && by_limit(Limit::InactivityTimeout));
        assert!(!by_limit(Limit::MaxLoopIterations));
        let operator = StopCause::Operator { by: "ann".to_owned(), reason: String::new() };
        assert!(!operator.has_grace());
        assert!(StopCause::Shutdown.has_grace());
    }
}
