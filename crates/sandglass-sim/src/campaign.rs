//! Simulates many seeds, each on one of several threads, adds up their results, and finds the
//! shortest failing simulation of each seed that fails.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use crate::automaton::ResetOn;
use crate::coverage::Coverage;
use crate::hosts::HostCounts;
use crate::invariant::{Invariant, Violation};
use crate::ledger::Counts;
use crate::old_rule::RuleCounts;
use crate::plan::Options;
use crate::scene::lock;
use crate::simulation::{Run, simulate};

/// Most failures that are kept. Each is shortened, which takes time, and a few examples are enough.
const FAILURES_MAX: usize = 10;

/// How to simulate each seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Simulates every `one_in`-th seed twice and compares the runs; 1 means every seed.
    Twice {
        /// From 1.
        one_in: u64,
    },
    /// Simulates each seed with and without the obsolete `reset_on` and compares the two.
    ResetOn,
}

/// The results of many seeds.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// The number of seeds.
    pub seeds: usize,
    /// How many seeds were simulated twice, to compare the two.
    pub twice: usize,
    /// How often things happened, in all seeds.
    pub counts: Counts,
    /// How often things happened that only worlds of several hosts have.
    pub hosts: HostCounts,
    /// What the logs cover.
    pub coverage: Coverage,
    /// What state timers did, and what they would have done by the old rule.
    pub rules: RuleCounts,
    /// What the obsolete `reset_on` changes, if that was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_on: Option<Comparison>,
    /// The number of seeds that failed.
    pub failed: usize,
    /// The failed seeds with the lowest numbers.
    pub failures: Vec<Failure>,
}

/// What the obsolete entries of `reset_on` change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Comparison {
    /// State timers that fired with them.
    pub fired_with: u64,
    /// State timers that fired without them.
    pub fired_without: u64,
    /// State timers that fired without them, while a handler was in flight.
    pub fired_in_flight: u64,
    /// State timers that fired without them, and would not have fired by the old rule.
    pub fired_anew: u64,
    /// How often the old rule would have fired while a handler was in flight.
    pub spared: u64,
    /// Seeds in which anything other than the text of the specs differs.
    pub differing: u64,
}

/// A seed that violates an invariant.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The first violation in the shortest failing simulation.
    pub violation: Violation,
    /// The number of steps of that simulation.
    pub steps: usize,
    /// The command line that reproduces it.
    pub command: String,
}

/// The seeds of a campaign.
#[derive(Clone, Debug)]
pub enum Seeds {
    /// Consecutive seeds.
    From {
        /// The first seed.
        first: u64,
        /// The number of seeds.
        count: u64,
    },
    /// The listed seeds.
    Listed(Vec<u64>),
}

impl Seeds {
    /// Reads a list: one seed in each line, and comments from `#` to the end of the line.
    ///
    /// # Errors
    /// The line number (from 1) and text of the first invalid line.
    pub fn parse(text: &str) -> Result<Self, (usize, String)> {
        let mut seeds = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let seed = line.split('#').next().unwrap_or_default().trim();
            if !seed.is_empty() {
                seeds.push(seed.parse().map_err(|_| (number, line.to_owned()))?);
            }
        }
        Ok(Self::Listed(seeds))
    }

    /// The number of seeds.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::From { count, .. } => *count,
            Self::Listed(seeds) => seeds.len() as u64,
        }
    }

    /// The seed at `index`, from 0; `None` past the last.
    fn nth(&self, index: u64) -> Option<u64> {
        match self {
            Self::From { first, count } => (index < *count).then(|| first.checked_add(index))?,
            Self::Listed(seeds) => seeds.get(usize::try_from(index).ok()?).copied(),
        }
    }
}

