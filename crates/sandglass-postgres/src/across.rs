//! Reads all partitions at once: each call sends one or two statements, however many partitions there are.

use sandglass_journal::{
    Across, Answer, Entry, Error, Merged, PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, RECORD_MAX_BYTES,
    SEARCHED_MAX, Select, Selected, SelectedPlace,
};
use sandglass_model::{Cursor, DispatchId, EntityRef, Partition, Position};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::entities;
use crate::link::Parameter;
use crate::reader::numbers_of;
use crate::row::{decode, key, position};

/// Positions of one partition that a search for kinds of records passes over at once.
const SEARCHED_EACH: u64 = SEARCHED_MAX / Partition::COUNT as u64;

/// The last position that was assigned in each partition.
const ENDS: &str = "SELECT p.partition, greatest(p.floor, coalesce(r.position, 0)) \
     FROM sandglass.partitions p LEFT JOIN LATERAL (SELECT position FROM sandglass.records \
         WHERE partition = p.partition ORDER BY position DESC LIMIT 1) r ON true";

/// The first `$3` records behind the positions `$2` of the partitions `$1`, in the order of their
/// times. A time that goes back within a partition does not change the order of its records. The server
/// does not send bodies that do not fit into the page.
fn behind(condition: &str) -> String {
    format!(
        "WITH found AS MATERIALIZED ( \
             SELECT n.partition, n.position, n.time FROM unnest($1::smallint[], $2::bigint[]) \
                 AS a(partition, after) CROSS JOIN LATERAL ( \
                     SELECT partition, position, max(at_ms) OVER (ORDER BY position) AS time FROM ( \
                         SELECT partition, position, at_ms FROM sandglass.records r \
                         WHERE r.partition = a.partition AND r.position > a.after {condition} \
                         ORDER BY r.position LIMIT $3) AS next) AS n \
             ORDER BY n.time, n.partition, n.position LIMIT $3) \
         SELECT page.*, CASE WHEN page.before < {PAGE_MAX_BYTES} \
             AND octet_length(page.whole) <= {RECORD_MAX_BYTES} THEN page.whole END AS body FROM ( \
             SELECT r.partition, r.position, r.batch, r.epoch, r.at_ms, r.entity, e.type, e.id, \
                 r.sequence, r.kind, r.dispatch, r.checksum, r.body AS whole, \
                 row_number() OVER (ORDER BY f.time, f.partition, f.position) AS number, \
                 coalesce(sum(octet_length(r.body)) OVER (ORDER BY f.time, f.partition, f.position \
                     ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)::bigint AS before \
             FROM found f JOIN sandglass.records r USING (partition, position) \
             LEFT JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity) \
             AS page ORDER BY page.number"
    )
}

impl Database {
    async fn ends(&self) -> Result<Cursor, Error> {
        let rows = self.reader().query(ENDS, &[]).await?;
        let mut ends = Cursor::start(usize::from(Partition::COUNT));
        for row in &rows {
            let (partition, last) = self.position_in(row)?;
            ends.advance(partition.index(), position(last));
        }
        // What was acknowledged and is gone counts as missing, so it must not seem to be the end.
        for partition in Partition::all() {
            ends.advance(partition.index(), position(self.last_acknowledged(partition)));
        }
        Ok(ends)
    }

    /// The first two columns of a row: a partition, and a position.
    fn position_in(&self, row: &Row) -> Result<(Partition, i64), Error> {
        let read = || -> Result<(i16, i64), tokio_postgres::Error> {
            Ok((row.try_get(0)?, row.try_get(1)?))
        };
        let (number, at) = read().map_err(|error| self.reader().unreadable(error))?;
        let partition = u8::try_from(number).ok().and_then(Partition::new);
        let partition = partition.ok_or_else(|| Error::Damaged {
            place: "the table of partitions".to_owned(),
            what: format!(
                "there is a partition {number}, and they end at {}",
                Partition::COUNT - 1
            ),
        })?;
        Ok((partition, at))
    }

