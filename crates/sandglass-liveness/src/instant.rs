//! The order of what falls at one instant.
//!
//! An entity decides one input at a time, each against the fold of all records before it, and the
//! records of a decision are one batch. So the order in which things are decided, the order in which
//! they are recorded and the order in which a replay sees them are the same order, and what is
//! decided first holds: a handler whose end comes before the stop of its run has ended by itself,
//! and one whose end comes after it is judged as stopped (`decide/ending.rs`).
//!
//! If several inputs are there at one instant, they are decided in this order:
//!
//! | | input | among themselves |
//! |---|---|---|
//! | 1 | a change of the spec and the start of the first run, if nothing is in flight, whenever the entity is about to wait | in this order |
//! | 2 | a stop that was carried out while the journal took nothing | the first cause holds |
//! | 3 | handlers' ends, each behind the signals that its entity's handlers sent before it | as they returned |
//! | 4 | limits of time that are breached | [`LIMITS`]: the one with the widest effect first |
//! | 5 | scheduled actions | by when they are due, then by number |
//! | 6 | the state's timer | one |
//! | 7 | the shutdown of the host | once |
//! | 8 | requests: actions, asks, retries, resumes, stops, signals from outside | as they arrived |
//! | 9 | signals of handlers that go on | as they were sent |
//!
//! After 5 and 6, and after the last limit of 4, the shutdown or one waiting request has its turn, so
//! that an entity whose timers fire all the time stays responsive. Signals that were held back are
//! recorded before 4.
//!
//! A limit is breached by more than it allows, so what ends at the very moment of a limit has ended
//! in time. After each input the entity evaluates again what is due: an end may have stopped a timer,
//! and a stop may have made a request impossible.
//!
//! [`first_due`] decides about 4 to 6; the task of an entity (`sandglass-runtime`, `actor`) takes
//! the others in this order. `tests/all/instants.rs` decides every pair in both orders, and checks
//! the decision, the fold and the replay against each other.

use sandglass_model::{Limit, Monotonic};

use crate::session;

/// The limits of time of a run, in the order in which they are decided if several are breached.
pub const LIMITS: [Limit; 6] = [
    Limit::AbortTimeout,
    Limit::ExecutionTimeout,
    Limit::RunTimeout,
    Limit::InactivityTimeout,
    Limit::ProgressTimeout,
    Limit::InactivityWarn,
];

/// An input that time brings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// A limit of the session is breached.
    Limit(session::Due),
    /// The scheduled action of this number is due.
    Schedule(u64),
    /// The state's timer has run down.
    Idle {
        /// The run of the timer: [`crate::IdleTimer::generation`].
        generation: u64,
        /// How long nothing had been dispatched, in milliseconds.
        idle_ms: u64,
    },
}

/// The first of what is due at `now`: `limit` is the breached limit that [`session::evaluate`] found,
/// `schedules` are numbers with the moments that they are due at, and `idle` is the state's timer if
/// it has run down.
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
    fn of_what_is_due_a_limit_comes_first_then_what_was_scheduled_then_the_states_timer() {
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
