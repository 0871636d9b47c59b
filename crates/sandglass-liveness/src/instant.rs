//! The order of inputs that arrive at one instant.
//!
//! An entity decides one input at a time, each against the fold of all records before it, and the
//! records of a decision are one batch. So the order in which things are decided, the order in
//! which they are recorded and the order in which a replay sees them are the same order, and what
//! is decided first holds: a handler whose end comes before the stop of its run has ended by
//! itself, and one whose end comes after it is judged as stopped (`decide/ending.rs`).
//!
//! docs/liveness.md, section "What falls at one instant", lists the order of all inputs.
//! [`TIME_LIMITS`] and [`first_due`] implement what time brings: limits, then scheduled actions, then
//! the state's timer. The task of an entity (`sandglass-runtime`, `actor`) takes the other inputs in
//! that order; host calls that time out come in the queue of the signals, and before the end of their
//! handler. `tests/all/instants.rs` decides every pair in both orders, and checks the decision, the
//! fold and the replay against each other.

use sandglass_model::{Limit, Monotonic};

use crate::session;

/// The limits of time of a run, in the order in which they are decided if several are breached.
pub const TIME_LIMITS: [Limit; 6] = [
    Limit::AbortTimeout,
    Limit::ExecutionTimeout,
    Limit::RunTimeout,
    Limit::InactivityTimeout,
    Limit::ProgressTimeout,
    Limit::InactivityWarn,
];

/// An input that is due because time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A limit of the session is breached.
    Limit(session::Due),
    /// The scheduled action of this number is due.
    Schedule(u64),
    /// The state's timer has fired.
    Idle {
        /// Which arming of the timer: [`crate::IdleTimer::generation`].
        generation: u64,
        /// How long nothing had been dispatched, in milliseconds.
        idle_ms: u64,
    },
}

/// The first of what is due at `now`: `limit` is the breached limit that [`session::evaluate`]
/// found, `schedules` are numbers with the moments that they are due at, and `idle` is the state's
/// timer if it has run down.
#[must_use]
pub fn first_due(
    now: Monotonic,
    limit: Option<session::Due>,
    schedules: impl Iterator<Item = (u64, Monotonic)>,
    idle: impl FnOnce() -> Option<Due>,
) -> Option<Due> {
    let schedule = || {
        let due = schedules.filter(|(_, at)| *at <= now);
        due.min_by_key(|(number, at)| (*at, *number)).map(|(number, _)| Due::Schedule(number))
    };
    limit.map(Due::Limit).or_else(schedule).or_else(idle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_due_before_schedules_and_schedules_before_the_state_timer() {
        let at = Monotonic::from_nanos;
        let limit = session::Due { limit: Limit::RunTimeout, observed_ms: 2 };
        let idle = Due::Idle { generation: 1, idle_ms: 5 };
        let schedules = || [(0, at(9)), (1, at(3)), (2, at(3)), (3, at(4))].into_iter();
        let first = |limit, schedules: Vec<(u64, Monotonic)>, idle| {
            first_due(at(5), limit, schedules.into_iter(), || idle)
        };
        let all: Vec<_> = schedules().collect();
        assert_eq!(first(Some(limit), all.clone(), Some(idle)), Some(Due::Limit(limit)));
        assert_eq!(first(None, all, Some(idle)), Some(Due::Schedule(1)), "the lower number");
        assert_eq!(first(None, vec![(0, at(6))], Some(idle)), Some(idle), "not due yet");
        assert_eq!(first(None, vec![], None), None);
    }
}
