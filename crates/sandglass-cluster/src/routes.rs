//! Where requests for each partition go: from what was last read from the database, and from newer
//! hints of other hosts. A route may be out of date. That costs a detour and never more: a host
//! that does not own the partition refuses the request.

use std::collections::BTreeMap;

use sandglass_model::{HostId, Membership, Ownership, Partition};

/// Where the requests for a partition go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// This process owns it.
    Here,
    /// Another host owns it.
    At {
        /// The host.
        host: HostId,
        /// Where other hosts reach it.
        url: String,
        /// The epoch of its ownership, as far as it is known.
        epoch: u64,
    },
    /// No host that can be reached owns it: it is between two hosts, its owner is dead, or a
    /// process has it that is not in the cluster.
    Moving,
}

/// The routes of one process.
#[derive(Clone, Debug)]
pub struct Routes {
    me: HostId,
    /// Where hosts that are not dead are reached.
    urls: BTreeMap<HostId, String>,
    owners: BTreeMap<Partition, Known>,
}

/// What is known of the owner of a partition.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    epoch: u64,
    owner: Option<HostId>,
    /// Whether another host said so, and the database was not read since.
    is_hint: bool,
}

impl Routes {
    /// The routes of the process `me`: everything is [`Route::Moving`].
    #[must_use]
    pub const fn new(me: HostId) -> Self {
        Self { me, urls: BTreeMap::new(), owners: BTreeMap::new() }
    }

    /// Takes over what was read from the database. Returns whether that has changed a route. `me`
    /// is the id of this process, which changes if it was declared dead.
    ///
    /// The next read after a hint may have been sent before it, so the hint stays if it is newer.
    /// Later reads count whatever they say: a database may have been restored.
    pub fn read(&mut self, me: HostId, membership: &Membership) -> bool {
        let alive = membership.hosts.iter().filter(|member| !member.is_dead);
        let urls: BTreeMap<HostId, String> =
            alive.filter_map(|member| Some((member.host, member.url.clone()?))).collect();
        let mut has_changed = me != self.me || urls != self.urls;
        (self.me, self.urls) = (me, urls);
        for &Ownership { partition, epoch, owner } in &membership.partitions {
            let known = self.owners.entry(partition).or_default();
            if known.is_hint && known.epoch > epoch {
                known.is_hint = false;
            } else {
                has_changed |= (known.epoch, known.owner) != (epoch, owner);
                *known = Known { epoch, owner, is_hint: false };
            }
        }
        has_changed
    }

    /// Host `from` says that it owns these partitions, with these epochs. What is not newer than
    /// what is known is ignored: with the same epoch, the host may have given the partition away
    /// since. Returns whether that has changed a route.
    pub fn hint(&mut self, from: HostId, owned: &[(Partition, u64)]) -> bool {
        let mut has_changed = false;
        for &(partition, epoch) in owned {
            let known = self.owners.entry(partition).or_default();
            if epoch > known.epoch {
                *known = Known { epoch, owner: Some(from), is_hint: true };
                has_changed = true;
            }
        }
        has_changed
    }

    /// The route to `partition`. `is_served` is whether this process serves it now, which it knows
    /// better than the database.
    #[must_use]
    pub fn route(&self, partition: Partition, is_served: bool) -> Route {
        if is_served {
            return Route::Here;
        }
        let to_peer = || {
            let Known { epoch, owner, .. } = *self.owners.get(&partition)?;
            let host = owner.filter(|owner| *owner != self.me)?;
            Some(Route::At { host, url: self.urls.get(&host)?.clone(), epoch })
        };
        to_peer().unwrap_or(Route::Moving)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sandglass_model::{Agreement, DeploymentStatus, Member};

    const ME: HostId = HostId::from_bytes([1; 16]);
    const PEER: HostId = HostId::from_bytes([2; 16]);
    const OTHER: HostId = HostId::from_bytes([3; 16]);
    const P: Partition = Partition::new(7).expect("a partition");

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
            is_dead: false,
            deployed: DeploymentStatus::default(),
        }
    }

    fn owned_by(owner: Option<HostId>, epoch: u64) -> Membership {
        let hosts = vec![member(ME), member(PEER), member(OTHER)];
        let partitions = vec![Ownership { partition: P, epoch, owner }];
        Membership { hosts, partitions, agreed: Agreement::default() }
    }

    fn at(host: HostId, epoch: u64) -> Route {
        Route::At { host, url: format!("http://{host}"), epoch }
    }

    #[test]
    fn the_database_says_where_requests_go() {
        let mut routes = Routes::new(ME);
        assert_eq!(routes.route(P, false), Route::Moving);
        assert!(routes.read(ME, &owned_by(Some(PEER), 3)));
        assert_eq!(routes.route(P, false), at(PEER, 3));
        assert!(!routes.read(ME, &owned_by(Some(PEER), 3)), "nothing has changed");
        assert!(routes.read(ME, &owned_by(None, 3)));
        assert_eq!(routes.route(P, false), Route::Moving);
    }

    #[test]
    fn what_is_served_is_here_whatever_the_database_said() {
        let mut routes = Routes::new(ME);
        routes.read(ME, &owned_by(Some(PEER), 3));
        assert_eq!(routes.route(P, true), Route::Here);
    }

    #[test]
    fn what_this_process_owns_and_does_not_serve_is_moving() {
        let mut routes = Routes::new(ME);
        routes.read(ME, &owned_by(Some(ME), 3));
        assert_eq!(routes.route(P, false), Route::Moving);
        // After it entered again, its former id is another host.
        assert!(routes.read(OTHER, &owned_by(Some(ME), 3)));
        assert_eq!(routes.route(P, false), at(ME, 3));
    }

    #[test]
    fn a_newer_hint_counts_until_the_database_is_as_new() {
        let mut routes = Routes::new(ME);
        routes.read(ME, &owned_by(Some(PEER), 3));
        assert!(!routes.hint(OTHER, &[(P, 3)]), "not newer than what the database said");
        assert!(!routes.hint(OTHER, &[(P, 2)]));
        assert!(routes.hint(OTHER, &[(P, 4)]));
        assert_eq!(routes.route(P, false), at(OTHER, 4));
        assert!(!routes.read(ME, &owned_by(Some(PEER), 3)), "sent before the hint");
        assert_eq!(routes.route(P, false), at(OTHER, 4));
        assert!(routes.read(ME, &owned_by(None, 4)), "given away since");
        assert_eq!(routes.route(P, false), Route::Moving);
    }

    #[test]
    fn the_database_counts_in_the_end_also_if_it_was_restored() {
        let mut routes = Routes::new(ME);
        routes.hint(OTHER, &[(P, 4)]);
        routes.read(ME, &owned_by(Some(PEER), 3));
        assert!(routes.read(ME, &owned_by(Some(PEER), 3)));
        assert_eq!(routes.route(P, false), at(PEER, 3));
    }

    #[test]
    fn nothing_goes_to_a_host_that_is_dead_unknown_or_without_a_url() {
        let mut routes = Routes::new(ME);
        let mut membership = owned_by(Some(PEER), 3);
        membership.hosts[1].is_dead = true;
        routes.read(ME, &membership);
        assert_eq!(routes.route(P, false), Route::Moving);
        membership.hosts[1] = Member { url: None, ..member(PEER) };
        routes.read(ME, &membership);
        assert_eq!(routes.route(P, false), Route::Moving);
        assert!(routes.hint(HostId::from_bytes([9; 16]), &[(P, 9)]));
        assert_eq!(routes.route(P, false), Route::Moving);
    }
}
