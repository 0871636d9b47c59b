//! Virtual time: that of a tokio runtime whose time is paused. It jumps to the next timer
//! whenever nothing runs, unless something keeps it where it is.

use std::sync::mpsc::{Sender, channel};

use sandglass_journal::{
    Batch, ByEntity, Error, Health, Journal, Page, Pending, Place, Positions, Snapshot,
};
use sandglass_model::{DispatchId, EntityRef, Position};

/// While it lives, virtual time stands: tokio doesn't let it go on while a blocking task runs.
#[derive(Debug)]
pub(super) struct Standing {
    /// The task ends when this goes.
    _end: Sender<()>,
}

impl Standing {
    /// From now on. Needs a tokio runtime.
    pub(super) fn begin() -> Self {
        let (end, ended) = channel::<()>();
        // It hears nothing but that the other side has gone.
        drop(tokio::task::spawn_blocking(move || ended.recv()));
        Self { _end: end }
    }
}

/// A journal for whose answers virtual time waits: its disk is real.
#[derive(Debug)]
pub(super) struct Waited<J>(pub(super) J);

fn waited<'a, T: Send + 'a>(work: Pending<'a, T>) -> Pending<'a, T> {
    let standing = Standing::begin();
    Box::pin(async move {
        let answer = work.await;
        drop(standing);
        answer
    })
}

impl<J: Journal> Journal for Waited<J> {
    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        waited(self.0.append(batch))
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        waited(self.0.read(from, limit))
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        waited(self.0.read_entity(entity, from, limit))
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        waited(self.0.read_by_entity(after, limit))
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        waited(self.0.find_dispatch(dispatch))
    }

    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>> {
        waited(self.0.snapshot(entity))
    }

    fn recording(
        &self,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Pending<'_, Result<Option<Vec<u8>>, Error>> {
        waited(self.0.recording(dispatch, attempt))
    }

    fn prune(&self, entities: Vec<(EntityRef, Position)>) -> Pending<'_, Result<Vec<u64>, Error>> {
        waited(self.0.prune(entities))
    }

    fn last(&self) -> Pending<'_, Result<Position, Error>> {
        waited(self.0.last())
    }

    fn health(&self) -> Health {
        self.0.health()
    }

    fn close(&self) -> Pending<'_, ()> {
        waited(self.0.close())
    }
}
