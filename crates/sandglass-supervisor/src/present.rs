//! What a run is doing, since when, and when it was last active, for readers on other threads. The
//! guest's thread stores it at each crossing of the boundary, in one word and one moment.

use std::collections::BTreeMap;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sandglass_model::Monotonic;
use tokio::sync::Notify;

use crate::accounting::CallName;
use crate::functions::{FunctionId, Functions};
use crate::parking::parked_span;
use crate::run::Phase;
use crate::suspended::CallNote;
use crate::sync::lock;

/// Bits of the word for what the run does. The rest is since when, in steps of 1,024 nanoseconds,
/// which is enough for nine years.
const WHAT_BITS: u32 = 16;
const WHAT_MASK: u64 = (1 << WHAT_BITS) - 1;
/// The shift of nanoseconds to the bits above them.
const SINCE_SHIFT: u32 = WHAT_BITS - 10;

const QUEUED: u64 = 0;
const INSTANTIATING: u64 = 1;
const RUNNING: u64 = 2;
const WAITING: u64 = 3;
const FIRST_FUNCTION: u64 = 4;
/// Added to a function if its call waits for the lease of the host. A linker has a few thousand
/// functions, so no number reaches it.
const PARKED: u64 = 1 << (WHAT_BITS - 1);

/// How many calls in flight are shown.
const IN_FLIGHT_SHOWN: usize = 16;

/// What a run is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It waits for permission to start: its budget has not begun.
    Queued,
    /// It is being instantiated, a `start` function included.
    Instantiating,
    /// It is in the guest's own code.
    Guest,
    /// It is in this host call, named as in reports. Of several calls that a guest waits for, it is the
    /// oldest.
    HostCall(String),
    /// A host call of it waits for the lease of the host, and has not begun. The text is the name of
    /// [`parked_span`].
    Parked(String),
}

impl Doing {
    /// The dying span that a kill would have now, or `queued`.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Queued => "queued",
            Self::Instantiating => Phase::Instantiating.own_span(),
            Self::Guest => Phase::Running.own_span(),
            Self::HostCall(name) | Self::Parked(name) => name,
        }
    }
}

/// A call that is in flight while its guest goes on.
#[derive(Debug)]
pub(crate) struct InFlight {
    pub(crate) function: FunctionId,
    pub(crate) name: CallName,
    pub(crate) since: Monotonic,
    pub(crate) note: Arc<CallNote>,
}

impl InFlight {
    fn doing(&self, functions: &Functions) -> Doing {
        match self.note.is_parked() {
            true => Doing::Parked(parked_span(functions.name(self.function))),
            false => Doing::HostCall(self.name.text(functions).to_owned()),
        }
    }
}

/// What one run is doing. What and since when are one word, so a reader never sees parts of two
/// moments. The stores are relaxed: a reader that is a few nanoseconds behind sees older activity,
/// and evaluates its limits again when they are due.
#[derive(Debug, Default)]
pub struct Present {
    word: AtomicU64,
    /// The name of the call of this word, if it has one of its own.
    about: Mutex<Option<(u64, Arc<str>)>>,
    /// The calls in flight while the guest goes on, by number, and since when.
    in_flight: Mutex<BTreeMap<u64, InFlight>>,
    /// When the last call ended that counts as activity, in nanoseconds; 0 if there was none.
    active_at: AtomicU64,
    /// Whether a reader waits for activity. It spares the calls the lock.
    is_awaited: AtomicBool,
    waiters: Mutex<Vec<Arc<Notify>>>,
}

impl Present {
    /// From `now` on the run is in the guest's own code, or being instantiated.
    #[inline]
    pub fn in_guest(&self, phase: Phase, now: Monotonic) {
        let what = match phase {
            Phase::Instantiating => INSTANTIATING,
            Phase::Running => RUNNING,
        };
        self.word.store(word(what, now), Ordering::Relaxed);
    }

    /// From `now` on the run is in a call of `function`.
    #[inline]
    pub fn calls(&self, function: FunctionId, now: Monotonic) {
        let what = FIRST_FUNCTION + u64::from(function.number());
        self.word.store(word(what, now), Ordering::Relaxed);
    }

    /// From `now` on a call of `function` waits for the lease of the host.
    #[cold]
    pub fn parks(&self, function: FunctionId, now: Monotonic) {
        let what = FIRST_FUNCTION + u64::from(function.number());
        self.word.store(word(what | PARKED, now), Ordering::Relaxed);
    }

    /// Adds a call that is in flight while the guest goes on.
    pub(crate) fn add_in_flight(&self, number: u64, call: InFlight) {
        lock(&self.in_flight).insert(number, call);
    }

