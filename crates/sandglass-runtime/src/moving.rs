//! Partitions come and go while a runtime lives: they are adopted, released when they are quiet, or lost
//! at once.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_journal as journal;
use sandglass_model::{Cause, EntityRef, Partition};
use tokio::sync::Notify;

use crate::actor::LOST;
use crate::builder::{BuildError, Recovery, read_specs, register_missing};
use crate::loading::Round;
use crate::publish::Event;
use crate::runtime::Runtime;
use crate::serving::{Hold, Phase};
use crate::shared::Shared;
use crate::specs::Specs;
use crate::{timer, waking};

/// How long the notes of a partition that is given away may take: the next owner waits for them.
const NOTES_MAX: Duration = Duration::from_secs(1);

/// Partitions that were lost because their journals belong to other hosts, until the embedder has read
/// them: at most all.
#[derive(Debug, Default)]
pub(crate) struct LostPartitions {
    waiting: Mutex<BTreeSet<usize>>,
    added: Notify,
}

impl LostPartitions {
    fn add(&self, index: usize) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(index);
        self.added.notify_one();
    }

    fn remove(&self, index: usize) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&index);
    }

    async fn next(&self) -> usize {
        loop {
            let next = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
            if let Some(next) = next {
                return next;
            }
            self.added.notified().await;
        }
    }
}

impl Runtime {
    /// Serves one more partition of a partitioned store, which this process owns by now: recovers what was
    /// in flight there, loads the timers that fire soon, and then accepts requests for its entities. It
    /// continues if its caller stops waiting. Has no effect if the partition is served already, as by a
    /// runtime over one journal.
    ///
    /// # Errors
    /// As [`Builder::build`](crate::Builder::build), or the partition was lost meanwhile. It is not served
    /// then; handlers that were started again have been killed.
    pub async fn adopt(&self, partition: Partition) -> Result<(), BuildError> {
        if self.index(partition).is_none() {
            return Ok(());
        }
        let runtime = self.clone();
        let adopting = self.0.threads.spawn(async move { runtime.adopt_now(partition).await });
        adopting.await.unwrap_or_else(|_| {
            // It panicked half way.
            self.lose(partition);
            Err(BuildError::Lost(partition))
        })
    }

    /// Gives a partition away without interrupting anything. From now on, requests for its entities are
    /// refused ([`ActorError::Elsewhere`](crate::ActorError::Elsewhere)), except for stops, cancellations and
    /// waiting. Handlers in flight go on, and their asks, spawns and signals work, also for entities
    /// that have to be woken for that. Entities fall asleep as soon as they have nothing to do, also if
    /// they are watched. When all do, the journal notes how they rest, and they are forgotten.
    ///
    /// Returns whether the partition was given away: this process does not write to its journal any more.
    /// If that takes longer than `patience`, it is served again, as if nothing had happened; so it is if
    /// the runtime shuts down. It continues if its caller stops waiting. False if the partition is not
    /// served, as for a runtime over one journal, and if a panic interrupted this, which loses the partition
    /// ([`Runtime::lose`]).
    pub async fn release(&self, partition: Partition, patience: Duration) -> bool {
        let Some(index) = self.index(partition) else { return false };
        let runtime = self.clone();
        let releasing =
            self.0.threads.spawn(async move { runtime.release_at(index, patience).await });
        releasing.await.unwrap_or_else(|_| {
            // It panicked half way.
            self.lose(partition);
            false
        })
    }

    /// Stops serving a partition at once, because another host owns it: its handlers are killed
    /// ([`Cause::OwnershipLost`]), nothing is recorded, and requests are refused
    /// ([`ActorError::Elsewhere`](crate::ActorError::Elsewhere)). Ends of its handlers that arrive
    /// afterwards are dropped. A request whose record is being written gets its result. Has no effect if
    /// the partition is not served, as for a runtime over one journal. [`Runtime::lost_partition`] does not
    /// return the partition for a loss before this.
    pub fn lose(&self, partition: Partition) {
        let Some(index) = self.index(partition) else { return };
        let shared = &self.0.shared;
        if let Some(hold) = shared.table.hold_at(index) {
            shared.lose(&hold);
        }
        shared.lost.remove(index);
    }

