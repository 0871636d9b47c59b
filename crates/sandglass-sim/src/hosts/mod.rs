//! Worlds of several hosts: real runtimes with the real ownership protocol, over one database, with a
//! network between them, and pauses. One seeded scheduler decides what happens next.

mod clock;
mod database;
mod forwarding;
mod guest;
mod holding;
mod journal;
mod ledger;
mod link;
mod member;
mod network;
mod plan;
mod process;
mod sim;
mod spec;
mod story;
mod timeline;
mod writer;

use std::io;
use std::sync::Arc;

pub use ledger::HostCounts;

use crate::invariant::Invariant;
use crate::plan::Options;
use crate::scene::lock;
use crate::simulation::Run;
use plan::Plan;
use process::Process;
use sim::Sim;
use timeline::{Act, MS, SECOND};

/// No world takes longer, in nanoseconds of its time.
const TIME_MAX: u64 = 3_600 * SECOND;

/// Simulates the world of several hosts of one seed.
///
/// # Errors
/// The operating system cannot create a runtime.
pub(crate) fn simulate(seed: u64, options: &Options) -> io::Result<Run> {
    let plan = Plan::of(seed, options);
    let weather = plan.weather;
    let sim = Arc::new(Sim::new(plan, options.has_timeline));
    story::begin(&sim);
    run(&sim);
    let database = sim.database().clone();
    let mut is_violated = sim.ledger().is_violated();
    if !is_violated {
        sim.forgive_losses();
        sim.ledger().close(&database, weather);
        is_violated = sim.ledger().is_violated();
    }
    let clock_ms = i64::try_from(sim.now() / MS).unwrap_or(i64::MAX);
    let steps = sim.story().step;
    let next_random = sim.next_random();
    let violation = if is_violated { sim.ledger().violation().cloned() } else { None };
    end(&sim);
    let mut ledger = sim.ledger();
    Ok(Run {
        seed,
        steps,
        clock_ms,
        next_random,
        log_hash: ledger.hash(),
        story_hash: ledger.hash(),
        counts: ledger.counts,
        hosts: ledger.hosts,
        violation,
        timeline: ledger.take_timeline(),
        ..Run::default()
    })
}

/// Lets things happen until the story is over or an invariant is violated.
fn run(sim: &Arc<Sim>) {
    loop {
        let Some((number, of, act)) = lock(&sim.timeline).pop() else { break };
        let Some(life) = of else {
            if let Act::Do(act) = act {
                act(sim);
            }
            if sim.story().is_over || sim.ledger().is_violated() {
                break;
            }
            continue;
        };
        let executor = {
            let slots = sim.slots();
            let slot = &slots[life.slot];
            let process = slot.process.as_ref().filter(|process| process.host.life == life);
            process.map(|process| (Arc::clone(&process.executor), slot.paused_until))
        };
        // What was meant for a process that has ended is dropped.
        let Some((executor, paused_until)) = executor else { continue };
        if paused_until > sim.now() {
            lock(&sim.timeline).put_back(paused_until, number, life, act);
            continue;
        }
        match act {
            Act::Do(act) => act(sim),
            Act::Wake(waker) => {
                let Some(waker) = lock(&waker).take() else { continue };
                waker.wake();
            }
        }
        Process::run_until_idle(&executor);
        if sim.now() > TIME_MAX {
            sim.ledger().report(Invariant::NobodyStuck, "the world does not end");
        }
        if sim.ledger().is_violated() {
            break;
        }
    }
}

/// Ends all processes. What they refer to is dropped with them.
fn end(sim: &Arc<Sim>) {
    sim.story().is_over = true;
    for slot in 0..sim.plan.slots {
        Process::kill(sim, slot);
    }
    loop {
        let events = lock(&sim.timeline).clear();
        if events.is_empty() {
            break;
        }
        drop(events);
    }
}
