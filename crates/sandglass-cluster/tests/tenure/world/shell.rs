//! What a process does with orders and results.

use std::time::Duration;

use sandglass_cluster::{Order, Settings};
use sandglass_model::HostId;

use super::{Event, SECOND, Violation, Weather, World};
use crate::database::{Request, Response};
use crate::process::{Act, Clock, MS, Pending, Process, bit};

impl World {
    pub(super) fn host_id(&mut self) -> HostId {
        HostId::from_bytes(self.rng.u128(..).to_be_bytes())
    }

    pub(super) fn start(&mut self, slot: usize) {
        if self.slots[slot].process.is_some() {
            return;
        }
        self.slots[slot].life += 1;
        let life = self.slots[slot].life;
        let (offset, ppm) = (self.rng.u64(0..1_000 * SECOND), self.rng.i64(-100..=100));
        let clock = Clock { offset, ppm, stood: 0 };
        let me = self.host_id();
        let url = format!("http://{slot}");
        // Operators may restart hosts with another TTL, one after the other.
        let ttl = match self.weather {
            Weather::Storm => Duration::from_secs(self.rng.u64(2..=8)),
            _ => Settings::default().ttl,
        };
        let mut process = Process::new(url, life, clock, me, ttl, self.is_fast, self.fault);
        process.generation = self.database.generation();
        if self.is_healed {
            process.heal();
        }
        self.slots[slot].process = Some(process);
        self.join(slot);
        self.at(self.now, Some((slot, life)), Event::Probe);
    }

    pub(super) fn join(&mut self, slot: usize) {
        let me = self.host_id();
        let process = self.process(slot);
        process.me = me;
        let (url, ttl) = (process.url.clone(), process.ttl);
        self.act(slot, Act::Send(Pending::Join, Request::Join { url, ttl }));
    }

    /// The next beat of the process, after this time.
    pub(super) fn beat_after(&mut self, slot: usize, wait: u64) {
        self.slots[slot].beat += 1;
        let nth = self.slots[slot].beat;
        let life = self.process(slot).life;
        self.at(self.now + wait, Some((slot, life)), Event::Beat { nth });
    }

    pub(super) fn act(&mut self, slot: usize, act: Act) {
        let life = (slot, self.process(slot).life);
        match act {
            Act::Send(pending, request) => self.send(slot, pending, request),
            Act::Wait(partition, at) => self.at(at, Some(life), Event::LookAtMove(partition)),
        }
    }

    pub(super) fn carry_out(&mut self, slot: usize, orders: Vec<Order>) -> Result<(), Violation> {
        for order in orders {
            if let Order::Disown(partition) = order
                && self.database.owner(partition) == Some(self.process(slot).me)
                && self.process(slot).serving & bit(partition) != 0
            {
                return Err(self.broken(format!("partition {partition} is disowned by its owner")));
            }
            let is_rejoin = order == Order::Rejoin;
            let (now, busy) = (self.now, self.draw_busy());
            let process = self.slots[slot].process.as_mut().expect("it runs");
            if let Some(act) = process.carry_out(now, order, || busy) {
                self.act(slot, act);
            }
            if is_rejoin {
                self.counts.rejoined += 1;
                self.join(slot);
            }
        }
        Ok(())
    }

    /// Until when a handler is in flight.
    pub(super) fn draw_busy(&mut self) -> u64 {
        match self.rng.u8(0..10) {
            0..7 => self.now,
            7..9 => self.now + self.rng.u64(0..SECOND),
            _ if self.is_healed => self.now + self.rng.u64(0..SECOND),
            _ => self.now + self.rng.u64(0..4 * SECOND),
        }
    }

