//! The records of sessions: the limits of a run, their breaches, how a run stops, and what follows.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::clock::WallTime;
use crate::id::{DispatchId, EntityRef};
use crate::named::named;
use crate::signature::Signature;

/// Longest reason for a stop or resume of a session, in bytes: a note for people, which the journal
/// stores.
pub const STOP_REASON_MAX_BYTES: usize = 4 << 10;

/// What a limit belongs to. Each scope contains the following ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// An entity from its creation on.
    Session,
    /// The part of a session from its start or a resume until the next stop.
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
    /// Elapsed milliseconds.
    Elapsed,
    /// A number of events.
    Count,
}

named! {
    /// What a breach does.
    Action {
        /// It is recorded, without further effect.
        Record = "record",
        /// What the limit bounds is stopped; the directive states what a session does next.
        Stop = "stop",
    }
}

macro_rules! limits {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $scope:ident, $meter:ident;)+) => {
        /// A limit of any scope. Spec files, settings, requests and records use its serialized name.
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

            /// The serialized name.
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
    /// A call of a host function, since it began. A breach ends the call, not the run.
    HostCallTimeout = "host_call_timeout", HostCall, Elapsed;
    /// From the dispatch of a handler until its budget begins.
    ScheduleToStartTimeout = "schedule_to_start_timeout", Handler, Elapsed;
    /// The budget of a handler, since it began.
    Deadline = "deadline", Handler, Elapsed;
    /// Inactivity while work is in flight or queued; a breach is a warning.
    InactivityWarn = "inactivity_warn", Run, Elapsed;
    /// Inactivity while work is in flight or queued; a breach stops the run.
    InactivityTimeout = "inactivity_timeout", Run, Elapsed;
    /// Work without progress.
    ProgressTimeout = "progress_timeout", Run, Elapsed;
    /// A run, since it started.
    RunTimeout = "run_timeout", Run, Elapsed;
    /// A session, since its first run started.
    ExecutionTimeout = "execution_timeout", Session, Elapsed;
    /// Handlers that were requested to stop, since the request.
    AbortTimeout = "abort_timeout", Run, Elapsed;
    /// Iterations of a loop: the handlers that the spec declares as iterations, or, without such a
    /// declaration, those that followed from the end of another handler without a request.
    MaxLoopIterations = "max_loop_iterations", Run, Count;
    /// Handlers that a run starts, except those that continue the work of another.
    MaxHandlerRuns = "max_handler_runs", Run, Count;
    /// Failures of the same shape.
    RepeatThreshold = "repeat_threshold", Session, Count;
}

impl Limit {
    /// Whether a breach stops the run.
    #[must_use]
    pub const fn stops_runs(self) -> bool {
        match self {
            Self::RunTimeout
            | Self::ExecutionTimeout
            | Self::InactivityTimeout
            | Self::ProgressTimeout
            | Self::MaxLoopIterations
            | Self::MaxHandlerRuns => true,
            Self::HostCallTimeout
            | Self::ScheduleToStartTimeout
            | Self::Deadline
            | Self::InactivityWarn
            | Self::AbortTimeout
            | Self::RepeatThreshold => false,
        }
    }

    /// Returns the limit of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.as_str() == name)
    }

    /// What its breach does by default.
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

    /// The reason code of a run that it stops, from an open set.
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

/// The effective limits of one run, after all settings are combined. Times are in milliseconds;
/// `None` means off.
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
    /// After how much inactivity a session is marked STUCK, which ends nothing.
    pub stuck_after_ms: u64,
}

/// What a handler was doing at a moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doing {
    /// The integration.
    pub handler: String,
    /// The host call that it was in, `guest`, or another phase; `None` if it had not started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_call: Option<String>,
    /// Since when; if that is unknown, since its dispatch.
    pub since: WallTime,
}

/// The last activity of a session, or of the handlers of an entity that is not a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastSignal {
    /// The kind: the name of a signal, `action`, `dispatched` or `ended`; `host_call` if a host call
    /// of a handler began or ended; `asked` if an entity did something that a handler waits for.
    pub kind: String,
    /// The action, handler or asked entity that it was about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
    /// When.
    pub at: WallTime,
}

/// The breach of a limit: one event for every kind of breach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitBreached {
    /// The session; `None` if the limit is of a handler of an entity that is not a session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<EntityRef>,
    /// The run of the session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_seq: Option<u32>,
    /// What the limit belongs to. [`Limit::InactivityWarn`] belongs to the handlers of an entity that
    /// is not a session.
    pub scope: Scope,
    /// Which limit.
    pub limit: Limit,
    /// What it measures.
    pub kind: Meter,
    /// The limit: milliseconds, or a count.
    pub threshold: u64,
    /// The measured value, always above `threshold`: milliseconds, rounded up, or a count.
    pub observed: u64,
    /// When it was noticed.
    pub at: WallTime,
    /// The last activity before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_signal: Option<LastSignal>,
    /// What was in flight.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<Doing>,
    /// What follows.
    pub action: Action,
    /// How often it happened in one handler run; the other values are those of the first time.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub times: u64,
    /// The dispatch whose handler made the host call that reached its limit, if that was recorded
    /// while the handler was running. The end of the handler does not record the call again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatch: Option<DispatchId>,
    /// What is repeated, of [`Limit::RepeatThreshold`]; `None` in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Signature>,
}

