//! Ends worlds that would never end. Simulated time passes only while every task waits, so a task
//! that never waits stops it forever.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_model::{Clock, Monotonic, Until, WallTime};

use crate::invariant::Invariant;
use crate::scene::Process;

/// How often a process may read its clock at one instant. The most in 40,000 worlds
/// was 28,847.
const READINGS_MAX: u64 = 1_000_000;

/// The clock of a process. If it is read too often at one instant, it ends the process.
#[derive(Debug)]
pub(crate) struct WatchedClock {
    process: Process,
    instant: AtomicU64,
    readings: AtomicU64,
}

impl WatchedClock {
    pub(crate) fn new(process: Process) -> Self {
        Self { process, instant: AtomicU64::new(0), readings: AtomicU64::new(0) }
    }
}

impl Clock for WatchedClock {
    fn now(&self) -> Monotonic {
        let now = self.process.clock.now();
        if self.instant.swap(now.as_nanos(), Ordering::Relaxed) != now.as_nanos() {
            self.readings.store(0, Ordering::Relaxed);
        }
        if self.readings.fetch_add(1, Ordering::Relaxed) >= READINGS_MAX {
            self.readings.store(0, Ordering::Relaxed);
            let what = format!("{READINGS_MAX} readings of the clock at one instant: a task spins");
            self.process.ledger().report(Invariant::NobodyStuck, what);
            self.process.crash();
            // Unwind, because the task would spin forever. `resume_unwind` does not call the panic
            // hook, so nothing is printed.
            resume_unwind(Box::new("a task spins"));
        }
        now
    }

    fn wall(&self) -> WallTime {
        self.process.clock.wall()
    }

    fn until(&self, at: Monotonic) -> Option<Until<'_>> {
        Some(Box::pin(self.process.until(at)))
    }
}
