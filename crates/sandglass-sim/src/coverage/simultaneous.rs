//! Which pairs of triggers cannot occur at one instant for one entity, and why. An instant is a
//! millisecond here, as in records. If the disk of a world takes no time, all inputs of one
//! millisecond arrive at the same time, and the pairs are an invariant (`one-order`). Each reason
//! names the rule of the runtime that prevents the pair.

use super::Trigger::{self, *};

const CREATED_ONCE: &str = "an entity is created once";
const SESSION_ONCE: &str = "an entity becomes a session once, at rest, and stays one";
const OVER: &str = "a session that was stopped for good takes only ends and signals";
const TIMER_RESTARTS: &str = "the state's timer starts again, or stands still";
const GRACE_RUNS: &str = "only ends and signals are taken while the grace of a stop runs";
const MEASURED_ANEW: &str = "the limit is measured from this instant on, and allows some time";
const NOT_MEASURED: &str = "the limit is measured only while work is in flight, which starts now";
const LIMITS_FIRST: &str = "a limit that is breached at an instant is decided before that";
const ENDS_LATER: &str = "nothing is in flight then, and what starts has at least a millisecond";
const EARLIER_LIMIT_FIRST: &str =
    "of several breached limits the first in `TIME_LIMITS` is decided first";

/// Why `first` is never decided before `second` at one instant for one entity; `None` if it can be.
pub(super) fn why_impossible(first: Trigger, second: Trigger) -> Option<&'static str> {
    let is_final = matches!(first, StopOperator | StopParent | CancelBlocked);
    let of_session = first.is_stop() || first.is_limit() || matches!(first, Resume | Started);
    match (first, second) {
        (_, Created) => Some(CREATED_ONCE),
        (_, Started) if of_session => Some(SESSION_ONCE),
        (CancelBlocked, second) if second != OtherSignal => Some(OVER),
        (_, AbortTimeout) if is_final => Some(GRACE_RUNS),
        (_, second) if is_final && !second.is_end() && !second.is_signal() => Some(OVER),
        (Created | Started | SpecChanged | Resume | Idle, TimedOut) => Some(ENDS_LATER),
        (OtherSignal | ScheduleDue, Idle) => None,
        (_, Idle) => Some(TIMER_RESTARTS),
        (first, AbortTimeout) if !first.is_end() && !first.is_signal() => Some(GRACE_RUNS),
        (first, second) if second.is_limit() => limit_behind(first, second),
        _ => None,
    }
}

/// Like [`why_impossible`], for a time limit other than the grace of a stop.
fn limit_behind(first: Trigger, second: Trigger) -> Option<&'static str> {
    match (first, second) {
        (Created | Started, _) => Some(MEASURED_ANEW),
        // A stop that could not be recorded earlier may be recorded when the time of the session is
        // over, and a resume may limit that time again, so `execution_timeout` can follow most
        // triggers.
        (InactivityWarn, ExecutionTimeout) => Some(EARLIER_LIMIT_FIRST),
        (_, ExecutionTimeout) => None,
        // Between a stop and another limit there is a new run, which resets every other limit.
        (first, _) if first.is_stop() || first == Resume => Some(MEASURED_ANEW),
        (AbortTimeout | ExecutionTimeout | RunTimeout, _) => Some(MEASURED_ANEW),
        (InactivityTimeout | ProgressTimeout, _) => Some(MEASURED_ANEW),
        (InactivityWarn, _) => Some(EARLIER_LIMIT_FIRST),
        (first, _) if first.is_behind_limits() => Some(LIMITS_FIRST),
        (_, RunTimeout) => None,
        (SpecChanged, _) => Some(NOT_MEASURED),
        // An end is a sign of life.
        (first, InactivityTimeout | InactivityWarn) if first.is_end() => Some(MEASURED_ANEW),
        _ => None,
    }
}

impl Trigger {
    /// Whether this is the end of a handler.
    const fn is_end(self) -> bool {
        matches!(
            self,
            Completed | Failed | TimedOut | Trapped | Limited | Rejected | Cancelled | Interrupted
        )
    }

    /// Whether this is decided after limits that are breached at the same instant.
    const fn is_behind_limits(self) -> bool {
        matches!(self, Action | Ask | Retry | ScheduleDue | Idle | OtherSignal)
    }

    /// Whether this is a signal, or comes in the queue of the signals.
    const fn is_signal(self) -> bool {
        matches!(self, HandlerSignal | OtherSignal | CallTimedOut)
    }

    const fn is_stop(self) -> bool {
        matches!(self, StopOperator | CancelBlocked | StopParent | StopShutdown)
    }

    /// Whether this is a time limit of a session.
    const fn is_limit(self) -> bool {
        matches!(
            self,
            AbortTimeout
                | ExecutionTimeout
                | RunTimeout
                | InactivityTimeout
                | ProgressTimeout
                | InactivityWarn
        )
    }
}
