//! Everything in a world that is outside of its processes: the time, the database, the network, what
//! really happened, and the dice.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

use tokio::task::AbortHandle;

use super::database::Database;
use super::ledger::HostsLedger;
use super::plan::Plan;
use super::process::{Host, Process};
use super::story::Story;
use super::timeline::{Act, Life, Timeline};
use crate::dice::Dice;
use crate::fault::Fault;
use crate::scene::lock;

/// The world.
pub(crate) struct Sim {
    pub(crate) plan: Plan,
    pub(crate) timeline: Mutex<Timeline>,
    database: Mutex<Database>,
    ledger: Mutex<HostsLedger>,
    story: Mutex<Story>,
    network: Mutex<Network>,
    processes: Mutex<Vec<Slot>>,
    /// What follows from the end of a process that is being killed.
    ends: Mutex<Option<Vec<End>>>,
    pub(crate) entropy: Dice,
    pub(crate) clients: Dice,
    pub(crate) guests: Dice,
    pub(crate) faults: Dice,
    pub(crate) delays: Dice,
}

/// What follows when something that a process held is dropped, and the place of that among all that it
/// held.
type End = ((EndOf, u64), Box<dyn FnOnce(&Arc<Sim>) + Send>);

/// What a process held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum EndOf {
    Call,
    ClientCall,
}

/// A place where one process after the other runs.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) process: Option<Process>,
    /// How many processes there were.
    pub(crate) lives: u32,
    /// Until when the process is paused.
    pub(crate) paused_until: u64,
    /// Until when the process does not reach the database.
    pub(crate) cut_until: u64,
    /// Until when statements take long.
    pub(crate) slow_until: u64,
}

/// What is wrong between hosts, and the requests that are on their way.
#[derive(Default)]
pub(crate) struct Network {
    /// Until when nothing arrives, by sender and receiver.
    pub(crate) cuts: BTreeMap<(usize, usize), u64>,
    pub(crate) calls: BTreeMap<u64, AbortHandle>,
    pub(crate) next_call: u64,
}

impl Sim {
    pub(crate) fn new(plan: Plan, has_timeline: bool) -> Self {
        let dice = |stream| Dice::new(plan.seed, stream);
        Self {
            timeline: Mutex::default(),
            database: Mutex::new(Database::new()),
            ledger: Mutex::new(HostsLedger::new(has_timeline)),
            story: Mutex::default(),
            network: Mutex::default(),
            ends: Mutex::default(),
            processes: Mutex::new((0..plan.slots).map(|_| Slot::default()).collect()),
            entropy: dice("hosts-entropy"),
            clients: dice("hosts-clients"),
            guests: dice("hosts-guests"),
            faults: dice("hosts-faults"),
            delays: dice("hosts-delays"),
            plan,
        }
    }

    pub(crate) fn now(&self) -> u64 {
        lock(&self.timeline).now
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.plan.fault == Some(fault)
    }

    /// Adds an event that happens after `delay` nanoseconds. If it is of a process, that runs afterwards;
    /// the event waits while the process is paused, and is dropped if it has ended.
    pub(crate) fn after(
        &self,
        delay: u64,
        of: Option<Life>,
        act: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        let mut timeline = lock(&self.timeline);
        let at = timeline.now + delay;
        timeline.add(at, of, Act::Do(Box::new(act)));
    }

    /// Does `act`, which follows from the end of something that a process held; while a process is killed,
    /// afterwards, in the order of `of` and `number`. An executor drops its tasks in an order that depends on
    /// what else was started in this program.
    pub(crate) fn at_end(
        self: &Arc<Self>,
        of: EndOf,
        number: u64,
        act: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) {
        if let Some(ends) = &mut *lock(&self.ends) {
            return ends.push(((of, number), Box::new(act)));
        }
        act(self);
    }

    /// Drops what a process held, and then does what follows from that.
    pub(crate) fn end(self: &Arc<Self>, drop_all: impl FnOnce()) {
        *lock(&self.ends) = Some(Vec::new());
        drop_all();
        let mut ends = lock(&self.ends).take().unwrap_or_default();
        ends.sort_by_key(|(place, _)| *place);
        ends.into_iter().for_each(|(_, act)| act(self));
    }

    pub(crate) fn database(&self) -> MutexGuard<'_, Database> {
        lock(&self.database)
    }

    /// The ledger, with the present time set.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, HostsLedger> {
        let now = self.now();
        let step = self.story().step;
        let mut ledger = lock(&self.ledger);
        ledger.at(step, now);
        ledger
    }

    pub(crate) fn story(&self) -> MutexGuard<'_, Story> {
        lock(&self.story)
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Network> {
        lock(&self.network)
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        lock(&self.processes)
    }

    /// The process that runs in a slot.
    pub(crate) fn host(&self, slot: usize) -> Option<Arc<Host>> {
        let slots = self.slots();
        Some(Arc::clone(&slots.get(slot)?.process.as_ref()?.host))
    }

    /// The processes that run.
    pub(crate) fn hosts(&self) -> Vec<Arc<Host>> {
        let slots = self.slots();
        let running = slots.iter().filter_map(|slot| slot.process.as_ref());
        running.map(|process| Arc::clone(&process.host)).collect()
    }

    pub(crate) fn is_alive(&self, life: Life) -> bool {
        let slots = self.slots();
        let process = slots.get(life.slot).and_then(|slot| slot.process.as_ref());
        process.is_some_and(|process| process.host.life == life)
    }

    pub(crate) fn is_paused(&self, slot: usize) -> bool {
        let now = self.now();
        self.slots().get(slot).is_some_and(|slot| slot.paused_until > now)
    }

    /// Whether nothing goes wrong any more.
    pub(crate) fn is_calm(&self) -> bool {
        self.story().is_calm
    }

    /// Whether what `from` sends does not arrive at `to`.
    pub(crate) fn is_cut(&self, from: usize, to: usize) -> bool {
        let now = self.now();
        self.network().cuts.get(&(from, to)).is_some_and(|until| *until > now)
    }

    /// Whether the reader has got everything.
    pub(crate) fn has_read_all(&self) -> bool {
        let ends: Vec<u64> = self.database().partitions.iter().map(|row| row.last().0).collect();
        self.ledger().feed.has_all(&ends)
    }

    /// Forgives losses that no process could report, because those that had the acknowledgements are gone.
    pub(crate) fn forgive_losses(&self) {
        let ends: Vec<u64> = self.database().partitions.iter().map(|row| row.last().0).collect();
        let hosts = self.hosts();
        self.ledger().forgive_losses(|partition| {
            let index = partition.index();
            hosts.iter().all(|host| lock(&host.lanes[index].acknowledged).0 <= ends[index])
        });
    }

    /// Draws the next number of every stream and combines them into one.
    pub(crate) fn next_random(&self) -> u64 {
        let streams = [&self.entropy, &self.clients, &self.guests, &self.faults, &self.delays];
        streams.into_iter().fold(0, |all, dice| all.rotate_left(13) ^ dice.next())
    }
}

impl fmt::Debug for Sim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sim").field("seed", &self.plan.seed).finish_non_exhaustive()
    }
}
