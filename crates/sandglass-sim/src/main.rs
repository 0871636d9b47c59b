//! The binary `sandglass-sim`: options, progress, and an exit code that says whether every
//! invariant held.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use sandglass_model::{Clock as _, SystemClock};
use sandglass_sim::{
    Fault, HuntResult, Mode, Options, ResetOn, Seeds, Summary, campaign, hunt, simulate,
    write_journal,
};

/// A simulation is mostly allocations: with this allocator it takes half the time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Simulates Sandglass: runs the real runtime, decisions and journal in worlds that are generated
/// from seeds, with failing disks and crashes at every command, and reports violated invariants.
///
/// For each failing seed, the report has the shortest failing simulation and the command line that
/// reproduces it.
#[derive(Debug, Parser)]
#[command(name = "sandglass-sim", version, after_help = EXAMPLES)]
struct Arguments {
    /// How many seeds to simulate: 100 by default, or with --seconds as many as fit into that time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seeds: Option<u64>,
    /// Simulate the seeds of this file: one per line; `#` starts a comment.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "seeds", "from"])]
    seeds_in: Option<PathBuf>,
    /// Start no new seeds after this many seconds.
    #[arg(long, value_name = "SECONDS", conflicts_with = "seed")]
    seconds: Option<u64>,
    /// Simulate each seed that is divisible by N twice, and check that both simulations are
    /// identical.
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..),
        conflicts_with_all = ["seed", "reset_on"],
    )]
    twice_in: u64,
    /// Report how often each record, cause and pair of simultaneous triggers was produced.
    #[arg(long, conflicts_with = "seed")]
    coverage: bool,
    /// The first seed to simulate.
    #[arg(long, default_value_t = 0, value_name = "SEED", conflicts_with = "seed")]
    from: u64,
    /// Simulate only this seed, and print what happens, line by line.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "reset_on"])]
    seed: Option<u64>,
    /// Take N steps of each simulation, then let everything come to rest.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// The number of entities in each seed, instead of the number that the seed determines.
    #[arg(long, value_name = "N", value_parser = entities)]
    entities: Option<usize>,
    /// Simulate worlds of several hosts that share a database.
    #[arg(long, conflicts_with_all = [
        "crash_at", "reset_on", "obsolete_resets", "coverage", "journal",
    ])]
    hosts: bool,
    /// Inject this fault.
    #[arg(long, value_name = "FAULT")]
    fault: Option<Fault>,
    /// Inject each fault in turn, and report how many seeds it takes to find it.
    #[arg(long, conflicts_with_all = [
        "seed", "seeds", "seeds_in", "seconds", "steps", "entities", "fault", "crash_at", "reset_on",
        "obsolete_resets", "coverage", "twice_in", "journal", "hosts",
    ])]
    hunt: bool,
    /// Crash the first process at its N-th command, and no other one.
    #[arg(long, value_name = "N")]
    crash_at: Option<u64>,
    /// Compare with states that declare in `reset_on` what their own handlers send.
    #[arg(long)]
    reset_on: bool,
    /// Let states declare in `reset_on` what their own handlers send.
    #[arg(long, conflicts_with = "reset_on")]
    obsolete_resets: bool,
    /// Write the log of --seed into this new journal file, for `sandglass log`, `why` and `replay`.
    #[arg(long, value_name = "FILE", requires = "seed")]
    journal: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  sandglass-sim --seeds 1000                  a thousand worlds, each twice
  sandglass-sim --from 9000 --seconds 120     worlds from seed 9000 on, for two minutes
  sandglass-sim --seeds 1000 --coverage       what those worlds produced, and what they never did
  sandglass-sim --seed 17 --steps 12          the first steps of one of them, line by line
  sandglass-sim --hosts --seeds 1000          a thousand worlds of several hosts
  sandglass-sim --seeds 50 --fault late-success
  sandglass-sim --hunt --from 9000            how soon each injected fault is found
  sandglass-sim --seeds 1000 --reset-on       what the obsolete entries of reset_on change

The exit code is 1 if an invariant does not hold, and 2 if the simulation cannot be run.";

/// How many seeds are simulated if neither a number nor a time is given.
const SEEDS: u64 = 100;

/// Most entities of one seed, because each is checked many times.
const ENTITIES_MAX: usize = 20_000;

