//! Reading: a pool of connections, and the statement of each method.

use std::time::Duration;

use deadpool_postgres::{Hook, HookError, Manager, Pool, PoolError, Runtime, TimeoutType};
use sandglass_journal::{
    ByEntity, Error, OfKinds, Page, Place, RECORDING_MAX_BYTES, SEARCHED_MAX, SNAPSHOT_MAX_BYTES,
    Snapshot,
};
use sandglass_model::{DispatchId, EntityRef, Partition, Position};
use sha2::{Digest, Sha256};
use tokio_postgres::Row;
use tokio_postgres::types::Type;

use crate::blobs::CHUNK_BYTES;
use crate::fault::{CHECK, Fate, Fault};
use crate::link::{Connector, Parameter, query};
use crate::page::{Filled, RANGES, count_to_fetch, intact_ranges, records, select};
use crate::row::{checksum_of, dispatch_key, key, position};
use crate::settings::Settings;

/// Reads of one database.
pub(crate) struct Reader {
    pool: Pool,
    limit: Duration,
    place: String,
}

impl Reader {
    pub(crate) fn new(connector: &Connector, settings: &Settings) -> Result<Self, Error> {
        let servers = u32::try_from(connector.address().get_hosts().len()).unwrap_or(1).max(1);
        let manager = Manager::from_connect(
            connector.address().clone(),
            connector.clone(),
            deadpool_postgres::ManagerConfig::default(),
        );
        let pool = Pool::builder(manager)
            .max_size(settings.readers.max(1))
            .wait_timeout(Some(settings.statement_limit))
            // Each address has the limit, and the last one twice.
            .create_timeout(Some(settings.connect_limit * (servers + 1)))
            .runtime(Runtime::Tokio1)
            // Before the manager finds the connection closed and logs a warning for each.
            .pre_recycle(Hook::sync_fn(|client, _| {
                let is_closed = client.is_closed();
                if is_closed { Err(HookError::message("it is closed")) } else { Ok(()) }
            }))
            .build()
            .map_err(|error| Error::Unavailable { what: error.to_string() })?;
        let place = connector.place().to_owned();
        Ok(Self { pool, limit: settings.statement_limit, place })
    }

    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Sends one statement, on a new connection if the one of the pool was lost. Only for statements
    /// that may be sent twice.
    pub(crate) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, Error> {
        let mut last = None;
        // As many as there are in the pool may be lost at once.
        for _ in 0..=self.pool.status().max_size {
            let client = self.pool.get().await.map_err(no_connection)?;
            match query(&client, self.limit, sql, parameters).await {
                Ok(rows) => return Ok(rows),
                Err(fault) => {
                    let is_lost = client.is_closed();
                    if fault.fate == Fate::Unknown {
                        // Nothing waits for its result, and no other statement is behind it.
                        drop(deadpool_postgres::Object::take(client));
                    }
                    if !is_lost && fault.fate != Fate::Retry {
                        return Err(fault.unavailable());
                    }
                    last = Some(fault);
                }
            }
        }
        Err(last.map_or(Error::Closed, |fault| fault.unavailable()))
    }

    pub(crate) fn unreadable(&self, error: tokio_postgres::Error) -> Error {
        Error::Damaged { place: format!("`{}`", self.place), what: Fault::from(error).what }
    }

    fn damaged(&self, partition: Partition, at: i64, what: &str) -> Error {
        let place = format!("position {at} of partition {partition} of {}", self.place);
        Error::Damaged { place, what: what.to_owned() }
    }

