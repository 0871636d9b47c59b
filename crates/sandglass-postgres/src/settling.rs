//! Settling: what became of statements whose outcome is unknown, and whether the database still contains
//! what was acknowledged.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::Partition;

use crate::fault::Fault;
use crate::group::Placed;
use crate::heads::Head;
use crate::limit::pause;
use crate::link::Link;
use crate::shared::Shared;
use crate::takeover::{Found, TAKE_AGAIN, take};
use crate::writer::Writer;

/// The first and the longest pause between two attempts to learn the outcome of a statement.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

impl Writer {
    /// Finds out whether batches are in the journal, for as long as that takes, and answers those that
    /// are, and those whose partitions are lost. Returns the others, which are not in it.
    pub(crate) async fn settle(
        &mut self,
        placed: Vec<Placed>,
        ends: &BTreeMap<Partition, (i64, [u8; 16])>,
        why: &str,
    ) -> Vec<Placed> {
        let Some(found) = self.take_again(ends, why).await else {
            // The process ends; nobody learns whether they are in the journal.
            placed.into_iter().for_each(|one| one.job.answer(Err(Error::Closed)));
            return Vec::new();
        };
        let is_written = |one: &Placed| {
            let end = ends.get(&one.job.partition).map(|(_, checksum)| *checksum);
            let found = found.get(&one.job.partition);
            end.is_some() && found.is_some_and(|found| found.probed == end)
        };
        let (written, others): (Vec<_>, Vec<_>) = placed.into_iter().partition(is_written);
        self.acknowledge(written, ends);
        self.compare(&found);
        let (disowned, others): (Vec<_>, Vec<_>) = others
            .into_iter()
            .partition(|one| self.shared.why_disowned(one.job.partition).is_some());
        for one in disowned {
            let what = self.shared.why_disowned(one.job.partition).unwrap_or_default();
            one.job.answer(Err(Error::Disowned { what }));
        }
        others
    }

    /// Takes the partitions again on a new connection, until that succeeds. What is still on its way to
    /// the server is fenced by that. `None` if the writer is to end.
    pub(crate) async fn take_again(
        &mut self,
        ends: &BTreeMap<Partition, (i64, [u8; 16])>,
        why: &str,
    ) -> Option<BTreeMap<Partition, Found>> {
        self.link = None;
        tracing::warn!(%why, "the outcome of a statement is unknown; taking the partitions again");
        let mut why = why.to_owned();
        let mut length = PAUSES.0;
        loop {
            let probes = self.probes(ends);
            let work = take(&self.shared, TAKE_AGAIN, &probes);
            match self.requests.refuse_during(&why, work).await? {
                Ok((link, found)) => {
                    self.link = Some(link);
                    self.failures.note(&Ok(()), 0);
                    return Some(found);
                }
                Err(fault) => why = fault.what,
            }
            self.failures.note(&Err::<(), _>(Error::Unavailable { what: why.clone() }), 0);
            self.requests.refuse_during(&why, pause(length)).await?;
            length = (length * 2).min(PAUSES.1);
        }
    }

    /// The partitions to take again, and the positions of interest there. They include those that are
    /// disowned and have a statement on its way: only a new epoch shows its outcome for certain.
    fn probes(&self, ends: &BTreeMap<Partition, (i64, [u8; 16])>) -> BTreeMap<Partition, i64> {
        let probe = |partition| ends.get(&partition).map_or(0, |(last, _)| *last);
        let is_held = |partition: &&Partition| self.shared.why_disowned(**partition).is_none();
        let held = self.heads.keys().filter(is_held);
        held.chain(ends.keys()).map(|partition| (*partition, probe(*partition))).collect()
    }

    /// A connection. A new one takes the partitions again, and compares them with what is known here,
    /// because the server may be another one than before.
    pub(crate) async fn connection(&mut self) -> Result<&Link, Fault> {
        if self.link.as_ref().is_none_or(Link::is_closed) {
            self.link = None;
            let probes = self.probes(&BTreeMap::new());
            let (link, found) = take(&self.shared, TAKE_AGAIN, &probes).await?;
            self.link = Some(link);
            self.failures.note(&Ok(()), 0);
            self.compare(&found);
        }
        self.link.as_ref().ok_or_else(Fault::no_connection)
    }

