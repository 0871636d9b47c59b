//! What a run is doing and since when, for whoever looks from another thread: one word,
//! which the guest's thread stores at each crossing of the boundary. It decides nothing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::Monotonic;

use crate::functions::{FunctionId, Functions};
use crate::store::Phase;

/// Bits of the word that say what; the rest says since when, in steps of 1,024 nanoseconds,
/// which is enough for nine years.
const WHAT_BITS: u32 = 16;
const WHAT_MASK: u64 = (1 << WHAT_BITS) - 1;
/// What a nanosecond is shifted by to stand above them.
const SINCE_SHIFT: u32 = WHAT_BITS - 10;

const QUEUED: u64 = 0;
const INSTANTIATING: u64 = 1;
const RUNNING: u64 = 2;
const FIRST_FUNCTION: u64 = 3;

/// What a run is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for its place: its budget hasn't begun.
    Queued,
    /// It is being instantiated, a `start` function included.
    Instantiating,
    /// It is in the guest's own code.
    Guest,
    /// It is in this host call, by the name that reports give it.
    HostCall(String),
}

impl Doing {
    /// The name that a run would die in, or `queued`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Queued => "queued",
            Self::Instantiating => Phase::Instantiating.own_span(),
            Self::Guest => Phase::Running.own_span(),
            Self::HostCall(name) => name,
        }
    }
}

/// The present of one run. Everything in it is for people to look at, so its stores are
/// relaxed; what and since when are one word, and so of one moment.
#[derive(Debug, Default)]
pub(crate) struct Present {
    word: AtomicU64,
    /// What the call of this word turned out to be about.
    about: Mutex<Option<(u64, Arc<str>)>>,
}

impl Present {
    /// From `now` on it is in the guest's own code, or becoming it.
    #[inline]
    pub(crate) fn in_guest(&self, phase: Phase, now: Monotonic) {
        let what = match phase {
            Phase::Instantiating => INSTANTIATING,
            Phase::Running => RUNNING,
        };
        self.word.store(word(what, now), Ordering::Relaxed);
    }

    /// From `now` on it is in this call.
    #[inline]
    pub(crate) fn calls(&self, function: FunctionId, now: Monotonic) {
        let what = FIRST_FUNCTION + u64::from(function.number());
        self.word.store(word(what, now), Ordering::Relaxed);
    }

    /// The call that is under way goes by `name`.
    pub(crate) fn is_about(&self, name: Arc<str>) {
        let word = self.word.load(Ordering::Relaxed);
        *self.about.lock().unwrap_or_else(PoisonError::into_inner) = Some((word, name));
    }

    /// What it does, and since when: none of a run that is queued.
    pub(crate) fn look(&self, functions: &Functions) -> (Doing, Option<Monotonic>) {
        let word = self.word.load(Ordering::Relaxed);
        let doing = match word & WHAT_MASK {
            QUEUED => return (Doing::Queued, None),
            INSTANTIATING => Doing::Instantiating,
            RUNNING => Doing::Guest,
            call => {
                let about = self.about.lock().unwrap_or_else(PoisonError::into_inner).clone();
                let about = about.filter(|(of, _)| *of == word).map(|(_, name)| name.to_string());
                let named = || functions.at(call - FIRST_FUNCTION).unwrap_or_default().to_owned();
                Doing::HostCall(about.unwrap_or_else(named))
            }
        };
        (doing, Some(Monotonic::from_nanos((word & !WHAT_MASK) >> SINCE_SHIFT)))
    }
}

const fn word(what: u64, since: Monotonic) -> u64 {
    ((since.as_nanos() << SINCE_SHIFT) & !WHAT_MASK) | what
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::Class;

    /// A moment that the word can say exactly.
    const THEN: Monotonic = Monotonic::from_nanos(1_024 * 5_000_000_000);

    #[test]
    fn what_is_shown_is_what_was_last_entered_and_since_then() {
        let mut functions = Functions::default();
        let first =
            functions.add("env", "host_log", Class::Instant, crate::functions::Reads::Numbers);
        let second =
            functions.add("env", "host_ask", Class::Async, crate::functions::Reads::Numbers);
        let present = Present::default();
        assert_eq!(present.look(&functions), (Doing::Queued, None));
        present.in_guest(Phase::Instantiating, THEN);
        assert_eq!(present.look(&functions), (Doing::Instantiating, Some(THEN)));
        present.calls(first, THEN);
        assert_eq!(present.look(&functions), (Doing::HostCall("host_log".to_owned()), Some(THEN)));
        let later = Monotonic::from_nanos(THEN.as_nanos() + 2_047);
        present.in_guest(Phase::Running, later);
        let shown = Monotonic::from_nanos(THEN.as_nanos() + 1_024);
        assert_eq!(present.look(&functions), (Doing::Guest, Some(shown)), "in whole steps");
        present.calls(second, later);
        assert_eq!(present.look(&functions).0.as_str(), "host_ask");
    }

    #[test]
    fn what_a_call_is_about_is_of_that_call_alone() {
        let mut functions = Functions::default();
        let ask = functions.add("env", "host_ask", Class::Async, crate::functions::Reads::Numbers);
        let present = Present::default();
        present.calls(ask, THEN);
        present.is_about("ask:Tool.Use".into());
        assert_eq!(present.look(&functions).0.as_str(), "ask:Tool.Use");
        present.in_guest(Phase::Running, THEN);
        assert_eq!(present.look(&functions).0, Doing::Guest);
        present.calls(ask, Monotonic::from_nanos(THEN.as_nanos() * 2));
        assert_eq!(present.look(&functions).0.as_str(), "host_ask");
    }
}