    /// Whether requests for entities of the partition are accepted: not while it is adopted or released.
    /// Always true for a runtime over one journal.
    #[must_use]
    pub fn serves(&self, partition: Partition) -> bool {
        let index = self.index(partition).unwrap_or_default();
        self.0.shared.table.lock().serving.is_open_at(index)
    }

    /// Waits for the next partition that was lost because its journal refused a write
    /// ([`journal::Error::Disowned`]), as by [`Runtime::lose`]. Each loss is returned once, to one caller,
    /// unless the partition is adopted again before. `None` if the runtime shuts down.
    pub async fn lost_partition(&self) -> Option<Partition> {
        let mut closing = self.0.closing.subscribe();
        tokio::select! {
            biased;
            index = self.0.shared.lost.next() => Partition::new(u8::try_from(index).ok()?),
            _ = closing.wait_for(|is_closing| *is_closing) => None,
        }
    }

    /// The index of its journal; `None` if the store has only one.
    fn index(&self, partition: Partition) -> Option<usize> {
        self.0.shared.journal.is_partitioned().then(|| partition.index())
    }

    async fn adopt_now(&self, partition: Partition) -> Result<(), BuildError> {
        let (inner, index) = (&self.0, partition.index());
        let lost = || BuildError::Lost(partition);
        let Some(moving) = inner.moving.get(index) else { return Err(lost()) };
        let _one_at_a_time = moving.lock().await;
        let hold = {
            let mut entities = inner.shared.table.lock();
            if *inner.closing.borrow() {
                return Err(journal::Error::Closed.into());
            }
            let hold = entities.serving.begin(index);
            // A loss before this period must not end it.
            inner.shared.lost.remove(index);
            hold
        };
        let Some(hold) = hold else { return Ok(()) };
        let adopted = async {
            self.share_specs(index).await?;
            Recovery::of(self, Some(index)).run().await
        };
        let error = match adopted.await {
            Ok(round) => {
                if self.open(&hold, Phase::Adopting, Some(round)) {
                    return Ok(());
                }
                lost()
            }
            Err(_) if hold.is_gone() => lost(),
            Err(error) => error,
        };
        // A shutdown ends what was started by now, and records that.
        if !hold.is_closing() {
            inner.shared.lose(&hold);
        }
        Err(error)
    }

    /// Adds the specs of a journal to those of the runtime, and records there those that it lacks.
    async fn share_specs(&self, index: usize) -> Result<(), BuildError> {
        let (inner, shared) = (&self.0, &self.0.shared);
        let Some(journal) = shared.journal.all().get(index) else { return Ok(()) };
        let recorded = read_specs(&**journal, &shared.specs().types).await?;
        // What a reload has recorded there meanwhile is recorded twice.
        let _one_at_a_time = inner.reloading.lock().await;
        let present = shared.specs();
        let is_new = |(digest, _): &(&_, &_)| !present.known.contains_key(*digest);
        let new: Vec<_> = recorded.iter().filter(is_new).collect();
        if !new.is_empty() {
            let mut known = present.known.clone();
            known.extend(new.into_iter().map(|(digest, spec)| (*digest, Arc::clone(spec))));
            let types = Arc::clone(&present.types);
            shared.specs.send_replace(Arc::new(Specs { types, known }));
        }
        register_missing(shared, &**journal, &recorded).await
    }

    /// Opens a partition that is in the phase `from`. `round` is what is left to be loaded.
    fn open(&self, hold: &Hold, from: Phase, round: Option<Round>) -> bool {
        let (inner, shared) = (&self.0, &self.0.shared);
        let mut entities = shared.table.lock();
        if !entities.serving.go_over(hold, from, Phase::Open) {
            return false;
        }
        let closing = || inner.closing.subscribe();
        if let Some(mut round) = round {
            let (shared, mut closing) = (Arc::clone(shared), closing());
            inner.spawn(async move {
                tokio::select! {
                    biased;
                    _ = closing.changed() => {}
                    () = round.load_rest(&shared) => {}
                }
            });
        }
        let (weak, specs) = (Arc::downgrade(inner), shared.specs());
        let of = Some(hold.index);
        inner.spawn(waking::wake_outdated(Arc::clone(shared), weak, specs, of, closing()));
        true
    }

