//! The statement that appends a group: it proves the epoch of each partition and the record before, and
//! inserts everything.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_model::{EntityRef, Event, Partition};
use tokio_postgres::types::Type;

use crate::entities::FIRST;
use crate::fault::Fault;
use crate::group::{Job, Placed};
use crate::heads::Head;
use crate::link::{Link, Parameter};
use crate::reader::{recording_checksum, snapshot_checksum};
use crate::row::{Stored, dispatch_key, partition_of, sequence};
use crate::settings::Settings;

/// The partitions of which this process has the epoch, and of which the record before the group is
/// there: without it, the database has lost records, and nothing is written over the gap.
const OWN: &str = "WITH own AS (SELECT p.partition, p.epoch FROM sandglass.partitions p \
     JOIN unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS mine(partition, epoch, last) \
       ON p.partition = mine.partition AND p.epoch = mine.epoch \
     WHERE mine.last = p.floor OR EXISTS (SELECT 1 FROM sandglass.records r \
       WHERE r.partition = mine.partition AND r.position = mine.last) \
     ORDER BY p.partition FOR SHARE OF p)";

const RECORDS: &str = ", new_records AS (INSERT INTO sandglass.records \
     (partition, position, batch, epoch, at_ms, entity, sequence, kind, dispatch, body, checksum) \
     SELECT n.partition, n.position, n.batch, own.epoch, n.at_ms, n.entity, n.sequence, n.kind, \
       n.dispatch, n.body, n.checksum FROM unnest($4::smallint[], $5::bigint[], $6::bigint[], \
       $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], $12::text[], \
       $13::bytea[]) AS n(partition, position, batch, at_ms, entity, sequence, kind, dispatch, body, \
       checksum) JOIN own ON own.partition = n.partition)";

/// The columns of the rows that a group inserts.
#[derive(Debug, Default)]
struct Rows<'a> {
    partition: Vec<i16>,
    position: Vec<i64>,
    batch: Vec<i64>,
    at_ms: Vec<i64>,
    entity: Vec<Option<i64>>,
    sequence: Vec<i64>,
    kind: Vec<&'a str>,
    dispatch: Vec<Option<i64>>,
    body: Vec<&'a str>,
    checksum: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Woken<'a> {
    partition: Vec<i16>,
    entity: Vec<i64>,
    of_type: Vec<&'a str>,
    id: Vec<&'a str>,
}

#[derive(Debug, Default)]
struct Snapshots<'a> {
    partition: Vec<i16>,
    entity: Vec<i64>,
    position: Vec<i64>,
    body: Vec<&'a str>,
    checksum: Vec<Vec<u8>>,
}

#[derive(Debug, Default)]
struct Recordings<'a> {
    partition: Vec<i16>,
    position: Vec<i64>,
    dispatch: Vec<String>,
    attempt: Vec<i64>,
    hash: Vec<&'a [u8]>,
    checksum: Vec<Vec<u8>>,
    bytes: Vec<Option<&'a [u8]>>,
}

/// What a group writes with the present epochs.
#[derive(Debug)]
pub(crate) struct Statement<'a> {
    own: BTreeMap<Partition, Head>,
    rows: Rows<'a>,
    woken: Woken<'a>,
    snapshots: Snapshots<'a>,
    recordings: Recordings<'a>,
    /// The last record of each partition after it.
    pub(crate) ends: BTreeMap<Partition, (i64, [u8; 16])>,
}

