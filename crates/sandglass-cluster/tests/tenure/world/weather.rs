//! What goes wrong.

use super::{Check, Event, SECOND, TTL, Weather, World};
use crate::fault::Fault;
use crate::process::MS;

impl World {
    pub(super) fn go_wrong(&mut self) {
        if self.has_ended {
            return;
        }
        let slot = self.rng.usize(0..self.slots.len());
        let now = self.now;
        match self.weather {
            Weather::Outages => {
                self.down_until = now + self.rng.u64(0..3 * TTL);
                let next = self.down_until + self.rng.u64(3 * SECOND..15 * SECOND);
                self.at(next, None, Event::Fault);
                return;
            }
            Weather::Kill => {
                self.slots[slot].process = None;
                self.killed_at = Some(now);
                return;
            }
            Weather::Storm | Weather::WrongAddresses => {}
        }
        if self.rng.u8(0..8) == 0 {
            self.database.activate();
        }
        let next = now + self.rng.u64(200 * MS..6 * SECOND);
        self.at(next, None, Event::Fault);
        match self.rng.u8(0..12) {
            0..3 => {
                let pause = self.rng.u64(0..3 * TTL);
                self.pause(slot, pause);
            }
            3 => self.slots[slot].freeze = Some((self.rng.u64(0..TTL), self.rng.u64(0..2 * TTL))),
            4 => {
                if self.slots[slot].process.is_some() {
                    self.end(slot, 0..10 * SECOND);
                }
            }
            5..7 => self.slots[slot].cut_until = now + self.rng.u64(0..2 * TTL),
            7..9 => self.slots[slot].slow_until = now + self.rng.u64(0..2 * TTL),
            9 => self.down_until = now + self.rng.u64(0..2 * TTL),
            10 => {
                if let Some(process) = &mut self.slots[slot].process {
                    process.is_leaving = self.rng.bool();
                    let (host, is_draining) = (process.me, process.is_leaving || self.rng.bool());
                    self.database.set_draining(host, is_draining);
                }
            }
            _ => {
                let slots = 0..self.slots.len();
                let is_draining = self.rng.bool();
                for slot in slots.filter(|_| is_draining) {
                    if let Some(process) = &self.slots[slot].process {
                        self.database.set_draining(process.me, self.rng.bool());
                    }
                }
            }
        }
    }

    /// Pauses the process at the worst moment: a response has arrived, and it has not seen it.
    pub(super) fn freeze(&mut self, slot: usize) {
        let now = self.now;
        let Some((pause, cut)) = self.slots[slot].freeze.take() else { return };
        self.pause(slot, pause);
        self.slots[slot].cut_until = now + pause + cut;
    }

    pub(super) fn pause(&mut self, slot: usize, pause: u64) {
        let (now, stands) = (self.now, self.fault == Some(Fault::StandingClock));
        let process = self.slots[slot].process.as_mut();
        if let Some(process) = process.filter(|process| process.paused_until <= now) {
            (process.paused_from, process.paused_until) = (now, now + pause);
            process.clock.stood += if stands { pause } else { 0 };
        }
    }

    pub(super) fn heal(&mut self) {
        let now = self.now;
        (self.is_healed, self.has_ended) = (true, true);
        self.down_until = now;
        for slot in 0..self.slots.len() {
            (self.slots[slot].cut_until, self.slots[slot].slow_until) = (now, now);
            self.slots[slot].freeze = None;
            match &mut self.slots[slot].process {
                Some(process) => {
                    process.is_leaving = false;
                    process.heal();
                    process.paused_until = process.paused_until.min(now);
                    let me = process.me;
                    self.database.set_draining(me, false);
                }
                None if self.weather == Weather::Kill => {}
                None => self.start(slot),
            }
        }
        // Events of paused processes wait for the end of the pause.
        let late: Vec<(u64, u64)> = self.events.keys().copied().collect();
        for key in late {
            if let Some((Some(_), _)) = self.events.get(&key)
                && let Some(entry) = self.events.remove(&key)
            {
                self.events.insert((key.0.min(now + 5 * SECOND), key.1), entry);
            }
        }
        // A lost statement may have entered a host that never beats: it is silent for a TTL.
        // Statements that were late before may arrive for 8 seconds more.
        let served = now + 8 * SECOND + TTL + 5 * SECOND;
        self.at(served, None, Event::Check(Check::Served));
        self.at(served + 30 * SECOND, None, Event::Check(Check::AtHome));
    }
}
