//! The clocks of one process: they differ from true time by an offset and a rate, and its wall clock by a
//! skew.

use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_model::{Clock, Monotonic, Until, WallTime};

use super::sim::Sim;
use super::timeline::{Life, MS, Sleep};
use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::scene::START;

/// How often a process may read its clock at one instant.
const READINGS_MAX: u64 = 1_000_000;

/// The clock of a process.
pub(crate) struct HostClock {
    sim: Arc<Sim>,
    life: Life,
    /// What it shows at the start of the world, in nanoseconds.
    offset: u64,
    /// How much faster it is than true time, in millionths.
    ppm: u64,
    /// How far its wall clock is ahead, in milliseconds.
    ahead_ms: u64,
    /// For how long it stood still, which is a fault.
    pub(crate) stood: AtomicU64,
    instant: AtomicU64,
    readings: AtomicU64,
}

impl HostClock {
    pub(crate) fn new(sim: Arc<Sim>, life: Life) -> Self {
        let offset = sim.delays.within(0..=1_000_000) * MS;
        let ppm = sim.delays.within(0..=2_000);
        let ahead_ms = sim.delays.within(0..=sim.plan.skew_ms);
        let (stood, instant, readings) = Default::default();
        Self { sim, life, offset, ppm, ahead_ms, stood, instant, readings }
    }

    fn read(&self, now: u64) -> u64 {
        self.offset + now + now / 1_000_000 * self.ppm
    }

    /// The first true time at which the clock has reached `at`, or shortly before.
    fn true_time(&self, at: u64) -> u64 {
        let counted = at.saturating_sub(self.offset);
        counted.saturating_sub(counted / 1_000_000 * self.ppm).saturating_sub(2 * MS / 1_000)
    }

    /// Ends a task that spins: time would stand still forever.
    fn watch(&self, now: u64) {
        if self.instant.swap(now, Ordering::Relaxed) != now {
            self.readings.store(0, Ordering::Relaxed);
        }
        if self.readings.fetch_add(1, Ordering::Relaxed) >= READINGS_MAX {
            self.readings.store(0, Ordering::Relaxed);
            let what = format!("{READINGS_MAX} readings of the clock at one instant: a task spins");
            self.sim.ledger().report(Invariant::NobodyStuck, what);
            // `resume_unwind` does not call the panic hook, so nothing is printed.
            resume_unwind(Box::new("a task spins"));
        }
    }
}

impl Clock for HostClock {
    fn now(&self) -> Monotonic {
        let now = self.sim.now();
        self.watch(now);
        Monotonic::from_nanos(self.read(now))
    }

    fn wall(&self) -> WallTime {
        let millis = self.sim.now() / MS + self.ahead_ms;
        WallTime::from_millis(START.as_millis() + i64::try_from(millis).unwrap_or(0))
    }

    fn until(&self, at: Monotonic) -> Option<Until<'_>> {
        Some(Box::pin(async move {
            let mut until = self.true_time(at.as_nanos());
            loop {
                Sleep::new(Arc::clone(&self.sim), self.life, until).await;
                let now = self.sim.now();
                if self.read(now) >= at.as_nanos() {
                    return;
                }
                until = now + (at.as_nanos() - self.read(now)).max(1);
            }
        }))
    }
}

impl fmt::Debug for HostClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostClock").field("life", &self.life).finish_non_exhaustive()
    }
}

/// The clock of a lease, which also counts while its process is paused, unless a fault is injected.
#[derive(Debug)]
pub(crate) struct LeaseClock(pub(crate) Arc<HostClock>);

impl Clock for LeaseClock {
    fn now(&self) -> Monotonic {
        let now = self.0.now().as_nanos();
        let stood = self.0.stood.load(Ordering::Relaxed);
        let is_set_back = self.0.sim.has(Fault::LeaseByWallClock);
        Monotonic::from_nanos(if is_set_back { now - stood.min(now) } else { now })
    }

    fn wall(&self) -> WallTime {
        self.0.wall()
    }
}
