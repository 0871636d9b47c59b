//! The database that the hosts share, with the statements of `sandglass-postgres`, each of which is
//! executed at one instant: epochs that appends prove, beats, declarations of death, and a failover to a
//! standby that lacks the last transactions.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::FutureExt as _;
use sandglass_journal::{
    Batch, Entry, Error, Journal as _, MemoryJournal, PAGE_MAX_ENTRIES, Positions,
};
use sandglass_model::{
    Agreement, DeploymentStatus, HostId, Member, Membership, Ownership, Partition, Position, Record,
};
use tokio::task::coop::unconstrained;

use crate::disk::records;

/// How many dead rows without partitions are kept.
const DEAD_MAX: usize = 4;

/// The database.
#[derive(Clone)]
pub(crate) struct Database {
    pub(crate) members: BTreeMap<HostId, Member>,
    pub(crate) partitions: Vec<PartitionRow>,
    /// Until when it does not respond, in nanoseconds of true time.
    pub(crate) down_until: u64,
    /// How many failovers there were: connections do not survive them.
    pub(crate) timeline: u32,
}

/// A partition and its log.
#[derive(Clone, Default)]
pub(crate) struct PartitionRow {
    pub(crate) epoch: u64,
    pub(crate) owner: Option<HostId>,
    pub(crate) journal: Arc<MemoryJournal>,
    /// Every batch, with the epoch that it proved.
    pub(crate) batches: Vec<(u64, Batch)>,
}

/// The result of an append.
pub(crate) enum Appended {
    Done(Positions),
    /// The epoch has changed.
    NotOwner,
    /// The batch does not fit.
    Refused(Error),
}

/// A partition as its owner finds it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found {
    pub(crate) is_owned: bool,
    pub(crate) epoch: u64,
    pub(crate) last: Position,
}

impl Database {
    pub(crate) fn new() -> Self {
        let partitions = Partition::all().map(|_| PartitionRow::default()).collect();
        Self { members: BTreeMap::new(), partitions, down_until: 0, timeline: 0 }
    }

    pub(crate) fn row(&self, partition: Partition) -> &PartitionRow {
        &self.partitions[partition.index()]
    }

    pub(crate) fn join(&mut self, host: HostId, url: String, is_draining: bool) {
        let member = Member {
            host,
            name: url.clone(),
            url: Some(url),
            version: String::new(),
            reads_format: 1,
            is_draining,
            beats: 0,
            ttl: None,
            is_dead: false,
            deployed: DeploymentStatus::default(),
        };
        self.members.insert(host, member);
        self.forget();
    }

    pub(crate) fn is_dead(&self, host: HostId) -> bool {
        self.members.get(&host).is_none_or(|member| member.is_dead)
    }

    /// Whether it was counted: not if the host was declared dead.
    pub(crate) fn beat(&mut self, host: HostId) -> bool {
        let member = self.members.get_mut(&host).filter(|member| !member.is_dead);
        member.map(|member| member.beats += 1).is_some()
    }

    pub(crate) fn membership(&self) -> Membership {
        let rows = Partition::all().zip(&self.partitions);
        let partitions = rows.map(|(partition, row)| Ownership {
            partition,
            epoch: row.epoch,
            owner: row.owner,
        });
        Membership {
            hosts: self.members.values().cloned().collect(),
            partitions: partitions.collect(),
            agreed: Agreement::default(),
        }
    }

    /// Returns whether this has declared the host dead.
    pub(crate) fn declare_dead(&mut self, host: HostId, beats: u64) -> bool {
        let member = self.members.get_mut(&host);
        let silent = member.filter(|member| !member.is_dead && member.beats == beats);
        silent.map(|member| member.is_dead = true).is_some()
    }

    pub(crate) fn leave(&mut self, host: HostId) {
        if let Some(member) = self.members.get_mut(&host) {
            member.is_dead = true;
        }
    }

    /// Removes the rows of dead hosts that own nothing, if there are many.
    fn forget(&mut self) {
        let owns = |host| self.partitions.iter().any(|row| row.owner == Some(host));
        let dead = self.members.values().filter(|member| member.is_dead && !owns(member.host));
        let dead: Vec<HostId> = dead.map(|member| member.host).collect();
        if dead.len() > DEAD_MAX {
            for host in dead {
                self.members.remove(&host);
            }
        }
    }