    async fn fill(
        &self,
        partition: Partition,
        sql: &str,
        parameters: &[Parameter<'_>],
        limit: usize,
        due: Option<i64>,
    ) -> Result<Filled, Error> {
        let number = i16::from(partition.number());
        let mut all: Vec<Parameter<'_>> = vec![(&number, Type::INT2)];
        all.extend(parameters.iter().cloned());
        let rows = self.query(sql, &all).await?;
        Filled::new(partition, &rows, limit, due).map_err(|error| self.unreadable(error))
    }

    /// A page of all records. `acknowledged` is the last position that this process knows: if the
    /// database does not contain it, it is missing.
    pub(crate) async fn read(
        &self,
        partition: Partition,
        from: Position,
        limit: usize,
        acknowledged: i64,
    ) -> Result<Page, Error> {
        let (from, fetched) = (key(from).max(1), count_to_fetch(limit));
        let sql = select(&records("position >= $2", "$3"), "r.position");
        let parameters: [Parameter<'_>; 2] = [(&from, Type::INT8), (&fetched, Type::INT8)];
        let mut filled = self.fill(partition, &sql, &parameters, limit, Some(from)).await?;
        if filled.page.next.is_none() {
            filled.expect_up_to(acknowledged, from);
        }
        let Some((first, last)) = filled.unexplained() else { return Ok(filled.page) };
        let number = i16::from(partition.number());
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&first, Type::INT8), (&last, Type::INT8)];
        // Read behind the page: what was pruned meanwhile is no gap of the page.
        let rows = self.query(RANGES, &parameters).await?;
        let ranges = intact_ranges(partition, &rows).map_err(|error| self.unreadable(error))?;
        Ok(filled.explain(&ranges))
    }

    pub(crate) async fn read_entity(
        &self,
        partition: Partition,
        entity: &EntityRef,
        from: Position,
        limit: usize,
    ) -> Result<Page, Error> {
        let condition = "entity = (SELECT entity FROM sandglass.entities WHERE partition = $1 \
                         AND type = $2 AND id = $3) AND position >= $4";
        let sql = select(&records(condition, "$5"), "r.position");
        let (of_type, id) = (entity.entity_type(), entity.id());
        let (from, fetched) = (key(from), count_to_fetch(limit));
        let parameters: [Parameter<'_>; 4] = [
            (&of_type, Type::TEXT),
            (&id, Type::TEXT),
            (&from, Type::INT8),
            (&fetched, Type::INT8),
        ];
        Ok(self.fill(partition, &sql, &parameters, limit, None).await?.page)
    }

    pub(crate) async fn read_kinds(
        &self,
        partition: Partition,
        kinds: &[&str],
        from: Position,
        limit: usize,
    ) -> Result<OfKinds, Error> {
        let first = key(from).max(1);
        let searched = i64::try_from(SEARCHED_MAX).unwrap_or(i64::MAX);
        let last = first.saturating_add(searched - 1);
        let condition = "position BETWEEN $2 AND $3 AND kind = ANY($4)";
        let sql = select(&records(condition, "$5"), "r.position");
        let fetched = count_to_fetch(limit);
        let parameters: [Parameter<'_>; 4] = [
            (&first, Type::INT8),
            (&last, Type::INT8),
            (&kinds, Type::TEXT_ARRAY),
            (&fetched, Type::INT8),
        ];
        let filled = self.fill(partition, &sql, &parameters, limit, None).await?;
        let end = filled.last;
        let Page { entries, next } = filled.page;
        let behind = position(last.min(end).saturating_add(1)).max(from);
        let next = next.unwrap_or(behind);
        Ok(OfKinds { entries, next, is_end: key(next) > end })
    }

