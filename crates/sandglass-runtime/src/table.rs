//! The table of a runtime's entities: which are awake and how they are reached, which sleep and
//! when their timers wake them.
//!
//! An entity that sleeps has no task: it has an entry here, and its records in the journal.
//! Requests are put into mailboxes under the lock of the table, and an entity falls asleep under
//! the same lock, and only if its mailbox is empty. So no request is lost, and requests keep their
//! order.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Monotonic, Position, SpecDigest};
use tokio::sync::Notify;

use crate::actor::{Counted, Handle, Timers};
use crate::quota::SpawnSlot;
use crate::specs::Specs;

/// When entities fall asleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// How long an entity stays awake with nothing to do.
    pub(crate) linger: Duration,
    /// While more than this many are awake, each falls asleep at once.
    pub(crate) awake_max: usize,
}

/// All entities of a runtime: as many as the journal contains. What bounds the journal bounds them.
pub(crate) struct Table {
    entities: Mutex<Entities>,
    rest: Rest,
    /// Notified when an entity falls asleep: its alarm may be the first.
    fallen_asleep: Notify,
}

#[derive(Default)]
pub(crate) struct Entities {
    slots: BTreeMap<EntityRef, Slot>,
    /// When sleepers are woken: those that have a timer.
    alarms: BTreeSet<(Monotonic, EntityRef)>,
    awake: usize,
}

/// Where an entity is.
enum Slot {
    /// It has a task, or is being read by one.
    Awake(Handle),
    Asleep(Sleep),
}

/// What is in memory of an entity that sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// The spec that it obeys; `None` if it has ended, and so never changes its spec.
    spec: Option<Arc<Spec>>,
    /// Its last record. A record behind it was written by another process. `None` if its task was
    /// lost, so that only the journal knows.
    pub(crate) last: Option<Position>,
    /// Its timers go on while it sleeps.
    pub(crate) timers: Timers,
    /// The version of its spec that was last found not to fit, which was reported. Boxed, because
    /// many entities sleep and few of them have one.
    pub(crate) held_back_from: Option<Box<SpecDigest>>,
    /// Keeps it counted and listed, if it is a session that waits to be resumed. Boxed for the same
    /// reason.
    _counted: Option<Box<Counted>>,
    /// Its slot, if it was spawned and its next timer fires soon. Boxed for the same reason.
    pub(crate) spawn_slot: Option<Box<SpawnSlot>>,
    /// When it is woken.
    alarm: Monotonic,
    /// How many attempts to read it have failed in a row.
    unread: u8,
}

/// First wait after an entity could not be read: the longest delay until a working disk is noticed.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// How often the wait doubles, until it is the longest one.
const AGAIN_DOUBLINGS: u8 = 8;
/// Longest wait after an entity could not be read: even a hundred thousand entities that cannot be
/// read leave the disk alone most of the time.
const AGAIN_LAST: Duration = Duration::from_secs(300);

impl Sleep {
    /// Sleeps until one of `timers` fires or a request arrives.
    pub(crate) fn new(spec: Option<Arc<Spec>>, last: Position, timers: Timers) -> Self {
        let alarm = timers.next();
        let (held_back_from, _counted, spawn_slot) = Default::default();
        let last = Some(last);
        Self { spec, last, timers, held_back_from, _counted, spawn_slot, alarm, unread: 0 }
    }

    /// Adds the counters and lists that it stays in.
    pub(crate) fn counted(self, counted: Option<Box<Counted>>) -> Self {
        Self { _counted: counted, ..self }
    }

    /// Adds its slot as a spawned entity that still counts.
    pub(crate) fn with_slot(self, slot: Option<SpawnSlot>) -> Self {
        Self { spawn_slot: slot.map(Box::new), ..self }
    }

    /// Adds the version that was reported not to fit.
    pub(crate) fn held_back_from(self, held_back_from: Option<SpecDigest>) -> Self {
        Self { held_back_from: held_back_from.map(Box::new), ..self }
    }

