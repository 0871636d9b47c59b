//! Measures how many seeds it takes to find each injected fault: a simulator that finds nothing may
//! be blind.

use std::io;

use serde::Serialize;

use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::plan::Options;
use crate::simulation::simulate;

/// How often each fault is hunted, each time from other seeds; odd, so that the median is a value.
pub const HUNTS: usize = 21;
/// A hunt gives up after this many seeds.
pub const SEEDS_MAX: u64 = 200;
/// How many seeds a hunt may take at the median.
pub const MEDIAN_MAX: u64 = 20;

/// The results of hunting one fault.
#[derive(Clone, Debug, Serialize)]
pub struct HuntResult {
    /// The fault.
    pub fault: &'static str,
    /// How many seeds were simulated until the fault was found, at the median.
    pub median: u64,
    /// How many seeds the longest hunt took; above [`SEEDS_MAX`] if one found nothing.
    pub longest: u64,
    /// The invariants that found it.
    pub found_by: Vec<Invariant>,
}

impl HuntResult {
    /// Whether the fault is found soon enough.
    #[must_use]
    pub const fn is_found(&self) -> bool {
        self.median <= MEDIAN_MAX
    }
}

/// Hunts `fault` [`HUNTS`] times, in seeds from `from` on.
///
/// # Errors
/// The operating system cannot create a runtime.
pub fn hunt(fault: Fault, from: u64) -> io::Result<HuntResult> {
    let options = Options { fault: Some(fault), ..Options::default() };
    let (mut taken, mut found_by) = (Vec::with_capacity(HUNTS), Vec::new());
    for nth in (0..).take(HUNTS) {
        let found = find(from.saturating_add(nth * SEEDS_MAX), &options)?;
        taken.push(found.map_or(SEEDS_MAX + 1, |(seeds, _)| seeds));
        found_by.extend(found.map(|(_, invariant)| invariant));
    }
    taken.sort_unstable();
    found_by.sort_unstable();
    found_by.dedup();
    let longest = taken.last().copied().unwrap_or_default();
    Ok(HuntResult { fault: fault.as_str(), median: taken[HUNTS / 2], longest, found_by })
}

/// Finds the first seed from `first` on with a violation. Returns how many seeds that took, and the
/// invariant; `None` if [`SEEDS_MAX`] seeds show no violation.
fn find(first: u64, options: &Options) -> io::Result<Option<(u64, Invariant)>> {
    for nth in 0..SEEDS_MAX {
        if let Some(violation) = simulate(first.saturating_add(nth), options)?.violation {
            return Ok(Some((nth + 1, violation.invariant)));
        }
    }
    Ok(None)
}
