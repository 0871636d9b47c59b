//! Taking partitions: claims, and the recovery of their entities.

use std::sync::Arc;

use sandglass_journal::{Error, Health};
use sandglass_model::{Monotonic, Partition};
use sandglass_runtime::BuildError;

use super::{ADOPT_AGAIN, Event, Unreadable, Worker};
use crate::measure;

impl Worker {
    /// Adopts what this process holds and does not serve: its entities could not be recovered, or it was
    /// lost and claimed again while it was being adopted or brought to rest.
    pub(super) fn adopt_held(&mut self) {
        let now = self.shared.lease.now();
        let is_due = |partition: &Partition| {
            self.unreadable.get(partition).is_none_or(|one| one.until <= now)
        };
        let held: Vec<Partition> = self.tenure.held_partitions().filter(is_due).collect();
        for partition in held {
            if !self.shared.runtime.serves(partition) {
                self.adopt(partition, now);
            }
        }
    }

    /// Loses partitions whose records the database has lost, so that they are claimed again with what is
    /// there. Others are lost when an append is refused.
    pub(super) fn lose_damaged(&mut self) {
        let is_damaged = |partition: &Partition| {
            let health = self.shared.database.journal(*partition).health();
            matches!(health, Health::Disowned { .. })
        };
        let damaged: Vec<Partition> = self.tenure.held_partitions().filter(is_damaged).collect();
        damaged.into_iter().for_each(|partition| self.lose(partition));
    }

    /// A claim has ended.
    pub(super) fn take_claimed(
        &mut self,
        wanted: &[(Partition, u64)],
        decided: Monotonic,
        obtained: Result<Vec<Partition>, Error>,
    ) {
        let obtained = obtained.unwrap_or_else(|error| {
            tracing::warn!(%error, "partitions could not be taken; it is tried again");
            Vec::new()
        });
        self.tenure.on_claim(&obtained, self.shared.lease.now());
        self.epochs.extend(wanted.iter().map(|(it, seen)| (*it, seen.saturating_add(1))));
        let state = Arc::clone(&self.shared.state.borrow());
        for partition in obtained {
            let reason = measure::claim_reason(&state, partition);
            self.shared.metrics.partition_claimed(reason);
            // Nothing is left from before, when another host may have been the owner.
            self.shared.runtime.lose(partition);
            self.adopt(partition, decided);
        }
    }

    /// Recovers the entities of a partition that this process owns since it `decided` to claim it.
    pub(super) fn adopt(&mut self, partition: Partition, decided: Monotonic) {
        if self.changing.insert(partition) {
            let runtime = self.shared.runtime.clone();
            self.events.spawn(async move {
                let adopted = runtime.adopt(partition).await;
                Event::Adopted { partition, decided, adopted }
            });
        }
    }

    /// Returns whether the partition is held and served now.
    pub(super) fn take_adopted(
        &mut self,
        partition: Partition,
        decided: Monotonic,
        adopted: Result<(), BuildError>,
    ) -> bool {
        let is_held = self.tenure.held_partitions().any(|held| held == partition);
        let former = self.unreadable.remove(&partition);
        match adopted {
            Ok(()) if is_held => {
                let time = self.shared.lease.now().since(decided);
                self.shared.metrics.partition_taken_over(time);
                true
            }
            // It was lost meanwhile.
            Ok(()) => {
                self.shared.runtime.lose(partition);
                false
            }
            Err(BuildError::Lost(_)) => {
                // If it was claimed again since, the next beat adopts it.
                self.again |= is_held;
                false
            }
            Err(error) => {
                let pause = former.map_or(ADOPT_AGAIN.0, |one| (one.pause * 2).min(ADOPT_AGAIN.1));
                // Mostly, only the connection was lost.
                if former.is_none() {
                    tracing::warn!(%partition, %error, "a partition could not be read; it is tried again");
                } else {
                    tracing::error!(
                        %partition,
                        %error,
                        "the entities of a partition cannot be recovered; it is tried again"
                    );
                }
                let until = self.shared.lease.now().after(pause);
                self.unreadable.insert(partition, Unreadable { until, pause });
                false
            }
        }
    }
}
