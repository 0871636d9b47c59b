//! What outlives a process (the disk, the ledger, the dice and the progress of the simulation), and
//! the process itself, which can end at any command.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Spec;
use sandglass_model::{Clock, DispatchId, EntityRef, Monotonic, Object, WallTime};
use sandglass_runtime::{HandlerRun, SimClock};
use tokio::sync::{Notify, watch};

use crate::automaton::Automaton;
use crate::dice::Dice;
use crate::disk::Disk;
use crate::fault::Fault;
use crate::ledger::Ledger;
use crate::plan::Plan;

/// The wall-clock time when every simulation begins.
pub(crate) const START: WallTime = WallTime::from_millis(1_700_000_000_000);

/// Everything that outlives a process.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) plan: Plan,
    pub(crate) automata: Vec<Automaton>,
    /// The specs of the automata, by version.
    pub(crate) specs: Vec<Vec<Arc<Spec>>>,
    pub(crate) fault: Option<Fault>,
    pub(crate) entropy: Dice,
    pub(crate) clients: Dice,
    pub(crate) guests: Dice,
    pub(crate) calls: Dice,
    pub(crate) signals: Dice,
    pub(crate) slow_calls: Dice,
    pub(crate) store: Dice,
    pub(crate) crashes: Dice,
    pub(crate) disk: Mutex<Disk>,
    ledger: Mutex<Ledger>,
    story: Mutex<Story>,
}

/// The progress of the simulation.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) step: usize,
    pub(crate) version: usize,
    /// Entities that a client has tried to create.
    pub(crate) names: Vec<EntityRef>,
    /// The entity of the last step.
    pub(crate) focus: Option<EntityRef>,
    /// Who waits for the next host call of which dispatch.
    pub(crate) waiters: Vec<(DispatchId, Arc<Notify>)>,
    /// Handlers that the last process started, for the fault that starts them again.
    pub(crate) orphans: Vec<HandlerRun>,
}

impl Scene {
    pub(crate) fn new(
        plan: Plan,
        ledger: Ledger,
        automata: Vec<Automaton>,
        specs: Vec<Vec<Arc<Spec>>>,
    ) -> Self {
        let dice = |stream| Dice::new(plan.seed, stream);
        Self {
            fault: plan.fault,
            entropy: dice("entropy"),
            clients: dice("clients"),
            guests: dice("guests"),
            calls: dice("calls"),
            signals: dice("signals"),
            slow_calls: dice("slow-calls"),
            store: dice("store"),
            crashes: dice("crashes"),
            disk: Mutex::default(),
            ledger: Mutex::new(ledger),
            story: Mutex::default(),
            automata,
            specs,
            plan,
        }
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        lock(&self.ledger)
    }

    pub(crate) fn story(&self) -> MutexGuard<'_, Story> {
        lock(&self.story)
    }

    pub(crate) fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    /// The automaton of an entity, by its type.
    pub(crate) fn automaton(&self, entity: &EntityRef) -> &Automaton {
        let of_type = |one: &&Automaton| one.name == entity.entity_type();
        self.automata.iter().find(of_type).unwrap_or(&self.automata[0])
    }

    /// Picks an action for an entity, mostly one that its state takes.
    pub(crate) fn action_for(&self, name: &EntityRef, dice: &Dice) -> String {
        let taken = |ledger: &Ledger| -> Option<Vec<String>> {
            let entity = ledger.entity(name)?;
            let actions = ledger.spec_of(entity)?.actions.values();
            let taken = actions.filter(|action| action.is_taken_from(&entity.state));
            Some(taken.map(|action| action.name.to_string()).collect())
        };
        let taken = taken(&self.ledger()).unwrap_or_default();
        // Prefer actions that start handlers or spawn entities, because most invariants are about these.
        let starts =
            taken.iter().filter(|name| name.starts_with("Start") || name.starts_with("Spawn"));
        let starts: Vec<String> = starts.cloned().collect();
        match dice.below(10) {
            0..=4 if !starts.is_empty() => dice.pick(&starts).clone(),
            0..=7 if !taken.is_empty() => dice.pick(&taken).clone(),
            _ => dice.pick(&self.automaton(name).actions()).clone(),
        }
    }

    /// Registers a request. Returns its number, and params that contain the number.
    pub(crate) fn new_request(&self) -> (u64, Object) {
        let id = self.ledger().requests.next();
        (id, Object::from([("request".to_owned(), id.into())]))
    }

    /// Draws the next number of every stream and combines them into one.
    pub(crate) fn next_random(&self) -> u64 {
        let streams = [
            &self.entropy,
            &self.clients,
            &self.guests,
            &self.calls,
            &self.signals,
            &self.slow_calls,
            &self.store,
            &self.crashes,
        ];
        streams.into_iter().fold(0, |all, dice| all.rotate_left(13) ^ dice.next())
    }
}

