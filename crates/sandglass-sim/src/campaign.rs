//! Many seeds, on as many threads as there are, each seed on one alone; what they came to
//! together, and of each that fails the shortest story that shows it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::Serialize;

use crate::automaton::ResetOn;
use crate::coverage::Coverage;
use crate::invariant::{Invariant, Violation};
use crate::ledger::Counts;
use crate::old_rule::RuleCounts;
use crate::plan::Options;
use crate::scene::lock;
use crate::simulation::{Run, simulate};

/// Most failures that are kept: they are shrunk, and one of a kind is enough.
const FAILURES_MAX: usize = 10;

/// How each seed is simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Simulates every `one_in`-th seed twice and compares the runs; 1 means every seed.
    Twice {
        /// From 1.
        one_in: u64,
    },
    /// With the obsolete `reset_on` and without, which is compared.
    ResetOn,
}

/// What many seeds came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// How many there were.
    pub seeds: usize,
    /// How many of them were simulated twice, to compare.
    pub twice: usize,
    /// All of them together.
    pub counts: Counts,
    /// What their logs produced.
    pub coverage: Coverage,
    /// What state timers did, and would have done by the old rule.
    pub rules: RuleCounts,
    /// What the obsolete `reset_on` changes, where that was compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset_on: Option<Compared>,
    /// Seeds that failed.
    pub failed: usize,
    /// The first of them.
    pub failures: Vec<Failure>,
}

/// What the obsolete entries of `reset_on` change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Compared {
    /// State timers that fired with them.
    pub fired_with: u64,
    /// State timers that fired without them.
    pub fired_without: u64,
    /// Of those, with a handler in flight.
    pub fired_in_flight: u64,
    /// Of those, that the old rule would not have fired.
    pub fired_anew: u64,
    /// Times that the old rule would have fired with a handler in flight.
    pub spared: u64,
    /// Seeds in which anything else than the spec's text differs.
    pub differing: u64,
}

/// A seed that breaks a promise.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The first that doesn't hold, in the shortest story.
    pub violation: Violation,
    /// The steps of that story.
    pub steps: usize,
    /// What shows it again.
    pub command: String,
}

/// The seeds of a campaign.
#[derive(Clone, Debug)]
pub enum Seeds {
    /// `count` consecutive seeds.
    From {
        /// The first.
        first: u64,
        /// How many.
        count: u64,
    },
    /// These.
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

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        match self {
            Self::From { count, .. } => *count,
            Self::Listed(seeds) => seeds.len() as u64,
        }
    }

    /// The seed of this index, from 0; `None` behind the last.
    fn nth(&self, index: u64) -> Option<u64> {
        match self {
            Self::From { first, count } => (index < *count).then(|| first.checked_add(index))?,
            Self::Listed(seeds) => seeds.get(usize::try_from(index).ok()?).copied(),
        }
    }
}

/// Simulates `seeds`, on as many threads as there are cores. `goes_on` is called with the number of
/// finished seeds after each, and returns whether another one is to begin.
///
/// # Errors
/// The operating system gives no runtime or thread.
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
            let outcome = one(seed, options, mode)?;
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
    /// The failed seeds with the lowest numbers, in whatever order they were finished.
    failures: BTreeMap<u64, Violation>,
}

impl Tally {
    fn new(mode: Mode) -> Self {
        let reset_on = (mode == Mode::ResetOn).then(Compared::default);
        Self { summary: Summary { reset_on, ..Summary::default() }, ..Self::default() }
    }

    /// Adds one seed; returns how many there are.
    fn add(&mut self, outcome: Outcome) -> usize {
        let Outcome { run, compared, is_twice, violation } = outcome;
        let summary = &mut self.summary;
        summary.seeds += 1;
        summary.twice += usize::from(is_twice);
        summary.counts += run.counts;
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

/// What one seed came to.
struct Outcome {
    run: Run,
    compared: Compared,
    is_twice: bool,
    violation: Option<Violation>,
}

fn one(seed: u64, options: &Options, mode: Mode) -> io::Result<Outcome> {
    let run = simulate(seed, options)?;
    let mut violation = run.violation.clone();
    let mut compared = Compared::default();
    let is_twice = matches!(mode, Mode::Twice { one_in } if seed.is_multiple_of(one_in.max(1)));
    match mode {
        Mode::Twice { .. } if is_twice => {
            let again = simulate(seed, options)?;
            violation = violation.or_else(|| not_the_same(&run, &again));
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

/// What differs between two runs of one seed, if anything does.
fn not_the_same(first: &Run, second: &Run) -> Option<Violation> {
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

fn compare(with: &Run, without: &Run) -> Compared {
    Compared {
        fired_with: with.rules.fired,
        fired_without: without.rules.fired,
        fired_in_flight: without.rules.fired_in_flight,
        fired_anew: without.rules.fired_anew,
        spared: without.rules.spared,
        differing: u64::from(with.story_hash != without.story_hash),
    }
}

/// The shortest story that shows a violation of the same kind.
///
/// # Errors
/// The operating system gives no runtime.
pub fn shortest(seed: u64, options: &Options, found: &Violation) -> io::Result<Failure> {
    let shows = |steps: usize| -> io::Result<Option<Violation>> {
        let run = simulate(seed, &Options { steps: Some(steps), ..*options })?;
        Ok(run.violation.filter(|violation| violation.invariant == found.invariant))
    };
    // What comes before a step doesn't depend on those behind it.
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

/// The command line that shows a story again.
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
    if let Some(at) = options.crash_at {
        add(format!("--crash-at {at}"));
    }
    if options.reset_on == ResetOn::Obsolete {
        add("--obsolete-resets".to_owned());
    }
    command
}

impl std::ops::AddAssign for Compared {
    fn add_assign(&mut self, other: Self) {
        self.fired_with += other.fired_with;
        self.fired_without += other.fired_without;
        self.fired_in_flight += other.fired_in_flight;
        self.fired_anew += other.fired_anew;
        self.spared += other.spared;
        self.differing += other.differing;
    }
}
