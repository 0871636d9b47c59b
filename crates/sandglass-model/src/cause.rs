//! Why a handler run ended: the first cause that any thread names.

use std::sync::atomic::{AtomicU8, Ordering};

use serde::{Deserialize, Serialize};

/// Why a handler run ended. Each run has exactly one cause: the first that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum Cause {
    /// The guest's export returned within its deadline.
    Returned = 1,
    /// The handler's own deadline passed.
    Deadline = 2,
    /// The deadline of the asking handler passed.
    ParentDeadline = 3,
    /// An operator or the embedder cancelled it.
    Cancel = 4,
    /// The entity left the state that started it.
    StateLeft = 5,
    /// The host is shutting down.
    Shutdown = 6,
    /// The caller that waited for the run went away.
    CallerGone = 7,
    /// The guest trapped, or a host function refused to go on with it.
    Trap = 8,
    /// The host process ended during the run, or lost the run.
    HostLost = 9,
    /// The host could not start the guest.
    NotStarted = 10,
    /// The session run that it belongs to was stopped.
    RunStopped = 11,
    /// Another host took over the entity. This host records nothing about the run.
    OwnershipLost = 12,
}

impl Cause {
    const ALL: [Self; 12] = [
        Self::Returned,
        Self::Deadline,
        Self::ParentDeadline,
        Self::Cancel,
        Self::StateLeft,
        Self::Shutdown,
        Self::CallerGone,
        Self::Trap,
        Self::HostLost,
        Self::NotStarted,
        Self::RunStopped,
        Self::OwnershipLost,
    ];

    fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| *cause as u8 == code)
    }
}

/// The first cause that a thread sets.
#[derive(Debug, Default)]
pub struct FirstCause(AtomicU8);

impl FirstCause {
    /// No cause yet.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU8::new(0))
    }

    /// Sets the cause, unless one is set already. Returns the cause that holds: `cause`, or the one
    /// that was set before it.
    pub fn set(&self, cause: Cause) -> Cause {
        match self.0.compare_exchange(0, cause as u8, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => cause,
            Err(earlier) => Cause::from_code(earlier).unwrap_or(cause),
        }
    }

    /// The cause that holds, if one was set.
    #[must_use]
    #[inline]
    pub fn get(&self) -> Option<Cause> {
        // Each host call reads it, and usually there is none.
        match self.0.load(Ordering::Acquire) {
            0 => None,
            code => Cause::from_code(code),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_holds_and_later_ones_get_it_back() {
        let cause = FirstCause::new();
        assert_eq!(cause.get(), None);
        assert_eq!(cause.set(Cause::Deadline), Cause::Deadline);
        assert_eq!(cause.set(Cause::Cancel), Cause::Deadline);
        assert_eq!(cause.get(), Some(Cause::Deadline));
    }

    #[test]
    fn one_of_many_threads_wins() {
        let cause = FirstCause::new();
        let winners: Vec<Cause> = std::thread::scope(|scope| {
            let racing: Vec<_> = Cause::ALL
                .map(|mine| {
                    let cause = &cause;
                    scope.spawn(move || cause.set(mine))
                })
                .into_iter()
                .collect();
            racing.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        assert!(winners.iter().all(|seen| Some(*seen) == cause.get()));
    }
}
