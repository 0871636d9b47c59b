//! Simulates one seed from the first process to the last. The result depends on the seed and the
//! options alone.

use std::sync::Arc;
use std::time::Duration;

use sandglass_liveness::Spec;
use sandglass_model::{Record, WallTime};
use serde::Serialize;

use crate::automaton::{Automaton, ResetOn, VERSIONS};
use crate::coverage::Coverage;
use crate::fault::Fault;
use crate::hosts::{self, HostCounts};
use crate::invariant::{Invariant, Violation};
use crate::ledger::{Counts, Ledger, Spawns};
use crate::life::{End, live};
use crate::old_rule::{OldRule, RuleCounts};
use crate::plan::{Options, Plan};
use crate::scene::{START, Scene};

/// Most processes of one seed that may crash; later ones do not.
const LIVES_MAX: usize = 60;

/// Most processes of one seed, including those that fail to start.
const STARTS_MAX: usize = 10_000;

/// Farthest that the wall clock is set ahead or back between two processes, in milliseconds.
const JUMP_MAX_MS: u64 = 3_600_000;

/// The result of simulating one seed.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// How many steps were taken.
    pub steps: usize,
    /// The simulated time at the end, in milliseconds since the start.
    pub clock_ms: i64,
    /// The next random number of all streams, which shows whether two simulations drew the same.
    pub next_random: u64,
    /// The hash of its log.
    pub log_hash: String,
    /// The hash of its log without the parts that name a spec, so that two versions of a spec with
    /// the same behavior have the same hash.
    pub story_hash: String,
    /// How often things happened.
    pub counts: Counts,
    /// How often things happened that only worlds of several hosts have.
    pub hosts: HostCounts,
    /// What its log covers.
    pub coverage: Coverage,
    /// What the old rule for state timers would have done.
    pub rules: RuleCounts,
    /// The number of commands in the first process.
    pub first_commands: u64,
    /// The first violation, if an invariant does not hold.
    pub violation: Option<Violation>,
    /// What happened, line by line, if [`Options::has_timeline`] is set.
    #[serde(skip)]
    pub timeline: Vec<String>,
    /// The records, if [`Options::keeps_log`] is set.
    #[serde(skip)]
    pub log: Vec<Record>,
}

/// Simulates one seed.
///
/// # Errors
/// The operating system cannot create a runtime.
pub fn simulate(seed: u64, options: &Options) -> std::io::Result<Run> {
    if options.has_hosts || options.fault.is_some_and(Fault::needs_hosts) {
        return hosts::simulate(seed, options);
    }
    let (plan, automata) = Plan::of(seed, options);
    let mut ledger = Ledger::new(options.has_timeline);
    ledger.old_rule = OldRule::beside(&automata);
    if plan.jumps {
        ledger.old_rule.cannot_judge();
    }
    ledger.has_one_order = plan.slowest_ms == 0 && !plan.jumps;
    ledger.has_steady_clock = !plan.jumps;
    ledger.spawns = Spawns::bounded(plan.busy_spawned_max);
    let specs = specs(&automata, options.reset_on, &mut ledger);
    ledger.use_parsed_specs(specs.iter().flatten());
    let scene = Arc::new(Scene::new(plan, ledger, automata, specs));
    let (mut wall, mut first_commands) = (START, 0);
    for nth in 0.. {
        let left = live(&scene, wall, fuse(&scene, nth), nth)?;
        if nth == 0 {
            first_commands = left.commands;
        }
        wall = left.wall;
        if nth == STARTS_MAX {
            let what = format!("it is not over after {STARTS_MAX} processes");
            scene.ledger().report(Invariant::NobodyStuck, what);
        }
        if left.end == End::Rested || scene.ledger().is_violated() {
            break;
        }
        let down_ms = *scene.crashes.pick(&[0, 1, 1_000, 60_000]);
        wall = wall.after(Duration::from_millis(down_ms));
        if scene.plan.jumps {
            let back_ms = i64::try_from(scene.crashes.within(0..=JUMP_MAX_MS)).unwrap_or(0);
            let ahead = Duration::from_millis(scene.crashes.within(0..=JUMP_MAX_MS));
            wall = WallTime::from_millis(wall.after(ahead).as_millis() - back_ms);
        }
    }
    let disk = scene.disk().records();
    let mut ledger = scene.ledger();
    if !ledger.is_violated() {
        ledger.close(&disk);
    }
    let (log_hash, story_hash) = ledger.hashes();
    let steps = scene.story().step;
    Ok(Run {
        seed,
        steps,
        clock_ms: wall.as_millis() - START.as_millis(),
        next_random: scene.next_random(),
        log_hash,
        story_hash,
        counts: ledger.counts,
        hosts: HostCounts::default(),
        coverage: std::mem::take(&mut ledger.watched).finish(),
        rules: ledger.old_rule.counts,
        first_commands,
        violation: ledger.violation().cloned(),
        timeline: ledger.take_timeline(),
        log: if options.keeps_log { disk } else { Vec::new() },
    })
}

/// The command at which the next process crashes.
fn fuse(scene: &Scene, nth: usize) -> u64 {
    match (scene.plan.crash_at, scene.plan.crash_every) {
        (Some(at), _) if nth == 0 => at,
        (Some(_), _) | (None, None) => u64::MAX,
        (None, Some(_)) if nth >= LIVES_MAX => u64::MAX,
        (None, Some(every)) => scene.crashes.within(1..=every * 2),
    }
}

/// The specs of all versions. An invalid spec is a violation, because its entities would not be
/// simulated.
fn specs(automata: &[Automaton], reset_on: ResetOn, ledger: &mut Ledger) -> Vec<Vec<Arc<Spec>>> {
    let versions = (0..VERSIONS).map(|version| {
        let parsed = automata.iter().map(|one| Spec::parse(&one.source(version, reset_on)));
        let specs = parsed.filter_map(|parsed| {
            if parsed.spec.is_none() {
                let errors: Vec<String> =
                    parsed.diagnostics.iter().map(ToString::to_string).collect();
                let what = format!("a spec that was made up is not valid: {}", errors.join("; "));
                ledger.report(Invariant::StateIsFold, what);
            }
            parsed.spec.map(Arc::new)
        });
        specs.collect()
    });
    versions.collect()
}