/// Locks `mutex`, even if it is poisoned. Locks of a world never block, because a world has one
/// thread.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One process. After a crash, its commands never return.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) scene: Arc<Scene>,
    pub(crate) clock: SimClock,
    state: Arc<State>,
}

#[derive(Debug)]
struct State {
    /// How many commands are left until it crashes.
    fuse: AtomicU64,
    crashed: watch::Sender<bool>,
    /// Whether the world leaves the process alone, so that it comes to rest.
    is_calm: AtomicBool,
}

impl Process {
    /// A process that crashes at its `fuse`-th command.
    pub(crate) fn new(scene: Arc<Scene>, wall: WallTime, fuse: u64) -> Self {
        let state = State {
            fuse: AtomicU64::new(fuse),
            crashed: watch::Sender::new(false),
            is_calm: AtomicBool::new(false),
        };
        Self { scene, clock: SimClock::starting_at(wall), state: Arc::new(state) }
    }

    /// A point where the process may crash. Never returns if the process has crashed.
    pub(crate) async fn command(&self) {
        if !self.passes() {
            std::future::pending::<()>().await;
        }
    }

    /// Like [`Self::command`] for code that cannot wait: returns false if the process has crashed.
    pub(crate) fn passes(&self) -> bool {
        if self.has_crashed() {
            return false;
        }
        let left = self.state.fuse.load(Ordering::Relaxed);
        self.state.fuse.store(left.saturating_sub(1), Ordering::Relaxed);
        if left <= 1 {
            self.crash();
        }
        left > 1
    }

    pub(crate) fn crash(&self) {
        self.state.crashed.send_replace(true);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        *self.state.crashed.borrow()
    }

    pub(crate) async fn crashed(&self) {
        // `self` owns the sender, so the wait ends only when its condition holds.
        let _ = self.state.crashed.subscribe().wait_for(|crashed| *crashed).await;
    }

    /// How many of `fuse` commands it has passed.
    pub(crate) fn used_of(&self, fuse: u64) -> u64 {
        fuse - self.state.fuse.load(Ordering::Relaxed)
    }

    /// Makes the world leave the process alone from now on: nothing fails any more.
    pub(crate) fn calm(&self) {
        self.state.is_calm.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_calm(&self) -> bool {
        self.state.is_calm.load(Ordering::Relaxed)
    }

    /// The simulated time since the start of the story, in milliseconds.
    pub(crate) fn now_ms(&self) -> i64 {
        self.clock.wall().as_millis() - START.as_millis()
    }

    /// The ledger, with the present step and time set.
    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        let step = self.scene.story().step;
        let mut ledger = self.scene.ledger();
        ledger.at(step, self.now_ms());
        ledger
    }

    /// Waits in simulated time.
    #[allow(clippy::disallowed_methods, reason = "this is simulated time")]
    pub(crate) async fn pause_ms(&self, millis: u64) {
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Waits until the clock has reached `at`.
    pub(crate) async fn until(&self, at: Monotonic) {
        let left = at.since(self.clock.now());
        self.pause_ms(u64::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)).await;
    }
}
