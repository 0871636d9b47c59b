//! The journal of one process. It gives batches to the simulated disk, which syncs them in groups
//! after a delay, may fail or hang, and stops when the power fails.

use std::sync::Arc;

use sandglass_journal::{
    Around, Batch, ByEntity, Error, Expected, Health, Journal, MemoryJournal, OfKinds, Page,
    Pending, Place, Positions, Select, Selected, SelectedPlace, Snapshot,
};
use sandglass_model::{Decision, DispatchId, EntityRef, Event, Position, SpawnObstacle};
use tokio::sync::{Notify, oneshot, watch};

use crate::disk::{SyncedBatch, records};
use crate::fault::Fault;
use crate::invariant::Invariant;
use crate::scene::Process;
use crate::undisarmed;

/// The journal, as the process sees it.
#[derive(Clone, Debug)]
pub(crate) struct Store {
    process: Process,
    journal: Arc<MemoryJournal>,
    given: Arc<Notify>,
    closed: Arc<watch::Sender<bool>>,
    /// Whether an earlier process has used this journal.
    is_second: bool,
}

impl Store {
    pub(crate) fn new(process: Process, is_second: bool) -> Self {
        let journal = process.scene.disk().journal();
        let closed = Arc::new(watch::Sender::new(false));
        Self { process, journal, given: Arc::default(), closed, is_second }
    }

    /// Syncs queued batches as long as the process lives.
    pub(crate) async fn sync_for_ever(self) {
        let Process { scene, .. } = &self.process;
        loop {
            while !scene.disk().has_queue() {
                self.given.notified().await;
            }
            if scene.plan.slowest_ms > 0 && !self.process.is_calm() {
                let slow = scene.store.within(0..=scene.plan.slowest_ms);
                self.process.pause_ms(slow).await;
            }
            self.process.command().await;
            let synced = scene.disk().sync(scene.has(Fault::FalseSync));
            for one in &synced {
                self.enter(one);
            }
            self.process.command().await;
            for SyncedBatch { answer, reply, .. } in synced {
                // The receiver may be gone.
                let _ = reply.send(answer);
            }
        }
    }

    /// Enters a synced batch in the ledger.
    fn enter(&self, synced: &SyncedBatch) {
        let mut ledger = self.process.ledger();
        match &synced.answer {
            Ok(positions) => {
                ledger.counts.snapshots += u64::from(synced.batch.snapshot.is_some());
                ledger.commit(&records(&synced.batch, *positions));
            }
            Err(error @ (Error::Conflict { .. } | Error::Invalid { .. })) => {
                ledger.report(Invariant::AppendsFit, error.to_string());
            }
            Err(_) => {}
        }
    }

    async fn take(&self, mut batch: Batch) -> Result<Positions, Error> {
        if *self.closed.borrow() {
            return Err(Error::Closed);
        }
        self.process.command().await;
        let scene = &self.process.scene;
        if self.fails() {
            self.process.ledger().counts.failed_appends += 1;
            if scene.store.per_mille(500) {
                scene.disk().refuse(batch);
            }
            return Err(Error::Unavailable { what: "the disk is full".to_owned() });
        }
        if scene.has(Fault::WrongPosition)
            && scene.store.per_mille(50)
            && let Expected::At(position) = batch.expected
        {
            batch.expected = Expected::At(Position(position.0 + 1));
        }
        if scene.has(Fault::SwappedRecords) {
            swap_records(&mut batch);
        }
        if scene.has(Fault::OtherDecision) {
            drop_what_is_held(&mut batch);
        }
        if scene.has(Fault::LostSpawn) {
            refuse_spawned(&mut batch);
        }
        if scene.has(Fault::FalseRead) {
            falsify_reads(&mut batch);
        }
        if scene.has(Fault::LostDisarm) {
            undisarmed::follow(self, &batch);
        }
        let (reply, answer) = oneshot::channel();
        let early = scene.disk().give(batch, reply);
        self.given.notify_one();
        if scene.has(Fault::EarlyAnswer) && scene.store.per_mille(100) {
            return Ok(early);
        }
        let answer = answer.await.unwrap_or(Err(Error::Closed));
        self.process.command().await;
        answer
    }

    fn fails(&self) -> bool {
        let scene = &self.process.scene;
        if self.process.is_calm() {
            return false;
        }
        scene.disk().is_failing(self.process.now_ms())
            || scene.store.per_mille(scene.plan.failing_appends)
    }

    pub(crate) const fn process(&self) -> &Process {
        &self.process
    }