impl<'a> Statement<'a> {
    pub(crate) fn new(placed: &'a [Placed], heads: &BTreeMap<Partition, Head>) -> Self {
        let mut statement = Self {
            own: BTreeMap::new(),
            rows: Rows::default(),
            woken: Woken::default(),
            snapshots: Snapshots::default(),
            recordings: Recordings::default(),
            ends: BTreeMap::new(),
        };
        let mut snapshots: BTreeMap<(Partition, i64), (i64, &'a EntityRef, &'a str)> =
            BTreeMap::new();
        for one in placed {
            let head = heads.get(&one.job.partition).copied().unwrap_or_default();
            statement.own.insert(one.job.partition, head);
            statement.add(one, head.epoch);
            let Job { partition, batch, .. } = &one.job;
            if let (Some(key), Some(entity), Some(body)) = (one.key, &batch.entity, &batch.snapshot)
            {
                snapshots.insert((*partition, key), (one.last, entity, body));
            }
        }
        for ((partition, key), (at, entity, body)) in snapshots {
            let rows = &mut statement.snapshots;
            rows.partition.push(partition.number().into());
            rows.entity.push(key);
            rows.position.push(at);
            rows.body.push(body);
            rows.checksum.push(snapshot_checksum(partition, at, entity, body).into());
        }
        statement
    }

    fn add(&mut self, placed: &'a Placed, epoch: i64) {
        let Job { partition, batch, lines, named, .. } = &placed.job;
        let number = i16::from(partition.number());
        let entity = batch.entity.as_ref().zip(placed.key);
        let entity = entity.map(|(entity, key)| (key, entity.entity_type(), entity.id()));
        for ((at, line), (_, event)) in (placed.first..).zip(lines).zip(&batch.records) {
            let dispatch = match event {
                Event::Dispatched(dispatched) => Some(dispatch_key(dispatched.dispatch)),
                _ => None,
            };
            let stored = Stored {
                partition: *partition,
                position: at,
                batch: placed.last,
                epoch,
                at_ms: batch.at.as_millis(),
                entity,
                sequence: sequence(line).unwrap_or_default(),
                kind: line.kind,
                dispatch,
                body: &line.body,
            };
            let checksum = stored.checksum();
            self.rows.partition.push(number);
            self.rows.position.push(at);
            self.rows.batch.push(placed.last);
            self.rows.at_ms.push(stored.at_ms);
            self.rows.entity.push(placed.key);
            self.rows.sequence.push(stored.sequence);
            self.rows.kind.push(line.kind);
            self.rows.dispatch.push(dispatch);
            self.rows.body.push(&line.body);
            self.rows.checksum.push(checksum.into());
            self.ends.insert(*partition, (at, checksum));
        }
        if let Some((key, of_type, id)) = entity.filter(|_| placed.wakes) {
            self.woken.partition.push(number);
            self.woken.entity.push(key);
            self.woken.of_type.push(of_type);
            self.woken.id.push(id);
        }
        for (recording, named) in batch.recordings.iter().zip(named) {
            let end = batch.end_of(recording).and_then(|end| i64::try_from(end).ok());
            let at = placed.first.saturating_add(end.unwrap_or_default());
            let (dispatch, attempt) = (recording.dispatch.to_string(), recording.attempt.into());
            let checksum = recording_checksum(*partition, at, &dispatch, attempt, &named.hash);
            let rows = &mut self.recordings;
            rows.partition.push(number);
            rows.position.push(at);
            rows.dispatch.push(dispatch);
            rows.attempt.push(attempt);
            rows.hash.push(&named.hash);
            rows.checksum.push(checksum.into());
            rows.bytes.push(named.is_inline().then_some(&recording.body[..]));
        }
    }

