//! The other hosts: whether their processes are there, and what they learn of this one.

use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{HostId, Member, Partition};

use super::{Event, REFUSED_AGAIN, Worker};
use crate::peers::Found;
use crate::timer::pause;

impl Worker {
    pub(super) fn take_declared(&mut self, host: HostId, declared: Result<bool, Error>) {
        self.declared.remove(&host);
        match declared {
            Ok(true) => {
                self.shared.metrics.host_declared_dead();
                tracing::warn!(%host, "declared a host dead, because it does not beat any more");
                // Its partitions can be claimed.
                self.again = true;
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, %host, "a host could not be declared dead"),
        }
    }

    /// Checks the addresses of all others.
    pub(super) fn check_others(&mut self) {
        if self.is_fast {
            let state = Arc::clone(&self.shared.state.borrow());
            state.membership.hosts.iter().for_each(|member| self.check(member.host));
        }
    }

    /// Checks which process is at the address of `host`, if it should be there.
    pub(super) fn check(&mut self, host: HostId) {
        self.check_after(host, Duration::ZERO);
    }

    pub(super) fn check_after(&mut self, host: HostId, after: Duration) {
        let state = Arc::clone(&self.shared.state.borrow());
        let member = state.membership.host(host).filter(|member| !member.is_dead);
        let url = member.and_then(|member| member.url.clone());
        if let Some(url) = url.filter(|_| self.is_fast && host != state.me)
            && self.checked.insert(host)
        {
            let peers = self.shared.peers.clone();
            self.events.spawn(async move {
                pause(after).await;
                Event::Found(host, peers.find(&url).await)
            });
        }
    }

    pub(super) async fn found(&mut self, host: HostId, found: Found) {
        self.checked.remove(&host);
        let is_gone = match found {
            Found::Process(process) => process != host,
            Found::Nobody => true,
            Found::NoAnswer => false,
        };
        if !is_gone {
            return;
        }
        match self.tenure.on_refusal(host, self.shared.lease.now()) {
            Some(order) => {
                tracing::warn!(%host, ?found, "the process of a host is gone");
                self.carry_out(order).await;
            }
            // Its beats have not stood still for long enough.
            None => self.check_after(host, REFUSED_AGAIN),
        }
    }

    /// Logs once for each other host that beats with the URL of this one. The former process at this URL
    /// does not beat any more.
    pub(super) fn warn_of_same_url(&mut self) {
        let state = Arc::clone(&self.shared.state.borrow());
        let Some(me) = state.membership.host(state.me) else { return };
        let is_same = |member: &&Member| {
            member.host != me.host && member.is_in_cluster() && member.url == me.url
        };
        self.same_url.retain(|host, _| state.membership.host(*host).is_some());
        for member in state.membership.hosts.iter().filter(is_same) {
            let seen = self.same_url.entry(member.host).or_insert(Some(member.beats));
            if seen.is_some_and(|first| member.beats > first) {
                *seen = None;
                tracing::error!(
                    host = %member.host,
                    name = member.name,
                    url = member.url,
                    "another host advertises the address of this one, so requests for its entities \
                     arrive here: give each host an address of its own"
                );
            }
        }
    }

    /// Reports to the others what this host owns now, or that something has changed.
    pub(super) fn nudge_others(&self, owned: &[Partition]) {
        let state = Arc::clone(&self.shared.state.borrow());
        let epoch = |partition: &Partition| Some((*partition, *self.epochs.get(partition)?));
        let owned: Arc<[_]> = owned.iter().filter_map(epoch).collect();
        for member in &state.membership.hosts {
            let Some(url) = member.url.clone().filter(|_| !member.is_dead) else { continue };
            if member.host == state.me {
                continue;
            }
            let (peers, owned, me) = (self.shared.peers.clone(), Arc::clone(&owned), state.me);
            tokio::spawn(async move { peers.nudge(&url, me, &owned).await });
        }
    }
}
