//! The table of a runtime's entities: who is awake and how they are reached, who
//! sleeps and when their timers wake them.
//!
//! An entity that sleeps has no task. All that is kept of it is an entry here; the rest
//! is in the journal. Whoever asks an entity does so under the table's lock, and it
//! falls asleep under the same lock, only if nobody has asked: so nothing that is asked
//! is lost, and what is asked first is answered first.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Monotonic, Position, SpecDigest};
use tokio::sync::Notify;

use crate::actor::{Counted, Handle, Timers};
use crate::specs::Specs;

/// How entities come to rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// How long an entity stays awake with nothing to do.
    pub(crate) linger: Duration,
    /// While more than so many are awake, none lingers.
    pub(crate) awake_max: usize,
}

/// All entities of a runtime: as many as the journal holds. Whoever creates entities
/// bounds them, and the journal with them.
pub(crate) struct Table {
    entities: Mutex<Entities>,
    rest: Rest,
    /// Told when an entity falls asleep: its alarm may be the first.
    fallen_asleep: Notify,
}

#[derive(Default)]
pub(crate) struct Entities {
    slots: BTreeMap<EntityRef, Slot>,
    /// When sleepers are to be woken: those that have a timer.
    alarms: BTreeSet<(Monotonic, EntityRef)>,
    awake: usize,
}

/// Where an entity is.
enum Slot {
    /// A task has it, or is reading it.
    Awake(Handle),
    Asleep(Sleep),
}

/// What is kept of an entity that sleeps.
#[derive(Debug)]
pub(crate) struct Sleep {
    /// The spec that it obeys; none where it has ended, and stays with that.
    spec: Option<Arc<Spec>>,
    /// Its last record: another one behind it was written by somebody else. None where
    /// its task was lost, and nobody knows.
    pub(crate) last: Option<Position>,
    /// Its timers go on while it sleeps.
    pub(crate) timers: Timers,
    /// The version of its spec that it was last found not to fit, which has been said.
    /// Boxed, since there are many that sleep and few of these.
    pub(crate) held_back_from: Option<Box<SpecDigest>>,
    /// That it is counted and listed, where it is a session that waits to be resumed. Boxed for the same
    /// reason.
    _counted: Option<Box<Counted>>,
    /// When it is to be woken.
    alarm: Monotonic,
    /// How often it could not be read, one time after the other.
    unread: u8,
}

/// First wait after an entity could not be read: a disk that works again is noticed within
/// it.
const AGAIN_FIRST: Duration = Duration::from_secs(5);
/// How often the wait doubles: beyond the longest one.
const AGAIN_DOUBLINGS: u8 = 8;
/// Longest wait after an entity could not be read: a hundred thousand of them that are read
/// in vain leave the disk alone for most of it.
const AGAIN_LAST: Duration = Duration::from_secs(300);

impl Sleep {
    /// Until one of `timers` rings, or somebody asks.
    pub(crate) fn new(spec: Option<Arc<Spec>>, last: Position, timers: Timers) -> Self {
        let alarm = timers.next();
        let (held_back_from, _counted) = Default::default();
        Self { spec, last: Some(last), timers, held_back_from, _counted, alarm, unread: 0 }
    }

    /// The same, and it is counted and listed meanwhile.
    pub(crate) fn counted(self, counted: Option<Box<Counted>>) -> Self {
        Self { _counted: counted, ..self }
    }

    /// The same, and it has been said that it doesn't fit that version.
    pub(crate) fn held_back_from(self, held_back_from: Option<SpecDigest>) -> Self {
        Self { held_back_from: held_back_from.map(Box::new), ..self }
    }

    /// Of an entity whose task was lost: what it is, and what was in flight, is told by
    /// the journal alone. It is woken after a while, if nobody asks before.
    pub(crate) fn of_lost(now: Monotonic) -> Self {
        let (alarm, timers) = (now.after(AGAIN_FIRST), Timers::default());
        let (spec, last, held_back_from, _counted) = Default::default();
        Self { spec, last, timers, held_back_from, _counted, alarm, unread: 0 }
    }

    /// The same after `entity` could not be read at `now`: where a timer of its rings or is to
    /// ring, or its type has another spec in `specs` than it obeys, it is woken again after a
    /// wait that grows each time.
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

    /// Whether entities of its type are to obey another spec than this one does.
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
        // Each change is made whole before anything can panic.
        self.entities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an entity stays awake with nothing to do, as things are.
    pub(crate) fn linger(&self) -> Duration {
        if self.lock().awake > self.rest.awake_max { Duration::ZERO } else { self.rest.linger }
    }

