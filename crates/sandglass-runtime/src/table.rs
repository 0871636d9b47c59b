//! The table of a runtime's entities: which are awake and how they are reached, and which of those
//! that sleep are woken soon.
//!
//! An entity that sleeps has no task: it has its records in the journal, and an entry here only if
//! its timer fires within [`HORIZON`], if it is counted, or until the journal has noted how it
//! rests. Requests are put into mailboxes under the lock of the table, and an entity falls asleep
//! under the same lock, and only if its mailbox is empty. So no request is lost, and requests keep
//! their order.
//!
//! A name without an entry may be that of an entity or not. A request to it begins a task as one to
//! a sleeping entity does; if the journal has no such entity, that task refuses the request.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Monotonic, Position, SpecDigest};
use tokio::sync::Notify;

use crate::actor::{Counted, Handle, Timers};
use crate::quota::SpawnSlot;
use crate::serving::{Hold, Serving};
use crate::specs::Specs;

/// When entities fall asleep.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    /// How long an entity stays awake with nothing to do.
    pub(crate) linger: Duration,
    /// While more than this many are awake, each falls asleep at once.
    pub(crate) awake_max: usize,
}

/// How long before its timer fires a sleeping entity is in memory. Timers of this time keep their
/// precision on the monotonic clock; later ones are kept as times of the calendar in the journal.
pub(crate) const HORIZON: Duration = Duration::from_secs(600);

/// The entities of a runtime that are awake, or are woken soon.
pub(crate) struct Table {
    entities: Mutex<Entities>,
    rest: Rest,
    /// Notified when an entity falls asleep: its alarm may be the first.
    fallen_asleep: Notify,
}

pub(crate) struct Entities {
    /// Only entities of partitions that are served have an entry.
    pub(crate) serving: Serving,
    slots: BTreeMap<EntityRef, Slot>,
    /// When sleepers are woken: those that have a timer.
    alarms: BTreeSet<(Monotonic, EntityRef)>,
    awake: usize,
    /// How many entries were loaded from the journal and not woken yet.
    loaded: usize,
    /// Notified when such an entry is removed.
    unloaded: Arc<Notify>,
    /// Entities that are being removed. Nothing wakes them.
    leaving: BTreeSet<EntityRef>,
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
    /// Whether the entry was loaded from the journal, which knows only when to wake it.
    is_loaded: bool,
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
        let last = Some(last);
        Self { last, timers, is_loaded: false, ..Self::stored(spec, alarm) }
    }

    /// An entity of which only the journal knows more than `spec`, which it obeyed when it fell
    /// asleep, and when to wake it.
    pub(crate) fn stored(spec: Option<Arc<Spec>>, alarm: Monotonic) -> Self {
        let (last, held_back_from, _counted, spawn_slot) = Default::default();
        let (timers, unread, is_loaded) = (Timers::default(), 0, alarm != Monotonic::NEVER);
        Self { spec, last, timers, held_back_from, _counted, spawn_slot, alarm, unread, is_loaded }
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

    /// Wakes it at `at` if none of its timers fires before.
    pub(crate) fn no_later_than(self, at: Monotonic) -> Self {
        Self { alarm: self.alarm.min(at), ..self }
    }

    /// For an entity whose task was lost: its state, and what was in flight, is in the journal
    /// alone. It is woken after a while if no request wakes it before.
    pub(crate) fn of_lost(now: Monotonic) -> Self {
        Self { is_loaded: false, ..Self::stored(None, now.after(AGAIN_FIRST)) }
    }

    /// Whether its entry must stay in memory although the journal has noted how it rests.
    pub(crate) fn is_needed(&self, now: Monotonic) -> bool {
        let is_soon = self.alarm <= now.after(HORIZON);
        is_soon || self.unread > 0 || self._counted.is_some() || self.spawn_slot.is_some()
    }

    /// Whether nothing is known of it that a request would not find in the journal.
    pub(crate) fn is_superfluous(&self) -> bool {
        self.last.is_none() && self.alarm == Monotonic::NEVER
    }

    /// After `entity` could not be read at `now`: if it has a timer, or its type has another spec
    /// in `specs` than it obeys, it is woken again. The wait grows with each failure, except for a journal
    /// that is unavailable (`is_damaged` is false): a timer must not fire long after that works again.
    pub(crate) fn unread(
        self,
        entity: &EntityRef,
        specs: &Specs,
        now: Monotonic,
        is_damaged: bool,
    ) -> Self {
        let failures = if is_damaged { self.unread } else { 0 };
        let wait = AGAIN_FIRST.saturating_mul(1 << failures.min(AGAIN_DOUBLINGS));
        let again = now.after(wait.min(AGAIN_LAST));
        let alarm = match self.alarm {
            _ if self.is_outdated(entity, specs) => again,
            Monotonic::NEVER => Monotonic::NEVER,
            alarm => alarm.max(again),
        };
        Self { alarm, unread: failures.saturating_add(1), is_loaded: false, ..self }
    }

    /// Whether entities of its type are to obey another spec than it does.
    fn is_outdated(&self, entity: &EntityRef, specs: &Specs) -> bool {
        let newest = specs.types.get(entity.entity_type()).zip(self.spec.as_ref());
        newest.is_some_and(|(newest, spec)| newest.digest != spec.digest)
    }
}

