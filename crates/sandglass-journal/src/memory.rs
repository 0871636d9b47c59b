//! The journal in memory: for tests and for embedders that keep nothing. It returns at once, on the
//! caller's thread, and so works in virtual time. A test can make it fail or hang as a disk does.

mod blocks;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sandglass_model::{DispatchId, EntityRef, Event, Position, Record, Sequence, WallTime};
use tokio::sync::watch;

use crate::batch::{Line, few_enough, recorded_twice};
use crate::store::decode_event;
use crate::{
    Answer, Batch, ByEntity, EntityEntry, Entry, Error, Health, Journal, LastRecord, OfKinds,
    PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, Page, Pending, Place, Positions, Recording, Rest, Resting,
    SEARCHED_MAX, Select, Selected, SelectedPlace, Snapshot, entities,
};
use blocks::Blocks;

/// A journal that is lost with its process, and grows until then.
#[derive(Debug, Default)]
pub struct MemoryJournal {
    inner: Mutex<Inner>,
    hanging: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct Inner {
    /// The record at each position; `None` if it was pruned.
    records: Blocks<Option<Stored>>,
    /// The indexes in `records` of the records about each entity, and about none.
    by_entity: BTreeMap<Option<EntityRef>, Vec<usize>>,
    dispatches: BTreeMap<DispatchId, usize>,
    recordings: BTreeMap<(DispatchId, u32), Arc<[u8]>>,
    snapshots: BTreeMap<EntityRef, Snapshot>,
    /// How entities rest, by the positions of their last records.
    rests: BTreeMap<EntityRef, (Position, Rest)>,
    failing: Option<String>,
    /// How many appends fail before all work again; `None` if they fail until that is changed.
    failures_left: Option<u32>,
    closed: bool,
}

/// A record as a disk would have it: its text is a quarter of the size of the event in memory.
#[derive(Debug)]
struct Stored {
    at: WallTime,
    entity: Option<EntityRef>,
    sequence: Sequence,
    kind: &'static str,
    body: Box<str>,
}

impl Stored {
    fn event(&self) -> Result<Event, String> {
        decode_event(self.kind, &self.body)
    }

    fn entry(&self, position: Position) -> Entry {
        let (at, sequence) = (self.at, self.sequence);
        let entity = self.entity.clone();
        match self.event() {
            Ok(event) => Entry::Record(Record { position, at, entity, sequence, event }),
            Err(what) => Entry::Damaged { position, what },
        }
    }
}

impl MemoryJournal {
    /// An empty journal.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes every append fail with [`Error::Unavailable`], as on a full disk, or work again.
    pub fn set_failing(&self, failing: Option<String>) {
        let mut inner = self.lock();
        (inner.failing, inner.failures_left) = (failing, None);
    }

    /// Makes the next `count` appends fail with [`Error::Unavailable`] and this text.
    pub fn fail_next(&self, count: u32, what: &str) {
        let mut inner = self.lock();
        (inner.failing, inner.failures_left) = (Some(what.to_owned()), Some(count));
    }

    /// Makes appends hang, as on a disk that hangs, until this is set to false.
    pub fn set_hanging(&self, hanging: bool) {
        self.hanging.send_replace(hanging);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No code between two changes of one critical section can panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) -> Result<MutexGuard<'_, Inner>, Error> {
        let inner = self.lock();
        if inner.closed { Err(Error::Closed) } else { Ok(inner) }
    }
}

impl Inner {
    /// Counts one append; returns why it fails, if it does.
    fn next_failure(&mut self) -> Option<String> {
        let Some(left) = self.failures_left else { return self.failing.clone() };
        self.failures_left = left.checked_sub(1).filter(|left| *left > 0);
        match self.failures_left {
            Some(_) => self.failing.clone(),
            None => self.failing.take(),
        }
    }

    fn append(&mut self, batch: Batch, lines: Vec<Line>) -> Result<Positions, Error> {
        if self.closed {
            return Err(Error::Closed);
        }
        if let Some(what) = self.next_failure() {
            return Err(Error::Unavailable { what });
        }
        let Batch { entity, at, .. } = &batch;
        let last = self.last_record(entity);
        batch.admit(last.filter(|_| entity.is_some()))?;
        let of = |recording: &Recording| (recording.dispatch, recording.attempt);
        let is_known = |one: &&Recording| self.recordings.contains_key(&of(one));
        if let Some(known) = batch.recordings.iter().find(is_known) {
            return Err(recorded_twice(known));
        }
        let (entity, at) = (entity.clone(), *at);
        self.recordings.extend(batch.recordings.into_iter().map(|one| (of(&one), one.body)));
        let (first, place) = (self.last().0 + 1, self.records.len());
        for ((_, event), place) in batch.records.iter().zip(place..) {
            if let Event::Dispatched(dispatched) = event {
                self.dispatches.entry(dispatched.dispatch).or_insert(place);
            }
        }
        let places = place..place + lines.len();
        match self.by_entity.get_mut(&entity) {
            Some(known) => known.extend(places),
            None => drop(self.by_entity.insert(entity.clone(), places.collect())),
        }
        for Line { sequence, kind, body } in lines {
            let (entity, body) = (entity.clone(), body.into_boxed_str());
            self.records.push(Some(Stored { at, entity, sequence, kind, body }));
        }
        let last = self.last();
        if let (Some(entity), Some(body)) = (entity, batch.snapshot) {
            let snapshot = Snapshot { entity: entity.clone(), position: last, body };
            self.snapshots.insert(entity, snapshot);
        }
        Ok(Positions { first: Position(first), last })
    }

