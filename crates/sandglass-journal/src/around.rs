//! Journals that wrap another one, such as those of tests and measurements.

use std::fmt;

use sandglass_model::{DispatchId, EntityRef, Position};

use crate::{Batch, ByEntity, Error, Health, Journal, Page, Pending, Place, Positions, Snapshot};

/// A journal that wraps another one: each method calls the inner journal unless it is overridden.
/// Every type with this trait is a [`Journal`].
pub trait Around: Send + Sync + fmt::Debug {
    /// The inner journal.
    fn inner(&self) -> &dyn Journal;

    /// [`Journal::append`].
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        self.inner().append(batch)
    }

    /// [`Journal::read`].
    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        self.inner().read(from, limit)
    }

    /// [`Journal::read_entity`].
    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        self.inner().read_entity(entity, from, limit)
    }

    /// [`Journal::read_by_entity`].
    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        self.inner().read_by_entity(after, limit)
    }

    /// [`Journal::find_dispatch`].
    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        self.inner().find_dispatch(dispatch)
    }

    /// [`Journal::snapshot`].
    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>> {
        self.inner().snapshot(entity)
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
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Around::append(self, batch)
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Around::read(self, from, limit)
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        Around::read_entity(self, entity, from, limit)
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        Around::read_by_entity(self, after, limit)
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        Around::find_dispatch(self, dispatch)
    }

    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>> {
        Around::snapshot(self, entity)
    }

    fn recording(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Pending<'_, Result<Option<Vec<u8>>, Error>> {
        self.inner().recording(dispatch, attempt)
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Pending<'_, Result<Vec<u64>, Error>> {
        self.inner().prune(entities)
    }

    fn last(&self) -> Pending<'_, Result<Position, Error>> {
        self.inner().last()
    }

    fn health(&self) -> Health {
        Around::health(self)
    }

    fn close(&self) -> Pending<'_, ()> {
        Around::close(self)
    }
}
