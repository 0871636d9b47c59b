//! Which partitions of the store this process serves. A runtime over one journal serves that one from
//! the start to its end; one over a shared store adopts, releases and loses partitions while it runs.
//!
//! This is changed under the lock of the table only, as the table itself, so that no request reaches an
//! entity whose partition has just gone.

use std::sync::Arc;

use sandglass_model::{EntityRef, Partition};
use tokio::sync::Notify;

use crate::error::ActorError;
use crate::watch;

/// How a partition is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// What was in flight is being recovered. Nobody but the recovery reaches its entities.
    Adopting,
    Open,
    /// It is given away as soon as its entities rest. Only handlers reach them, and callers who wait for those.
    Releasing,
    /// The runtime is shutting down.
    Closing,
    /// It was lost or given away. What is left of its entities must end without a record.
    Gone,
}

/// Who wants to reach an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A new request of a caller.
    Outside,
    /// A handler of this runtime, or a caller who ends handlers or waits for them.
    Inside,
}

/// One period in which this process serves a partition, as tasks see it.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// The index of the journal.
    pub(crate) index: usize,
    phase: watch::Receiver<Phase>,
}

impl Hold {
    /// Whether the period is over. Under the lock of the table, this cannot change.
    pub(crate) fn is_gone(&self) -> bool {
        self.phase() == Phase::Gone
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.phase() == Phase::Releasing
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.phase() == Phase::Closing
    }

    fn phase(&self) -> Phase {
        *self.phase.borrow()
    }

    /// Waits until the phase has changed since this last returned.
    ///
    /// # Errors
    /// It never will.
    pub(crate) async fn changed(&mut self) -> Result<(), watch::Gone> {
        self.phase.changed().await
    }

    /// Waits until the period is over.
    pub(crate) async fn gone(&mut self) {
        while !self.is_gone() && self.changed().await.is_ok() {}
    }
}

/// Which partitions are served, and how many of their entities are awake.
pub(crate) struct Serving {
    /// One for each journal.
    partitions: Vec<Served>,
    /// Whether all are open, so that no name needs to be hashed.
    is_open: bool,
    /// Notified when a partition that is being released may have become quiet.
    quiet: Arc<Notify>,
}

struct Served {
    /// `None` if it is not served.
    phase: Option<watch::Sender<Phase>>,
    awake: usize,
}

impl Serving {
    /// Serves all of `journals` journals from the start, or none.
    pub(crate) fn new(journals: usize, is_served: bool) -> Self {
        let open = || is_served.then(|| watch::Sender::new(Phase::Open));
        let partitions = (0..journals).map(|_| Served { phase: open(), awake: 0 }).collect();
        Self { partitions, is_open: is_served, quiet: Arc::default() }
    }

    /// The index of the journal of `entity`.
    pub(crate) fn index_of(&self, entity: &EntityRef) -> usize {
        if self.partitions.len() == 1 { 0 } else { Partition::of(entity).index() }
    }

    fn phase(&self, index: usize) -> Option<Phase> {
        Some(*self.partitions.get(index)?.phase.as_ref()?.borrow())
    }

    /// Whether `origin` may reach `entity`. This is where it is decided what becomes of an ask, a signal
    /// or a spawn for an entity of another host.
    pub(crate) fn check(&self, entity: &EntityRef, origin: Origin) -> Result<(), ActorError> {
        if self.is_open {
            return Ok(());
        }
        match self.phase(self.index_of(entity)) {
            // A request during a shutdown is refused for that reason.
            Some(Phase::Open | Phase::Closing) => Ok(()),
            Some(Phase::Releasing) if origin == Origin::Inside => Ok(()),
            _ => Err(ActorError::Elsewhere(entity.clone())),
        }
    }

    /// Whether the partition of `entity` is open, or the runtime is shutting down.
    pub(crate) fn is_open(&self, entity: &EntityRef) -> bool {
        self.is_open || self.is_open_at(self.index_of(entity))
    }

    pub(crate) fn is_open_at(&self, index: usize) -> bool {
        matches!(self.phase(index), Some(Phase::Open | Phase::Closing))
    }

    pub(crate) fn is_served(&self, entity: &EntityRef) -> bool {
        self.is_open || self.phase(self.index_of(entity)).is_some()
    }

    /// The present period of the partition of `entity`; `None` if it is not served.
    pub(crate) fn hold(&self, entity: &EntityRef) -> Option<Hold> {
        self.hold_at(self.index_of(entity))
    }

    pub(crate) fn hold_at(&self, index: usize) -> Option<Hold> {
        let phase = self.partitions.get(index)?.phase.as_ref()?.subscribe();
        Some(Hold { index, phase })
    }

    /// The present period of the partition of `entity`, if that is being adopted.
    pub(crate) fn adopting(&self, entity: &EntityRef) -> Option<Hold> {
        if self.is_open {
            return None;
        }
        let index = self.index_of(entity);
        self.hold_at(index).filter(|_| self.phase(index) == Some(Phase::Adopting))
    }

    /// The periods of all partitions that are served.
    pub(crate) fn holds(&self) -> Vec<Hold> {
        (0..self.partitions.len()).filter_map(|index| self.hold_at(index)).collect()
    }

    /// Begins to serve a partition; `None` if it is served already.
    pub(crate) fn begin(&mut self, index: usize) -> Option<Hold> {
        let served = self.partitions.get_mut(index).filter(|served| served.phase.is_none())?;
        served.phase = Some(watch::Sender::new(Phase::Adopting));
        self.is_open = false;
        self.hold_at(index)
    }

    /// Goes over from one phase to another, unless the partition is in a third one.
    pub(crate) fn go_over(&mut self, hold: &Hold, from: Phase, to: Phase) -> bool {
        if hold.phase() != from {
            return false;
        }
        if let Some(served) = self.partitions.get(hold.index)
            && let Some(phase) = &served.phase
        {
            phase.send_replace(to);
        }
        self.is_open = (0..self.partitions.len()).all(|index| self.is_open_at(index));
        true
    }

    /// The runtime shuts down.
    pub(crate) fn close(&mut self) {
        for hold in self.holds() {
            self.go_over(&hold, hold.phase(), Phase::Closing);
        }
    }

    /// Ends a period; false if it is over already.
    pub(crate) fn end(&mut self, hold: &Hold) -> bool {
        if hold.is_gone() {
            return false;
        }
        let served = self.partitions.get_mut(hold.index);
        if let Some(phase) = served.and_then(|served| served.phase.take()) {
            phase.send_replace(Phase::Gone);
        }
        self.is_open = false;
        self.note_quiet();
        true
    }

    pub(crate) fn count_awake(&mut self, index: usize) {
        if let Some(served) = self.partitions.get_mut(index) {
            served.awake += 1;
        }
    }

    pub(crate) fn count_asleep(&mut self, index: usize) {
        if let Some(served) = self.partitions.get_mut(index) {
            served.awake -= 1;
            if served.awake == 0 && !self.is_open {
                self.note_quiet();
            }
        }
    }

    pub(crate) fn has_awake(&self, index: usize) -> bool {
        self.partitions.get(index).is_some_and(|served| served.awake > 0)
    }

    /// A partition that is being released may be quiet now.
    pub(crate) fn note_quiet(&self) {
        self.quiet.notify_waiters();
    }

    /// Is notified when a partition that is being released may be quiet.
    pub(crate) fn quiet(&self) -> Arc<Notify> {
        Arc::clone(&self.quiet)
    }
}
