//! Removing entities.

use std::collections::BTreeMap;

use sandglass_journal::Error;
use sandglass_model::{EntityRef, Partition, Position};
use tokio_postgres::types::Type;

use crate::fault::{Fate, Fault};
use crate::lane::Lane;
use crate::link::Parameter;
use crate::page::range_checksum;
use crate::row::key;

/// How often a statement is sent again whose outcome is unknown, or that changed nothing.
const ATTEMPTS: u32 = 5;

/// An entity that is removed.
#[derive(Debug)]
struct Doomed {
    key: i64,
    /// The positions of its records, in order.
    positions: Vec<i64>,
}

impl Lane {
    /// Removes entities whose last records are these, in one statement; returns how many records each
    /// had.
    pub(crate) async fn prune(
        &mut self,
        partition: Partition,
        entities: &[(EntityRef, Position)],
    ) -> Result<Vec<u64>, Error> {
        let mut counts: Vec<u64> = vec![0; entities.len()];
        for _ in 0..ATTEMPTS {
            self.shared.owned(partition)?;
            match self.prune_once(partition, entities, &mut counts).await {
                Ok(()) => return Ok(counts),
                Err(fault) if fault.fate == Fate::Refused => return Err(fault.unavailable()),
                Err(fault) if fault.fate == Fate::Retry => {}
                // An entity that is gone with the next attempt was removed by this one.
                Err(fault) => {
                    let found = self.take_again(&BTreeMap::new(), &fault.what).await;
                    self.compare(&found.ok_or(Error::Closed)?);
                }
            }
        }
        Err(Error::Unavailable { what: "pruning failed; check the database's log".to_owned() })
    }

