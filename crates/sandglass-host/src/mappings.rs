//! How many memory mappings a pool takes, against how many the system gives a process: a
//! pool that can't be filled is refused when it is made, and not when it is full.

use std::fs;

/// Mappings of one run that waits in a host call: a stack and its guard page, and what its
/// memory is made of, which was found to be 4 for a core module; and two more for a guest
/// with a second memory.
const PER_RUN: u64 = 6;

/// Mappings that are left to everything else: libraries, other threads' stacks, the
/// allocator, compiled code.
const SPARE: u64 = 1_000;

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

/// Checks that a pool with `slots` can be filled. Where the system doesn't say what it
/// gives, it is taken to be enough.
///
/// # Errors
/// It can't.
pub(crate) fn check(slots: u32) -> Result<(), TooFew> {
    let most = fs::read_to_string("/proc/sys/vm/max_map_count").ok();
    let Some(most) = most.and_then(|text| text.trim().parse().ok()) else { return Ok(()) };
    let used = fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count() as u64);
    fits(slots, used, most)
}

fn fits(slots: u32, used: u64, most: u64) -> Result<(), TooFew> {
    let needed = u64::from(slots) * PER_RUN;
    let is_enough = needed + used + SPARE <= most;
    if is_enough { Ok(()) } else { Err(TooFew { needed, most, used }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What Linux gives a process, unless it is told otherwise.
    const USUAL: u64 = 65_530;

    #[test]
    fn ten_thousand_runs_fit_the_usual_setting_and_not_many_more() {
        assert_eq!(fits(10_200, 2_000, USUAL), Ok(()));
        let refused = TooFew { needed: 66_000, most: USUAL, used: 100 };
        assert_eq!(fits(11_000, 100, USUAL), Err(refused));
        assert_eq!(fits(50_000, 100, 310_000), Ok(()), "the ceiling moves with the setting");
        assert!(fits(u32::MAX, u64::from(u32::MAX), USUAL).is_err());
    }
}