fn entities(text: &str) -> Result<usize, String> {
    let number = text.parse::<usize>().map_err(|error| error.to_string())?;
    let fits = (1..=ENTITIES_MAX).contains(&number);
    fits.then_some(number).ok_or_else(|| format!("it must be from 1 to {ENTITIES_MAX}"))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // If this cannot be written, the exit code still reports the failure.
            let _ = writeln!(io::stderr(), "error: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether every invariant held.
fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    if arguments.hunt {
        return hunt_all(arguments.from, arguments.json);
    }
    let reset_on = if arguments.obsolete_resets { ResetOn::Obsolete } else { ResetOn::Needed };
    let options = Options {
        entities: arguments.entities,
        steps: arguments.steps,
        reset_on,
        fault: arguments.fault,
        crash_at: arguments.crash_at,
        has_hosts: arguments.hosts,
        has_timeline: false,
        keeps_log: arguments.journal.is_some(),
    };
    if let Some(seed) = arguments.seed {
        return print_seed(seed, &options, arguments.json, arguments.journal.as_deref());
    }
    let twice = Mode::Twice { one_in: arguments.twice_in };
    let mode = if arguments.reset_on { Mode::ResetOn } else { twice };
    let seeds = seeds(arguments)?;
    let is_watched = io::stderr().is_terminal();
    let clock = SystemClock::new();
    let (begun, allowed) = (clock.now(), arguments.seconds.map(Duration::from_secs));
    let goes_on = |done: usize| {
        let elapsed = clock.now().since(begun);
        if is_watched {
            let of =
                if allowed.is_none() { format!(" of {}", seeds.count()) } else { String::new() };
            let _ = write!(io::stderr(), "\r{done}{of} seeds in {} s", elapsed.as_secs());
        }
        allowed.is_none_or(|allowed| elapsed < allowed)
    };
    let summary =
        campaign(&seeds, &options, mode, goes_on).context("the simulation cannot be run")?;
    if is_watched {
        let _ = write!(io::stderr(), "\r\x1b[K");
    }
    print_summary(&summary, arguments)?;
    Ok(summary.failed == 0)
}

/// The seeds that the arguments select.
fn seeds(arguments: &Arguments) -> anyhow::Result<Seeds> {
    if let Some(file) = &arguments.seeds_in {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| format!("cannot read `{name}`"))?;
        let seeds = Seeds::parse(&text).map_err(|(line, text)| {
            anyhow::anyhow!("{name}:{line}: `{text}` is not a seed (expected a whole number)")
        })?;
        anyhow::ensure!(seeds.count() > 0, "`{name}` names no seed (expected one in each line)");
        return Ok(seeds);
    }
    let count = match (arguments.seeds, arguments.seconds) {
        (Some(seeds), _) => seeds,
        (None, Some(_)) => u64::MAX,
        (None, None) => SEEDS,
    };
    Ok(Seeds::From { first: arguments.from, count })
}

fn print_summary(summary: &Summary, arguments: &Arguments) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(summary)?)?;
        return Ok(());
    }
    if arguments.coverage {
        write!(out, "{}", summary.coverage)?;
    }
    writeln!(out, "{summary}")?;
    Ok(())
}

/// Hunts each fault, and returns whether each is found soon enough.
fn hunt_all(from: u64, as_json: bool) -> anyhow::Result<bool> {
    let mut out = io::stdout().lock();
    let mut are_found = true;
    for fault in Fault::ALL {
        let hunted = hunt(fault, from).context("the simulation cannot be run")?;
        are_found &= hunted.is_found();
        if as_json {
            writeln!(out, "{}", serde_json::to_string(&hunted)?)?;
            continue;
        }
        let HuntResult { fault, median, longest, found_by } = hunted;
        let found_by: Vec<&str> = found_by.iter().map(|invariant| invariant.as_str()).collect();
        let found_by = found_by.join(", ");
        writeln!(out, "{fault:<18} median {median:>3}, longest {longest:>3}: {found_by}")?;
    }
    Ok(are_found)
}

/// Simulates one seed and prints what happened.
fn print_seed(
    seed: u64,
    options: &Options,
    as_json: bool,
    journal: Option<&Path>,
) -> anyhow::Result<bool> {
    let options = Options { has_timeline: !as_json, ..*options };
    let run = simulate(seed, &options).context("the simulation cannot be run")?;
    if let Some(journal) = journal {
        write_journal(journal, &run.log)?;
    }
    let mut out = io::stdout().lock();
    if as_json {
        writeln!(out, "{}", serde_json::to_string(&run)?)?;
        return Ok(run.violation.is_none());
    }
    for line in &run.timeline {
        writeln!(out, "{line}")?;
    }
    let (steps, clock_ms, next) = (run.steps, run.clock_ms, run.next_random);
    writeln!(out, "{steps} steps, {clock_ms} ms, next {next:016x}, log {}", run.log_hash)?;
    match &run.violation {
        Some(violation) => writeln!(out, "violated: {violation}")?,
        None => writeln!(out, "every invariant held")?,
    }
    Ok(run.violation.is_none())
}
