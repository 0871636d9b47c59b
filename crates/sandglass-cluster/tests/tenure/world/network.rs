//! The way of statements to the database and of results back.

use sandglass_model::HostId;

use super::{Event, SECOND, Violation, World};
use crate::database::{Request, Response};
use crate::fault::Fault;
use crate::process::{MS, Pending};

impl World {
    pub(super) fn is_connected(&self, slot: usize) -> bool {
        self.now >= self.slots[slot].cut_until
    }

    /// How long a message takes.
    pub(super) fn latency(&mut self, slot: usize) -> u64 {
        let is_usual = self.is_healed || self.rng.u8(0..10) > 0;
        let usual = self.rng.u64(100_000..if is_usual { 4 * MS } else { 500 * MS });
        let is_slow = self.now < self.slots[slot].slow_until;
        if is_slow { usual + self.rng.u64(0..3 * SECOND) } else { usual }
    }

    /// When a message arrives that is sent now; `None` if it is lost. One of `odds` is lost, and
    /// two are late.
    pub(super) fn arrival(&mut self, slot: usize, odds: u8) -> Option<u64> {
        let at = self.now + self.latency(slot);
        if !self.is_connected(slot) {
            let is_late = self.rng.u8(0..4) == 0;
            return is_late.then_some(at + self.slots[slot].cut_until - self.now);
        }
        if self.is_healed {
            return Some(at);
        }
        match self.rng.u8(0..odds) {
            0 => None,
            1 => Some(at + self.rng.u64(0..2 * SECOND)),
            2 => Some(at + self.rng.u64(0..8 * SECOND)),
            _ => Some(at),
        }
    }

    pub(super) fn send(&mut self, slot: usize, pending: Pending, request: Request) {
        let nth = self.nth + 1;
        let process = self.process(slot);
        let (by, from) = (process.me, (slot, process.life));
        process.pending.insert(nth, pending);
        let is_beat = matches!(pending, Pending::Beat | Pending::Read);
        // Without beats, there are no leases to break. What changes owners is what may come too
        // late.
        let odds = match pending {
            Pending::Beat | Pending::Read => 60,
            Pending::Claim | Pending::Declare => 5,
            _ => 12,
        };
        if let Some(mut at) = self.arrival(slot, odds) {
            if self.fault == Some(Fault::BlindDeclaration) && matches!(pending, Pending::Declare) {
                // Otherwise hosts hardly ever beat between the observation and the declaration.
                at += 2 * SECOND;
            }
            self.at(at, None, Event::Execute { from, nth, by, request, is_late: false });
        }
        let is_long = self.fault == Some(Fault::LongBeat);
        let limit = if is_beat && !is_long { SECOND } else { 5 * SECOND };
        self.nth = self.nth.max(nth);
        self.at(self.now + limit, Some(from), Event::GiveUp { nth });
    }

    pub(super) fn execute(
        &mut self,
        from: (usize, u64),
        nth: u64,
        by: HostId,
        request: Request,
        is_late: bool,
    ) -> Result<(), Violation> {
        if self.now < self.down_until && !is_late {
            // It is refused, waits until the database is back, or is lost.
            match self.rng.u8(0..3) {
                0 => {
                    let response = Response::Failed;
                    self.at(self.now, Some(from), Event::Respond { nth, response });
                }
                1 => {
                    let event = Event::Execute { from, nth, by, request, is_late: true };
                    let at = self.down_until + self.rng.u64(0..10) * MS;
                    self.at(at, None, event);
                }
                _ => {}
            }
            return Ok(());
        }
        let is_beat = matches!(request, Request::Beat(_) | Request::Read);
        let (released, declared) = match &request {
            Request::Release { partition, .. } => (Some(*partition), None),
            Request::Declare { host, .. } => (None, Some(*host)),
            _ => (None, None),
        };
        let response = self.database.execute(by, request).map_err(|what| self.broken(what))?;
        if matches!(response, Response::Done(true)) {
            self.check_release(from, released)?;
            self.check_declaration(declared)?;
        }
        if let Some(at) = self.arrival(from.0, if is_beat { 60 } else { 12 }) {
            self.at(at, Some(from), Event::Respond { nth, response });
        }
        Ok(())
    }
}