    pub(crate) async fn read_by_entity(
        &self,
        partition: Partition,
        after: Option<&Place>,
        limit: usize,
    ) -> Result<ByEntity, Error> {
        let from = after.map_or(0, |after| key(after.position));
        let entity = after.and_then(|after| after.entity.as_ref());
        let about_none = if entity.is_none() {
            let sql = select(&records("entity IS NULL AND position > $2", "$3"), "r.position");
            let fetched = count_to_fetch(limit);
            let parameters: [Parameter<'_>; 2] = [(&from, Type::INT8), (&fetched, Type::INT8)];
            self.fill(partition, &sql, &parameters, limit, None).await?.page.entries
        } else {
            Vec::new()
        };
        // Records about no entity are few; those of entities begin a page of their own.
        let (mut entries, is_full) = if about_none.is_empty() {
            let source = "(SELECT * FROM sandglass.entities WHERE partition = $1 \
                  AND (type, id) >= ($2, $3) ORDER BY type, id LIMIT $5 + 1) e \
                 CROSS JOIN LATERAL (SELECT * FROM sandglass.records WHERE partition = $1 \
                  AND records.entity = e.entity AND ((e.type, e.id) <> ($2, $3) OR position > $4) \
                  ORDER BY position LIMIT $5) r \
                 ORDER BY e.type, e.id, r.position LIMIT $5";
            let sql = select(source, "e.type, e.id, r.position");
            let (of_type, id) =
                entity.map_or(("", ""), |entity| (entity.entity_type(), entity.id()));
            let fetched = count_to_fetch(limit);
            let from = if entity.is_some() { from } else { 0 };
            let parameters: [Parameter<'_>; 4] = [
                (&of_type, Type::TEXT),
                (&id, Type::TEXT),
                (&from, Type::INT8),
                (&fetched, Type::INT8),
            ];
            let page = self.fill(partition, &sql, &parameters, limit, None).await?.page;
            (page.entries, page.next.is_some())
        } else {
            (about_none, true)
        };
        if let Some(first) = entries.iter().position(|entry| entry.damage().is_some()) {
            // Its entity is unknown, and so is what comes behind it.
            entries.truncate(first + 1);
        }
        let next = entries.last().filter(|_| is_full).and_then(Place::of);
        Ok(ByEntity { entries, next })
    }

    pub(crate) async fn find_dispatch(
        &self,
        partitions: &[Partition],
        dispatch: DispatchId,
    ) -> Result<Option<(EntityRef, Position)>, Error> {
        let sql = "SELECT e.type, e.id, r.position FROM sandglass.records r \
                   JOIN sandglass.entities e ON e.partition = r.partition AND e.entity = r.entity \
                   WHERE r.partition = ANY($1) AND r.dispatch = $2 AND strpos(r.body, $3) > 0 \
                   ORDER BY r.position LIMIT 1";
        let (numbers, half) = (numbers_of(partitions), dispatch_key(dispatch));
        let text = format!("\"dispatch\":\"{dispatch}\"");
        let parameters: [Parameter<'_>; 3] =
            [(&numbers, Type::INT2_ARRAY), (&half, Type::INT8), (&text, Type::TEXT)];
        let rows = self.query(sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || Ok((row.try_get::<_, &str>(0)?, row.try_get::<_, &str>(1)?, row.try_get(2)?));
        let (of_type, id, at): (_, _, i64) = read().map_err(|error| self.unreadable(error))?;
        Ok(EntityRef::new(of_type, id).ok().map(|entity| (entity, position(at))))
    }

    pub(crate) async fn snapshot(
        &self,
        partition: Partition,
        entity: &EntityRef,
    ) -> Result<Option<Snapshot>, Error> {
        let sql = format!(
            "SELECT s.position, s.checksum, \
             CASE WHEN octet_length(s.body) <= {SNAPSHOT_MAX_BYTES} THEN s.body END \
             FROM sandglass.snapshots s JOIN sandglass.entities e \
             ON e.partition = s.partition AND e.entity = s.entity \
             WHERE e.partition = $1 AND e.type = $2 AND e.id = $3"
        );
        let number = i16::from(partition.number());
        let (of_type, id) = (entity.entity_type(), entity.id());
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&of_type, Type::TEXT), (&id, Type::TEXT)];
        let rows = self.query(&sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || -> Option<Snapshot> {
            let (at, body): (i64, String) = (row.try_get(0).ok()?, row.try_get(2).ok()?);
            let is_whole =
                row.try_get::<_, &[u8]>(1).ok()? == snapshot_checksum(partition, at, entity, &body);
            let (entity, position) = (entity.clone(), position(at));
            is_whole.then_some(Snapshot { entity, position, body })
        };
        let found = read();
        if found.is_none() {
            tracing::warn!(%entity, "a snapshot is damaged; the records are read instead");
        }
        Ok(found)
    }

    pub(crate) async fn recording(
        &self,
        partition: Partition,
        dispatch: DispatchId,
        attempt: u32,
    ) -> Result<Option<Vec<u8>>, Error> {
        let last = RECORDING_MAX_BYTES / CHUNK_BYTES;
        let sql = format!(
            "SELECT n.position, n.hash, n.checksum, b.bytes FROM sandglass.recordings n \
             LEFT JOIN LATERAL (SELECT 0 AS chunk, n.bytes WHERE n.bytes IS NOT NULL \
                 UNION ALL SELECT chunk, bytes FROM sandglass.blobs WHERE hash = n.hash \
                 AND n.bytes IS NULL AND chunk <= {last}) b ON octet_length(b.bytes) <= {CHUNK_BYTES} \
             WHERE n.partition = $1 AND n.dispatch = $2 AND n.attempt = $3 ORDER BY b.chunk"
        );
        let number = i16::from(partition.number());
        let (text, attempt) = (dispatch.to_string(), i64::from(attempt));
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&text, Type::TEXT), (&attempt, Type::INT8)];
        let rows = self.query(&sql, &parameters).await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let read = || -> Option<(i64, &[u8], bool)> {
            let (at, hash): (i64, &[u8]) = (row.try_get(0).ok()?, row.try_get(1).ok()?);
            let due = recording_checksum(partition, at, &text, attempt, hash);
            Some((at, hash, row.try_get::<_, &[u8]>(2).ok()? == due))
        };
        let Some((at, hash, is_intact)) = read() else {
            return Err(self.damaged(partition, 0, "a recording cannot be read"));
        };
        let pieces = rows.iter().filter_map(|row| row.try_get::<_, &[u8]>(3).ok());
        let body: Vec<u8> = pieces.flatten().copied().collect();
        if is_intact && Sha256::digest(&body)[..] == *hash {
            Ok(Some(body))
        } else {
            Err(self.damaged(partition, at, "the checksum of its recording does not match"))
        }
    }

