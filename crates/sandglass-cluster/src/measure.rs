//! What a member reports as metrics of who serves what. [`Metrics`] has the rest, one method for each event.

use sandglass_model::{Membership, Ownership, Partition};
use sandglass_telemetry::Metrics;
use sandglass_telemetry::metrics::ClaimReason;

use crate::cluster::ClusterState;

/// Reports how many hosts there are, and how many partitions are served here, and nowhere. `is_served` is
/// whether this process serves a partition.
pub(crate) fn report(
    state: &ClusterState,
    is_served: impl Fn(Partition) -> bool,
    metrics: &Metrics,
) {
    let hosts = state.membership.hosts.iter().filter(|member| member.is_in_cluster());
    metrics.cluster_hosts(hosts.count());
    let served = Partition::all().filter(|partition| is_served(*partition)).count();
    let is_unserved = |of: &&Ownership| {
        let is_ours = of.owner == Some(state.me);
        !is_served(of.partition) && (is_ours || is_free(&state.membership, of))
    };
    let unserved = state.membership.partitions.iter().filter(is_unserved).count();
    metrics.cluster_partitions(served, unserved);
}

/// Why this process could claim `partition`, by what it knew before.
pub(crate) fn claim_reason(state: &ClusterState, partition: Partition) -> ClaimReason {
    let mut partitions = state.membership.partitions.iter();
    match partitions.find(|of| of.partition == partition).and_then(|of| of.owner) {
        None => ClaimReason::Free,
        Some(owner) if owner == state.me => ClaimReason::Again,
        Some(_) => ClaimReason::DeadOwner,
    }
}

/// Whether a partition has no owner, or a dead one.
fn is_free(membership: &Membership, of: &Ownership) -> bool {
    of.owner.is_none_or(|owner| membership.host(owner).is_none_or(|owner| owner.is_dead))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use sandglass_model::{Agreement, DeploymentStatus, HostId, Member};
    use sandglass_telemetry::Prefix;
    use sandglass_telemetry::prometheus::Exporter;

    use super::*;
    use crate::routes::Routes;

    const ME: HostId = HostId::from_bytes([1; 16]);
    const PEER: HostId = HostId::from_bytes([2; 16]);
    const DEAD: HostId = HostId::from_bytes([3; 16]);
    const GONE: HostId = HostId::from_bytes([4; 16]);

    fn member(host: HostId) -> Member {
        Member {
            host,
            name: "a machine".to_owned(),
            url: Some(format!("http://{host}")),
            version: "1".to_owned(),
            reads_format: 1,
            is_draining: false,
            beats: 1,
            ttl: None,
            is_dead: host == DEAD,
            deployed: DeploymentStatus::default(),
        }
    }

    /// What is known if the first partitions have these owners, and there are no others.
    fn owned_by(owners: &[Option<HostId>]) -> ClusterState {
        let owned = Partition::all().zip(owners);
        let partitions = owned.map(|(partition, &owner)| Ownership { partition, epoch: 1, owner });
        let hosts = vec![member(ME), member(PEER), member(DEAD)];
        ClusterState {
            me: ME,
            membership: Membership {
                hosts,
                partitions: partitions.collect(),
                agreed: Agreement::default(),
            },
            last_seen: BTreeMap::new(),
            contacts: BTreeMap::new(),
            routes: Routes::new(ME),
            held: 0,
        }
    }

    #[test]
    fn what_no_live_host_owns_and_what_this_one_does_not_serve_is_unserved() {
        let exporter = Exporter::new(Prefix::default());
        let metrics = exporter.metrics();
        let state = owned_by(&[Some(ME), Some(ME), Some(PEER), Some(DEAD), Some(GONE), None, None]);
        // The first is served, and the last was claimed after the membership was read.
        report(&state, |partition| [0, 6].contains(&partition.index()), &metrics);
        let text = exporter.render();
        for line in [
            "temper_cluster_hosts 2",
            "temper_cluster_partitions 2",
            "temper_cluster_partitions_unserved 4",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn a_claim_is_reported_with_the_owner_that_was_known_before() {
        let state = owned_by(&[None, Some(ME), Some(DEAD), Some(GONE)]);
        let reasons = Partition::all().map(|partition| claim_reason(&state, partition)).take(4);
        let reasons: Vec<ClaimReason> = reasons.collect();
        let (free, again, dead) = (ClaimReason::Free, ClaimReason::Again, ClaimReason::DeadOwner);
        assert_eq!(reasons, [free, again, dead, dead]);
    }
}
