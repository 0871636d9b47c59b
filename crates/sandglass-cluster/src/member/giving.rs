//! Giving partitions away, and losing them.

use std::sync::Arc;

use sandglass_model::{Monotonic, Partition};

use super::Worker;
use crate::cluster::CHANGE_LIMIT;
use crate::timer::within;

impl Worker {
    /// Gives partitions away whose entities rest, each since a moment.
    pub(super) async fn release(&mut self, quiet: Vec<(Partition, Monotonic)>) {
        let partitions: Vec<Partition> = quiet.iter().map(|(partition, _)| *partition).collect();
        let released = within(CHANGE_LIMIT, self.shared.database.release(&partitions)).await;
        if let Some(Err(error)) = &released {
            tracing::warn!(%error, "partitions could not be given away; it is tried again");
        }
        let given = released.and_then(Result::ok).unwrap_or_default();
        let now = self.shared.lease.now();
        for (partition, since) in &quiet {
            self.changing.remove(partition);
            // Whatever the outcome: what this process still owns, it claims again.
            self.tenure.on_release(*partition, now);
            if given.contains(partition) {
                self.shared.metrics.partition_given_away(now.since(*since));
            }
        }
        tracing::info!(partitions = given.len(), "gave partitions away");
        self.publish(None);
        self.nudge_others(&[]);
        // More may have to move.
        self.again = true;
    }

    /// Another process owns the partition, or will soon.
    pub(super) fn lose(&mut self, partition: Partition) {
        tracing::warn!(%partition, "another host has taken a partition of this one");
        self.tenure.on_loss(partition, self.shared.lease.now());
        // First, so that appends that are under way return.
        self.shared.database.disown(&[partition], "another host has taken it");
        self.shared.runtime.lose(partition);
        self.publish(None);
    }

    /// This process was declared dead. That is final for its id.
    pub(super) async fn rejoin(&mut self) {
        tracing::error!(
            "this host was declared dead, because it was silent for too long; it gives up what it had, \
             and enters again"
        );
        self.shared.lease.expire();
        let all: Vec<Partition> = Partition::all().collect();
        self.shared.database.disown(&all, "this host was declared dead");
        all.into_iter().for_each(|partition| self.shared.runtime.lose(partition));
        match self.shared.database.rejoin().await {
            Ok(me) => {
                self.tenure.on_rejoin(me);
                self.epochs.clear();
                self.shared.metrics.host_rejoined();
                self.shared.state.send_modify(|known| Arc::make_mut(known).me = me);
                self.again = true;
            }
            // The next beat is refused again.
            Err(error) => tracing::warn!(%error, "this host could not enter again"),
        }
        self.publish(None);
    }
}
