//! The statements that remove entities, and that read what there is of them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sandglass_model::{EntityRef, Partition, Position};
use tokio_postgres::types::Type;

use crate::fault::{Fate, Fault};
use crate::link::{Link, Parameter};
use crate::page::RANGE_PREFIX;
use crate::row::{key, names};
use crate::shared::Shared;

/// An entity to remove.
#[derive(Clone, Debug)]
pub(crate) struct Doomed {
    /// Its index in the request.
    pub(crate) index: usize,
    pub(crate) entity: EntityRef,
    /// Its last record.
    pub(crate) last: i64,
    /// How many records it has.
    pub(crate) records: i64,
}

/// Those of the entities whose last records are the ones named here.
pub(crate) async fn find(
    shared: &Shared,
    pruner: &mut Option<Link>,
    partition: Partition,
    entities: &[(EntityRef, Position)],
) -> Result<Vec<Doomed>, Fault> {
    let sql = "SELECT w.ordinal, r.count FROM unnest($2::text[], $3::text[], $4::bigint[]) \
           WITH ORDINALITY AS w(type, id, last, ordinal) \
         JOIN sandglass.entities e ON e.partition = $1 AND e.type = w.type AND e.id = w.id \
         CROSS JOIN LATERAL (SELECT count(*) AS count, max(position) AS last \
           FROM sandglass.records WHERE partition = $1 AND entity = e.entity) r \
         WHERE r.last = w.last ORDER BY w.ordinal";
    let number = i16::from(partition.number());
    let (types, ids) = names(entities.iter().map(|(entity, _)| entity));
    let lasts: Vec<i64> = entities.iter().map(|(_, last)| key(*last)).collect();
    let parameters: [Parameter<'_>; 4] = [
        (&number, Type::INT2),
        (&types, Type::TEXT_ARRAY),
        (&ids, Type::TEXT_ARRAY),
        (&lasts, Type::INT8_ARRAY),
    ];
    let limit = shared.settings.statement_limit;
    let mut last = Fault::no_connection();
    for _ in 0..2 {
        let link = shared.connector.renew(pruner).await?;
        match link.query_or_cancel(limit, sql, &parameters).await {
            Ok(rows) => {
                let mut doomed = Vec::with_capacity(rows.len());
                for row in &rows {
                    let index = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or_default();
                    let Some((entity, last)) = entities.get(index) else { continue };
                    let (entity, last) = (entity.clone(), key(*last));
                    doomed.push(Doomed { index, entity, last, records: row.try_get(1)? });
                }
                return Ok(doomed);
            }
            Err(fault) => {
                if fault.fate == Fate::Unknown {
                    *pruner = None;
                }
                if fault.fate == Fate::Refused {
                    return Err(fault);
                }
                last = fault;
            }
        }
    }
    Err(last)
}