    /// Removes a call that is no longer in flight.
    pub(crate) fn remove_in_flight(&self, number: u64) {
        lock(&self.in_flight).remove(&number);
    }

    /// From `now` on the guest waits for its calls in flight.
    pub fn waits(&self, now: Monotonic) {
        if self.word.load(Ordering::Relaxed) & WHAT_MASK != WAITING {
            self.word.store(word(WAITING, now), Ordering::Relaxed);
        }
    }

    /// Whether the run is in a call for which its guest waits.
    #[must_use]
    pub fn is_in_call(&self) -> bool {
        self.word.load(Ordering::Relaxed) & WHAT_MASK >= FIRST_FUNCTION
    }

    /// Whether the run is in the guest's own code, or being instantiated.
    #[must_use]
    pub fn is_in_guest(&self) -> bool {
        matches!(self.word.load(Ordering::Relaxed) & WHAT_MASK, INSTANTIATING | RUNNING)
    }

    /// The calls that are in flight while the guest goes on, the oldest first, and since when.
    #[must_use]
    pub fn in_flight(&self, functions: &Functions) -> Vec<(String, Monotonic)> {
        let calls = lock(&self.in_flight);
        let calls = calls.values().take(IN_FLIGHT_SHOWN);
        calls.map(|call| (call.doing(functions).as_str().to_owned(), call.since)).collect()
    }

    /// A call has ended `now`. It counts as activity unless it only sent a synthetic signal.
    #[inline]
    pub fn call_ended(&self, phase: Phase, now: Monotonic, is_activity: bool) {
        self.in_guest(phase, now);
        if is_activity {
            self.active_at.store(now.as_nanos(), Ordering::Relaxed);
            if self.is_awaited.load(Ordering::Relaxed) {
                self.notify();
            }
        }
    }

    #[cold]
    fn notify(&self) {
        let waiters = {
            let mut waiters = lock(&self.waiters);
            self.is_awaited.store(false, Ordering::Relaxed);
            mem::take(&mut *waiters)
        };
        waiters.iter().for_each(|waiter| waiter.notify_one());
    }

    /// Notifies `waiter` once, when the next call ends that counts as activity.
    pub fn on_activity(&self, waiter: Arc<Notify>) {
        let mut waiters = lock(&self.waiters);
        if !waiters.iter().any(|known| Arc::ptr_eq(known, &waiter)) {
            waiters.push(waiter);
        }
        self.is_awaited.store(true, Ordering::Relaxed);
    }

    /// When the last call of the run began or ended; `None` if there was none. Instant calls count
    /// when they end, because only then it is known whether they sent no more than a synthetic
    /// signal.
    pub fn last_active(&self, functions: &Functions) -> Option<Monotonic> {
        let word = self.word.load(Ordering::Relaxed);
        let ended = self.active_at.load(Ordering::Relaxed);
        let ended = (ended > 0).then(|| Monotonic::from_nanos(ended));
        // A call that waits for the lease shows that the guest is active, too.
        let call = (word & WHAT_MASK & !PARKED).checked_sub(FIRST_FUNCTION);
        let function = call.and_then(|call| functions.id(call));
        let begun = function.filter(|id| functions.can_wait(*id)).map(|_| since(word));
        ended.max(begun)
    }

    /// Names the present call.
    pub fn name_call(&self, name: Arc<str>) {
        let word = self.word.load(Ordering::Relaxed);
        *lock(&self.about) = Some((word, name));
    }

    /// The host function that the run is in; `None` if it is in none.
    pub fn function<'a>(&self, functions: &'a Functions) -> Option<&'a str> {
        let word = self.word.load(Ordering::Relaxed);
        let call = (word & WHAT_MASK).checked_sub(FIRST_FUNCTION)?;
        functions.at(call)
    }

    /// What the run does, and since when; `None` if it is queued.
    pub fn read(&self, functions: &Functions) -> (Doing, Option<Monotonic>) {
        let word = self.word.load(Ordering::Relaxed);
        let doing = match word & WHAT_MASK {
            QUEUED => return (Doing::Queued, None),
            INSTANTIATING => Doing::Instantiating,
            RUNNING => Doing::Guest,
            WAITING => match lock(&self.in_flight).values().next() {
                Some(call) => return (call.doing(functions), Some(call.since)),
                None => Doing::Guest,
            },
            call if call & PARKED != 0 => {
                let number = (call & !PARKED).saturating_sub(FIRST_FUNCTION);
                Doing::Parked(parked_span(functions.at(number).unwrap_or_default()))
            }
            call => {
                let about = lock(&self.about).clone();
                let about = about.filter(|(of, _)| *of == word).map(|(_, name)| name.to_string());
                let named = || functions.at(call - FIRST_FUNCTION).unwrap_or_default().to_owned();
                Doing::HostCall(about.unwrap_or_else(named))
            }
        };
        (doing, Some(since(word)))
    }
}

