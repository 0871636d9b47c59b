//! Keeps virtual time where it is. It is the time of a tokio runtime that is paused, which jumps to
//! the next timer whenever nothing runs.

use std::sync::mpsc::{Sender, channel};

use sandglass_journal::{
    Batch, ByEntity, EntityEntry, Error, Health, Journal, OfKinds, Page, Pending, Place, Positions,
    Resting, Select, Selected, SelectedPlace, Snapshot,
};
use sandglass_model::{DispatchId, EntityRef, Position};

/// Virtual time stands still while this lives: tokio does not advance it while a blocking task runs.
#[derive(Debug)]
pub(super) struct PausedTime {
    /// The blocking task ends when this is dropped.
    _end: Sender<()>,
}

impl PausedTime {
    pub(super) fn begin() -> Self {
        let (end, ended) = channel::<()>();
        // Nothing is ever sent: the receiver returns when the sender is dropped.
        drop(tokio::task::spawn_blocking(move || ended.recv()));
        Self { _end: end }
    }
}

/// A journal whose calls take no virtual time, because its disk is real.
#[derive(Debug)]
pub(super) struct PausingJournal<J>(pub(super) J);

fn while_paused<'a, T: Send + 'a>(work: Pending<'a, T>) -> Pending<'a, T> {
    let time = PausedTime::begin();
    Box::pin(async move {
        let result = work.await;
        drop(time);
        result
    })
}

impl<J: Journal> Journal for PausingJournal<J> {
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        while_paused(self.0.append(batch))
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        while_paused(self.0.read(from, limit))
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        while_paused(self.0.read_entity(entity, from, limit))
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<OfKinds, Error>> {
        while_paused(self.0.read_kinds(kinds, from, limit))
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        while_paused(self.0.read_by_entity(after, limit))
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        while_paused(self.0.find_dispatch(dispatch))
    }

    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>> {
        while_paused(self.0.snapshot(entity))
    }

    fn recording(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Pending<'_, Result<Option<Vec<u8>>, Error>> {
        while_paused(self.0.recording(dispatch, attempt))
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Pending<'_, Result<Vec<u64>, Error>> {
        while_paused(self.0.prune(entities))
    }

    fn last_of(&self, entity: EntityRef) -> Pending<'_, Result<Option<EntityEntry>, Error>> {
        while_paused(self.0.last_of(entity))
    }

    fn rest(&self, entities: Vec<Resting>) -> Pending<'_, Result<(), Error>> {
        while_paused(self.0.rest(entities))
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Pending<'_, Result<Selected, Error>> {
        while_paused(self.0.select(which, after, limit))
    }

    fn last(&self) -> Pending<'_, Result<Position, Error>> {
        while_paused(self.0.last())
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn close(&self) -> Pending<'_, ()> {
        while_paused(self.0.close())
    }
}
