//! What a group has to know of the database before it is appended.

use std::collections::{BTreeMap, BTreeSet};

use sandglass_journal::LastRecord;
use sandglass_model::{DispatchId, EntityRef, Partition, Sequence};
use tokio_postgres::types::Type;

use crate::fault::Fault;
use crate::group::{Job, Present};
use crate::heads::Known;
use crate::link::{Link, Parameter};
use crate::row::{names, position};
use crate::settings::Settings;

/// Reads what is known of entities, and which recordings of these batches are there.
pub(crate) async fn look_up(
    link: &Link,
    settings: &Settings,
    entities: &BTreeSet<(Partition, EntityRef)>,
    jobs: &[Job],
) -> Result<Present, Fault> {
    let entities = find_entities(link, settings, entities).await?;
    Ok(Present { entities, recordings: find_recordings(link, settings, jobs).await? })
}

async fn find_entities(
    link: &Link,
    settings: &Settings,
    entities: &BTreeSet<(Partition, EntityRef)>,
) -> Result<BTreeMap<(Partition, EntityRef), Known>, Fault> {
    let mut found = BTreeMap::new();
    if entities.is_empty() {
        return Ok(found);
    }
    let sql = "SELECT w.ordinal, e.entity, e.rests_at IS NOT NULL, r.position, r.sequence \
         FROM unnest($1::smallint[], $2::text[], $3::text[]) \
           WITH ORDINALITY AS w(partition, type, id, ordinal) \
         JOIN sandglass.entities e ON e.partition = w.partition AND e.type = w.type \
           AND e.id = w.id \
         CROSS JOIN LATERAL (SELECT position, sequence FROM sandglass.records \
           WHERE partition = e.partition AND entity = e.entity \
           ORDER BY position DESC LIMIT 1) r";
    let numbers: Vec<i16> = entities.iter().map(|(it, _)| it.number().into()).collect();
    let (types, ids) = names(entities.iter().map(|(_, it)| it));
    let parameters: [Parameter<'_>; 3] =
        [(&numbers, Type::INT2_ARRAY), (&types, Type::TEXT_ARRAY), (&ids, Type::TEXT_ARRAY)];
    let rows = link.query(settings.statement_limit, sql, &parameters).await?;
    let wanted: Vec<&(Partition, EntityRef)> = entities.iter().collect();
    for row in &rows {
        let ordinal: i64 = row.try_get(0)?;
        let name = usize::try_from(ordinal - 1).ok().and_then(|index| wanted.get(index));
        let (at, sequence): (i64, i64) = (row.try_get(3)?, row.try_get(4)?);
        let sequence = Sequence(u64::try_from(sequence).unwrap_or_default());
        let last = LastRecord { position: position(at), sequence };
        let known = Known { key: row.try_get(1)?, last, rests: row.try_get(2)? };
        found.extend(name.map(|name| ((*name).clone(), known)));
    }
    Ok(found)
}

async fn find_recordings(
    link: &Link,
    settings: &Settings,
    jobs: &[Job],
) -> Result<BTreeSet<(Partition, DispatchId, u32)>, Fault> {
    let mut found = BTreeSet::new();
    let recordings = jobs.iter().flat_map(|job| {
        job.batch.recordings.iter().map(|it| (job.partition, it.dispatch, it.attempt))
    });
    let recordings: Vec<_> = recordings.collect();
    if recordings.is_empty() {
        return Ok(found);
    }
    let sql = "SELECT w.ordinal FROM unnest($1::smallint[], $2::text[], $3::bigint[]) \
           WITH ORDINALITY AS w(partition, dispatch, attempt, ordinal) \
         JOIN sandglass.recordings r ON r.partition = w.partition \
           AND r.dispatch = w.dispatch AND r.attempt = w.attempt";
    let numbers: Vec<i16> = recordings.iter().map(|it| it.0.number().into()).collect();
    let dispatches: Vec<String> = recordings.iter().map(|it| it.1.to_string()).collect();
    let attempts: Vec<i64> = recordings.iter().map(|it| it.2.into()).collect();
    let parameters: [Parameter<'_>; 3] = [
        (&numbers, Type::INT2_ARRAY),
        (&dispatches, Type::TEXT_ARRAY),
        (&attempts, Type::INT8_ARRAY),
    ];
    for row in &link.query(settings.statement_limit, sql, &parameters).await? {
        let ordinal: i64 = row.try_get(0)?;
        let known = usize::try_from(ordinal - 1).ok().and_then(|it| recordings.get(it));
        found.extend(known.copied());
    }
    Ok(found)
}
