//! What is known of entities without their records: which are awake, and how the others rest. A row
//! that does not match the records stands for an entity that is awake.

use sandglass_journal::store::{checksum, page_size};
use sandglass_journal::{EntityEntry, Error, LastRecord, Rest, Select, Selected, SelectedPlace};
use sandglass_model::{EntityRef, Partition, Sequence, SpecDigest, WallTime};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::link::Parameter;
use crate::reader::{Reader, numbers_of};
use crate::row::position;

/// `due` of entities that are awake or listed.
pub(crate) const FIRST: i64 = SelectedPlace::FIRST;

/// The last record of each entity of `e`.
const LAST: &str = "LEFT JOIN LATERAL (SELECT position, sequence FROM sandglass.records \
     WHERE partition = e.partition AND entity = e.entity ORDER BY position DESC LIMIT 1) r ON true";

const COLUMNS: &str = "e.type, e.id, e.rests_at, e.wake_at, e.is_listed, e.spec, e.checksum, \
     e.entity, r.position, r.sequence, e.partition";

/// What is known of an entity.
pub(crate) async fn find(
    reader: &Reader,
    partition: Partition,
    entity: &EntityRef,
) -> Result<Option<EntityEntry>, Error> {
    let sql = format!(
        "SELECT 0::bigint, {COLUMNS} FROM sandglass.entities e {LAST} \
         WHERE e.partition = $1 AND e.type = $2 AND e.id = $3"
    );
    let number = i16::from(partition.number());
    let (of_type, id) = (entity.entity_type(), entity.id());
    let parameters: [Parameter<'_>; 3] =
        [(&number, Type::INT2), (&of_type, Type::TEXT), (&id, Type::TEXT)];
    let rows = reader.query(&sql, &parameters).await?;
    Ok(rows.first().and_then(decode).map(|(_, entry)| entry))
}

/// A page of the entities of these partitions that `which` selects.
pub(crate) async fn select(
    reader: &Reader,
    partitions: &[Partition],
    which: &Select,
    after: Option<&SelectedPlace>,
    limit: usize,
) -> Result<Selected, Error> {
    let limit = page_size(limit);
    let fetched = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    // No entity has an empty type, so this is before the first of them.
    let (of_type, id) =
        after.map_or(("", ""), |after| (after.entity.entity_type(), after.entity.id()));
    let numbers = numbers_of(partitions);
    let key = after.map_or(i64::MIN, |after| after.key);
    let mut parameters: Vec<Parameter<'_>> = vec![
        (&numbers, Type::INT2_ARRAY),
        (&fetched, Type::INT8),
        (&of_type, Type::TEXT),
        (&id, Type::TEXT),
    ];
    let until;
    let (key_column, condition) = match which {
        Select::All => ("0::bigint", "(type, id) > ($3, $4)"),
        Select::Due { until: time } => {
            until = time.as_millis();
            parameters.extend([(&key as _, Type::INT8), (&until as _, Type::INT8)]);
            ("due", "due IS NOT NULL AND due <= $6 AND (due, type, id) > ($5, $3, $4)")
        }
        Select::Ended => {
            parameters.push((&key, Type::INT8));
            let condition = "spec IS NULL AND rests_at IS NOT NULL \
                             AND (rests_at, type, id) > ($5, $3, $4)";
            ("rests_at", condition)
        }
        Select::OtherSpec { entity_type, spec } => {
            let behind = if of_type == entity_type.as_str() { id } else { "" };
            let named = (entity_type.as_str(), behind);
            return of_other_specs(reader, &numbers, named, spec, limit).await;
        }
    };
    let sql = format!(
        "SELECT e.key, {COLUMNS} FROM (SELECT n.* FROM unnest($1) AS a(number) CROSS JOIN LATERAL \
             (SELECT *, {key_column} AS key FROM sandglass.entities \
              WHERE partition = a.number AND {condition} ORDER BY key, type, id LIMIT $2) n \
             ORDER BY n.key, n.type, n.id LIMIT $2) e {LAST} \
         ORDER BY e.key, e.type, e.id"
    );
    let rows = reader.query(&sql, &parameters).await?;
    // A row that cannot be read must not end the selection.
    Ok(Selected::page(rows.iter().filter_map(decode).collect(), rows.len() > limit, limit))
}

