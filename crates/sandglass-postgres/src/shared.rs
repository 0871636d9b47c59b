//! What the writer, the readers and the journals of one database share.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sandglass_journal::store::{Failing, printable};
use sandglass_journal::{Error, Health};
use sandglass_model::{DeploymentStatus, HostId, Partition};

use crate::blobs::{Sweep, Uploads};
use crate::hosts::Heart;
use crate::link::Connector;
use crate::membership::UnreadableRows;
use crate::pruning::{BeingRemoved, Pruner};
use crate::reader::Reader;
use crate::settings::Settings;
use crate::skew::Skew;
use crate::tenure::Claimer;

pub(crate) struct Shared {
    pub(crate) connector: Connector,
    pub(crate) settings: Settings,
    pub(crate) reader: Reader,
    /// The id of this process in the table of hosts.
    host: Mutex<HostId>,
    /// Where other members of the cluster reach this process; `None` if it is not a member.
    pub(crate) url: Option<String>,
    /// What this process runs, as its beats report.
    deployed: Mutex<DeploymentStatus>,
    pub(crate) heart: Heart,
    pub(crate) pruner: Pruner,
    pub(crate) claimer: Claimer,
    /// The entities that are being removed.
    pub(crate) being_removed: BeingRemoved,
    partitions: Vec<Status>,
    pub(crate) failing: Failing,
    /// Whether the last beat reached the database.
    pub(crate) reachable: Reachable,
    pub(crate) unreadable: UnreadableRows,
    /// Whether another process has taken partitions.
    pub(crate) is_taken: AtomicBool,
    pub(crate) skew: Skew,
    pub(crate) counters: Counters,
    pub(crate) uploads: Uploads,
    pub(crate) sweep: tokio::sync::Mutex<Sweep>,
}

/// Why the database does not respond, if it does not.
#[derive(Debug, Default)]
pub(crate) struct Reachable(Mutex<Option<String>>);

impl Reachable {
    pub(crate) fn note(&self, why: Option<String>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = why;
    }

    fn why(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// What callers see of a partition.
#[derive(Debug, Default)]
struct Status {
    /// The last position that an append returned, or that was there when this process got the partition.
    acknowledged: AtomicI64,
    holder: Mutex<Holder>,
    is_closed: AtomicBool,
}

/// Who appends to a partition, as far as this process knows.
#[derive(Clone, Debug, Default)]
enum Holder {
    /// This process.
    #[default]
    This,
    /// Another process or none, and why not this one.
    Another(String),
    /// None, because acknowledged records are gone or were changed by hand.
    Damaged(String),
}

/// What has happened since the database was opened.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) statements: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) unknown: AtomicU64,
    pub(crate) lost: AtomicU64,
}

impl Shared {
    pub(crate) fn new(
        connector: Connector,
        settings: Settings,
        reader: Reader,
        host: HostId,
        url: Option<String>,
    ) -> Self {
        let partitions = Partition::all().map(|_| Status::default()).collect();
        let sweep = tokio::sync::Mutex::new(Sweep::new(settings.orphans_kept));
        Self {
            connector,
            settings,
            reader,
            host: Mutex::new(host),
            url,
            deployed: Mutex::default(),
            heart: Heart::default(),
            pruner: Pruner::default(),
            claimer: Claimer::default(),
            being_removed: BeingRemoved::default(),
            partitions,
            failing: Default::default(),
            reachable: Reachable::default(),
            unreadable: UnreadableRows::default(),
            is_taken: AtomicBool::new(false),
            skew: Skew::default(),
            counters: Counters::default(),
            uploads: Uploads::default(),
            sweep,
        }
    }

    /// Partition numbers are below their count, of which there is a status each.
    fn status(&self, partition: Partition) -> &Status {
        &self.partitions[usize::from(partition.number())]
    }

    pub(crate) fn last_acknowledged(&self, partition: Partition) -> i64 {
        self.status(partition).acknowledged.load(Ordering::Acquire)
    }

    /// The last position of each partition in which something was acknowledged to this process, or was there
    /// when it got the partition.
    pub(crate) fn all_acknowledged(&self) -> impl Iterator<Item = (Partition, i64)> {
        let last = |partition| (partition, self.last_acknowledged(partition));
        Partition::all().map(last).filter(|(_, last)| *last > 0)
    }

    pub(crate) fn acknowledge(&self, partition: Partition, last: i64) {
        self.status(partition).acknowledged.fetch_max(last, Ordering::AcqRel);
    }

