//! Journals that wrap another one, such as those of tests and measurements.

use std::fmt;

use sandglass_model::{DispatchId, EntityRef, Position};

use crate::{
    Answer, Batch, ByEntity, EntityEntry, Health, Journal, OfKinds, Page, Pending, Place,
    Positions, Resting, Select, Selected, SelectedPlace, Snapshot,
};

/// A journal that wraps another one: each method calls the inner journal unless it is overridden.
/// Every type with this trait is a [`Journal`].
pub trait Around: Send + Sync + fmt::Debug {
    /// The inner journal.
    fn inner(&self) -> &dyn Journal;

    /// [`Journal::append`].
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        self.inner().append(batch)
    }

    /// [`Journal::read`].
    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        self.inner().read(from, limit)
    }

    /// [`Journal::read_entity`].
    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        self.inner().read_entity(entity, from, limit)
    }

    /// [`Journal::read_kinds`].
    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        self.inner().read_kinds(kinds, from, limit)
    }

    /// [`Journal::read_by_entity`].
    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        self.inner().read_by_entity(after, limit)
    }

    /// [`Journal::find_dispatch`].
    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        self.inner().find_dispatch(dispatch)
    }

    /// [`Journal::snapshot`].
    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        self.inner().snapshot(entity)
    }

    /// [`Journal::last_of`].
    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        self.inner().last_of(entity)
    }

    /// [`Journal::rest`].
    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        self.inner().rest(entities)
    }

    /// [`Journal::select`].
    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        self.inner().select(which, after, limit)
    }

    /// [`Journal::health`].
    fn health(&self) -> Health {
        self.inner().health()
    }

    /// [`Journal::close`].
    fn close(&self) -> Pending<'_, ()> {
        self.inner().close()
    }
}

impl<A: Around> Journal for A {
    fn append(&self, batch: Batch) -> Answer<'_, Positions> {
        Around::append(self, batch)
    }

    fn read(&self, from: Position, limit: usize) -> Answer<'_, Page> {
        Around::read(self, from, limit)
    }

    fn read_entity(&self, entity: EntityRef, from: Position, limit: usize) -> Answer<'_, Page> {
        Around::read_entity(self, entity, from, limit)
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Answer<'_, OfKinds> {
        Around::read_kinds(self, kinds, from, limit)
    }

    fn read_by_entity(&self, after: Option<Place>, limit: usize) -> Answer<'_, ByEntity> {
        Around::read_by_entity(self, after, limit)
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        Around::find_dispatch(self, dispatch)
    }

    fn snapshot(&self, entity: EntityRef) -> Answer<'_, Option<Snapshot>> {
        Around::snapshot(self, entity)
    }

    fn recording(&self, dispatch: DispatchId, attempt: u32) -> Answer<'_, Option<Vec<u8>>> {
        self.inner().recording(dispatch, attempt)
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Answer<'_, Vec<u64>> {
        self.inner().prune(entities)
    }

    fn last_of(&self, entity: EntityRef) -> Answer<'_, Option<EntityEntry>> {
        Around::last_of(self, entity)
    }

    fn rest(&self, entities: Vec<Resting>) -> Answer<'_, ()> {
        Around::rest(self, entities)
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        Around::select(self, which, after, limit)
    }

    fn last(&self) -> Answer<'_, Position> {
        self.inner().last()
    }

    fn health(&self) -> Health {
        Around::health(self)
    }

    fn close(&self) -> Pending<'_, ()> {
        Around::close(self)
    }
}