/// Simulates `seeds` on as many threads as there are cores. After each seed, `goes_on` is called
/// with the number of finished seeds, and returns whether to begin another one.
///
/// # Errors
/// The operating system cannot create a runtime or a thread, or a simulation panicked.
pub fn campaign(
    seeds: &Seeds,
    options: &Options,
    mode: Mode,
    goes_on: impl Fn(usize) -> bool + Sync,
) -> io::Result<Summary> {
    let (next, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let shared = Mutex::new(Tally::new(mode));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || -> io::Result<()> {
        while !is_over.load(Ordering::Relaxed) {
            let Some(seed) = seeds.nth(next.fetch_add(1, Ordering::Relaxed)) else { break };
            let outcome = simulate_one(seed, options, mode)?;
            let done = lock(&shared).add(outcome);
            if !goes_on(done) {
                is_over.store(true, Ordering::Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a simulation panicked")))
        })
    })?;
    shared.into_inner().unwrap_or_default().summary(options)
}

/// The sums of the seeds that are finished.
#[derive(Debug, Default)]
struct Tally {
    summary: Summary,
    /// The failed seeds with the lowest numbers, whatever the order in which they finished.
    failures: BTreeMap<u64, Violation>,
}

impl Tally {
    fn new(mode: Mode) -> Self {
        let reset_on = (mode == Mode::ResetOn).then(Comparison::default);
        Self { summary: Summary { reset_on, ..Summary::default() }, ..Self::default() }
    }

    /// Adds the result of one seed; returns the number of finished seeds.
    fn add(&mut self, outcome: Outcome) -> usize {
        let Outcome { run, compared, is_twice, violation } = outcome;
        let summary = &mut self.summary;
        summary.seeds += 1;
        summary.twice += usize::from(is_twice);
        summary.counts += run.counts;
        summary.hosts += run.hosts;
        summary.coverage += &run.coverage;
        summary.rules += run.rules;
        if let Some(sum) = &mut summary.reset_on {
            *sum += compared;
        }
        if let Some(violation) = violation {
            summary.failed += 1;
            self.failures.insert(run.seed, violation);
            if self.failures.len() > FAILURES_MAX {
                self.failures.pop_last();
            }
        }
        summary.seeds
    }

    fn summary(mut self, options: &Options) -> io::Result<Summary> {
        let failures = self.failures.iter();
        let shortest = failures.map(|(seed, violation)| shortest(*seed, options, violation));
        self.summary.failures = shortest.collect::<io::Result<_>>()?;
        Ok(self.summary)
    }
}

/// The result of one seed.
struct Outcome {
    run: Run,
    compared: Comparison,
    is_twice: bool,
    violation: Option<Violation>,
}

fn simulate_one(seed: u64, options: &Options, mode: Mode) -> io::Result<Outcome> {
    let run = simulate(seed, options)?;
    let mut violation = run.violation.clone();
    let mut compared = Comparison::default();
    let is_twice = matches!(mode, Mode::Twice { one_in } if seed.is_multiple_of(one_in.max(1)));
    match mode {
        Mode::Twice { .. } if is_twice => {
            let again = simulate(seed, options)?;
            violation = violation.or_else(|| difference(&run, &again));
        }
        Mode::Twice { .. } => {}
        Mode::ResetOn => {
            let with = simulate(seed, &Options { reset_on: ResetOn::Obsolete, ..*options })?;
            violation = violation.or_else(|| with.violation.clone());
            compared = compare(&with, &run);
        }
    }
    Ok(Outcome { run, compared, is_twice, violation })
}

/// Compares two simulations of one seed, which must not differ.
fn difference(first: &Run, second: &Run) -> Option<Violation> {
    (first != second).then(|| {
        let end = |run: &Run| {
            let log = run.log_hash.chars().take(12).collect::<String>();
            format!("{} ms, {:016x}, log {log}", run.clock_ms, run.next_random)
        };
        Violation {
            invariant: Invariant::Reproducible,
            what: format!("it ends at {}, and again at {}", end(first), end(second)),
            step: first.steps,
            at_ms: first.clock_ms,
        }
    })
}

fn compare(with: &Run, without: &Run) -> Comparison {
    Comparison {
        fired_with: with.rules.fired,
        fired_without: without.rules.fired,
        fired_in_flight: without.rules.fired_in_flight,
        fired_anew: without.rules.fired_anew,
        spared: without.rules.spared,
        differing: u64::from(with.story_hash != without.story_hash),
    }
}

/// Finds the shortest simulation that violates the invariant that `found` violates.
///
/// # Errors
/// The operating system cannot create a runtime.
pub fn shortest(seed: u64, options: &Options, found: &Violation) -> io::Result<Failure> {
    let shows = |steps: usize| -> io::Result<Option<Violation>> {
        let run = simulate(seed, &Options { steps: Some(steps), ..*options })?;
        Ok(run.violation.filter(|violation| violation.invariant == found.invariant))
    };
    // A step does not depend on later steps, so a search by bisection finds the first failing one.
    let (mut too_few, mut enough, mut best) = (0, found.step, None);
    while too_few < enough {
        let half = too_few + (enough - too_few) / 2;
        match shows(half)? {
            Some(violation) => (enough, best) = (half, Some(violation)),
            None => too_few = half + 1,
        }
    }
    let violation = best.unwrap_or_else(|| found.clone());
    Ok(Failure { seed, steps: enough, command: command(seed, enough, options), violation })
}

/// The command line that reproduces a simulation.
fn command(seed: u64, steps: usize, options: &Options) -> String {
    let mut command = format!("cargo run -p sandglass-sim -- --seed {seed} --steps {steps}");
    let mut add = |option: String| {
        command.push(' ');
        command.push_str(&option);
    };
    if let Some(entities) = options.entities {
        add(format!("--entities {entities}"));
    }
    if let Some(fault) = options.fault {
        add(format!("--fault {fault}"));
    }
    if options.has_hosts {
        add("--hosts".to_owned());
    }
    if let Some(at) = options.crash_at {
        add(format!("--crash-at {at}"));
    }
    if options.reset_on == ResetOn::Obsolete {
        add("--obsolete-resets".to_owned());
    }
    command
}

impl std::ops::AddAssign for Comparison {
    fn add_assign(&mut self, other: Self) {
        self.fired_with += other.fired_with;
        self.fired_without += other.fired_without;
        self.fired_in_flight += other.fired_in_flight;
        self.fired_anew += other.fired_anew;
        self.spared += other.spared;
        self.differing += other.differing;
    }
}