/// The entities of a type that rest and obey another spec than `spec`, behind an id. Each spec is
/// looked up by itself, because the index has the entities of each together.
async fn of_other_specs(
    reader: &Reader,
    numbers: &Vec<i16>,
    (of_type, id): (&str, &str),
    spec: &SpecDigest,
    limit: usize,
) -> Result<Selected, Error> {
    let next = |behind: &str| {
        format!(
            "(SELECT o.spec FROM sandglass.entities o WHERE o.partition = s.number \
             AND o.type = $3 AND o.spec IS NOT NULL {behind} ORDER BY o.spec LIMIT 1)"
        )
    };
    let (first, further) = (next(""), next("AND o.spec > s.spec"));
    let sql = format!(
        "WITH RECURSIVE specs AS (SELECT s.number, {first} AS spec FROM unnest($1) AS s(number) \
             UNION ALL SELECT s.number, {further} FROM specs s WHERE s.spec IS NOT NULL) \
         SELECT 0::bigint, {COLUMNS} FROM (SELECT n.* FROM specs CROSS JOIN LATERAL \
             (SELECT * FROM sandglass.entities WHERE partition = specs.number AND type = $3 \
              AND spec = specs.spec AND id > $4 AND rests_at IS NOT NULL ORDER BY id LIMIT $2) n \
             WHERE specs.spec <> $5 ORDER BY n.id LIMIT $2) e {LAST} ORDER BY e.id"
    );
    let fetched = i64::try_from(limit + 1).unwrap_or(i64::MAX);
    let spec = &spec.as_bytes()[..];
    let parameters: [Parameter<'_>; 5] = [
        (numbers, Type::INT2_ARRAY),
        (&fetched, Type::INT8),
        (&of_type, Type::TEXT),
        (&id, Type::TEXT),
        (&spec, Type::BYTEA),
    ];
    let rows = reader.query(&sql, &parameters).await?;
    // A row that cannot be read must not end the selection.
    Ok(Selected::page(rows.iter().filter_map(decode).collect(), rows.len() > limit, limit))
}

/// An entity, with its key in the order of the statement.
fn decode(row: &Row) -> Option<(i64, EntityEntry)> {
    let partition = u8::try_from(row.try_get::<_, i16>(11).ok()?).ok().and_then(Partition::new)?;
    let (of_type, id): (&str, &str) = (row.try_get(1).ok()?, row.try_get(2).ok()?);
    let entity = EntityRef::new(of_type, id).ok()?;
    // Without a record, which is damage, it counts as awake at its first one.
    let at = row.try_get(9).ok().flatten().or_else(|| row.try_get(8).ok())?;
    let sequence: Option<i64> = row.try_get(10).ok().flatten();
    let sequence = Sequence(u64::try_from(sequence.unwrap_or_default()).unwrap_or_default());
    let rest = decode_rest(partition, &entity, row).filter(|(rests_at, _)| *rests_at == at);
    let last = LastRecord { position: position(at), sequence };
    let key = row.try_get(0).ok()?;
    Some((key, EntityEntry { entity, last, rest: rest.map(|(_, rest)| rest) }))
}

fn decode_rest(partition: Partition, entity: &EntityRef, row: &Row) -> Option<(i64, Rest)> {
    let rests_at: i64 = row.try_get::<_, Option<i64>>(3).ok()??;
    let wake_at: Option<i64> = row.try_get(4).ok()?;
    let spec: Option<&[u8]> = row.try_get(6).ok()?;
    let spec = match spec {
        Some(bytes) => Some(SpecDigest::from_bytes(bytes.try_into().ok()?)),
        None => None,
    };
    let is_listed = row.try_get(5).ok()?;
    let rest = Rest { wake_at: wake_at.map(WallTime::from_millis), spec, is_listed };
    let checksum: Option<&[u8]> = row.try_get(7).ok()?;
    (checksum? == rest_checksum(partition, entity, rests_at, &rest)).then_some((rests_at, rest))
}

