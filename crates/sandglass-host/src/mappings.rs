//! The memory mappings of this process, of which the system gives so many: who makes a pool
//! that can't be filled is told at once, and a run that would take the last ones isn't
//! started. Without any left, the process's own allocator would fail, and end it.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mappings of a slot that nothing runs in: its stack, and the guard page below it.
const OF_SLOT: u64 = 2;

/// Mappings of a linear memory that a run has: what the module begins it with, what follows
/// that, and what it can't reach.
const OF_MEMORY: u64 = 3;

/// Mappings of a run on demand beside its memories and stacks: tables and what surrounds them.
const ON_DEMAND: u64 = 4;

/// Mappings of a stack on demand: it and its guard page.
const OF_STACK: u64 = 2;

/// Mappings for which there is to be room for each slot of a new pool. A core module that
/// waits in a host call has 4; a component may have a memory more.
const PER_RUN: u64 = 6;

/// Mappings that are left to everything else: libraries, other threads' stacks, the
/// allocator, compiled code.
const SPARE: u64 = 1_000;

/// The process's, since the limit is.
static MAPPINGS: Mappings = Mappings::unlimited();

/// That a pool would take more mappings than there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "they take up to {needed} memory mappings, and of the {most} that `vm.max_map_count` gives a \
     process {used} are used and {SPARE} kept; raise it (`sysctl -w vm.max_map_count=N`)"
)]
pub(crate) struct TooFew {
    needed: u64,
    most: u64,
    used: u64,
}

/// Counts the mappings of pools and of what runs.
#[derive(Debug)]
struct Mappings {
    held: AtomicU64,
    /// How many may be held.
    most: AtomicU64,
}

/// Some mappings, until this is dropped.
#[derive(Debug)]
pub(crate) struct Held(&'static Mappings, u64);

/// The mappings of a new pool with `slots`. Where the system doesn't say how many it gives,
/// there are taken to be enough.
///
/// # Errors
/// The pool couldn't be filled.
pub(crate) fn of_pool(slots: u32) -> Result<Held, TooFew> {
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    if let Some(most) = most.and_then(|text| text.trim().parse().ok()) {
        let maps = fs::read_to_string("/proc/self/maps");
        MAPPINGS.admit(slots, maps.map_or(0, |maps| maps.lines().count() as u64), most)?;
    }
    Ok(MAPPINGS.hold(u64::from(slots) * OF_SLOT))
}

/// The mappings of a run in a slot of a pool, with so many memories; none, where the
/// process has too few left.
pub(crate) fn of_run(memories: u64) -> Option<Held> {
    MAPPINGS.take(memories.saturating_mul(OF_MEMORY))
}

/// The same for a run on demand, with so many stacks.
pub(crate) fn of_run_on_demand(memories: u64, stacks: u64) -> Option<Held> {
    let of_stacks = stacks.saturating_mul(OF_STACK).saturating_add(ON_DEMAND);
    MAPPINGS.take(memories.saturating_mul(OF_MEMORY).saturating_add(of_stacks))
}

impl Mappings {
    const fn unlimited() -> Self {
        Self { held: AtomicU64::new(0), most: AtomicU64::new(u64::MAX) }
    }

    /// Lets a pool with `slots` in where it can be filled, of a process that uses `used`
    /// mappings of `most`.
    fn admit(&self, slots: u32, used: u64, most: u64) -> Result<(), TooFew> {
        let needed = u64::from(slots) * PER_RUN;
        if needed + used + SPARE > most {
            return Err(TooFew { needed, most, used });
        }
        // Who runs at this moment holds less than is counted, so what others use is found a
        // little too small at worst; the spare ones are more than that.
        let of_others = used.saturating_sub(self.held.load(Ordering::Relaxed));
        self.most.store(most - SPARE - of_others, Ordering::Relaxed);
        Ok(())
    }

    fn hold(&'static self, count: u64) -> Held {
        self.held.fetch_add(count, Ordering::Relaxed);
        Held(self, count)
    }

    fn take(&'static self, count: u64) -> Option<Held> {
        let held = self.hold(count);
        (self.held.load(Ordering::Relaxed) <= self.most.load(Ordering::Relaxed)).then_some(held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux gives a process, unless it is told otherwise.
    const USUAL: u64 = 65_530;

    #[test]
    fn ten_thousand_runs_fit_the_usual_setting_and_not_many_more() {
        let mappings = Mappings::unlimited();
        assert_eq!(mappings.admit(10_200, 2_000, USUAL), Ok(()));
        let refused = TooFew { needed: 66_000, most: USUAL, used: 100 };
        assert_eq!(mappings.admit(11_000, 100, USUAL), Err(refused));
        assert_eq!(mappings.admit(50_000, 100, 310_000), Ok(()), "the ceiling moves");
        assert!(mappings.admit(u32::MAX, u64::from(u32::MAX), USUAL).is_err());
    }

    #[test]
    fn a_run_that_would_take_the_last_ones_is_not_started_until_others_have_ended() {
        static MAPPINGS: Mappings = Mappings::unlimited();
        // Each pool could be filled alone, and both together can't.
        let pools = [100, 100].map(|slots| {
            let used = 50 + MAPPINGS.held.load(Ordering::Relaxed);
            MAPPINGS.admit(slots, used, SPARE + 900).expect("it can be filled");
            MAPPINGS.hold(u64::from(slots) * OF_SLOT)
        });
        let mut runs: Vec<Held> = std::iter::from_fn(|| MAPPINGS.take(OF_MEMORY)).collect();
        assert_eq!(runs.len() as u64, (900 - 50 - 400) / OF_MEMORY);
        assert!(MAPPINGS.take(OF_MEMORY).is_none());
        runs.pop();
        let again = MAPPINGS.take(OF_MEMORY);
        assert!(again.is_some());
        drop((again, runs, pools));
        assert_eq!(MAPPINGS.held.load(Ordering::Relaxed), 0);
    }
}
