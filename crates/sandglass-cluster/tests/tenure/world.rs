//! A world: processes with clocks of their own, the database, the network between them, and what
//! goes wrong. Everything is drawn from one seed.

use std::collections::BTreeMap;
use std::fmt;

use fastrand::Rng;
use sandglass_model::{HostId, Partition};

use crate::database::{Database, Request, Response};
use crate::fault::Fault;
use crate::process::{MS, Process};

mod network;
mod promises;
mod shell;
mod weather;

const SECOND: u64 = 1_000 * MS;
const TTL: u64 = 5 * SECOND;

/// What goes wrong in a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    /// Pauses, crashes, restarts, cuts, slow and lost statements, drains, outages.
    Storm,
    /// Only the database is away from time to time.
    Outages,
    /// Nothing, except that connections to live hosts are refused.
    WrongAddresses,
    /// One process is killed.
    Kill,
}

/// A promise that was broken.
#[derive(Debug)]
pub(crate) struct Violation {
    pub(crate) what: String,
    at: u64,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ms: {}", self.at / MS, self.what)
    }
}

/// What a world has produced.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) declared: u64,
    pub(crate) taken: u64,
    pub(crate) released: u64,
    pub(crate) rejoined: u64,
    pub(crate) unknown: u64,
    pub(crate) events: u64,
    /// How long after the kill the last partition was served again, in nanoseconds.
    pub(crate) takeover: u64,
}

/// A process: its slot, and how many processes the slot had with it. `None` for what is about no
/// process.
type Life = Option<(usize, u64)>;

#[derive(Debug)]
enum Event {
    Execute { from: (usize, u64), nth: u64, by: HostId, request: Request, is_late: bool },
    Respond { nth: u64, response: Response },
    GiveUp { nth: u64 },
    Beat { nth: u64 },
    LookAtMove(Partition),
    Probe,
    Start,
    Fault,
    Heal,
    Check(Check),
}

#[derive(Clone, Copy, Debug)]
enum Check {
    Served,
    AtHome,
}

#[derive(Debug, Default)]
struct Slot {
    process: Option<Process>,
    /// Number of processes so far.
    life: u64,
    beat: u64,
    cut_until: u64,
    slow_until: u64,
    /// How long the process is paused when it next gets a response, before it sees it, and how long
    /// it is cut off then.
    freeze: Option<(u64, u64)>,
}

pub(crate) struct World {
    rng: Rng,
    now: u64,
    nth: u64,
    /// By time and number, each for a life of a slot, or for none.
    events: BTreeMap<(u64, u64), (Life, Event)>,
    database: Database,
    /// The latest generation with which each partition was served.
    generations: Vec<Option<u64>>,
    down_until: u64,
    slots: Vec<Slot>,
    weather: Weather,
    fault: Option<Fault>,
    /// Whether refused connections count, on all hosts.
    is_fast: bool,
    is_healed: bool,
    has_ended: bool,
    killed_at: Option<u64>,
    counts: Counts,
}

/// Simulates the world of `seed`.
pub(crate) fn simulate(
    seed: u64,
    weather: Weather,
    fault: Option<Fault>,
) -> Result<Counts, Violation> {
    let mut rng = Rng::with_seed(seed);
    let number = if weather == Weather::Kill { rng.usize(2..=4) } else { rng.usize(2..=5) };
    let mut world = World {
        is_fast: weather != Weather::Storm || rng.bool(),
        rng,
        now: 0,
        nth: 0,
        events: BTreeMap::new(),
        database: Database::new(fault),
        generations: vec![None; Partition::all().len()],
        down_until: 0,
        slots: (0..number).map(|_| Slot::default()).collect(),
        weather,
        fault,
        is_healed: weather != Weather::Storm,
        has_ended: false,
        killed_at: None,
        counts: Counts::default(),
    };
    world.run()
}

impl World {
    fn run(&mut self) -> Result<Counts, Violation> {
        for slot in 0..self.slots.len() {
            let at = self.rng.u64(0..10 * SECOND);
            self.at(at, Some((slot, 0)), Event::Start);
        }
        let heal = 60 * SECOND + self.rng.u64(0..60 * SECOND);
        if self.weather != Weather::WrongAddresses {
            let first = if self.weather == Weather::Kill { 40 * SECOND } else { 5 * SECOND };
            let at = first + self.rng.u64(0..5 * SECOND);
            self.at(at, None, Event::Fault);
        }
        self.at(heal, None, Event::Heal);
        while let Some(((at, nth), (life, event))) = self.events.pop_first() {
            self.now = at;
            self.counts.events += 1;
            if let Some((slot, life)) = life {
                let is_start = matches!(event, Event::Start);
                let process = self.slots[slot].process.as_ref();
                if !is_start && process.is_none_or(|process| process.life != life) {
                    continue;
                }
                if matches!(event, Event::Respond { .. }) {
                    self.freeze(slot);
                }
                let process = self.slots[slot].process.as_ref();
                if let Some(until) = process.map(|process| process.paused_until)
                    && until > at
                {
                    // Whatever happens meanwhile is seen after the pause, in any order.
                    let at = until + self.rng.u64(0..MS);
                    self.events.insert((at, nth), (Some((slot, life)), event));
                    continue;
                }
            }
            if matches!(event, Event::Check(Check::AtHome)) {
                self.check(Check::AtHome)?;
                self.counts.declared = self.database.declared;
                self.counts.taken = self.database.taken;
                self.counts.released = self.database.released;
                return Ok(self.counts);
            }
            self.step(life, event)?;
            self.check_owners()?;
        }
        Err(self.broken("nothing happens any more"))
    }

    fn broken(&self, what: impl Into<String>) -> Violation {
        Violation { what: what.into(), at: self.now }
    }

    fn at(&mut self, at: u64, life: Life, event: Event) {
        self.nth += 1;
        self.events.insert((at, self.nth), (life, event));
    }

    fn process(&mut self, slot: usize) -> &mut Process {
        self.slots[slot].process.as_mut().expect("events of ended processes are dropped")
    }

    fn step(&mut self, life: Life, event: Event) -> Result<(), Violation> {
        let now = self.now;
        let slot = life.map_or(0, |(slot, _)| slot);
        match event {
            Event::Execute { from, nth, by, request, is_late } => {
                self.execute(from, nth, by, request, is_late)?;
            }
            Event::Respond { nth, response } => {
                if let Some(pending) = self.process(slot).pending.remove(&nth) {
                    self.respond(slot, pending, Some(response))?;
                }
            }
            Event::GiveUp { nth } => {
                if let Some(pending) = self.process(slot).pending.remove(&nth) {
                    self.counts.unknown += 1;
                    self.respond(slot, pending, None)?;
                }
            }
            Event::Beat { nth } => {
                if self.slots[slot].beat == nth {
                    let act = self.process(slot).beat(now);
                    self.act(slot, act);
                }
            }
            Event::LookAtMove(partition) => {
                if let Some(act) = self.process(slot).look_at_move(now, partition) {
                    self.act(slot, act);
                }
            }
            Event::Probe => self.probe(slot)?,
            Event::Start => self.start(slot),
            Event::Fault => self.go_wrong(),
            Event::Heal => self.heal(),
            Event::Check(check) => self.check(check)?,
        }
        Ok(())
    }
}
