//! Many seeds, on as many threads as there are, each seed on one alone; what they came to
//! together, and of each that fails the shortest story that shows it.

use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde::Serialize;

use crate::automaton::ResetOn;
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
    /// Once.
    Once,
    /// Twice, which has to come to the same.
    Twice,
    /// With the obsolete `reset_on` and without, which is compared.
    ResetOn,
}

/// What many seeds came to.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// How many there were.
    pub seeds: usize,
    /// All of them together.
    pub counts: Counts,
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

/// Simulates `seeds`; `told` hears of each that is done.
///
/// # Errors
/// The operating system gives no runtime or thread.
pub fn campaign(
    seeds: std::ops::Range<u64>,
    options: &Options,
    mode: Mode,
    told: impl Fn(usize) + Sync,
) -> io::Result<Summary> {
    let todo: Vec<u64> = seeds.collect();
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let outcomes = Mutex::new(Vec::with_capacity(todo.len()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(todo.len());
    let work = || -> io::Result<()> {
        while let Some(seed) = todo.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = one(*seed, options, mode)?;
            lock(&outcomes).push(outcome);
            told(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| {
            worker.join().unwrap_or_else(|_| Err(io::Error::other("a simulation panicked")))
        })
    })?;
    let mut outcomes = outcomes.into_inner().unwrap_or_default();
    outcomes.sort_by_key(|outcome| outcome.run.seed);
    summed_up(&outcomes, options, mode)
}

/// What one seed came to.
struct Outcome {
    run: Run,
    compared: Compared,
    violation: Option<Violation>,
}

fn one(seed: u64, options: &Options, mode: Mode) -> io::Result<Outcome> {
    let run = simulate(seed, options)?;
    let mut violation = run.violation.clone();
    let mut compared = Compared::default();
    match mode {
        Mode::Once => {}
        Mode::Twice => {
            let again = simulate(seed, options)?;
            violation = violation.or_else(|| not_the_same(&run, &again));
        }
        Mode::ResetOn => {
            let with = simulate(seed, &Options { reset_on: ResetOn::Obsolete, ..*options })?;
            violation = violation.or_else(|| with.violation.clone());
            compared = compare(&with, &run);
        }
    }
    Ok(Outcome { run, compared, violation })
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

fn summed_up(outcomes: &[Outcome], options: &Options, mode: Mode) -> io::Result<Summary> {
    let mut summary = Summary { seeds: outcomes.len(), ..Summary::default() };
    let mut compared = Compared::default();
    for outcome in outcomes {
        summary.counts += outcome.run.counts;
        summary.rules += outcome.run.rules;
        compared += outcome.compared;
        let Some(violation) = &outcome.violation else { continue };
        summary.failed += 1;
        if summary.failures.len() < FAILURES_MAX {
            summary.failures.push(shortest(outcome.run.seed, options, violation)?);
        }
    }
    summary.reset_on = (mode == Mode::ResetOn).then_some(compared);
    Ok(summary)
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
