//! Pages of records: each read by one statement, and filled with the positions that were pruned or are
//! missing.

use sandglass_journal::{Entry, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, Page, RECORD_MAX_BYTES};
use sandglass_model::Partition;
use tokio_postgres::Row;

use crate::row::{checksum_of, decode, position};

/// A statement that returns the last position that was assigned in partition `$1` with each row of
/// `source`: tables `r` and `e` of at most as many rows as a page needs. The server does not send
/// bodies that do not fit into the page.
pub(crate) fn select(source: &str, order: &str) -> String {
    format!(
        "SELECT f.last, page.position, page.batch, page.epoch, page.at_ms, page.entity, page.type, \
             page.id, page.sequence, page.kind, page.dispatch, page.checksum, page.before, CASE WHEN page.before < {PAGE_MAX_BYTES} \
             AND octet_length(page.whole) <= {RECORD_MAX_BYTES} THEN page.whole END AS body \
         FROM (SELECT greatest(floor, coalesce((SELECT max(position) FROM sandglass.records \
             WHERE partition = $1), 0)) AS last FROM sandglass.partitions WHERE partition = $1) f \
         LEFT JOIN (SELECT r.position, r.batch, r.epoch, r.at_ms, r.entity, e.type, e.id, r.sequence, \
             r.kind, r.dispatch, r.checksum, r.body AS whole, \
             coalesce(sum(octet_length(r.body)) OVER (ORDER BY {order} \
                 ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before, \
             row_number() OVER (ORDER BY {order}) AS number \
             FROM {source}) AS page ON true \
         ORDER BY page.number"
    )
}

/// Rows of records that a condition selects, with their entities.
pub(crate) fn records(condition: &str, limit: &str) -> String {
    format!(
        "(SELECT * FROM sandglass.records WHERE partition = $1 AND {condition} \
          ORDER BY position LIMIT {limit}) r \
         LEFT JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity"
    )
}

/// One more than a page holds, to find out whether there is more.
pub(crate) fn count_to_fetch(limit: usize) -> i64 {
    i64::try_from(limit.clamp(1, PAGE_MAX_ENTRIES) + 1).unwrap_or(i64::MAX)
}

/// A page of which the positions without records are not explained yet.
#[derive(Debug, Default)]
pub(crate) struct Filled {
    pub(crate) page: Page,
    /// The last position that was assigned when it was read.
    pub(crate) last: i64,
    /// Positions without records, and the index of the entry in front of which they belong.
    gaps: Vec<Gap>,
}

#[derive(Clone, Copy, Debug)]
struct Gap {
    index: usize,
    first: i64,
    last: i64,
}

impl Filled {
    /// Fills a page with the rows of [`select`]. With `due`, no position from there on is left out.
    pub(crate) fn new(
        partition: Partition,
        rows: &[Row],
        limit: usize,
        due: Option<i64>,
    ) -> Result<Self, tokio_postgres::Error> {
        let mut filled = Self::default();
        if let Some(row) = rows.first() {
            filled.last = row.try_get("last")?;
        }
        let mut due = due;
        for row in rows {
            let Some(at) = row.try_get::<_, Option<i64>>("position")? else { break };
            filled.note(due, at);
            due = due.map(|_| at.saturating_add(1));
            let before: i64 = row.try_get("before")?;
            let is_full = usize::try_from(before).is_ok_and(|before| before >= PAGE_MAX_BYTES);
            if filled.page.entries.len() >= limit.clamp(1, PAGE_MAX_ENTRIES) || is_full {
                filled.page.next = Some(position(at));
                return Ok(filled);
            }
            filled.page.entries.push(decode(partition, row, at));
        }
        let end = filled.last.saturating_add(1);
        filled.note(due, end);
        Ok(filled)
    }

    /// Notes that nothing is at the positions from `due` to before `found`.
    fn note(&mut self, due: Option<i64>, found: i64) {
        if let Some(first) = due.filter(|due| *due < found) {
            self.gaps.push(Gap { index: self.page.entries.len(), first, last: found - 1 });
        }
    }

    /// Expects records up to `last` behind the page, which ends at the end.
    pub(crate) fn expect_up_to(&mut self, last: i64, from: i64) {
        let due = self.last.saturating_add(1).max(from);
        self.note(Some(due), last.saturating_add(1));
    }

    /// The first and the last position without a record, if there is any.
    pub(crate) fn unexplained(&self) -> Option<(i64, i64)> {
        Some((self.gaps.first()?.first, self.gaps.last()?.last))
    }

    /// The page, with entries for positions that are in these ranges, or in none.
    pub(crate) fn explain(mut self, ranges: &[(i64, i64)]) -> Page {
        for gap in self.gaps.iter().rev() {
            let entries = entries_of(gap, ranges);
            self.page.entries.splice(gap.index..gap.index, entries);
        }
        self.page
    }
}

fn entries_of(gap: &Gap, ranges: &[(i64, i64)]) -> Vec<Entry> {
    let (mut entries, mut due) = (Vec::new(), gap.first);
    let missing = |entries: &mut Vec<Entry>, first: i64, behind: i64| {
        if first < behind {
            let (first, last) = (position(first), position(behind - 1));
            entries.push(Entry::Missing { first, last });
        }
    };
    for (first, last) in ranges {
        let (first, last) = ((*first).max(due), (*last).min(gap.last));
        if first > last {
            continue;
        }
        missing(&mut entries, due, first);
        entries.push(Entry::Pruned { first: position(first), last: position(last) });
        due = last + 1;
    }
    missing(&mut entries, due, gap.last + 1);
    entries
}

/// The pruned ranges that touch the positions from `$2` to `$3`.
pub(crate) const RANGES: &str = "SELECT first, last, checksum FROM sandglass.pruned \
     WHERE partition = $1 AND last >= $2 AND first <= $3 AND first >= coalesce((SELECT max(first) \
     FROM sandglass.pruned WHERE partition = $1 AND first <= $2), 0) ORDER BY first";

/// The ranges in these rows that are as they were written.
pub(crate) fn intact_ranges(
    partition: Partition,
    rows: &[Row],
) -> Result<Vec<(i64, i64)>, tokio_postgres::Error> {
    let mut ranges = Vec::with_capacity(rows.len());
    for row in rows {
        let (first, last): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
        if row.try_get::<_, &[u8]>(2)? == range_checksum(partition, first, last) {
            ranges.push((first, last));
        }
    }
    Ok(ranges)
}

/// The first part of the checksum of a range, which the statement that prunes computes, too.
pub(crate) const RANGE_PREFIX: &str = "sandglass shared pruned 1";

pub(crate) fn range_checksum(partition: Partition, first: i64, last: i64) -> [u8; 16] {
    checksum_of(RANGE_PREFIX, partition, [first, last], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_pruned_or_missing() {
        let explain = |first, last, ranges: &[(i64, i64)]| -> Vec<(u64, u64, bool)> {
            let entries = entries_of(&Gap { index: 0, first, last }, ranges);
            let describe = |entry: &Entry| match entry {
                Entry::Pruned { first, last } => (first.0, last.0, true),
                entry => (entry.position().0, entry.position().0 + entry.places() - 1, false),
            };
            entries.iter().map(describe).collect()
        };
        assert_eq!(explain(3, 5, &[]), [(3, 5, false)]);
        assert_eq!(explain(3, 5, &[(1, 9)]), [(3, 5, true)]);
        assert_eq!(
            explain(3, 9, &[(1, 4), (6, 6), (11, 12)]),
            [(3, 4, true), (5, 5, false), (6, 6, true), (7, 9, false)]
        );
    }
}
