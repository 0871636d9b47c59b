//! What goes wrong, and what operators do.

use std::sync::Arc;
use std::time::Duration;

use super::{TTL, disturb, start};
use crate::fault::Fault;
use crate::hosts::link::STATEMENT_LIMIT;
use crate::hosts::member::Command;
use crate::hosts::plan::Weather;
use crate::hosts::process::{Host, Process};
use crate::hosts::sim::Sim;
use crate::hosts::timeline::{MS, SECOND};

/// How long a host that leaves waits until its partitions are given away.
const LEAVE_LIMIT: Duration = Duration::from_secs(20);
/// How long a graceful shutdown may take.
const GRACE: Duration = Duration::from_secs(5);

/// Something goes wrong, or an operator acts.
pub(super) fn go_wrong(sim: &Arc<Sim>) {
    let dice = &sim.faults;
    let slot = pick_slot(sim);
    match sim.plan.weather {
        Weather::Outages => outage(sim),
        Weather::Kills => kill(sim, slot),
        Weather::Moves => move_about(sim, slot),
        Weather::Storm => match dice.below(20) {
            0..=4 => pause(sim, slot),
            5 | 6 => kill(sim, slot),
            7..=10 => cut_database(sim, slot),
            11..=13 => cut_hosts(sim, slot),
            14 => slow_down(sim, slot),
            15 | 16 => outage(sim),
            17 => fail_over(sim),
            _ => move_about(sim, slot),
        },
    }
}

/// Picks any slot, mostly one in which handlers run.
fn pick_slot(sim: &Arc<Sim>) -> usize {
    let (any, prefers_busy) = (sim.faults.below(sim.plan.slots), sim.faults.per_mille(700));
    let busy = sim.ledger().runs.busy_slots();
    if prefers_busy && !busy.is_empty() { *sim.faults.pick(&busy) } else { any }
}

/// The process does not run, as if it were stopped by a signal.
fn pause(sim: &Arc<Sim>, slot: usize) {
    let until = sim.now() + sim.faults.within(0..=3 * TTL / MS) * MS;
    let Some(host) = sim.host(slot) else { return };
    {
        let mut slots = sim.slots();
        if slots[slot].paused_until > sim.now() {
            return;
        }
        slots[slot].paused_until = until;
    }
    let time = until - sim.now();
    host.clock.stood.fetch_add(time, std::sync::atomic::Ordering::Relaxed);
    let mut ledger = sim.ledger();
    ledger.hosts.pauses += 1;
    ledger.note_impairment(slot, until + TTL);
    ledger.add_line(|| format!("{} is paused for {} ms", host.life, time / MS));
    drop(ledger);
    disturb(sim, until);
}

fn kill(sim: &Arc<Sim>, slot: usize) {
    if sim.host(slot).is_none() || sim.hosts().len() < 2 {
        return;
    }
    sim.ledger().hosts.killed += 1;
    disturb(sim, sim.now());
    Process::kill(sim, slot);
    restart(sim, slot);
}

fn restart(sim: &Arc<Sim>, slot: usize) {
    let down = *sim.faults.pick(&[0, 300, 2_000, 10_000]) * MS;
    sim.after(down, None, move |sim| start(sim, slot));
}

fn cut_database(sim: &Arc<Sim>, slot: usize) {
    let until = sim.now() + sim.faults.within(0..=2 * TTL / MS) * MS;
    sim.slots()[slot].cut_until = until;
    let mut ledger = sim.ledger();
    ledger.hosts.cuts += 1;
    ledger.note_impairment(slot, until + TTL);
    ledger.add_line(|| format!("h{slot} does not reach the database until {} ms", until / MS));
    drop(ledger);
    disturb(sim, until + 2 * SECOND);
}

fn slow_down(sim: &Arc<Sim>, slot: usize) {
    let until = sim.now() + sim.faults.within(0..=2 * TTL / MS) * MS;
    sim.slots()[slot].slow_until = until;
    sim.ledger().note_impairment(slot, until + TTL);
    disturb(sim, until + 2 * SECOND);
}

