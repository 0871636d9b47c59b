//! Whether the journal accepts appends, for its callers, and in the log: one line when that
//! changes, and one from time to time while it fails. A full disk refuses hundreds of batches per
//! second, and a line for each would fill another disk.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_model::{Clock, Monotonic, SystemClock};

use crate::Error;

/// The time between two equal lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Why a journal is not sound; shared between a writer and its callers.
#[derive(Clone, Debug, Default)]
pub struct Failing(Arc<Mutex<Why>>);

#[derive(Debug, Default)]
struct Why {
    /// Why the last append failed, if it did.
    append: Option<String>,
    /// Damage that a check found. It stays until the journal is opened again.
    damage: Option<String>,
}

impl Failing {
    /// The reason; `None` if the last append worked and no check has found damage.
    #[must_use]
    pub fn why(&self) -> Option<String> {
        let why = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        why.append.clone().or_else(|| why.damage.clone())
    }

    /// Notes damage that a check has found.
    pub(crate) fn note_damage(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).damage = Some(what);
    }

    fn set(&self, why: Option<String>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).append = why;
    }
}

/// The state that the writer keeps.
#[derive(Debug)]
pub struct Failures {
    shared: Failing,
    clock: SystemClock,
    last: Option<LoggedFailure>,
}

#[derive(Debug)]
struct LoggedFailure {
    why: String,
    at: Monotonic,
    /// Batches that have failed since.
    batches: usize,
}

impl Failures {
    /// Shows failures through `shared`.
    #[must_use]
    pub fn new(shared: Failing) -> Self {
        Self { shared, clock: SystemClock::new(), last: None }
    }

    /// Notes the result of a group of batches.
    pub fn note<T>(&mut self, written: &Result<T, Error>, batches: usize) {
        match written {
            Ok(_) => self.works_again(),
            Err(error) => self.failed(error.to_string(), batches, self.clock.now()),
        }
    }

    fn works_again(&mut self) {
        if self.last.take().is_some() {
            self.shared.set(None);
            tracing::info!("the journal takes records again");
        }
    }

    fn failed(&mut self, why: String, batches: usize, now: Monotonic) {
        self.shared.set(Some(why.clone()));
        let batches = match &mut self.last {
            Some(logged) if logged.why == why && now.since(logged.at) < LOG_EVERY => {
                logged.batches = logged.batches.saturating_add(batches);
                return;
            }
            Some(logged) => logged.batches.saturating_add(batches),
            None => batches,
        };
        tracing::error!(batches, error = %why, "appending to the journal failed");
        self.last = Some(LoggedFailure { why, at: now, batches: 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_are_counted_until_it_is_time_to_tell_again() {
        let shared = Failing::default();
        let mut failures = Failures::new(shared.clone());
        let mut fail = |why: &str, batches, ms: u64| {
            failures.failed(why.to_owned(), batches, Monotonic::from_nanos(ms * 1_000_000));
            failures.last.as_ref().map(|logged| logged.batches)
        };
        assert_eq!(fail("the disk is full", 1, 0), Some(0), "the first is logged at once");
        fail("the disk is full", 2, 1);
        assert_eq!(fail("the disk is full", 3, 9_999), Some(5));
        assert_eq!(fail("the disk is full", 1, 10_000), Some(0));
        fail("the disk is full", 1, 10_001);
        assert_eq!(
            fail("the disk is gone", 1, 10_002),
            Some(0),
            "another reason is logged at once"
        );
        assert_eq!(shared.why().as_deref(), Some("the disk is gone"));
    }

    #[test]
    fn what_works_again_fails_no_more() {
        let shared = Failing::default();
        let mut failures = Failures::new(shared.clone());
        failures.note(&Err::<(), _>(Error::Unavailable { what: "the disk is full".to_owned() }), 1);
        assert_eq!(shared.why().as_deref(), Some("the disk is full"));
        failures.note(&Ok(()), 1);
        assert_eq!(shared.why(), None);
    }
}
