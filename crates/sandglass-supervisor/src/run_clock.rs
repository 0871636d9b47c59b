//! The clock of one run: the host's, and between two looks at it the processor's counter,
//! which is read in a third of the time. It decides nothing.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::thread;

use sandglass_model::{Clock, Monotonic};

/// For how long the counter is believed before the clock is looked at again. Its rate is
/// known to some 20 parts in a million, so by then it is off by 20 nanoseconds: less than
/// looking at the clock takes.
const BELIEVED_NS: u64 = 1_000_000;

/// How far apart the counter and the clock may have been looked at to be taken for one
/// moment: some times what the two looks take. Whoever is taken off the CPU between them
/// has seen two.
const APART_NS: u64 = 1_000;

/// The processor's counter, once its rate is known; none on a processor whose counter
/// stops or changes its pace.
static COUNTER: OnceLock<quanta::Clock> = OnceLock::new();

/// Finds the counter's rate, on a thread of its own: it takes some ten milliseconds.
/// Until then, and where there is no thread, clocks are looked at each time.
pub fn find_rate() {
    if COUNTER.get().is_none() {
        let find = || {
            COUNTER.get_or_init(quanta::Clock::new);
        };
        drop(thread::Builder::new().name("sandglass-counter".to_owned()).spawn(find));
    }
}

/// What tells one run the time.
pub struct RunClock {
    clock: Arc<dyn Clock>,
    counter: Option<Counter>,
}

struct Counter {
    counter: &'static quanta::Clock,
    /// None where the last look didn't see one moment.
    mark: Option<Mark>,
}

/// When the clock was looked at, and where the counter was then.
#[derive(Clone, Copy)]
struct Mark {
    looked_at: Monotonic,
    stood_at: u64,
}

impl Counter {
    /// What the clock says, from where the counter is believed.
    fn look(&mut self, clock: &dyn Clock) -> Monotonic {
        let before = self.counter.raw();
        let looked_at = clock.now();
        let stood_at = self.counter.raw();
        let is_one = self.counter.delta_as_nanos(before, stood_at) < APART_NS;
        self.mark = is_one.then_some(Mark { looked_at, stood_at });
        looked_at
    }
}

impl RunClock {
    /// Of a run whose host has `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        let counter = COUNTER.get().filter(|_| clock.is_of_the_system());
        Self { counter: counter.map(|counter| Counter { counter, mark: None }), clock }
    }

    /// The host's clock.
    pub const fn shared(&self) -> &Arc<dyn Clock> {
        &self.clock
    }

    /// The present moment, by the host's clock.
    pub fn now(&self) -> Monotonic {
        self.clock.now()
    }

    /// The present moment, read in the quickest way: off from [`RunClock::now`] by a
    /// microsecond at most.
    #[inline]
    pub fn glance(&mut self) -> Monotonic {
        let Some(counter) = &mut self.counter else { return self.clock.now() };
        if let Some(Mark { looked_at, stood_at }) = counter.mark {
            let since = counter.counter.delta_as_nanos(stood_at, counter.counter.raw());
            if since < BELIEVED_NS {
                return Monotonic::from_nanos(looked_at.as_nanos() + since);
            }
        }
        counter.look(&*self.clock)
    }
}

impl fmt::Debug for RunClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunClock").field("clock", &self.clock).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use sandglass_model::{SystemClock, WallTime};

    fn counter() -> &'static quanta::Clock {
        COUNTER.get_or_init(quanta::Clock::new)
    }

    #[test]
    fn a_glance_is_between_two_looks_but_for_what_the_counter_is_off() {
        counter();
        let mut clock = RunClock::new(Arc::new(SystemClock::new()));
        // Far above 20 parts in a million of what is believed, far below what is believed.
        let off = Duration::from_micros(100);
        let begun = clock.now();
        while clock.now().since(begun) < Duration::from_millis(20) {
            let before = clock.now();
            let glance = clock.glance();
            let after = clock.now();
            assert!(glance.after(off) >= before, "{before:?} {glance:?}");
            assert!(after.after(off) >= glance, "{glance:?} {after:?}");
        }
    }

    /// A clock that stands.
    #[derive(Debug)]
    struct Stands;

    impl Clock for Stands {
        fn now(&self) -> Monotonic {
            Monotonic::from_nanos(7)
        }

        fn wall(&self) -> WallTime {
            WallTime::default()
        }
    }

    #[test]
    fn a_clock_that_is_not_the_systems_is_looked_at_each_time() {
        counter();
        let mut clock = RunClock::new(Arc::new(Stands));
        for _ in 0..1000 {
            assert_eq!(clock.glance(), Monotonic::from_nanos(7));
        }
    }
}