    pub(crate) fn host(&self) -> HostId {
        *self.host.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The id of this process as statements have it.
    pub(crate) fn host_text(&self) -> String {
        self.host().to_string()
    }

    pub(crate) fn set_host(&self, host: HostId) {
        *self.host.lock().unwrap_or_else(PoisonError::into_inner) = host;
    }

    pub(crate) fn deployed(&self) -> DeploymentStatus {
        self.deployed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_deployed(&self, deployed: DeploymentStatus) {
        *self.deployed.lock().unwrap_or_else(PoisonError::into_inner) = deployed;
    }

    /// Whether this process shares the partitions with others, and gets and loses them while it runs.
    pub(crate) fn is_member(&self) -> bool {
        self.url.is_some()
    }

    fn holder(&self, partition: Partition) -> Holder {
        let status = self.status(partition);
        status.holder.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_holder(&self, partition: Partition, holder: Holder) -> Holder {
        let status = self.status(partition);
        let mut present = status.holder.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut present, holder)
    }

    pub(crate) fn why_disowned(&self, partition: Partition) -> Option<String> {
        match self.holder(partition) {
            Holder::This => None,
            Holder::Another(what) | Holder::Damaged(what) => Some(what),
        }
    }

    /// Appends to a partition whose log ends at `last` from now on.
    pub(crate) fn hold(&self, partition: Partition, last: i64) {
        let before = self.set_holder(partition, Holder::This);
        // If it was noticed before, it is counted already.
        if matches!(before, Holder::Damaged(_)) {
            self.status(partition).acknowledged.store(last, Ordering::Release);
        } else {
            self.count_lost(partition, last);
        }
    }

    pub(crate) fn is_damaged(&self, partition: Partition) -> bool {
        matches!(self.holder(partition), Holder::Damaged(_))
    }

    /// Counts what was acknowledged behind `last`, which is now the end of the log, as lost.
    pub(crate) fn count_lost(&self, partition: Partition, last: i64) {
        let known = self.status(partition).acknowledged.swap(last, Ordering::AcqRel);
        let lost = known.saturating_sub(last);
        if lost > 0 {
            let count = u64::try_from(lost).unwrap_or_default();
            self.counters.lost.fetch_add(count, Ordering::Relaxed);
            tracing::error!(
                %partition,
                lost,
                "the database has lost records at the end of this partition that were acknowledged, \
                 probably by a failover to a standby that was behind; it continues without them"
            );
        }
    }

    /// Appends nothing more to a partition that another process gets. One to which nothing is appended
    /// already keeps its reason.
    pub(crate) fn give_up(&self, partition: Partition, what: String) {
        let status = self.status(partition);
        let mut holder = status.holder.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*holder, Holder::This) {
            *holder = Holder::Another(what);
        }
    }

    /// Appends nothing more to a partition that lost records.
    pub(crate) fn disown(&self, partition: Partition, what: String) {
        tracing::error!(%partition, %what, "nothing more is appended to this partition");
        self.set_holder(partition, Holder::Damaged(what));
    }

    /// Appends nothing more to partitions that another process has taken, which is called `owner` in the
    /// table of hosts. One line of the log for all, because most takeovers take every partition. Those
    /// to which nothing is appended already keep their reason.
    pub(crate) fn disown_taken(&self, mut taken: Vec<(Partition, String)>, owner: Option<&str>) {
        taken.retain(|(partition, _)| self.why_disowned(*partition).is_none());
        let Some((first, _)) = taken.first() else { return };
        let (partitions, owner) = (taken.len(), printable(&owner.unwrap_or("unknown")));
        tracing::error!(
            partitions,
            %first,
            %owner,
            "another process has taken partitions of the journal; nothing more is appended to them"
        );
        for (partition, what) in taken {
            self.give_up(partition, what);
        }
    }

    pub(crate) fn close(&self, partition: Partition) {
        self.status(partition).is_closed.store(true, Ordering::Release);
    }

    /// Whether calls about a partition are served.
    pub(crate) fn check_open(&self, partition: Partition) -> Result<(), Error> {
        let is_closed = self.status(partition).is_closed.load(Ordering::Acquire);
        if is_closed { Err(Error::Closed) } else { Ok(()) }
    }

    /// Whether changes of a partition are served.
    pub(crate) fn check_owned(&self, partition: Partition) -> Result<(), Error> {
        self.check_open(partition)?;
        match self.why_disowned(partition) {
            Some(what) => Err(Error::Disowned { what }),
            None => Ok(()),
        }
    }

    pub(crate) fn health(&self, partition: Partition) -> Health {
        if self.check_open(partition).is_err() {
            return Health::Closed;
        }
        match self.holder(partition) {
            Holder::Damaged(what) => return Health::Disowned { what },
            Holder::Another(what) if !self.is_member() => return Health::Disowned { what },
            // Another member appends to it.
            Holder::Another(_) | Holder::This => {}
        }
        self.failing
            .why()
            .or_else(|| self.reachable.why())
            .map_or(Health::Working, |what| Health::Failing { what })
    }
}