/// The column of [`checked`] with the position of the entity's first record.
pub(crate) const CHECKED_KEY: usize = 8;

/// A page of all rows behind the partition `$1` and the entity `$2`, which [`find_lost`] and
/// [`find_flaw`] read. Whether `rests_at` was pruned is looked up only if it is behind the last record.
pub(crate) fn checked() -> String {
    format!(
        "SELECT e.partition, {COLUMNS}, e.due, CASE WHEN e.rests_at > r.position \
           THEN EXISTS (SELECT 1 FROM sandglass.pruned p WHERE p.partition = e.partition \
             AND e.rests_at BETWEEN p.first AND p.last) END FROM (SELECT * FROM sandglass.entities \
           WHERE (partition, entity) > ($1, $2) ORDER BY partition, entity LIMIT $3) e {LAST} \
         ORDER BY e.partition, e.entity"
    )
}

/// If the last record of an entity is lost, its position and what is wrong. An intact row proves that the
/// record was there when the entity came to rest.
pub(crate) fn find_lost(partition: Partition, row: &Row) -> Option<(i64, String)> {
    let (of_type, id): (&str, &str) = (row.try_get(1).ok()?, row.try_get(2).ok()?);
    let entity = EntityRef::new(of_type, id).ok()?;
    let last: i64 = row.try_get::<_, Option<i64>>(9).ok()??;
    let (rests_at, _) = decode_rest(partition, &entity, row)?;
    let is_pruned = row.try_get(13).ok().flatten() == Some(true);
    (rests_at > last && !is_pruned).then(|| {
        let what = format!(
            "records of {entity} after position {last} are missing; \
             its last one had position {rests_at}"
        );
        (rests_at, what)
    })
}

/// What is wrong with the row of an entity; `None` if it matches the entity's last record. A row with
/// another `due` than its own may never be found by a start.
pub(crate) fn find_flaw(partition: Partition, row: &Row) -> Option<String> {
    let text = |column| row.try_get::<_, &str>(column).unwrap_or_default();
    let Ok(entity) = EntityRef::new(text(1), text(2)) else {
        return Some("it is not the name of an entity".to_owned());
    };
    if Partition::of(&entity) != partition {
        return Some(format!("{entity} belongs to another partition"));
    }
    let Some(last) = row.try_get::<_, Option<i64>>(9).ok().flatten() else {
        return Some(format!("{entity} has no record"));
    };
    let number = |column| row.try_get::<_, Option<i64>>(column).ok();
    let (rests_at, due) = (number(3), number(12));
    let is_right = match rests_at {
        Some(None) => due == Some(Some(FIRST)),
        _ => decode_rest(partition, &entity, row)
            .is_some_and(|(at, rest)| at == last && due == Some(rest.due_key())),
    };
    (!is_right).then(|| {
        format!("how {entity} rests does not match its records, so a start may not find it")
    })
}

/// The checksum of how an entity rests.
pub(crate) fn rest_checksum(
    partition: Partition,
    entity: &EntityRef,
    rests_at: i64,
    rest: &Rest,
) -> [u8; 16] {
    let wake_at = rest.wake_at.map_or(0, WallTime::as_millis);
    let flags = [rest.wake_at.is_some(), rest.is_listed, rest.spec.is_some()].map(u8::from);
    let spec = rest.spec.as_ref().map_or(&[][..], |spec| &spec.as_bytes()[..]);
    let texts = [entity.entity_type().as_bytes(), entity.id().as_bytes(), spec];
    let numbers = [partition.number().into(), rests_at, wake_at];
    checksum("sandglass shared rest 1", &numbers, &flags, &texts)
}