    async fn release_at(&self, index: usize, patience: Duration) -> bool {
        let (inner, shared) = (&self.0, &self.0.shared);
        let over = shared.clock.now().after(patience);
        let Some(moving) = inner.moving.get(index) else { return false };
        let _one_at_a_time = moving.lock().await;
        let mut closing = inner.closing.subscribe();
        let hold = {
            let mut entities = shared.table.lock();
            let hold = entities.serving.hold_at(index);
            hold.filter(|hold| entities.serving.go_over(hold, Phase::Open, Phase::Releasing))
        };
        let Some(hold) = hold else { return false };
        let is_given_away = tokio::select! {
            biased;
            is_given_away = shared.table.give_away(&hold) => is_given_away,
            _ = closing.wait_for(|is_closing| *is_closing) => false,
            () = timer::until(&*shared.clock, over) => false,
        };
        if !is_given_away {
            self.open(&hold, Phase::Releasing, None);
            return false;
        }
        let over = shared.clock.now().after(NOTES_MAX);
        tokio::select! {
            biased;
            () = shared.write_rests_of(index) => {}
            () = timer::until(&*shared.clock, over) => {}
        }
        shared.forget(index);
        shared.publish_unserved(index);
        true
    }
}

impl Shared {
    /// The indexes of the journals of all partitions that are served, or of `of`, if that is.
    pub(crate) fn served(&self, of: Option<usize>) -> Vec<usize> {
        let mut served = self.table.served();
        served.retain(|index| of.is_none_or(|of| of == *index));
        served
    }

    /// Waits until what was in flight in the partition of `entity` is recovered, if that is happening.
    pub(crate) async fn wait_until_adopted(&self, entity: &EntityRef) {
        let adopting = || self.table.lock().serving.adopting(entity);
        while let Some(mut hold) = adopting() {
            if hold.changed().await.is_err() {
                return;
            }
        }
    }

    /// As [`Runtime::lose`], because the journal belongs to another host.
    pub(crate) fn lose_disowned(&self, hold: &Hold) {
        let partition = hold.index;
        if self.lose_and(hold, || self.lost.add(partition)) {
            tracing::error!(partition, "another host owns a partition; its entities are given up");
        }
    }

    /// Ends the period `hold`. False if it is over already.
    pub(crate) fn lose(&self, hold: &Hold) -> bool {
        self.lose_and(hold, || {})
    }

    /// As [`Shared::lose`]. `note` is called under the lock of the table, so that the next period of the
    /// partition begins after it.
    fn lose_and(&self, hold: &Hold, note: impl FnOnce()) -> bool {
        let (awake, _asleep) = {
            let mut entities = self.table.lock();
            if !entities.serving.end(hold) {
                return false;
            }
            note();
            self.forget(hold.index);
            entities.take_partition(hold.index)
        };
        for (entity, handle) in awake {
            handle.move_away(&entity);
            handle.stops.kill(None, Cause::OwnershipLost, LOST);
        }
        self.publish_unserved(hold.index);
        true
    }

    /// Publishes that a partition is not served any more. A runtime over one journal has none.
    fn publish_unserved(&self, index: usize) {
        let partition = u8::try_from(index).ok().and_then(Partition::new);
        if let Some(partition) = partition.filter(|_| self.journal.is_partitioned()) {
            self.publish(Event::Unserved(partition));
        }
    }

    /// Forgets what is in memory of the entities of a partition, besides the table.
    fn forget(&self, index: usize) {
        let is_of = |entity: &EntityRef| self.journal.index_of(entity) == index;
        self.rests.take_of(is_of);
        self.conversations.forget(is_of);
    }
}