    /// Lets an entity that is awake fall asleep; gives its timers back where it is asked
    /// for something, which can't change meanwhile.
    pub(crate) fn fall_asleep(
        &self,
        entity: &EntityRef,
        is_asked: impl FnOnce() -> bool,
        sleep: Sleep,
    ) -> Result<(), Timers> {
        let mut entities = self.lock();
        if is_asked() {
            return Err(sleep.timers);
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

    /// Waits until an entity has fallen asleep since this was last asked.
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

    /// The entity, where it is awake.
    pub(crate) fn awake(&self, entity: &EntityRef) -> Option<&Handle> {
        match self.slots.get(entity) {
            Some(Slot::Awake(handle)) => Some(handle),
            Some(Slot::Asleep(_)) | None => None,
        }
    }

    /// All that are awake, by name.
    pub(crate) fn all_awake(&self) -> impl Iterator<Item = &Handle> {
        self.slots.values().filter_map(|slot| match slot {
            Slot::Awake(handle) => Some(handle),
            Slot::Asleep(_) => None,
        })
    }

    /// The names behind `after`, without those whose creation isn't durable yet.
    pub(crate) fn names(&self, after: Option<&EntityRef>) -> impl Iterator<Item = &EntityRef> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let slots = self.slots.range((from, Bound::Unbounded));
        let durable = slots.filter(|(_, slot)| match slot {
            Slot::Awake(handle) => !handle.is_new(),
            Slot::Asleep(_) => true,
        });
        durable.map(|(name, _)| name)
    }

    /// Enters an entity that is awake; false where there is one already.
    pub(crate) fn enter(&mut self, entity: EntityRef, handle: Handle) -> bool {
        if self.slots.contains_key(&entity) {
            return false;
        }
        self.slots.insert(entity, Slot::Awake(handle));
        self.awake += 1;
        true
    }

    /// Forgets an entity that is awake and that there isn't.
    pub(crate) fn forget(&mut self, entity: &EntityRef) {
        if let Some(Slot::Awake(_)) = self.slots.remove(entity) {
            self.awake -= 1;
        }
    }

    /// Makes an entity that sleeps one that is awake, to be reached by `handle`; answers
    /// what was kept of it.
    pub(crate) fn rouse(&mut self, entity: &EntityRef, handle: Handle) -> Option<Sleep> {
        let slot = self.slots.get_mut(entity).filter(|slot| matches!(slot, Slot::Asleep(_)))?;
        let Slot::Asleep(sleep) = std::mem::replace(slot, Slot::Awake(handle)) else { return None };
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.remove(&(sleep.alarm, entity.clone()));
        }
        self.awake += 1;
        Some(sleep)
    }

    /// Enters an entity that sleeps, or makes one that is awake sleep.
    pub(crate) fn lay(&mut self, entity: &EntityRef, sleep: Sleep) {
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.insert((sleep.alarm, entity.clone()));
        }
        if let Some(Slot::Awake(_)) = self.slots.insert(entity.clone(), Slot::Asleep(sleep)) {
            self.awake -= 1;
        }
    }

    /// Those that have ended and sleep, with their last records.
    pub(crate) fn ended(&self) -> Vec<(Position, EntityRef)> {
        let ended = self.slots.iter().filter_map(|(name, slot)| match slot {
            Slot::Asleep(Sleep { spec: None, last: Some(last), .. }) => Some((*last, name.clone())),
            Slot::Asleep(_) | Slot::Awake(_) => None,
        });
        ended.collect()
    }

    /// Takes out an entity that has ended and sleeps, where its last record is that one.
    pub(crate) fn take_out(&mut self, entity: &EntityRef, last: Position) -> Option<Sleep> {
        let slot = self.slots.get(entity)?;
        let is_it =
            matches!(slot, Slot::Asleep(Sleep { spec: None, last: Some(at), .. }) if *at == last);
        let Some(Slot::Asleep(sleep)) = is_it.then(|| self.slots.remove(entity)).flatten() else {
            return None;
        };
        self.alarms.remove(&(sleep.alarm, entity.clone()));
        Some(sleep)
    }

    /// The first sleeper behind `after` whose type has another spec in `specs` than the one
    /// that it obeys.
    pub(crate) fn outdated(&self, after: Option<&EntityRef>, specs: &Specs) -> Option<EntityRef> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slots = self.slots.range((from, Bound::Unbounded));
        let outdated = slots.find(|(name, slot)| match slot {
            Slot::Awake(_) => false,
            Slot::Asleep(sleep) => sleep.is_outdated(name, specs),
        });
        outdated.map(|(name, _)| name.clone())
    }

    /// When the first sleeper is to be woken.
    pub(crate) fn next_alarm(&self) -> Monotonic {
        self.alarms.first().map_or(Monotonic::NEVER, |(at, _)| *at)
    }

    /// A sleeper that is to be woken by `now`.
    pub(crate) fn due(&self, now: Monotonic) -> Option<EntityRef> {
        self.alarms.first().filter(|(at, _)| *at <= now).map(|(_, entity)| entity.clone())
    }
}