impl LimitBreached {
    /// The dispatch and the host function, if this is a host call that reached its limit and was
    /// recorded while its handler was running.
    #[must_use]
    pub fn call_of_running(&self) -> Option<(DispatchId, &str)> {
        let host_call = self.in_flight.as_ref()?.host_call.as_deref()?;
        Some((self.dispatch?, host_call))
    }
}

const fn once() -> u64 {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_once(times: &u64) -> bool {
    *times == 1
}

/// Why a run stopped: the first cause.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum StopCause {
    /// A limit was breached.
    Limit {
        /// Which.
        limit: Limit,
    },
    /// An operator requested it.
    Operator {
        /// Who.
        by: String,
        /// Why; may be empty.
        #[serde(default)]
        reason: String,
    },
    /// The parent that it works for stopped.
    Parent {
        /// The parent, if it is an entity.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        parent: Option<EntityRef>,
        /// Why; may be empty.
        #[serde(default)]
        reason: String,
    },
    /// The host was shut down.
    Shutdown,
    /// A trap of a handler ended the session.
    Trap,
    /// The session completed.
    Completion,
}

impl StopCause {
    /// The reason code of the stop, from an open set.
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

    /// The limit that was breached, if that was the cause.
    #[must_use]
    pub const fn limit(&self) -> Option<Limit> {
        match self {
            Self::Limit { limit } => Some(*limit),
            _ => None,
        }
    }

    /// Whether handlers in flight are requested to stop before they are killed.
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

named! {
    /// What a session does after its run has stopped.
    Directive {
        /// It waits to be resumed.
        Wait = "wait",
        /// It is resumed at once.
        Retry = "retry",
        /// It waits for the attention of an operator.
        Unstuck = "unstuck",
        /// It ends.
        Cancel = "cancel",
    }
}

impl Directive {
    /// Whether the session can continue, at once or after a resume.
    #[must_use]
    pub const fn goes_on(self) -> bool {
        match self {
            Self::Wait | Self::Retry | Self::Unstuck => true,
            Self::Cancel => false,
        }
    }
}

/// A failure that occurred more than once in a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repeated {
    /// What the failures have in common.
    pub signature: Signature,
    /// How often it occurred in the whole session.
    pub count: u64,
    /// The input of the last one: redacted, and shortened for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sample: String,
    /// The time of all of them together, in milliseconds.
    pub cost_ms: u64,
}

/// What the next run of a session learns about the previous one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovery {
    /// The run that stopped.
    pub prior_run: u32,
    /// Why it stopped.
    pub cause: String,
    /// Its most frequent failure, if it had any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Repeated>,
}

/// The decision to stop a run, recorded before it takes effect. Only the first one of a run counts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStopping {
    /// The run.
    pub run_seq: u32,
    /// The cause.
    pub cause: StopCause,
    /// The cause as a code.
    pub stop_reason_code: String,
    /// What the session does next; decided once.
    pub directive: Directive,
    /// How long its handlers may take to stop by themselves, in milliseconds.
    pub grace_ms: u64,
}

/// The end of a stopped run, of which nothing is in flight any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunStopped {
    /// The run.
    pub run_seq: u32,
    /// The cause.
    pub cause: StopCause,
    /// The cause as a code.
    pub stop_reason_code: String,
    /// What the session does next; `None` if it completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directive: Option<Directive>,
    /// How long the run lasted by its records, in milliseconds.
    pub elapsed_ms: u64,
    /// Its most frequent failure, if that occurred often enough to count as repeated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signature: Option<Repeated>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_serialized_as_their_names() {
        for limit in Limit::ALL {
            let text = serde_json::to_value(limit).expect("plain data");
            assert_eq!(text, limit.as_str());
            assert_eq!(Limit::named(limit.as_str()), Some(limit));
        }
        assert_eq!(Limit::named("run_timout"), None);
    }

    #[test]
    fn stops_by_counts_and_operators_have_no_grace() {
        let by_limit = |limit| StopCause::Limit { limit }.has_grace();
        assert!(by_limit(Limit::RunTimeout) && by_limit(Limit::InactivityTimeout));
        assert!(!by_limit(Limit::MaxLoopIterations));
        let operator = StopCause::Operator { by: "ann".to_owned(), reason: String::new() };
        assert!(!operator.has_grace());
        assert!(StopCause::Shutdown.has_grace());
    }
}
