//! The clock of one run: that of the host, and between two readings of it the processor's counter, which
//! takes a third of the time to read. It decides nothing.

use std::sync::{Arc, OnceLock};
use std::thread;

use sandglass_model::{Clock, Monotonic};

use crate::opaque::opaque;

/// How long the counter is used before the clock is read again. Its rate is known to about 20 parts per
/// million, so by then its error is 20 nanoseconds: less than a reading of the clock takes.
const BELIEVED_NS: u64 = 1_000_000;

/// How far apart the readings of the counter and the clock may be to count as one moment: a few times
/// what they take. If the thread is preempted between them, they are of different moments.
const APART_NS: u64 = 1_000;

/// The processor's counter, once its rate is known; never set if the counter can stop or change its rate.
static COUNTER: OnceLock<quanta::Clock> = OnceLock::new();

/// Measures the counter's rate on a separate thread, which takes about ten milliseconds. Until then, and
/// if there is no thread, every reading is one of the clock.
pub fn find_rate() {
    if COUNTER.get().is_none() {
        let find = || {
            COUNTER.get_or_init(quanta::Clock::new);
        };
        drop(thread::Builder::new().name("sandglass-counter".to_owned()).spawn(find));
    }
}

/// The clock of one run.
pub struct RunClock {
    clock: Arc<dyn Clock>,
    counter: Option<Counter>,
}

struct Counter {
    counter: &'static quanta::Clock,
    /// `None` if the last readings were of different moments.
    mark: Option<Mark>,
}

/// A moment on the clock, and the value of the counter then.
#[derive(Clone, Copy)]
struct Mark {
    looked_at: Monotonic,
    stood_at: u64,
}

impl Counter {
    /// Reads the clock, and notes the counter for the following readings.
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
    /// Creates the clock of a run on a host with `clock`.
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

    /// The present moment, read in the fastest way. It differs from [`RunClock::now`] by at most a
    /// microsecond.
    #[inline]
    pub fn now_fast(&mut self) -> Monotonic {
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

opaque!(RunClock as "RunClock" { clock });

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use sandglass_model::SystemClock;

    use crate::testing::SetClock;

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
            let fast = clock.now_fast();
            let after = clock.now();
            assert!(fast.after(off) >= before, "{before:?} {fast:?}");
            assert!(after.after(off) >= fast, "{fast:?} {after:?}");
        }
    }

    #[test]
    fn a_clock_that_is_not_the_systems_is_looked_at_each_time() {
        counter();
        let mut clock = RunClock::new(Arc::new(SetClock::at(7)));
        for _ in 0..1000 {
            assert_eq!(clock.now_fast(), Monotonic::from_nanos(7));
        }
    }
}
