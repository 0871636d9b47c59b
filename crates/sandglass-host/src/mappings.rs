//! Counts the memory mappings of this process, of which the system gives a limited number. A pool
//! that could not be filled is refused when it is made, and a handler run that would take the last
//! mappings is not started. Without any left, the process's own allocator would fail and abort it.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mappings of a linear memory in use: its initial content, what follows that, and the part that the
/// guest cannot access.
const PER_MEMORY: u64 = 3;

/// Mappings of a handler run on demand in addition to its memories and stacks: tables and the space
/// around them.
const ON_DEMAND: u64 = 4;

/// Mappings of a stack: it and its guard page. In a pool, an unused slot has no others.
const PER_STACK: u64 = 2;

/// Mappings that each slot of a new pool must have room for besides its stacks. A core module that
/// waits in a host call has 2; a component may have one more memory.
const PER_RUN: u64 = 4;

/// Mappings that are left to everything else: libraries, other threads' stacks, the allocator,
/// compiled code.
const SPARE: u64 = 1_000;

/// Those of the process, because the limit is per process.
static MAPPINGS: Mappings = Mappings::unlimited();

/// A pool would take more mappings than there are.
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

#[derive(Debug)]
struct Mappings {
    reserved: AtomicU64,
    /// How many may be reserved.
    most: AtomicU64,
}

/// Some mappings, until this is dropped.
#[derive(Debug)]
pub(crate) struct Reserved(&'static Mappings, u64);

/// Reserves the mappings of a new pool with `slots` that have so many `stacks` each. If the system does not state its limit, there are
/// assumed to be enough.
///
/// # Errors
/// The pool could not be filled.
pub(crate) fn reserve_for_pool(slots: u32, stacks: u32) -> Result<Reserved, TooFew> {
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    if let Some(most) = most.and_then(|text| text.trim().parse().ok()) {
        let maps = fs::read_to_string("/proc/self/maps");
        MAPPINGS.admit(
            (slots, stacks),
            maps.map_or(0, |maps| maps.lines().count() as u64),
            most,
        )?;
    }
    Ok(MAPPINGS.reserve(u64::from(slots) * u64::from(stacks) * PER_STACK))
}

/// Reserves the mappings of a handler run in a slot of a pool; `None` if the process has too few left.
pub(crate) fn reserve_for_run(memories: u64) -> Option<Reserved> {
    MAPPINGS.try_reserve(memories.saturating_mul(PER_MEMORY))
}

/// As [`reserve_for_run`], for a handler run on demand.
pub(crate) fn reserve_for_run_on_demand(memories: u64, stacks: u64) -> Option<Reserved> {
    let stacks = stacks.saturating_mul(PER_STACK).saturating_add(ON_DEMAND);
    MAPPINGS.try_reserve(memories.saturating_mul(PER_MEMORY).saturating_add(stacks))
}

impl Mappings {
    const fn unlimited() -> Self {
        Self { reserved: AtomicU64::new(0), most: AtomicU64::new(u64::MAX) }
    }

    /// Admits a pool with `slots` that have so many `stacks` each, if it can be filled, in a process
    /// that uses `used` mappings of `most`.
    fn admit(&self, (slots, stacks): (u32, u32), used: u64, most: u64) -> Result<(), TooFew> {
        let needed = u64::from(slots) * (PER_RUN + u64::from(stacks) * PER_STACK);
        if needed + used + SPARE > most {
            return Err(TooFew { needed, most, used });
        }
        // Present handler runs use fewer mappings than they reserve, so the use of everything else is
        // underestimated a little at worst; the spare ones are more than that.
        let by_others = used.saturating_sub(self.reserved.load(Ordering::Relaxed));
        self.most.store(most - SPARE - by_others, Ordering::Relaxed);
        Ok(())
    }

    fn reserve(&'static self, count: u64) -> Reserved {
        self.reserved.fetch_add(count, Ordering::Relaxed);
        Reserved(self, count)
    }

    fn try_reserve(&'static self, count: u64) -> Option<Reserved> {
        let reserved = self.reserve(count);
        let is_within = self.reserved.load(Ordering::Relaxed) <= self.most.load(Ordering::Relaxed);
        is_within.then_some(reserved)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.0.reserved.fetch_sub(self.1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux gives a process by default.
    const USUAL: u64 = 65_530;

    #[test]
    fn ten_thousand_runs_fit_the_usual_setting_and_not_many_more() {
        let mappings = Mappings::unlimited();
        assert_eq!(mappings.admit((10_200, 1), 2_000, USUAL), Ok(()));
        let refused = TooFew { needed: 66_000, most: USUAL, used: 100 };
        assert_eq!(mappings.admit((11_000, 1), 100, USUAL), Err(refused));
        assert_eq!(mappings.admit((50_000, 1), 100, 310_000), Ok(()), "the ceiling moves");
        assert!(mappings.admit((u32::MAX, 1), u64::from(u32::MAX), USUAL).is_err());
    }

    #[test]
    fn a_run_that_would_take_the_last_mappings_waits_for_the_end_of_others() {
        static MAPPINGS: Mappings = Mappings::unlimited();
        // Each pool could be filled alone, but both together cannot.
        let pools = [100, 100].map(|slots| {
            let used = 50 + MAPPINGS.reserved.load(Ordering::Relaxed);
            MAPPINGS.admit((slots, 1), used, SPARE + 900).expect("it can be filled");
            MAPPINGS.reserve(u64::from(slots) * PER_STACK)
        });
        let mut runs: Vec<Reserved> =
            std::iter::from_fn(|| MAPPINGS.try_reserve(PER_MEMORY)).collect();
        assert_eq!(runs.len() as u64, (900 - 50 - 400) / PER_MEMORY);
        assert!(MAPPINGS.try_reserve(PER_MEMORY).is_none());
        runs.pop();
        let again = MAPPINGS.try_reserve(PER_MEMORY);
        assert!(again.is_some());
        drop((again, runs, pools));
        assert_eq!(MAPPINGS.reserved.load(Ordering::Relaxed), 0);
    }
}