    /// Claims partitions whose epochs are those that were seen.
    pub(crate) fn claim(
        &mut self,
        by: HostId,
        wanted: &[(Partition, u64)],
    ) -> Vec<(Partition, Found)> {
        let mut obtained = Vec::new();
        for &(partition, seen) in wanted {
            let PartitionRow { epoch, owner, .. } = *self.row(partition);
            let is_free = owner.is_none_or(|owner| owner == by || self.is_dead(owner));
            if is_free && epoch == seen && !self.is_dead(by) {
                let row = &mut self.partitions[partition.index()];
                (row.epoch, row.owner) = (epoch + 1, Some(by));
                obtained.push((partition, self.found(by, partition)));
            }
        }
        obtained
    }

    /// Takes partitions again that the host still owns, so that what is on its way has no effect.
    pub(crate) fn take_again(&mut self, by: HostId, partition: Partition) -> Found {
        let row = &mut self.partitions[partition.index()];
        if row.owner == Some(by) {
            row.epoch += 1;
        }
        self.found(by, partition)
    }

    fn found(&self, by: HostId, partition: Partition) -> Found {
        let row = self.row(partition);
        Found { is_owned: row.owner == Some(by), epoch: row.epoch, last: row.last() }
    }

    /// Returns whether the partition was given away.
    pub(crate) fn release(&mut self, by: HostId, partition: Partition, epoch: u64) -> bool {
        let row = &mut self.partitions[partition.index()];
        let is_owned = row.owner == Some(by) && row.epoch == epoch;
        if is_owned {
            (row.epoch, row.owner) = (epoch + 1, None);
        }
        is_owned
    }

    /// Appends a batch if the partition has this epoch; returns its records, too.
    pub(crate) fn append(
        &mut self,
        partition: Partition,
        epoch: u64,
        batch: Batch,
        checks_epoch: bool,
    ) -> (Appended, Vec<Record>) {
        let row = &mut self.partitions[partition.index()];
        if row.epoch != epoch && checks_epoch {
            return (Appended::NotOwner, Vec::new());
        }
        match put(&row.journal, batch.clone()) {
            Ok(positions) => {
                let appended = records(&batch, positions);
                row.batches.push((epoch, batch));
                (Appended::Done(positions), appended)
            }
            Err(error) => (Appended::Refused(error), Vec::new()),
        }
    }

    /// Fails over to a standby that has what `standby` contains. Returns how many records are lost.
    pub(crate) fn fail_over(&mut self, standby: &Self) -> u64 {
        let mut lost = 0;
        let mut rows = Vec::with_capacity(self.partitions.len());
        for (row, then) in self.partitions.iter().zip(&standby.partitions) {
            let mut row = row.clone();
            (row.epoch, row.owner) = (then.epoch, then.owner);
            if row.batches.len() > then.batches.len() {
                let before = row.last().0;
                row.batches.truncate(then.batches.len());
                row.journal = Arc::default();
                for (_, batch) in &row.batches {
                    // It fit behind the same batches before.
                    let _ = put(&row.journal, batch.clone());
                }
                lost += before - row.last().0;
            }
            rows.push(row);
        }
        self.partitions = rows;
        self.members = standby.members.clone();
        self.timeline += 1;
        lost
    }
}

impl PartitionRow {
    /// The last position.
    pub(crate) fn last(&self) -> Position {
        resolve(self.journal.last()).unwrap_or_default()
    }

    /// Whether this batch is at these positions.
    pub(crate) fn contains(&self, batch: &Batch, last: Position) -> bool {
        let count = u64::try_from(batch.records.len()).unwrap_or(u64::MAX);
        let first = Position((last.0 + 1).saturating_sub(count));
        let Ok(page) = resolve(self.journal.read(first, batch.records.len())) else { return false };
        let expected = records(batch, Positions { first, last });
        let is_same = |(entry, record): (&Entry, &Record)| matches!(entry, Entry::Record(found) if found == record);
        page.entries.len() == expected.len() && page.entries.iter().zip(&expected).all(is_same)
    }

    /// All records.
    pub(crate) fn records(&self) -> Vec<Record> {
        let (mut all, mut next) = (Vec::new(), Some(Position(0)));
        while let Some(from) = next {
            let Ok(page) = resolve(self.journal.read(from, PAGE_MAX_ENTRIES)) else { break };
            next = page.next;
            all.extend(page.into_records().unwrap_or_default());
        }
        all
    }
}

/// The result of a call of the journal in memory, which never waits.
pub(crate) fn resolve<T>(call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    // Tokio's cooperative budget could make this future pending.
    unconstrained(call).now_or_never().unwrap_or(Err(Error::Closed))
}

fn put(journal: &MemoryJournal, batch: Batch) -> Result<Positions, Error> {
    resolve(journal.append(batch))
}
