//! What happens in a world: clients request, hosts come and go, and things go wrong, until everything is
//! healed and comes to rest.

mod clients;
mod faults;
mod reader;
mod rest;

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_model::{EntityRef, Partition};

use super::plan::Weather;
use super::process::Process;
use super::sim::Sim;
use super::timeline::{MS, SECOND};
use crate::invariant::Invariant;

/// The TTL of hosts.
pub(crate) const TTL: u64 = 5 * SECOND;
/// When the first step is taken.
const FIRST_STEP: u64 = 8 * SECOND;
/// How often it is checked which partitions are served.
const WATCH_EVERY: u64 = 500 * MS;
/// How long after the last fault a partition may be without a host that serves it: a TTL, the beats around
/// it, and the recovery of its entities.
const UNSERVED_MAX: u64 = TTL + 5 * SECOND;
/// How much longer if statements may get lost, because what failed is tried again.
const MORE_IF_LOSSY: u64 = 15 * SECOND;

/// The progress of a world.
#[derive(Default)]
pub(crate) struct Story {
    pub(crate) step: usize,
    /// Whether nothing goes wrong any more.
    pub(crate) is_calm: bool,
    pub(crate) is_over: bool,
    /// Entities that a client has tried to create, or that were to be spawned.
    pub(crate) names: Vec<EntityRef>,
    /// Until when something keeps hosts from serving.
    disturbed_until: u64,
    /// Since when no host serves a partition.
    unserved_since: BTreeMap<Partition, u64>,
    reader: reader::Reader,
    healed_at: u64,
    /// How many entities are still to be looked at in the end.
    looks: usize,
}

/// Begins the story.
pub(crate) fn begin(sim: &Arc<Sim>) {
    for slot in 0..sim.plan.hosts {
        let delay = sim.faults.within(0..=2_000) * MS;
        sim.after(delay, None, move |sim| start(sim, slot));
    }
    sim.story().disturbed_until = FIRST_STEP;
    sim.after(FIRST_STEP, None, step);
    sim.after(FIRST_STEP, None, reader::read);
    sim.after(WATCH_EVERY, None, watch);
}

/// Takes one step. What it does depends on no later one.
fn step(sim: &Arc<Sim>) {
    let is_last = {
        let mut story = sim.story();
        let is_last = story.step >= sim.plan.steps;
        story.step += usize::from(!is_last);
        is_last
    };
    if is_last {
        return rest::heal(sim);
    }
    let chance = match sim.plan.weather {
        Weather::Storm => 180,
        Weather::Outages | Weather::Kills => 60,
        Weather::Moves => 100,
    };
    if sim.faults.per_mille(chance) {
        faults::go_wrong(sim);
    } else {
        clients::act(sim);
    }
    let pause = match sim.clients.below(4) {
        0 => 0,
        _ => sim.clients.within(0..=sim.plan.step_ms) * MS,
    };
    sim.after(pause, None, step);
}

/// Starts a process in a slot, if none runs there.
pub(super) fn start(sim: &Arc<Sim>, slot: usize) {
    if sim.host(slot).is_some() {
        return;
    }
    disturb(sim, sim.now());
    sim.ledger().note_impairment(slot, sim.now() + 2 * TTL);
    if let Err(error) = Process::start(sim, slot) {
        sim.ledger().report(Invariant::NobodyStuck, error.to_string());
    }
}

/// Something keeps hosts from serving until then.
pub(super) fn disturb(sim: &Arc<Sim>, until: u64) {
    let mut story = sim.story();
    story.disturbed_until = story.disturbed_until.max(until);
}

/// Checks which partitions are served.
fn watch(sim: &Arc<Sim>) {
    let now = sim.now();
    let unserved = find_unserved(sim);
    let (late, most) = {
        let mut story = sim.story();
        story.unserved_since.retain(|partition, _| unserved.contains(partition));
        for partition in &unserved {
            story.unserved_since.entry(*partition).or_insert(now);
        }
        let is_lossy = sim.plan.lost_responses + sim.plan.late_statements > 0;
        let most = UNSERVED_MAX + if is_lossy { MORE_IF_LOSSY } else { 0 };
        let from = |since: &u64| (*since).max(story.disturbed_until);
        let is_late = |(_, since): &(&Partition, &u64)| now > from(since) + most;
        (story.unserved_since.iter().find(is_late).map(|(partition, _)| *partition), most)
    };
    if let Some(partition) = late {
        let what = format!("no host serves partition {partition} for {} ms", most / MS);
        sim.ledger().report(Invariant::TakenOverInTime, what);
    }
    sim.after(WATCH_EVERY, None, watch);
}

/// The partitions that no process serves that owns them and runs.
fn find_unserved(sim: &Arc<Sim>) -> Vec<Partition> {
    let hosts: Vec<_> =
        sim.hosts().into_iter().filter(|host| !sim.is_paused(host.life.slot)).collect();
    let runtimes: Vec<_> =
        hosts.iter().filter_map(|host| Some((host.id(), host.runtime()?))).collect();
    let owners: Vec<_> = sim.database().partitions.iter().map(|row| row.owner).collect();
    let is_served = |partition: &Partition| {
        let owner = owners[partition.index()];
        runtimes.iter().any(|(id, runtime)| owner == Some(*id) && runtime.serves(*partition))
    };
    Partition::all().filter(|partition| !is_served(partition)).collect()
}
