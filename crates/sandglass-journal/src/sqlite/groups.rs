//! How many batches the writer's transactions had, which shows the gain of group commit.

use std::sync::atomic::{AtomicU64, Ordering};

use super::GROUP_MAX_RECORDS;

/// Counts transactions by the number of their batches, each of which has a record.
#[derive(Debug)]
pub(super) struct Counters(Box<[AtomicU64]>);

impl Counters {
    pub(super) fn count(&self, batches: usize) {
        let counter = self.0.get(batches).or(self.0.last());
        counter.into_iter().for_each(|counter| {
            counter.fetch_add(1, Ordering::Relaxed);
        });
    }

    pub(super) fn read(&self) -> GroupSizes {
        GroupSizes(self.0.iter().map(|counter| counter.load(Ordering::Relaxed)).collect())
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self((0..=GROUP_MAX_RECORDS).map(|_| AtomicU64::new(0)).collect())
    }
}

/// How many batches were appended in one transaction, and so with one sync.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupSizes(Vec<u64>);

impl GroupSizes {
    /// The number of transactions.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The number of their batches.
    #[must_use]
    pub fn batches(&self) -> u64 {
        (0..).zip(&self.0).map(|(batches, count): (u64, &u64)| batches * count).sum()
    }

    /// The most batches that this share of the transactions had, in thousandths: 500 for the
    /// median, 1000 for the maximum; 0 if there were none.
    #[must_use]
    pub fn quantile(&self, thousandths: u32) -> usize {
        let wanted = self.transactions().saturating_mul(thousandths.min(1_000).into());
        let mut seen: u64 = 0;
        let reached = self.0.iter().position(|count| {
            seen += count;
            *count > 0 && seen.saturating_mul(1_000) >= wanted
        });
        reached.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_read_off_the_counts() {
        let counters = Counters::default();
        assert_eq!((counters.read().transactions(), counters.read().quantile(500)), (0, 0));
        (1..=98).for_each(|_| counters.count(2));
        counters.count(7);
        counters.count(usize::MAX);
        let sizes = counters.read();
        assert_eq!(sizes.transactions(), 100);
        let at = |thousandths| sizes.quantile(thousandths);
        assert_eq!((at(0), at(500), at(980), at(990), at(1_000)), (2, 2, 2, 7, GROUP_MAX_RECORDS));
    }
}
