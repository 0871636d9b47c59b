//! What a reader gets that follows the merged log of all partitions and connects to one host after the
//! other.

use std::collections::BTreeMap;

use sandglass_model::{Partition, Position};

use super::PlaceOf;
use crate::invariant::Invariant;

type Finding = Option<(Invariant, String)>;

/// The last position that the reader got of each partition.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    last: BTreeMap<Partition, Position>,
    /// Whether a failover has lost records that the reader may have got.
    is_forgiven: bool,
}

impl Feed {
    /// The reader gets a record.
    pub(crate) fn note(&mut self, (partition, position): PlaceOf) -> Finding {
        let last = self.last.entry(partition).or_default();
        let due = last.0 + 1;
        *last = position;
        (position.0 != due && !self.is_forgiven).then(|| {
            let what = format!(
                "the reader gets position {position} of partition {partition} where {due} is due"
            );
            (Invariant::FedOnce, what)
        })
    }

    /// Whether the reader has got all records up to these positions, in the order of the partitions.
    pub(crate) fn has_all(&self, ends: &[u64]) -> bool {
        let last = |partition| self.last.get(&partition).map_or(0, |last| last.0);
        self.is_forgiven || Partition::all().zip(ends).all(|(of, end)| last(of) == *end)
    }

    pub(super) fn forgive(&mut self) {
        self.is_forgiven = true;
    }

    pub(super) fn close(&self, partition: Partition, end: u64) -> Finding {
        let last = self.last.get(&partition).map_or(0, |last| last.0);
        (last != end && !self.is_forgiven).then(|| {
            let what = format!(
                "the reader has got the records of partition {partition} up to {last}, of {end}"
            );
            (Invariant::FedOnce, what)
        })
    }
}