    /// Reconnects if the connection was lost and this process holds partitions, or may have to report losses
    /// in some that it gave up. A failure has no effect, because the next statement tries again.
    pub(crate) async fn check_connection(&mut self) {
        if !self.heads.is_empty() || self.shared.all_acknowledged().next().is_some() {
            let failed = self.connection().await.err();
            if let Some(fault) = failed {
                self.failures.note(&Err::<(), _>(fault.unavailable()), 0);
            }
        }
    }

    /// Compares what the database contains with what was acknowledged, and gives up the partitions that
    /// another process took or that lost records.
    pub(crate) fn compare(&mut self, found: &BTreeMap<Partition, Found>) {
        let (mut taken, mut owner) = (Vec::new(), None);
        for (partition, found) in found {
            if self.shared.why_disowned(*partition).is_some() {
                self.compare_former(*partition, found);
                continue;
            }
            let Some(head) = self.heads.get_mut(partition) else { continue };
            if let Some(what) = flaw(&self.shared, *partition, *head, found) {
                if found.is_owned {
                    self.shared.disown(*partition, what);
                } else {
                    owner = owner.or(found.owner.as_deref());
                    taken.push((*partition, what));
                }
            } else {
                *head = Head { epoch: found.head.epoch, ..*head };
            }
        }
        self.shared.disown_taken(taken, owner);
    }

    /// Counts what is lost of a partition that this process does not own any more: a failover may have lost the
    /// claim, too, and a beat has shown that before. Damaged partitions are not counted again. What other
    /// processes have appended was not acknowledged to this one.
    fn compare_former(&self, partition: Partition, found: &Found) {
        let acknowledged = self.shared.last_acknowledged(partition);
        let head = self.heads.get(&partition).filter(|head| head.last == acknowledged);
        let own = head.and_then(|head| head.checksum);
        // The next owner may have appended as much as was lost.
        let is_replaced = found.probe == acknowledged
            && matches!((own, found.probed), (Some(own), Some(other)) if own != other);
        let last = if is_replaced { acknowledged - 1 } else { found.head.last };
        if last < acknowledged && !self.shared.is_damaged(partition) {
            self.shared.count_lost(partition, last);
        }
    }
}

/// Why a partition cannot be appended to any more; `None` if it can.
fn flaw(shared: &Shared, partition: Partition, head: Head, found: &Found) -> Option<String> {
    let place = shared.connector.place();
    let lost = head.last.saturating_sub(found.head.last);
    if !found.is_owned && lost > 0 {
        // A failover may have lost the claim of this process, too, with what it has appended since.
        shared.count_lost(partition, found.head.last);
    }
    if !found.is_owned && shared.is_member() {
        return Some(format!("another host owns partition {partition} of {place} now"));
    }
    if !found.is_owned {
        return Some(format!(
            "another process owns partition {partition} of {place} now: this one appends nothing to \
             it again; restart it only to take the partition back"
        ));
    }
    if lost > 0 {
        let count = u64::try_from(lost).unwrap_or(u64::MAX);
        shared.counters.lost.fetch_add(count, Ordering::Relaxed);
        let advice = if shared.is_member() {
            "The partition is read again and continues without them"
        } else {
            "Nothing is written over the gap. Restore the records, or restart to continue without them"
        };
        return Some(format!(
            "{place} has lost {lost} records of partition {partition} that were acknowledged \
             (positions {} to {}), probably by a failover to a standby that was behind. {advice}",
            found.head.last + 1,
            head.last
        ));
    }
    let is_same = head.checksum.is_none() || found.head.checksum == head.checksum;
    if found.head.last > head.last || !is_same {
        return Some(format!(
            "{place} contains records at the end of partition {partition} that its owner did not \
             write, so the tables were changed by hand: run `sandglass journal check`, and restore the \
             database from a backup"
        ));
    }
    None
}
