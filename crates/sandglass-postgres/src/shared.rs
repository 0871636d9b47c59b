//! What the writer, the readers and the journals of one database share.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use sandglass_journal::store::{Failing, printable};
use sandglass_journal::{Error, Health};
use sandglass_model::Partition;

use crate::blobs::{Sweep, Uploads};
use crate::hosts::Heart;
use crate::link::Connector;
use crate::pruning::{BeingRemoved, Pruner};
use crate::reader::Reader;
use crate::settings::Settings;
use crate::skew::Skew;

pub(crate) struct Shared {
    pub(crate) connector: Connector,
    pub(crate) settings: Settings,
    pub(crate) reader: Reader,
    /// The id of this process in the table of hosts.
    pub(crate) host: String,
    pub(crate) heart: Heart,
    pub(crate) pruner: Pruner,
    /// The entities that are being removed.
    pub(crate) being_removed: BeingRemoved,
    partitions: Vec<Status>,
    pub(crate) failing: Failing,
    /// Whether the last beat reached the database.
    pub(crate) reachable: Reachable,
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
    /// The last position that an append returned, or that was there when the database was opened.
    acknowledged: AtomicI64,
    /// Why nothing is appended here again.
    disowned: Mutex<Option<String>>,
    is_closed: AtomicBool,
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
        host: String,
    ) -> Self {
        let partitions = Partition::all().map(|_| Status::default()).collect();
        let sweep = tokio::sync::Mutex::new(Sweep::new(settings.orphans_kept));
        Self {
            connector,
            settings,
            reader,
            host,
            heart: Heart::default(),
            pruner: Pruner::default(),
            being_removed: BeingRemoved::default(),
            partitions,
            failing: Default::default(),
            reachable: Reachable::default(),
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

    pub(crate) fn acknowledge(&self, partition: Partition, last: i64) {
        self.status(partition).acknowledged.fetch_max(last, Ordering::AcqRel);
    }

    pub(crate) fn why_disowned(&self, partition: Partition) -> Option<String> {
        let status = self.status(partition);
        status.disowned.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Appends nothing more to a partition that lost records.
    pub(crate) fn disown(&self, partition: Partition, what: String) {
        tracing::error!(%partition, %what, "nothing more is appended to this partition");
        self.note_disowned(partition, what);
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
            self.note_disowned(partition, what);
        }
    }

    fn note_disowned(&self, partition: Partition, what: String) {
        let status = self.status(partition);
        *status.disowned.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
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
        if let Some(what) = self.why_disowned(partition) {
            return Health::Disowned { what };
        }
        self.failing
            .why()
            .or_else(|| self.reachable.why())
            .map_or(Health::Working, |what| Health::Failing { what })
    }
}
