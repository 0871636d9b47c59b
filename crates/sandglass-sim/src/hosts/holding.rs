//! How one process gets and gives away partitions, by statements as in `sandglass-postgres`.

use std::sync::Arc;

use sandglass_model::{HostId, Partition};

use super::database::Found;
use super::link::{Fate, STATEMENT_LIMIT};
use super::process::Host;
use crate::scene::lock;

impl Host {
    /// Claims partitions; returns those that can be appended to from now on.
    pub(crate) async fn claim(
        self: &Arc<Self>,
        me: HostId,
        wanted: Vec<(Partition, u64)>,
    ) -> Vec<Partition> {
        for (partition, _) in &wanted {
            let lane = &self.lanes[partition.index()];
            // Behind what is on its way.
            let _turn = lane.turn.lock().await;
            *lock(&lane.head) = None;
            lane.give_up("this host is about to claim the partition");
        }
        let claiming = self.statement(STATEMENT_LIMIT, move |sim, database| {
            let before: Vec<_> = wanted.iter().map(|(it, _)| database.row(*it).owner).collect();
            let obtained = database.claim(me, &wanted);
            sim.ledger().note_claims(me, &wanted, &before, &obtained);
            (obtained, database.timeline)
        });
        let Ok((obtained, timeline)) = claiming.await else { return Vec::new() };
        if self.id() != me {
            return Vec::new();
        }
        obtained.iter().for_each(|(partition, found)| self.hold(*partition, *found, timeline));
        obtained.into_iter().map(|(partition, _)| partition).collect()
    }

    fn hold(&self, partition: Partition, found: Found, timeline: u32) {
        let lane = &self.lanes[partition.index()];
        let acknowledged = *lock(&lane.acknowledged);
        if found.last < acknowledged {
            self.note_loss(partition, acknowledged, found.last);
        }
        *lock(&lane.acknowledged) = found.last;
        lane.hold(found, timeline);
    }

    /// Returns whether the partition was given away.
    pub(crate) async fn release(self: &Arc<Self>, partition: Partition) -> bool {
        let lane = &self.lanes[partition.index()];
        let _turn = lane.turn.lock().await;
        let Some(head) = *lock(&lane.head) else { return false };
        if lock(&lane.why).is_some() {
            return false;
        }
        if self.is_connection_lost(partition) {
            self.renew_connection(partition).await;
            return false;
        }
        let (me, life) = (self.id(), self.life);
        let releasing = self.statement(STATEMENT_LIMIT, move |sim, database| {
            let is_given = database.release(me, partition, head.epoch);
            if is_given {
                sim.ledger().check_release(life, partition);
            }
            is_given
        });
        let is_given = match releasing.await {
            Ok(is_given) => is_given,
            Err(Fate::Refused) => return false,
            Err(Fate::Unknown) => {
                // With another epoch, the statement is over or has no effect any more.
                let found = self.take_again(partition).await;
                self.compare(partition, found);
                !found.is_owned
            }
        };
        if is_given {
            *lock(&lane.head) = None;
            lane.give_up("this host has given the partition away");
        }
        is_given
    }

    /// Enters again under a new id; false if it has to be tried again.
    pub(crate) async fn rejoin(self: &Arc<Self>) -> bool {
        for lane in &self.lanes {
            let _turn = lane.turn.lock().await;
            *lock(&lane.head) = None;
        }
        let was_draining = {
            let (known, me) = (self.known(), self.id());
            known.membership.host(me).is_some_and(|member| member.is_draining)
        };
        self.renew_id();
        self.join(was_draining).await.is_ok()
    }
}