    /// The last position that was assigned.
    pub(crate) async fn last(&self, partition: Partition) -> Result<Position, Error> {
        let sql = "SELECT greatest(floor, coalesce((SELECT max(position) FROM sandglass.records \
                   WHERE partition = $1), 0)) FROM sandglass.partitions WHERE partition = $1";
        let number = i16::from(partition.number());
        let rows = self.query(sql, &[(&number, Type::INT2)]).await?;
        let last = rows.first().map_or(Ok(0), |row| row.try_get(0));
        Ok(position(last.map_err(|error| self.unreadable(error))?))
    }
}

/// Why the pool returns no connection. Callers know the database, and its address is not for everyone who
/// sees the error.
fn no_connection(error: PoolError) -> Error {
    let what = match error {
        PoolError::Backend(error) => return Fault::from(error).unavailable(),
        PoolError::Closed => return Error::Closed,
        PoolError::Timeout(TimeoutType::Wait) => {
            "all connections for reading are busy: try again".to_owned()
        }
        PoolError::Timeout(TimeoutType::Create) => {
            format!("connecting to the database took too long; {CHECK}")
        }
        PoolError::Timeout(TimeoutType::Recycle)
        | PoolError::NoRuntimeSpecified
        | PoolError::PostCreateHook(_) => "a connection for reading cannot be used".to_owned(),
    };
    Error::Unavailable { what }
}

/// The numbers of partitions as SQL has them.
pub(crate) fn numbers_of(partitions: &[Partition]) -> Vec<i16> {
    partitions.iter().map(|partition| partition.number().into()).collect()
}

pub(crate) fn snapshot_checksum(
    partition: Partition,
    at: i64,
    entity: &EntityRef,
    body: &str,
) -> [u8; 16] {
    let texts = [entity.entity_type(), entity.id(), body].map(str::as_bytes);
    checksum_of("sandglass shared snapshot 1", partition, [at, 0], &texts)
}

pub(crate) fn recording_checksum(
    partition: Partition,
    at: i64,
    dispatch: &str,
    attempt: i64,
    hash: &[u8],
) -> [u8; 16] {
    let texts = [dispatch.as_bytes(), hash];
    checksum_of("sandglass shared recording 1", partition, [at, attempt], &texts)
}