    /// The result of a statement, `None` if its outcome is unknown.
    pub(super) fn respond(
        &mut self,
        slot: usize,
        pending: Pending,
        response: Option<Response>,
    ) -> Result<(), Violation> {
        let now = self.now;
        match (pending, response) {
            (Pending::Join, Some(Response::Done(true))) => {
                let process = self.process(slot);
                process.has_joined = true;
                let me = process.me;
                process.tenure.on_rejoin(me);
                self.beat_after(slot, 0);
            }
            // It may have entered, so it enters with another id.
            (Pending::Join, _) => self.join(slot),
            (Pending::Beat, Some(Response::Done(true))) => {
                self.act(slot, Act::Send(Pending::Read, Request::Read));
            }
            (Pending::Beat, Some(Response::Done(false))) => {
                let orders = self.process(slot).tenure.on_death();
                self.carry_out(slot, orders)?;
            }
            (Pending::Read, Some(Response::Read(membership))) => {
                let orders = self.process(slot).beaten(now, membership);
                self.beat_after(slot, 990 * MS);
                self.carry_out(slot, orders)?;
            }
            (Pending::Beat | Pending::Read, _) => {
                self.process(slot).beat_failed();
                let wait = self.rng.u64(0..200) * MS;
                self.beat_after(slot, wait);
            }
            (Pending::Claim, response) => {
                let obtained = match response {
                    Some(Response::Claimed(obtained)) => obtained,
                    _ => Vec::new(),
                };
                self.process(slot).claimed(now, &obtained);
            }
            (Pending::Release(partition), response) => {
                let is_known = matches!(response, Some(Response::Done(_)));
                self.process(slot).released(now, partition, is_known);
            }
            (Pending::Declare, Some(Response::Done(true))) => {
                let has_joined = self.process(slot).has_joined;
                let mut pending = self.process(slot).pending.values();
                let beats = pending.any(|one| matches!(one, Pending::Beat | Pending::Read));
                if has_joined && !beats {
                    self.beat_after(slot, 0);
                }
            }
            (Pending::Declare, _) => {}
            (Pending::Leave, _) => self.end(slot, 0..20 * SECOND),
        }
        self.leave_if_empty(slot);
        Ok(())
    }

    /// A process that drains leaves when it holds nothing.
    pub(super) fn leave_if_empty(&mut self, slot: usize) {
        let Some(process) = &mut self.slots[slot].process else { return };
        if process.is_leaving
            && process.has_joined
            && process.tenure.held_partitions().next().is_none()
        {
            process.is_leaving = false;
            // It serves nothing any more, and drops the results of statements on their way.
            process.serving = 0;
            process.has_joined = false;
            process.pending.clear();
            self.slots[slot].beat += 1;
            self.act(slot, Act::Send(Pending::Leave, Request::Leave));
        }
    }

    pub(super) fn end(&mut self, slot: usize, restart: std::ops::Range<u64>) {
        self.slots[slot].process = None;
        let at = self.now + self.rng.u64(restart);
        self.at(at, Some((slot, 0)), Event::Start);
    }

    /// Connects to all other hosts that were read.
    pub(super) fn probe(&mut self, slot: usize) -> Result<(), Violation> {
        let life = self.process(slot).life;
        self.at(self.now + 250 * MS, Some((slot, life)), Event::Probe);
        let members = self.process(slot).read.hosts.clone();
        for member in members.iter().filter(|member| !member.is_dead) {
            let number = member.url.as_deref().and_then(|url| url.strip_prefix("http://"));
            let at: usize = number.and_then(|number| number.parse().ok()).expect("a slot");
            let there = self.slots[at].process.as_ref();
            let responds = there.is_some_and(|there| {
                there.me == member.host || (at != slot && there.paused_until > self.now)
            });
            let is_wrong = self.weather == Weather::WrongAddresses && self.rng.bool();
            if (responds && !is_wrong) || member.host == self.process(slot).me {
                continue;
            }
            let now = self.now;
            let process = self.process(slot);
            let local = process.local(now);
            if let Some(order) = process.tenure.on_refusal(member.host, local) {
                self.carry_out(slot, vec![order])?;
            }
        }
        Ok(())
    }
}