impl Table {
    pub(crate) fn new(rest: Rest, serving: Serving) -> Self {
        let (slots, alarms, leaving, unloaded) = Default::default();
        let entities = Entities { serving, slots, alarms, awake: 0, loaded: 0, unloaded, leaving };
        Self { entities: Mutex::new(entities), rest, fallen_asleep: Notify::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Entities> {
        // No code between two changes of one critical section can panic.
        self.entities.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long an entity stays awake now with nothing to do.
    pub(crate) fn linger(&self) -> Duration {
        if self.lock().awake > self.rest.awake_max { Duration::ZERO } else { self.rest.linger }
    }

    /// Puts an entity to sleep. If `is_asked`, which cannot change meanwhile, or its partition has
    /// gone, it stays awake and gets its timers and its slot back.
    pub(crate) fn fall_asleep(
        &self,
        (entity, hold): (&EntityRef, &Hold),
        is_asked: impl FnOnce() -> bool,
        sleep: Sleep,
    ) -> Result<(), (Timers, Option<Box<SpawnSlot>>)> {
        let mut entities = self.lock();
        if hold.is_gone() || is_asked() {
            return Err((sleep.timers, sleep.spawn_slot));
        }
        entities.lay(entity, sleep);
        drop(entities);
        self.fallen_asleep.notify_one();
        Ok(())
    }

    /// Adds an entity that sleeps, unless its partition is not served any more.
    pub(crate) fn add(&self, entity: &EntityRef, sleep: Sleep) {
        let hold = self.lock().serving.hold(entity);
        if let Some(hold) = hold {
            self.put_back(entity, &hold, sleep);
        }
    }

    /// Puts an entity back to sleep that could not be woken, unless its partition has gone.
    pub(crate) fn put_back(&self, entity: &EntityRef, hold: &Hold, sleep: Sleep) {
        let mut entities = self.lock();
        if !hold.is_gone() {
            entities.lay(entity, sleep);
            drop(entities);
            self.fallen_asleep.notify_one();
        }
    }

    /// Removes an entity that is awake, because it does not exist. Returns false if its partition has
    /// gone, and it with that.
    pub(crate) fn forget(&self, entity: &EntityRef, hold: &Hold) -> bool {
        let mut entities = self.lock();
        if hold.is_gone() {
            return false;
        }
        entities.forget(entity);
        true
    }

    /// The present period of the partition with this journal; `None` if it is not served.
    pub(crate) fn hold_at(&self, index: usize) -> Option<Hold> {
        self.lock().serving.hold_at(index)
    }

    /// The indexes of the journals of all partitions that are served.
    pub(crate) fn served(&self) -> Vec<usize> {
        self.lock().serving.holds().into_iter().map(|hold| hold.index).collect()
    }

    /// Waits until no entity of a partition that is being released is awake, and gives it away at that
    /// moment. Returns false if it is not being released any more.
    pub(crate) async fn give_away(&self, hold: &Hold) -> bool {
        let quiet = self.lock().serving.quiet();
        loop {
            // Registered before the check, so that nothing is missed in between.
            let maybe_quiet = quiet.notified();
            if let Some(is_given_away) = self.give_away_if_quiet(hold) {
                return is_given_away;
            }
            maybe_quiet.await;
        }
    }

    fn give_away_if_quiet(&self, hold: &Hold) -> Option<bool> {
        let mut entities = self.lock();
        if !hold.is_releasing() {
            return Some(false);
        }
        if entities.is_busy(hold.index) {
            return None;
        }
        entities.serving.end(hold);
        let _dropped_without_the_lock = entities.take_partition(hold.index);
        drop(entities);
        Some(true)
    }

    /// Adds the entry of an entity that the journal wants to be woken at `alarm`, unless it has one.
    pub(crate) fn load(&self, entity: &EntityRef, spec: Option<Arc<Spec>>, alarm: Monotonic) {
        let mut entities = self.lock();
        let is_new = !entities.slots.contains_key(entity) && !entities.leaving.contains(entity);
        if is_new && entities.serving.is_served(entity) {
            entities.lay(entity, Sleep::stored(spec, alarm));
            drop(entities);
            self.fallen_asleep.notify_one();
        }
    }

    /// Waits until fewer than `most` entries are loaded.
    pub(crate) async fn has_room_to_load(&self, most: usize) {
        let unloaded = Arc::clone(&self.lock().unloaded);
        loop {
            // Registered before the check, so that nothing is missed in between.
            let maybe_room = unloaded.notified();
            if self.lock().loaded < most {
                return;
            }
            maybe_room.await;
        }
    }

    /// Removes the entry of a sleeping entity, of which the journal has noted how it rests at
    /// `last`, unless it is needed.
    pub(crate) fn evict(&self, entity: &EntityRef, last: Position, now: Monotonic) {
        let mut entities = self.lock();
        let is_evicted = matches!(
            entities.slots.get(entity),
            Some(Slot::Asleep(sleep)) if sleep.last == Some(last) && !sleep.is_needed(now)
        );
        if is_evicted {
            entities.remove(entity);
        }
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

    /// Whether an entity of this name exists; `None` if only the journal knows.
    pub(crate) fn knows(&self, entity: &EntityRef) -> Option<bool> {
        match self.slots.get(entity)? {
            Slot::Awake(handle) => (!handle.is_waking()).then_some(true),
            Slot::Asleep(_) => Some(true),
        }
    }

    /// Whether the entity is being removed.
    pub(crate) fn is_leaving(&self, entity: &EntityRef) -> bool {
        self.leaving.contains(entity)
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

    /// Adds an entity that is awake; false if the name is taken.
    pub(crate) fn enter(&mut self, entity: EntityRef, handle: Handle) -> bool {
        if self.slots.contains_key(&entity) || self.leaving.contains(&entity) {
            return false;
        }
        self.serving.count_awake(handle.index);
        self.slots.insert(entity, Slot::Awake(handle));
        self.awake += 1;
        true
    }

    /// Removes an entity that is awake.
    fn forget(&mut self, entity: &EntityRef) {
        if let Some(Slot::Awake(handle)) = self.slots.remove(entity) {
            self.count_asleep(&handle);
        }
    }

    fn count_asleep(&mut self, handle: &Handle) {
        self.awake -= 1;
        self.serving.count_asleep(handle.index);
    }

    /// Whether something of this partition is awake or being removed.
    fn is_busy(&self, index: usize) -> bool {
        let is_of = |entity: &EntityRef| self.serving.index_of(entity) == index;
        self.serving.has_awake(index) || self.leaving.iter().any(is_of)
    }

    /// Removes all entities of a partition, and returns what was known of them: how to reach those that
    /// were awake.
    pub(crate) fn take_partition(
        &mut self,
        index: usize,
    ) -> (Vec<(EntityRef, Handle)>, Vec<Sleep>) {
        let is_of = |entity: &&EntityRef| self.serving.index_of(entity) == index;
        let names: Vec<EntityRef> = self.slots.keys().filter(is_of).cloned().collect();
        let (mut awake, mut asleep) = (Vec::new(), Vec::new());
        for entity in names {
            if let Some(sleep) = self.remove(&entity) {
                asleep.push(sleep);
            } else if let Some(Slot::Awake(handle)) = self.slots.remove(&entity) {
                self.count_asleep(&handle);
                awake.push((entity, handle));
            }
        }
        (awake, asleep)
    }

    /// Makes an entity that is not awake one that is reached by `handle`; returns what was in memory
    /// of it, or `stored` if nothing was.
    pub(crate) fn rouse(
        &mut self,
        entity: &EntityRef,
        handle: Handle,
        stored: Sleep,
    ) -> Option<Sleep> {
        if self.awake(entity).is_some() || self.leaving.contains(entity) {
            return None;
        }
        let sleep = self.remove(entity).unwrap_or(stored);
        self.serving.count_awake(handle.index);
        self.slots.insert(entity.clone(), Slot::Awake(handle));
        self.awake += 1;
        Some(sleep)
    }

    /// Removes the entry of an entity that sleeps.
    fn remove(&mut self, entity: &EntityRef) -> Option<Sleep> {
        match self.slots.get(entity)? {
            Slot::Awake(_) => return None,
            Slot::Asleep(_) => {}
        }
        let Some(Slot::Asleep(sleep)) = self.slots.remove(entity) else { return None };
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.remove(&(sleep.alarm, entity.clone()));
        }
        if sleep.is_loaded {
            self.loaded -= 1;
            self.unloaded.notify_waiters();
        }
        Some(sleep)
    }

    /// Adds an entity that sleeps, or puts one to sleep that is awake.
    pub(crate) fn lay(&mut self, entity: &EntityRef, sleep: Sleep) {
        self.remove(entity);
        self.loaded += usize::from(sleep.is_loaded);
        if sleep.alarm != Monotonic::NEVER {
            self.alarms.insert((sleep.alarm, entity.clone()));
        }
        if let Some(Slot::Awake(handle)) = self.slots.insert(entity.clone(), Slot::Asleep(sleep)) {
            self.count_asleep(&handle);
        }
    }

    /// The spawned entities whose parents have not recorded their creation. Such a parent is awake.
    pub(crate) fn spawning(&self) -> BTreeSet<EntityRef> {
        let parents = self.all_awake().filter_map(Handle::snapshot);
        parents.flat_map(|parent| parent.spawning.clone()).collect()
    }

    /// Takes out an entity that has ended, if it sleeps and this is its last record, so that nothing
    /// wakes it until [`Entities::left`]. Returns whether it does, with its entry if it had one.
    pub(crate) fn take_out(
        &mut self,
        (entity, hold): (&EntityRef, &Hold),
        last: Position,
    ) -> (bool, Option<Sleep>) {
        if hold.is_gone() || hold.is_releasing() {
            return (false, None);
        }
        let is_asleep = match self.slots.get(entity) {
            None => true,
            Some(Slot::Asleep(Sleep { spec: None, last: at, .. })) => {
                at.is_none_or(|at| at == last)
            }
            Some(_) => false,
        };
        if !is_asleep || !self.leaving.insert(entity.clone()) {
            return (false, None);
        }
        (true, self.remove(entity))
    }

    /// The entity was removed, or is to be kept after all.
    pub(crate) fn left(&mut self, entity: &EntityRef) {
        self.leaving.remove(entity);
        self.serving.note_quiet();
    }

    /// The first sleeper behind `after` that obeys another spec than `specs` has for its type.
    pub(crate) fn outdated(&self, after: Option<&EntityRef>, specs: &Specs) -> Option<EntityRef> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut slots = self.slots.range((from, Bound::Unbounded));
        let outdated = slots.find(|(name, slot)| match slot {
            Slot::Awake(_) => false,
            Slot::Asleep(sleep) => sleep.is_outdated(name, specs) && self.serving.is_open(name),
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;
    use crate::serving::Phase;

    #[test]
    fn a_partition_that_is_lost_or_given_away_makes_room_to_load() {
        let rest = Rest { linger: Duration::ZERO, awake_max: 0 };
        let job: EntityRef = "Job/1".parse().expect("a valid name");
        let mut context = Context::from_waker(Waker::noop());
        for is_lost in [true, false] {
            let table = Table::new(rest, Serving::new(1, true));
            let hold = table.hold_at(0).expect("it is served");
            table.load(&job, None, Monotonic::from_nanos(1));
            // Each adoption loads in a task of its own.
            let mut waiting = [pin!(table.has_room_to_load(1)), pin!(table.has_room_to_load(1))];
            let mut ready =
                || waiting.each_mut().map(|one| one.as_mut().poll(&mut context).is_ready());
            assert_eq!(ready(), [false, false]);
            if is_lost {
                let mut entities = table.lock();
                assert!(entities.serving.end(&hold));
                drop(entities.take_partition(0));
            } else {
                assert!(table.lock().serving.go_over(&hold, Phase::Open, Phase::Releasing));
                assert_eq!(table.give_away_if_quiet(&hold), Some(true));
            }
            assert_eq!(ready(), [true, true], "{is_lost}");
        }
    }
}
