//! Metrics about the cluster: what this host owns, how long changes of owners take, and the requests that it
//! forwards.

use std::time::Duration;

use super::{ClaimReason, ForwardOutcome, Metrics, RequestFailure};

impl Metrics {
    /// The number of hosts that are not declared dead.
    pub fn cluster_hosts(&self, hosts: usize) {
        self.report(|families| families.cluster_hosts.report([], hosts as f64));
    }

    /// This host serves so many partitions, and knows that no host serves `unserved` of them.
    pub fn cluster_partitions(&self, served: usize, unserved: usize) {
        self.report(|families| {
            families.cluster_partitions.report([], served as f64);
            families.cluster_partitions_unserved.report([], unserved as f64);
        });
    }

    /// How long the lease of this host lasts.
    pub fn cluster_lease(&self, remaining: Duration) {
        self.report(|families| {
            families.cluster_lease_remaining.report([], remaining.as_secs_f64());
        });
    }

    /// This host has claimed a partition.
    pub fn partition_claimed(&self, reason: ClaimReason) {
        self.report(|families| families.cluster_claims.count([reason.as_str()]));
    }

    /// A partition accepts requests, `time` after it was decided to claim it.
    pub fn partition_taken_over(&self, time: Duration) {
        self.report(|families| families.cluster_takeover.report([], time.as_secs_f64()));
    }

    /// A partition was given away, `time` after this host stopped to serve it.
    pub fn partition_given_away(&self, time: Duration) {
        self.report(|families| families.cluster_move.report([], time.as_secs_f64()));
    }

    /// This host has declared another one dead.
    pub fn host_declared_dead(&self) {
        self.report(|families| families.cluster_deaths.count([]));
    }

    /// This host was declared dead, and has entered the cluster again.
    pub fn host_rejoined(&self) {
        self.report(|families| families.cluster_rejoins.count([]));
    }

    /// A request was sent to the owner of its entity; its outcome is known after `time`.
    pub fn request_forwarded(&self, outcome: ForwardOutcome, time: Duration) {
        self.report(|families| {
            families.cluster_forwards.count([outcome.as_str()]);
            if outcome == ForwardOutcome::Ok {
                families.cluster_forward.report([], time.as_secs_f64());
            }
        });
    }

    /// A request of a client failed because of the cluster.
    pub fn request_failed_in_cluster(&self, why: RequestFailure) {
        self.report(|families| families.cluster_failures.count([why.as_str()]));
    }
}