    async fn read_merged(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Result<Merged, Error> {
        let limit = limit.clamp(1, PAGE_MAX_ENTRIES);
        // Read before the records, so that records up to these positions are all among them.
        let ends = self.ends().await?;
        let rows = self.rows_behind(&after, kinds, limit).await?;
        let is_cut = rows.len() >= limit;
        let mut page = Merged { entries: Vec::new(), next: after.clone(), is_end: false };
        for row in &rows {
            let (partition, at) = self.position_in(row)?;
            let due = page.next.at(partition.index()).0.saturating_add(1);
            if kinds.is_none() && position(at).0 > due {
                // Nothing is at the positions in between: they were pruned, or are missing.
                self.add_gap(partition, &mut page).await?;
            }
            let read = row.try_get("before");
            let before: i64 = read.map_err(|error| self.reader().unreadable(error))?;
            let is_full = usize::try_from(before).is_ok_and(|before| before >= PAGE_MAX_BYTES);
            if is_full || page.entries.len() >= limit {
                return Ok(page);
            }
            page.next.advance(partition.index(), position(at));
            page.entries.push((partition.index(), decode(partition, row, at)));
        }
        if is_cut {
            return Ok(page);
        }
        page.is_end = true;
        for partition in Partition::all() {
            let (index, end) = (partition.index(), ends.at(partition.index()));
            if page.next.at(index) >= end {
                continue;
            }
            if kinds.is_some() {
                let searched = after.at(index).0.saturating_add(SEARCHED_EACH);
                page.next.advance(index, end.min(Position(searched)));
                page.is_end &= searched >= end.0;
            } else {
                self.add_gap(partition, &mut page).await?;
                page.is_end &= page.next.at(index) >= end;
            }
        }
        Ok(page)
    }

    async fn rows_behind(
        &self,
        after: &Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Result<Vec<Row>, Error> {
        let numbers = numbers_of(&all());
        let behind_of: Vec<i64> = Partition::all().map(|one| key(after.at(one.index()))).collect();
        let fetched = i64::try_from(limit).unwrap_or(i64::MAX);
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&numbers, Type::INT2_ARRAY),
            (&behind_of, Type::INT8_ARRAY),
            (&fetched, Type::INT8),
        ];
        let Some(kinds) = kinds.as_ref() else {
            return self.reader().query(&behind(""), &parameters).await;
        };
        let condition = format!("AND r.position <= a.after + {SEARCHED_EACH} AND r.kind = ANY($4)");
        parameters.push((kinds, Type::TEXT_ARRAY));
        self.reader().query(&behind(&condition), &parameters).await
    }

    /// Adds what is at the first positions behind the page in one partition, where no record was found.
    async fn add_gap(&self, partition: Partition, page: &mut Merged) -> Result<(), Error> {
        let from = Position(page.next.at(partition.index()).0.saturating_add(1));
        let found =
            self.reader().read(partition, from, 1, self.last_acknowledged(partition)).await?;
        for entry in found.entries {
            if matches!(entry, Entry::Pruned { .. } | Entry::Missing { .. }) {
                page.next.advance(partition.index(), entry.last_position());
                page.entries.push((partition.index(), entry));
            }
        }
        Ok(())
    }
}

fn all() -> Vec<Partition> {
    Partition::all().collect()
}

impl Across for Database {
    fn read_behind(
        &self,
        after: Cursor,
        kinds: Option<&'static [&'static str]>,
        limit: usize,
    ) -> Answer<'_, Merged> {
        let database = self.clone();
        Box::pin(self.run(async move { database.read_merged(after, kinds, limit).await }))
    }

    fn find_dispatch(&self, dispatch: DispatchId) -> Answer<'_, Option<(EntityRef, Position)>> {
        let database = self.clone();
        Box::pin(self.run(async move { database.reader().find_dispatch(&all(), dispatch).await }))
    }

    fn end(&self) -> Answer<'_, Cursor> {
        let database = self.clone();
        Box::pin(self.run(async move { database.ends().await }))
    }

    fn select(
        &self,
        which: Select,
        after: Option<SelectedPlace>,
        limit: usize,
    ) -> Answer<'_, Selected> {
        let database = self.clone();
        Box::pin(self.run(async move {
            entities::select(database.reader(), &all(), &which, after.as_ref(), limit).await
        }))
    }
}