    /// Gives the disk a batch without waiting for the result.
    pub(crate) fn slip_in(&self, batch: Batch) {
        let (reply, _unread) = oneshot::channel();
        self.process.scene.disk().give(batch, reply);
        self.given.notify_one();
    }

    /// A point where the process may crash before a read, or the read may fail.
    async fn begin_read(&self) -> Result<(), Error> {
        self.process.command().await;
        let scene = &self.process.scene;
        if *self.closed.borrow() {
            return Err(Error::Closed);
        }
        if !self.process.is_calm() && scene.store.per_mille(scene.plan.failing_reads) {
            return Err(Error::Unavailable { what: "the disk cannot be read".to_owned() });
        }
        Ok(())
    }

    /// Whether a fault hides this entity from a process that starts again.
    fn forgets(&self, name: &EntityRef) -> bool {
        if !self.is_second || !self.process.scene.has(Fault::LostTimer) {
            return false;
        }
        let ledger = self.process.scene.ledger();
        let Some(entity) = ledger.entity(name) else { return false };
        let timer = ledger.spec_of(entity).and_then(|spec| entity.idle_timer(spec));
        timer.is_some() && name.id().len().is_multiple_of(2)
    }
}

/// Swaps the first two adjacent records that the journal accepts in either order, because neither
/// changes the entity's sequence.
fn swap_records(batch: &mut Batch) {
    let moves = |event: &Event| matches!(event, Event::Transition { .. } | Event::Created { .. });
    let pairs = batch.records.windows(2);
    let at = pairs.map(|pair| pair.iter().any(|(_, event)| moves(event))).position(|moves| !moves);
    if let Some(at) = at {
        batch.records.swap(at, at + 1);
    }
}

fn drop_what_is_held(batch: &mut Batch) {
    for (_, event) in &mut batch.records {
        if let Event::Ended(ended) = event
            && ended.decision == Decision::Held
        {
            ended.decision = Decision::Dropped;
        }
    }
}

fn refuse_spawned(batch: &mut Batch) {
    for (_, event) in &mut batch.records {
        if let Event::Spawned { spawned_at, index, entity, .. } = event {
            let (spawned_at, index, entity) = (*spawned_at, *index, entity.clone());
            let reason = SpawnObstacle::Exists;
            *event = Event::SpawnRefused { spawned_at, index, entity, reason };
        }
    }
}

/// Replaces the states that requested actions have read by one that no entity is ever in.
fn falsify_reads(batch: &mut Batch) {
    for (_, event) in &mut batch.records {
        if let Event::Transition { observed, .. } = event {
            let states = observed.iter_mut().filter_map(|one| one.state.as_mut());
            states.for_each(|state| "Nowhere".clone_into(state));
        }
    }
}

impl Around for Store {
    fn inner(&self) -> &dyn Journal {
        &*self.journal
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(self.take(batch))
    }

    fn read(&self, from: Position, limit: usize) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            self.journal.read(from, limit).await
        })
    }

    fn read_entity(
        &self,
        entity: EntityRef,
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<Page, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            if self.forgets(&entity) {
                return Ok(Page::default());
            }
            self.journal.read_entity(entity, from, limit).await
        })
    }

    fn read_kinds(
        &self,
        kinds: &'static [&'static str],
        from: Position,
        limit: usize,
    ) -> Pending<'_, Result<OfKinds, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            self.journal.read_kinds(kinds, from, limit).await
        })
    }

    fn read_by_entity(
        &self,
        after: Option<Place>,
        limit: usize,
    ) -> Pending<'_, Result<ByEntity, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            self.journal.read_by_entity(after, limit).await
        })
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Pending<'_, Result<Selected, Error>> {
        Box::pin(async move {
            let is_due = matches!(which, Select::Due { .. });
            let mut page = self.journal.select(which, after, limit).await?;
            page.entries.retain(|entry| !(is_due && self.forgets(&entry.entity)));
            Ok(page)
        })
    }

    fn find_dispatch(
        &self,
        dispatch: DispatchId,
    ) -> Pending<'_, Result<Option<(EntityRef, Position)>, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            self.journal.find_dispatch(dispatch).await
        })
    }

    fn snapshot(&self, entity: EntityRef) -> Pending<'_, Result<Option<Snapshot>, Error>> {
        Box::pin(async move {
            self.begin_read().await?;
            self.journal.snapshot(entity).await
        })
    }

    fn health(&self) -> Health {
        if *self.closed.borrow() { Health::Closed } else { Health::Working }
    }

    fn close(&self) -> Pending<'_, ()> {
        Box::pin(async move {
            self.closed.send_replace(true);
        })
    }
}