    fn page(&self, from: Position, limit: usize) -> Page {
        let first = index(from).min(self.records.len());
        self.read(first..self.records.len(), limit)
    }

    fn page_of(&self, entity: EntityRef, from: Position, limit: usize) -> Page {
        let places = self.by_entity.get(&Some(entity)).map_or(&[][..], Vec::as_slice);
        let first = places.partition_point(|place| *place < index(from));
        self.read(places[first..].iter().copied(), limit)
    }

    fn of_kinds(&self, kinds: &[&str], from: Position, limit: usize) -> OfKinds {
        let first = index(from).min(self.records.len());
        let searched = usize::try_from(SEARCHED_MAX).unwrap_or(usize::MAX);
        let end = first.saturating_add(searched).min(self.records.len());
        let is_wanted =
            |place: &usize| self.record(*place).is_some_and(|record| kinds.contains(&record.kind));
        let mut places = (first..end).filter(is_wanted);
        let entries = self.take(&mut places, limit);
        let next = places.next().map_or_else(|| position(end).max(from), position);
        OfKinds { entries, next, is_end: next > self.last() }
    }

    fn by_entity(&self, after: Option<Place>, limit: usize) -> ByEntity {
        let from = after.as_ref().and_then(|after| after.entity.clone());
        let mut found = self
            .by_entity
            .range(&from..)
            .flat_map(|(entity, places)| places.iter().map(move |place| (entity, *place)))
            .skip_while(|(entity, place)| {
                after.as_ref().is_some_and(|after| {
                    (*entity, position(*place)) <= (&after.entity, after.position)
                })
            })
            .map(|(_, place)| place);
        let entries = self.take(&mut found, limit);
        let next = entries.last().filter(|_| found.next().is_some()).and_then(Place::of);
        ByEntity { entries, next }
    }

    /// The page of the records at these indexes.
    fn read(&self, mut places: impl Iterator<Item = usize>, limit: usize) -> Page {
        let entries = self.take(&mut places, limit);
        Page { entries, next: places.next().map(position) }
    }