const fn word(what: u64, since: Monotonic) -> u64 {
    ((since.as_nanos() << SINCE_SHIFT) & !WHAT_MASK) | what
}

const fn since(word: u64) -> Monotonic {
    Monotonic::from_nanos((word & !WHAT_MASK) >> SINCE_SHIFT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::functions::{Class, Reads};
    use crate::testing::functions;

    /// A moment that the word can hold exactly.
    const THEN: Monotonic = Monotonic::from_nanos(1_024 * 5_000_000_000);

    #[test]
    fn what_is_shown_is_what_was_last_entered_and_since_then() {
        let (functions, [first, second]) = functions(["host_log", "host_ask"]);
        let present = Present::default();
        assert_eq!(present.read(&functions), (Doing::Queued, None));
        present.in_guest(Phase::Instantiating, THEN);
        assert_eq!(present.read(&functions), (Doing::Instantiating, Some(THEN)));
        present.calls(first, THEN);
        assert_eq!(present.read(&functions), (Doing::HostCall("host_log".to_owned()), Some(THEN)));
        let later = Monotonic::from_nanos(THEN.as_nanos() + 2_047);
        present.in_guest(Phase::Running, later);
        let shown = Monotonic::from_nanos(THEN.as_nanos() + 1_024);
        assert_eq!(present.read(&functions), (Doing::Guest, Some(shown)), "in whole steps");
        present.calls(second, later);
        assert_eq!(present.read(&functions).0.as_str(), "host_ask");
    }

    #[test]
    fn a_call_that_waits_for_the_lease_is_shown_as_parked_and_counts_as_activity() {
        let (functions, [send]) = functions(["host_http_call"]);
        let present = Present::default();
        present.parks(send, THEN);
        let parked = Doing::Parked("parked:host_http_call".to_owned());
        assert_eq!(present.read(&functions), (parked, Some(THEN)));
        assert_eq!(present.function(&functions), None, "it has not begun");
        assert_eq!(present.last_active(&functions), Some(THEN));
        present.calls(send, THEN);
        assert_eq!(present.read(&functions).0.as_str(), "host_http_call");
    }

    #[test]
    fn what_a_call_is_about_is_of_that_call_alone() {
        let (functions, [ask]) = functions(["host_ask"]);
        let present = Present::default();
        present.calls(ask, THEN);
        present.name_call("ask:Tool.Use".into());
        assert_eq!(present.read(&functions).0.as_str(), "ask:Tool.Use");
        present.in_guest(Phase::Running, THEN);
        assert_eq!(present.read(&functions).0, Doing::Guest);
        present.calls(ask, Monotonic::from_nanos(THEN.as_nanos() * 2));
        assert_eq!(present.read(&functions).0.as_str(), "host_ask");
    }

    #[tokio::test]
    async fn calls_are_activity_and_synthetic_signals_are_not() {
        let (mut functions, [send]) = functions(["host_http_call"]);
        let name = "host_emit_progress";
        let emit = functions.add("env", name, name.to_owned(), Class::Instant, Reads::Numbers);
        let at = |steps: u64| Monotonic::from_nanos(1_024 * steps);
        let present = Present::default();
        present.in_guest(Phase::Running, at(2));
        assert_eq!(present.last_active(&functions), None, "its own code shows no activity");
        present.calls(send, at(3));
        assert_eq!(present.last_active(&functions), Some(at(3)), "a call has begun");
        present.call_ended(Phase::Running, at(4), true);
        assert_eq!(present.last_active(&functions), Some(at(4)), "the call has ended");
        let waiter = Arc::new(Notify::new());
        present.on_activity(Arc::clone(&waiter));
        present.calls(emit, at(5));
        present.call_ended(Phase::Running, at(6), false);
        assert_eq!(present.last_active(&functions), Some(at(4)), "it was a synthetic signal");
        present.calls(emit, at(7));
        present.call_ended(Phase::Running, at(8), true);
        assert_eq!(present.last_active(&functions), Some(at(8)));
        // The synthetic signal has not notified it, or this would be its second notification.
        waiter.notified().await;
        assert!(!present.is_awaited.load(Ordering::Relaxed), "it is notified once");
    }
}