    async fn prune_once(
        &mut self,
        partition: Partition,
        entities: &[(EntityRef, Position)],
        counts: &mut [u64],
    ) -> Result<(), Fault> {
        let doomed = self.find_doomed(partition, entities).await?;
        for (entity, _) in entities {
            self.recent.remove(partition, entity);
        }
        for (index, one) in &doomed {
            counts[*index] = u64::try_from(one.positions.len()).unwrap_or(u64::MAX);
        }
        let mut ranges = Vec::new();
        let mut positions: Vec<i64> =
            doomed.values().flat_map(|one| one.positions.iter().copied()).collect();
        positions.sort_unstable();
        for run in positions.chunk_by(|one, next| one + 1 == *next) {
            ranges.extend(run.first().copied().zip(run.last().copied()));
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let (ranges, absorbed) = self.join_ranges(partition, ranges).await?;
        let keys: Vec<i64> = doomed.values().map(|one| one.key).collect();
        let head = self.heads.get(&partition).copied().unwrap_or_default();
        let ends_here = positions.last() == Some(&head.last);
        let floor = if ends_here { head.last } else { 0 };
        let firsts: Vec<i64> = ranges.iter().map(|(first, _)| *first).collect();
        let lasts: Vec<i64> = ranges.iter().map(|(_, last)| *last).collect();
        let checksums: Vec<Vec<u8>> = ranges
            .iter()
            .map(|(first, last)| range_checksum(partition, *first, *last).into())
            .collect();
        let sql = "WITH own AS (UPDATE sandglass.partitions SET floor = greatest(floor, $3) \
               WHERE partition = $1 AND epoch = $2 RETURNING partition), \
             gone AS (DELETE FROM sandglass.records r USING own WHERE r.partition = own.partition \
               AND r.entity = ANY($4) RETURNING r.position), \
             recordings AS (DELETE FROM sandglass.recordings r USING own \
               WHERE r.partition = own.partition AND r.position = ANY($5)), \
             snapshots AS (DELETE FROM sandglass.snapshots s USING own \
               WHERE s.partition = own.partition AND s.entity = ANY($4)), \
             entities AS (DELETE FROM sandglass.entities e USING own \
               WHERE e.partition = own.partition AND e.entity = ANY($4)), \
             absorbed AS (DELETE FROM sandglass.pruned p USING own \
               WHERE p.partition = own.partition AND p.first = ANY($9)), \
             ranges AS (INSERT INTO sandglass.pruned (partition, first, last, checksum) \
               SELECT own.partition, n.first, n.last, n.checksum FROM own CROSS JOIN \
                 unnest($6::bigint[], $7::bigint[], $8::bytea[]) AS n(first, last, checksum) \
               ON CONFLICT (partition, first) DO UPDATE \
               SET last = excluded.last, checksum = excluded.checksum) \
             SELECT partition FROM own";
        let number = i16::from(partition.number());
        let parameters: [Parameter<'_>; 9] = [
            (&number, Type::INT2),
            (&head.epoch, Type::INT8),
            (&floor, Type::INT8),
            (&keys, Type::INT8_ARRAY),
            (&positions, Type::INT8_ARRAY),
            (&firsts, Type::INT8_ARRAY),
            (&lasts, Type::INT8_ARRAY),
            (&checksums, Type::BYTEA_ARRAY),
            (&absorbed, Type::INT8_ARRAY),
        ];
        // Also if it is not known afterwards whether the last record is gone.
        if let Some(head) = self.heads.get_mut(&partition).filter(|_| ends_here) {
            head.checksum = None;
        }
        let limit = self.shared.settings.statement_limit;
        let rows = self.connected().await?.query(limit, sql, &parameters).await?;
        if rows.is_empty() {
            // Another process took the partition, which taking it again shows.
            let what = "the partition has another owner".to_owned();
            return Err(Fault { fate: Fate::Unknown, what });
        }
        Ok(())
    }

    /// The entities that are removed, by their index: those whose last records are these.
    async fn find_doomed(
        &mut self,
        partition: Partition,
        entities: &[(EntityRef, Position)],
    ) -> Result<BTreeMap<usize, Doomed>, Fault> {
        let sql = "SELECT w.ordinal, e.entity, r.position \
             FROM unnest($2::text[], $3::text[]) WITH ORDINALITY AS w(type, id, ordinal) \
             JOIN sandglass.entities e ON e.partition = $1 AND e.type = w.type AND e.id = w.id \
             JOIN sandglass.records r ON r.partition = $1 AND r.entity = e.entity \
             ORDER BY w.ordinal, r.position";
        let number = i16::from(partition.number());
        let types: Vec<&str> = entities.iter().map(|(entity, _)| entity.entity_type()).collect();
        let ids: Vec<&str> = entities.iter().map(|(entity, _)| entity.id()).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
        let limit = self.shared.settings.statement_limit;
        let mut doomed: BTreeMap<usize, Doomed> = BTreeMap::new();
        for row in &self.connected().await?.query(limit, sql, &parameters).await? {
            let index = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or(usize::MAX);
            let key = row.try_get(1)?;
            let one = doomed.entry(index).or_insert_with(|| Doomed { key, positions: Vec::new() });
            one.positions.push(row.try_get(2)?);
        }
        doomed.retain(|index, one| {
            let last = entities.get(*index).map(|(_, last)| key(*last));
            last.is_some() && one.positions.last().copied() == last
        });
        Ok(doomed)
    }

    /// Joins ranges with those beside them; returns the first positions of ranges that are in others
    /// now.
    async fn join_ranges(
        &mut self,
        partition: Partition,
        ranges: Vec<(i64, i64)>,
    ) -> Result<(Vec<(i64, i64)>, Vec<i64>), Fault> {
        let sql = "SELECT b.first, b.last FROM unnest($2::bigint[], $3::bigint[]) AS w(first, last) \
               CROSS JOIN LATERAL (SELECT first, last FROM sandglass.pruned \
                 WHERE partition = $1 AND first < w.first ORDER BY first DESC LIMIT 1) b \
               WHERE b.last + 1 = w.first \
             UNION SELECT p.first, p.last FROM unnest($2::bigint[], $3::bigint[]) AS w(first, last) \
               JOIN sandglass.pruned p ON p.partition = $1 AND p.first = w.last + 1";
        let number = i16::from(partition.number());
        let firsts: Vec<i64> = ranges.iter().map(|(first, _)| *first).collect();
        let lasts: Vec<i64> = ranges.iter().map(|(_, last)| *last).collect();
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&firsts, Type::INT8_ARRAY), (&lasts, Type::INT8_ARRAY)];
        let limit = self.shared.settings.statement_limit;
        let rows = self.connected().await?.query(limit, sql, &parameters).await?;
        let mut all = ranges;
        let mut neighbors = Vec::new();
        for row in &rows {
            let range: (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            neighbors.push(range.0);
            all.push(range);
        }
        all.sort_unstable();
        let mut joined: Vec<(i64, i64)> = Vec::new();
        for (first, last) in all {
            match joined.last_mut() {
                Some(before) if before.1 + 1 >= first => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        neighbors.retain(|first| joined.binary_search_by_key(first, |range| range.0).is_err());
        Ok((joined, neighbors))
    }
}