    /// Sends it, and returns the partitions that were written.
    pub(crate) async fn send(
        &self,
        link: &Link,
        settings: &Settings,
    ) -> Result<BTreeSet<Partition>, Fault> {
        let numbers: Vec<i16> = self.own.keys().map(|it| it.number().into()).collect();
        let epochs: Vec<i64> = self.own.values().map(|head| head.epoch).collect();
        let lasts: Vec<i64> = self.own.values().map(|head| head.last).collect();
        let rows = &self.rows;
        let mut sql = format!("{OWN}{RECORDS}");
        let mut parameters: Vec<Parameter<'_>> = vec![
            (&numbers, Type::INT2_ARRAY),
            (&epochs, Type::INT8_ARRAY),
            (&lasts, Type::INT8_ARRAY),
            (&rows.partition, Type::INT2_ARRAY),
            (&rows.position, Type::INT8_ARRAY),
            (&rows.batch, Type::INT8_ARRAY),
            (&rows.at_ms, Type::INT8_ARRAY),
            (&rows.entity, Type::INT8_ARRAY),
            (&rows.sequence, Type::INT8_ARRAY),
            (&rows.kind, Type::TEXT_ARRAY),
            (&rows.dispatch, Type::INT8_ARRAY),
            (&rows.body, Type::TEXT_ARRAY),
            (&rows.checksum, Type::BYTEA_ARRAY),
        ];
        let woken = &self.woken;
        if !woken.partition.is_empty() {
            let [a, b, c, d] = places(&parameters);
            sql += &format!(
                ", woken AS (INSERT INTO sandglass.entities (partition, entity, type, id, due) \
                 SELECT n.partition, n.entity, n.type, n.id, {FIRST} FROM unnest({a}::smallint[], \
                   {b}::bigint[], {c}::text[], {d}::text[]) AS n(partition, entity, type, id) \
                   JOIN own ON own.partition = n.partition \
                 ON CONFLICT (partition, type, id) DO UPDATE \
                 SET entity = excluded.entity, rests_at = NULL, due = excluded.due)"
            );
            parameters.extend::<[Parameter<'_>; 4]>([
                (&woken.partition, Type::INT2_ARRAY),
                (&woken.entity, Type::INT8_ARRAY),
                (&woken.of_type, Type::TEXT_ARRAY),
                (&woken.id, Type::TEXT_ARRAY),
            ]);
        }
        let snapshots = &self.snapshots;
        if !snapshots.partition.is_empty() {
            let [a, b, c, d, e] = places(&parameters);
            sql += &format!(
                ", new_snapshots AS (INSERT INTO sandglass.snapshots \
                 (partition, entity, position, body, checksum) \
                 SELECT n.* FROM unnest({a}::smallint[], {b}::bigint[], {c}::bigint[], {d}::text[], \
                   {e}::bytea[]) AS n(partition, entity, position, body, checksum) \
                   JOIN own ON own.partition = n.partition \
                 ON CONFLICT (partition, entity) DO UPDATE SET position = excluded.position, \
                 body = excluded.body, checksum = excluded.checksum)"
            );
            parameters.extend::<[Parameter<'_>; 5]>([
                (&snapshots.partition, Type::INT2_ARRAY),
                (&snapshots.entity, Type::INT8_ARRAY),
                (&snapshots.position, Type::INT8_ARRAY),
                (&snapshots.body, Type::TEXT_ARRAY),
                (&snapshots.checksum, Type::BYTEA_ARRAY),
            ]);
        }
        let recordings = &self.recordings;
        if !recordings.partition.is_empty() {
            let [a, b, c, d, e, f, g] = places(&parameters);
            sql += &format!(
                ", new_recordings AS (INSERT INTO sandglass.recordings \
                 (partition, position, dispatch, attempt, hash, checksum, bytes) \
                 SELECT n.* FROM unnest({a}::smallint[], {b}::bigint[], {c}::text[], {d}::bigint[], \
                   {e}::bytea[], {f}::bytea[], {g}::bytea[]) \
                   AS n(partition, position, dispatch, attempt, hash, checksum, bytes) \
                   JOIN own ON own.partition = n.partition)"
            );
            parameters.extend::<[Parameter<'_>; 7]>([
                (&recordings.partition, Type::INT2_ARRAY),
                (&recordings.position, Type::INT8_ARRAY),
                (&recordings.dispatch, Type::TEXT_ARRAY),
                (&recordings.attempt, Type::INT8_ARRAY),
                (&recordings.hash, Type::BYTEA_ARRAY),
                (&recordings.checksum, Type::BYTEA_ARRAY),
                (&recordings.bytes, Type::BYTEA_ARRAY),
            ]);
        }
        sql += " SELECT partition FROM own";
        let rows = link.query(settings.statement_limit, &sql, &parameters).await?;
        Ok(rows.iter().filter_map(partition_of).collect())
    }
}

/// The names of the next parameters.
fn places<const N: usize>(parameters: &[Parameter<'_>]) -> [String; N] {
    std::array::from_fn(|index| format!("${}", parameters.len() + index + 1))
}