    /// For an entity whose task was lost: its state, and what was in flight, is in the journal
    /// alone. It is woken after a while if no request wakes it before.
    pub(crate) fn of_lost(now: Monotonic) -> Self {
        let (alarm, timers) = (now.after(AGAIN_FIRST), Timers::default());
        let (spec, last, held_back_from, _counted, spawn_slot) = Default::default();
        Self { spec, last, timers, held_back_from, _counted, spawn_slot, alarm, unread: 0 }
    }

    /// After `entity` could not be read at `now`: if it has a timer, or its type has another spec
    /// in `specs` than it obeys, it is woken again after a wait that grows with each failure.
    pub(crate) fn unread(self, entity: &EntityRef, specs: &Specs, now: Monotonic) -> Self {
        let wait = AGAIN_FIRST.saturating_mul(1 << self.unread.min(AGAIN_DOUBLINGS));
        let again = now.after(wait.min(AGAIN_LAST));
        let alarm = match self.alarm {
            _ if self.is_outdated(entity, specs) => again,
            Monotonic::NEVER => Monotonic::NEVER,
            alarm => alarm.max(again),
        };
        Self { alarm, unread: self.unread.saturating_add(1), ..self }
    }

    /// Whether entities of its type are to obey another spec than it does.
    fn is_outdated(&self, entity: &EntityRef, specs: &Specs) -> bool {
        let newest = specs.types.get(entity.entity_type()).zip(self.spec.as_ref());
        newest.is_some_and(|(newest, spec)| newest.digest != spec.digest)
    }
}

impl Table {
    pub(crate) fn new(rest: Rest) -> Self {
        Self { entities: Mutex::default(), rest, fallen_asleep: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Entities> {
        // No code between two changes of one critical section can panic.
        self.entities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an entity stays awake now with nothing to do.
    pub(crate) fn linger(&self) -> Duration {
        if self.lock().awake > self.rest.awake_max { Duration::ZERO } else { self.rest.linger }
    }

    /// Puts an entity to sleep. If `is_asked`, which cannot change meanwhile, it stays awake and
    /// gets its timers and its slot back.
    pub(crate) fn fall_asleep(
        &self,
        entity: &EntityRef,
        is_asked: impl FnOnce() -> bool,
        sleep: Sleep,
    ) -> Result<(), (Timers, Option<Box<SpawnSlot>>)> {
        let mut entities = self.lock();
        if is_asked() {
            return Err((sleep.timers, sleep.spawn_slot));
        }
        entities.lay(entity, sleep);
        drop(entities);
        self.fallen_asleep.notify_one();
        Ok(())
    }

    /// Puts an entity back to sleep that could not be woken.
    pub(crate) fn put_back(&self, entity: &EntityRef, sleep: Sleep) {
        self.lock().lay(entity, sleep);
        self.fallen_asleep.notify_one();
    }

    /// Waits until an entity has fallen asleep since the last call.
    pub(crate) async fn fallen_asleep(&self) {
        self.fallen_asleep.notified().await;
    }
}

impl Entities {
    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(crate) fn contains(&self, entity: &EntityRef) -> bool {
        self.slots.contains_key(entity)
    }

    /// The handle of the entity, if it is awake.
    pub(crate) fn awake(&self, entity: &EntityRef) -> Option<&Handle> {
        match self.slots.get(entity) {
            Some(Slot::Awake(handle)) => Some(handle),
            Some(Slot::Asleep(_)) | None => None,
        }
    }

    /// The handles of all entities that are awake, in the order of their names.
    pub(crate) fn all_awake(&self) -> impl Iterator<Item = &Handle> {
        self.slots.values().filter_map(|slot| match slot {
            Slot::Awake(handle) => Some(handle),
            Slot::Asleep(_) => None,
        })
    }

    /// The names behind `after`, without entities whose creation is not durable yet.
    pub(crate) fn names(&self, after: Option<&EntityRef>) -> impl Iterator<Item = &EntityRef> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let slots = self.slots.range((from, Bound::Unbounded));
        let durable = slots.filter(|(_, slot)| match slot {
            Slot::Awake(handle) => !handle.is_new(),
            Slot::Asleep(_) => true,
        });
        durable.map(|(name, _)| name)
    }

    /// Adds an entity that is awake; false if the name is taken.
    pub(crate) fn enter(&mut self, entity: EntityRef, handle: Handle) -> bool {
        if self.slots.contains_key(&entity) {
            return false;
        }
        self.slots.insert(entity, Slot::Awake(handle));
        self.awake += 1;
        true
    }

    /// Removes an entity that is awake, because its creation failed.
    pub(crate) fn forget(&mut self, entity: &EntityRef) {
        if let Some(Slot::Awake(_)) = self.slots.remove(entity) {
            self.awake -= 1;
        }
    }

    /// Makes a sleeping entity one that is awake and reached by `handle`; returns what was in
    /// memory of it.
    pub(crate) fn rouse(&mut self, entity: &EntityRef, handle: Handle) -> Option<Sleep> {
        let slot = self.slots.get_mut(entity).filter(|slot| matches!(slot, Slot::Asleep(_)))?;
        let Slot::Asleep(sleep) = std::mem::replace(slot, Slot::Awake(handle)) else { return None };
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.remove(&(sleep.alarm, entity.clone()));
        }
        self.awake += 1;
        Some(sleep)
    }

    /// Adds an entity that sleeps, or puts one to sleep that is awake.
    pub(crate) fn lay(&mut self, entity: &EntityRef, sleep: Sleep) {
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.insert((sleep.alarm, entity.clone()));
        }
        if let Some(Slot::Awake(_)) = self.slots.insert(entity.clone(), Slot::Asleep(sleep)) {
            self.awake -= 1;
        }
    }

