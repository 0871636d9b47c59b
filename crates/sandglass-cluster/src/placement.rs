//! Which host each partition should be on, computed by every host from the same hosts, without a
//! coordinator.

use sandglass_model::{HostId, Partition};
use sha2::{Digest, Sha256};

/// The host of `hosts` that should own `partition`: the one with the highest SHA-256 of its 16
/// bytes and the partition's number (rendezvous hashing). `None` if there are no hosts.
///
/// The order of `hosts` does not matter. A host that is added only takes partitions, a share of
/// each other host's, and a host that is removed only gives its own away.
pub fn home<'a>(
    partition: Partition,
    hosts: impl IntoIterator<Item = &'a HostId>,
) -> Option<&'a HostId> {
    let weight = |host: &HostId| -> [u8; 32] {
        Sha256::new()
            .chain_update(host.as_bytes())
            .chain_update([partition.number()])
            .finalize()
            .into()
    };
    hosts.into_iter().map(|host| (weight(host), host)).max().map(|(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(number: u8) -> Vec<HostId> {
        (0..number).map(|nth| HostId::from_bytes([nth; 16])).collect()
    }

    fn homes(hosts: &[HostId]) -> Vec<HostId> {
        Partition::all().map(|partition| *home(partition, hosts).expect("there is one")).collect()
    }

    #[test]
    fn without_hosts_there_is_no_home() {
        assert_eq!(home(Partition::default(), &[]), None);
    }

    #[test]
    fn the_home_never_changes_between_versions() {
        // All hosts must agree, whatever their version. Computed with Python's hashlib.
        let hosts = hosts(4);
        let numbers: Vec<u8> = homes(&hosts).iter().map(|host| host.as_bytes()[0]).collect();
        assert_eq!(numbers[..16], EXPECTED);
    }

    #[test]
    fn the_order_of_hosts_does_not_matter() {
        let mut hosts = hosts(5);
        let expected = homes(&hosts);
        hosts.reverse();
        assert_eq!(homes(&hosts), expected);
    }

    #[test]
    fn a_host_that_leaves_moves_only_its_own_partitions() {
        let all = hosts(5);
        let before = homes(&all);
        for gone in 0..5 {
            let mut rest = all.clone();
            let gone = rest.remove(gone);
            for (before, after) in before.iter().zip(homes(&rest)) {
                assert!(*before == after || *before == gone);
            }
        }
    }

    #[test]
    fn each_host_gets_a_share() {
        let homes = homes(&hosts(4));
        for host in hosts(4) {
            let share = homes.iter().filter(|home| **home == host).count();
            assert!((8..=24).contains(&share), "{host} has {share} of 64");
        }
    }

    const EXPECTED: [u8; 16] = [1, 1, 3, 2, 3, 0, 2, 1, 3, 0, 0, 3, 0, 2, 0, 0];
}