/// Cuts one direction or both between two hosts, or between one and all.
fn cut_hosts(sim: &Arc<Sim>, from: usize) {
    let until = sim.now() + sim.faults.within(0..=2 * TTL / MS) * MS;
    let (is_both, to) = (sim.faults.per_mille(500), sim.faults.below(sim.plan.slots + 1));
    {
        let mut network = sim.network();
        for other in (0..sim.plan.slots).filter(|other| to == sim.plan.slots || *other == to) {
            network.cuts.insert((from, other), until);
            if is_both {
                network.cuts.insert((other, from), until);
            }
        }
    }
    let mut ledger = sim.ledger();
    ledger.hosts.cuts += 1;
    ledger.add_line(|| format!("what h{from} sends to h{to} is lost until {} ms", until / MS));
}

fn outage(sim: &Arc<Sim>) {
    let until = sim.now() + sim.faults.within(0..=2 * TTL / MS) * MS;
    sim.database().down_until = until;
    let mut ledger = sim.ledger();
    ledger.hosts.outages += 1;
    ledger.add_line(|| format!("the database is away until {} ms", until / MS));
    drop(ledger);
    disturb(sim, until + 2 * SECOND);
}

/// The standby takes over. It has everything that was acknowledged, or lacks the last moments.
fn fail_over(sim: &Arc<Sim>) {
    let loses = sim.has(Fault::WriteOverLoss) || sim.faults.per_mille(500);
    let standby = sim.database().clone();
    let behind = if loses { sim.faults.within(0..=1_500) * MS } else { 0 };
    let down = sim.faults.within(100..=3_000) * MS;
    sim.after(behind, None, move |sim| {
        let until = sim.now() + down;
        {
            let mut database = sim.database();
            // A standby of a server that was failed over meanwhile follows the new one.
            let standby =
                if database.timeline == standby.timeline { standby } else { database.clone() };
            database.fail_over(&standby);
            database.down_until = until;
        }
        let database = sim.database().clone();
        sim.ledger().note_failover(&database, until + TTL);
        disturb(sim, until + TTL);
        // What the standby lacks may be who was dead, and beats.
        for slot in 0..sim.plan.slots {
            sim.ledger().note_impairment(slot, until + 2 * TTL);
        }
    });
}

/// A host joins, drains, or leaves.
fn move_about(sim: &Arc<Sim>, slot: usize) {
    disturb(sim, sim.now());
    let Some(host) = sim.host(slot) else { return start(sim, slot) };
    if sim.faults.per_mille(400) && sim.hosts().len() > 1 {
        return leave(sim, host);
    }
    let is_draining = sim.faults.per_mille(500);
    if let Some(member) = sim.database().members.get_mut(&host.id()) {
        member.is_draining = is_draining;
    }
    sim.ledger().add_line(|| format!("{} drains: {is_draining}", host.life));
}

/// The process gives its partitions away, shuts down, and starts again later.
fn leave(sim: &Arc<Sim>, host: Arc<Host>) {
    sim.ledger().add_line(|| format!("{} leaves", host.life));
    sim.ledger().note_impairment(host.life.slot, sim.now() + 60 * SECOND);
    sim.after(0, Some(host.life), move |_| {
        let threads = host.threads.clone();
        drop(threads.spawn(async move {
            let me = host.id();
            let draining = host.statement(STATEMENT_LIMIT, move |_, database| {
                if let Some(member) = database.members.get_mut(&me) {
                    member.is_draining = true;
                }
            });
            // Then it leaves with what it has.
            let _ = draining.await;
            host.command(Command::Beat);
            let given = async {
                loop {
                    let changed = host.known_changed();
                    if host.known().held == 0 {
                        break;
                    }
                    changed.await;
                }
            };
            tokio::select! {
                biased;
                () = given => {}
                () = host.pause_for(LEAVE_LIMIT) => {}
            }
            if let Some(runtime) = host.runtime() {
                runtime.shutdown(GRACE).await;
            }
            let me = host.id();
            let leaving = host.statement(STATEMENT_LIMIT, move |_, database| database.leave(me));
            // If it is not noted, others declare it dead.
            let _ = leaving.await;
            let life = host.life;
            host.sim.after(0, None, move |sim| {
                if sim.is_alive(life) {
                    disturb(sim, sim.now());
                    Process::kill(sim, life.slot);
                    restart(sim, life.slot);
                }
            });
        }));
    });
}