/// Sends the statement that removes entities; returns how many records each had, or `None` if the
/// partition has another epoch. The ranges of their positions are joined with those beside them.
pub(crate) async fn remove(
    link: &Link,
    limit: Duration,
    partition: Partition,
    epoch: i64,
    doomed: &[Doomed],
) -> Result<Option<Vec<u64>>, Fault> {
    let sql = format!(
        "WITH own AS (SELECT partition FROM sandglass.partitions \
           WHERE partition = $1 AND epoch = $2 FOR SHARE), \
         doomed AS MATERIALIZED (SELECT e.partition, e.entity, w.ordinal \
           FROM unnest($3::text[], $4::text[], $5::bigint[]) \
             WITH ORDINALITY AS w(type, id, last, ordinal) \
           CROSS JOIN own JOIN sandglass.entities e ON e.partition = own.partition \
             AND e.type = w.type AND e.id = w.id \
           WHERE w.last = (SELECT max(position) FROM sandglass.records r \
             WHERE r.partition = e.partition AND r.entity = e.entity)), \
         gone AS (DELETE FROM sandglass.records r USING doomed d WHERE r.partition = d.partition \
           AND r.partition = $1 AND r.entity = d.entity RETURNING r.position, d.ordinal), \
         recordings AS (DELETE FROM sandglass.recordings r USING gone \
           WHERE r.partition = $1 AND r.position = gone.position), \
         snapshots AS (DELETE FROM sandglass.snapshots s USING doomed d \
           WHERE s.partition = d.partition AND s.entity = d.entity), \
         entities AS (DELETE FROM sandglass.entities e USING doomed d \
           WHERE e.partition = d.partition AND e.entity = d.entity), \
         runs AS MATERIALIZED (SELECT min(position) AS first, max(position) AS last FROM ( \
             SELECT position, position - row_number() OVER (ORDER BY position) AS run FROM gone) g \
           GROUP BY run), \
         beside AS MATERIALIZED (SELECT p.first, p.last FROM runs CROSS JOIN LATERAL ( \
             SELECT first, last FROM sandglass.pruned WHERE partition = $1 AND first < runs.first \
             ORDER BY first DESC LIMIT 1) p WHERE p.last + 1 = runs.first \
           UNION SELECT p.first, p.last FROM runs JOIN sandglass.pruned p \
             ON p.partition = $1 AND p.first = runs.last + 1), \
         joined AS MATERIALIZED (SELECT min(first) AS first, max(last) AS last FROM ( \
             SELECT first, last, sum(begins) OVER (ORDER BY first) AS run FROM ( \
               SELECT first, last, CASE WHEN first <= max(last) OVER (ORDER BY first \
                   ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) + 1 THEN 0 ELSE 1 END AS begins \
               FROM (SELECT first, last FROM runs UNION ALL SELECT first, last FROM beside) a) b) c \
           GROUP BY run), \
         absorbed AS (DELETE FROM sandglass.pruned p USING beside b WHERE p.partition = $1 \
           AND p.first = b.first AND NOT EXISTS (SELECT 1 FROM joined j WHERE j.first = p.first)), \
         ranges AS (INSERT INTO sandglass.pruned (partition, first, last, checksum) \
           SELECT $1, first, last, substring(sha256('{RANGE_PREFIX}'::bytea || int8send($1::bigint) \
             || int8send(first) || int8send(last)) FROM 1 FOR 16) FROM joined \
           ON CONFLICT (partition, first) DO UPDATE \
           SET last = excluded.last, checksum = excluded.checksum) \
         SELECT 0::bigint, 0::bigint FROM own UNION ALL \
         SELECT ordinal, count(*) FROM gone GROUP BY ordinal"
    );
    let number = i16::from(partition.number());
    let (types, ids) = names(doomed.iter().map(|it| &it.entity));
    let lasts: Vec<i64> = doomed.iter().map(|it| it.last).collect();
    let parameters: [Parameter<'_>; 5] = [
        (&number, Type::INT2),
        (&epoch, Type::INT8),
        (&types, Type::TEXT_ARRAY),
        (&ids, Type::TEXT_ARRAY),
        (&lasts, Type::INT8_ARRAY),
    ];
    let rows = link.query_or_cancel(limit, &sql, &parameters).await?;
    let mut counts = BTreeMap::new();
    for row in &rows {
        counts.insert(row.try_get::<_, i64>(0)?, row.try_get::<_, i64>(1)?);
    }
    // The row of the partition itself.
    if counts.remove(&0).is_none() {
        return Ok(None);
    }
    let of = |ordinal| u64::try_from(counts.get(&ordinal).copied().unwrap_or_default()).ok();
    Ok(Some((1..).take(doomed.len()).map(|it| of(it).unwrap_or_default()).collect()))
}

/// Those of the entities that the database contains.
pub(crate) async fn find_present(
    shared: &Shared,
    pruner: &mut Option<Link>,
    partition: Partition,
    entities: &[(EntityRef, Position)],
) -> Result<BTreeSet<EntityRef>, Fault> {
    let sql = "SELECT w.ordinal FROM unnest($2::text[], $3::text[]) \
           WITH ORDINALITY AS w(type, id, ordinal) \
         JOIN sandglass.entities e ON e.partition = $1 AND e.type = w.type AND e.id = w.id";
    let number = i16::from(partition.number());
    let (types, ids) = names(entities.iter().map(|(entity, _)| entity));
    let parameters: [Parameter<'_>; 3] =
        [(&number, Type::INT2), (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
    let link = shared.connector.renew(pruner).await?;
    let rows = link.query_or_cancel(shared.settings.statement_limit, sql, &parameters).await?;
    let mut present = BTreeSet::new();
    for row in &rows {
        let index = usize::try_from(row.try_get::<_, i64>(0)? - 1).unwrap_or_default();
        present.extend(entities.get(index).map(|(entity, _)| entity.clone()));
    }
    Ok(present)
}