    /// The entities that have ended and sleep, with their last records.
    pub(crate) fn ended(&self) -> Vec<(Position, EntityRef)> {
        let ended = self.slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Asleep(Sleep { spec: None, last: Some(last), .. }) => Some((*last, name.clone())),
            Slot::Asleep(_) | Slot::Awake(_) => None,
        });
        ended.collect()
    }

    /// The spawned entities whose parents have not recorded their creation. Such a parent is awake.
    pub(crate) fn spawning(&self) -> BTreeSet<EntityRef> {
        let parents = self.all_awake().filter_map(Handle::snapshot);
        parents.flat_map(|parent| parent.spawning.clone()).collect()
    }

    /// Removes an entity that has ended and sleeps, if this is its last record.
    pub(crate) fn take_out(&mut self, entity: &EntityRef, last: Position) -> Option<Sleep> {
        let slot = self.slots.get(entity)?;
        let is_it =
            matches!(slot, Slot::Asleep(Sleep { spec: None, last: Some(at), .. }) if *at == last);
        let removed = is_it.then(|| self.slots.remove(entity)).flatten();
        let Some(Slot::Asleep(sleep)) = removed else { return None };
        self.alarms.remove(&(sleep.alarm, entity.clone()));
        Some(sleep)
    }

    /// The first sleeper behind `after` that obeys another spec than `specs` has for its type.
    pub(crate) fn outdated(&self, after: Option<&EntityRef>, specs: &Specs) -> Option<EntityRef> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slots = self.slots.range((from, Bound::Unbounded));
        let outdated = slots.find(|(name, slot)| match slot {
            Slot::Awake(_) => false,
            Slot::Asleep(sleep) => sleep.is_outdated(name, specs),
        });
        outdated.map(|(name, _)| name.clone())
    }

    /// When the first sleeper has to be woken.
    pub(crate) fn next_alarm(&self) -> Monotonic {
        self.alarms.first().map_or(Monotonic::NEVER, |(at, _)| *at)
    }

    /// A sleeper whose alarm is due at `now`.
    pub(crate) fn due(&self, now: Monotonic) -> Option<EntityRef> {
        self.alarms.first().filter(|(at, _)| *at <= now).map(|(_, entity)| entity.clone())
    }
}
