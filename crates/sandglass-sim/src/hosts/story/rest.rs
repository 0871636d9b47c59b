//! The end of a story: everything is healed, comes to rest, and is looked at.

use std::sync::Arc;

use sandglass_model::Partition;

use super::{clients, disturb, find_unserved, start};
use crate::hosts::sim::Sim;
use crate::hosts::timeline::{MS, SECOND};
use crate::invariant::Invariant;
use crate::scene::lock;

/// How long everything may take to come to rest: statements that are late, a TTL, handlers that wait for
/// each other, and timers.
const REST_MAX: u64 = 180 * SECOND;
/// How long it has to stay at rest.
const CHECK_EVERY: u64 = SECOND;
/// What may still happen when everything rests: late statements, asks that wait, readers.
const SETTLE: u64 = 40 * SECOND;

/// Ends all that is wrong.
pub(super) fn heal(sim: &Arc<Sim>) {
    let now = sim.now();
    {
        let mut story = sim.story();
        (story.is_calm, story.healed_at) = (true, now);
    }
    sim.ledger().add_line(|| "everything is healed".to_owned());
    {
        let mut database = sim.database();
        database.down_until = now;
        database.members.values_mut().for_each(|member| member.is_draining = false);
    }
    sim.network().cuts.clear();
    for slot in 0..sim.plan.slots {
        let paused_until = {
            let mut slots = sim.slots();
            let slot = &mut slots[slot];
            (slot.cut_until, slot.slow_until) = (now, now);
            std::mem::replace(&mut slot.paused_until, now)
        };
        if let Some(host) = sim.host(slot).filter(|_| paused_until > now) {
            lock(&sim.timeline).bring_forward(host.life, paused_until);
        }
        if slot < sim.plan.hosts {
            start(sim, slot);
        }
    }
    disturb(sim, now);
    sim.after(SETTLE, None, check_rest);
}

/// Checks whether everything rests, and looks at it then.
fn check_rest(sim: &Arc<Sim>) {
    let restless = sim.ledger().find_restless();
    let unserved = find_unserved(sim);
    let why = restless.or_else(|| {
        unserved.first().map(|partition: &Partition| format!("no host serves {partition}"))
    });
    let healed_at = sim.story().healed_at;
    match why {
        None => {
            clients::look_at_all(sim);
            sim.after(SECOND, None, check_looks);
        }
        Some(why) if sim.now() > healed_at + REST_MAX => {
            let what = format!("{} ms after the last fault, {why}", REST_MAX / MS);
            sim.ledger().report(Invariant::NobodyStuck, what);
        }
        Some(_) => sim.after(CHECK_EVERY, None, check_rest),
    }
}

/// Waits until all entities were looked at, and until readers have got everything.
fn check_looks(sim: &Arc<Sim>) {
    let (looks, healed_at) = {
        let story = sim.story();
        (story.looks, story.healed_at)
    };
    let is_late = sim.now() > healed_at + REST_MAX + 60 * SECOND;
    if looks > 0 && is_late {
        let what = format!("{looks} entities cannot be looked at");
        return sim.ledger().report(Invariant::NobodyStuck, what);
    }
    let has_more = !sim.has_read_all();
    if looks > 0 || (has_more && !is_late) {
        return sim.after(CHECK_EVERY, None, check_looks);
    }
    sim.story().is_over = true;
}
