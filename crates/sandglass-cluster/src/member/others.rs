//! The other hosts: whether their processes are there, and what they learn of this one.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{HostId, Member, Partition, Refusal};

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
        let state = Arc::clone(&self.shared.state.borrow());
        state.membership.hosts.iter().for_each(|member| self.check(member.host));
    }

    /// Checks which process is at the address of `host`, if it should be there.
    pub(super) fn check(&mut self, host: HostId) {
        self.check_after(host, Duration::ZERO);
    }

    pub(super) fn check_after(&mut self, host: HostId, after: Duration) {
        let state = Arc::clone(&self.shared.state.borrow());
        let member = state.membership.host(host).filter(|member| !member.is_dead);
        let url = member.and_then(|member| member.url.clone());
        if let Some(url) = url.filter(|_| host != state.me)
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
            Found::Process(process) if process == host => {
                self.note_contact(host, None);
                false
            }
            Found::Process(_) | Found::Nobody => true,
            Found::Refusal(refusal) => {
                self.note_contact(host, Some(refusal));
                false
            }
            Found::NoAnswer => false,
        };
        if !is_gone || !self.is_fast {
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

    /// Keeps whether this host and another one refuse each other, and logs it if that has changed.
    fn note_contact(&self, host: HostId, refusal: Option<Refusal>) {
        self.shared.state.send_if_modified(|known| {
            let before = known.contacts.get(&host).copied();
            if before == Some(refusal) {
                return false;
            }
            let url = known.membership.host(host).and_then(|member| member.url.as_deref());
            match refusal {
                Some(why) => tracing::error!(%host, url, "a host {}", why.message()),
                None if before.is_some() => {
                    tracing::info!(%host, url, "a host and this one accept each other again");
                }
                None => {}
            }
            Arc::make_mut(known).contacts.insert(host, refusal);
            true
        });
    }

    /// Logs once for each other host that it has another TTL.
    pub(super) fn note_other_ttls(&mut self) {
        let state = Arc::clone(&self.shared.state.borrow());
        let is_other = |member: &&Member| {
            member.host != state.me
                && member.is_in_cluster()
                && member.ttl.is_some_and(|ttl| ttl != self.ttl)
        };
        let others: BTreeSet<HostId> =
            state.membership.hosts.iter().filter(is_other).map(|member| member.host).collect();
        for host in others.difference(&self.other_ttl) {
            let ttl = state.membership.host(*host).and_then(|member| member.ttl);
            tracing::warn!(
                %host,
                ?ttl,
                own = ?self.ttl,
                "a host has another `ttl`; of two hosts, the longer one counts, so give all the same one \
                 when they are restarted"
            );
        }
        self.other_ttl = others;
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