    /// As many of the records at these indexes as fit into a page.
    fn take(&self, places: &mut impl Iterator<Item = usize>, limit: usize) -> Vec<Entry> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while entries.len() < limit.clamp(1, PAGE_MAX_ENTRIES) && bytes < PAGE_MAX_BYTES {
            let Some(place) = places.next() else { break };
            let here = position(place);
            match (self.record(place), entries.last_mut()) {
                (Some(record), _) => {
                    bytes += record.body.len();
                    entries.push(record.entry(here));
                }
                (None, Some(Entry::Pruned { last, .. })) => *last = here,
                (None, _) => entries.push(Entry::Pruned { first: here, last: here }),
            }
        }
        entries
    }

    fn dispatch(&self, dispatch: DispatchId) -> Option<(EntityRef, Position)> {
        let place = *self.dispatches.get(&dispatch)?;
        Some((self.record(place)?.entity.clone()?, position(place)))
    }

    fn last(&self) -> Position {
        Position(u64::try_from(self.records.len()).unwrap_or(u64::MAX))
    }

    fn last_record(&self, entity: &Option<EntityRef>) -> Option<LastRecord> {
        let place = *self.by_entity.get(entity)?.last()?;
        let sequence = self.record(place)?.sequence;
        Some(LastRecord { position: position(place), sequence })
    }

    fn entry(&self, entity: EntityRef) -> Option<EntityEntry> {
        let key = Some(entity);
        let last = self.last_record(&key)?;
        let entity = key?;
        let noted = self.rests.get(&entity).filter(|(at, _)| *at == last.position);
        let rest = noted.map(|(_, rest)| rest.clone());
        Some(EntityEntry { entity, last, rest })
    }

    fn rest(&mut self, resting: Resting) {
        let Resting { entity, last, rest } = resting;
        let known = self.last_record(&Some(entity.clone()));
        if known.is_some_and(|known| known.position == last) {
            self.rests.insert(entity, (last, rest));
        }
    }

    fn select(&self, which: &Select, after: Option<SelectedPlace>, limit: usize) -> Selected {
        let limit = entities::page_size(limit);
        let is_by_name = matches!(which, Select::All | Select::OtherSpec { .. });
        let from = after.as_ref().filter(|_| is_by_name).map(|after| after.entity.clone());
        let found = self
            .by_entity
            .range(&from..)
            .filter_map(|(name, _)| {
                let entry = self.entry(name.clone()?)?;
                Some((which.key_of(&entry)?, entry))
            })
            .filter(|(key, entry)| {
                after
                    .as_ref()
                    .is_none_or(|after| (*key, &entry.entity) > (after.key, &after.entity))
            });
        let found: Vec<_> =
            if is_by_name { found.take(limit + 1).collect() } else { found.collect() };
        Selected::page(found, false, limit)
    }

    fn record(&self, place: usize) -> Option<&Stored> {
        self.records.get(place)?.as_ref()
    }

    /// Removes an entity whose last record is at `last`; returns how many records it had.
    fn prune(&mut self, entity: EntityRef, last: Position) -> u64 {
        let key = Some(entity);
        let places = self.by_entity.get(&key).cloned().unwrap_or_default();
        if places.last().copied().map(position) != Some(last) {
            return 0;
        }
        for place in &places {
            let pruned = self.records.get_mut(*place).and_then(Option::take);
            let named = pruned.filter(|record| ["dispatched", "ended"].contains(&record.kind));
            match named.map(|record| record.event()) {
                Some(Ok(Event::Dispatched(gone))) => drop(self.dispatches.remove(&gone.dispatch)),
                Some(Ok(Event::Ended(gone))) => {
                    drop(self.recordings.remove(&(gone.dispatch, gone.attempt)));
                }
                _ => {}
            }
        }
        self.by_entity.remove(&key);
        if let Some(entity) = key {
            self.snapshots.remove(&entity);
            self.rests.remove(&entity);
        }
        u64::try_from(places.len()).unwrap_or(u64::MAX)
    }
}

/// The position of the record at an index.
fn position(place: usize) -> Position {
    Position(u64::try_from(place).unwrap_or(u64::MAX).saturating_add(1))
}

/// The index of the record at a position.
fn index(position: Position) -> usize {
    usize::try_from(position.0.saturating_sub(1)).unwrap_or(usize::MAX)
}

impl Journal for MemoryJournal {
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Box::pin(async move {
            // The sender lives as long as the journal, so this ends by its condition only.
            let _ = self.hanging.subscribe().wait_for(|hanging| !hanging).await;
            let (lines, _) = batch.lines()?;
            self.lock().append(batch, lines)
        })
    }

    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        Box::pin(async move { Ok(self.open()?.page(from, limit)) })
    }

    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        Box::pin(async move { Ok(self.open()?.page_of(entity, from, limit)) })
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        Box::pin(async move { Ok(self.open()?.of_kinds(kinds, from, limit)) })
    }

    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        Box::pin(async move { Ok(self.open()?.by_entity(after, limit)) })
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        Box::pin(async move { Ok(self.open()?.dispatch(dispatch)) })
    }

    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        Box::pin(async move { Ok(self.open()?.snapshots.get(&entity).cloned()) })
    }

    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>> {
        Box::pin(async move {
            Ok(self.open()?.recordings.get(&(dispatch, attempt)).map(|body| body.to_vec()))
        })
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>> {
        Box::pin(async move {
            let mut inner = self.open()?;
            few_enough(&entities)?;
            if let Some(what) = &inner.failing {
                return Err(Error::Unavailable { what: what.clone() });
            }
            Ok(entities.into_iter().map(|(entity, last)| inner.prune(entity, last)).collect())
        })
    }

    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        Box::pin(async move { Ok(self.open()?.entry(entity)) })
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Box::pin(async move {
            let mut inner = self.open()?;
            entities::few_enough(&entities)?;
            if let Some(what) = &inner.failing {
                return Err(Error::Unavailable { what: what.clone() });
            }
            entities.into_iter().for_each(|resting| inner.rest(resting));
            Ok(())
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        Box::pin(async move { Ok(self.open()?.select(&which, after, limit)) })
    }

    fn last(&self) -> Answer<'_, Position> {
        Box::pin(async move { Ok(self.open()?.last()) })
    }

    fn health(&self) -> Health {
        let inner = self.lock();
        match &inner.failing {
            _ if inner.closed => Health::Closed,
            Some(what) => Health::Failing { what: what.clone() },
            None => Health::Working,
        }
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move { self.lock().closed = true })
    }
}
