//! Removing entities. A huge one takes seconds, so it is removed on a connection of its own, while
//! the writer appends.
//!
//! Each entity is removed by one statement, however many records it has. In pieces, the states between
//! them would not be valid: without its first records, an entity cannot be replayed; without its last
//! ones, it has not ended, so that a process that starts then would continue its work and run its handlers
//! a second time. The statement shares the lock of the partition's row with appends, and the server
//! computes the pruned ranges, so that neither the writer nor memory depend on the size of an entity. What
//! waits for it are statements that take partitions: at most half of a statement's time limit, and then
//! they fail and are tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_journal::Error;
use sandglass_model::{EntityRef, Partition, Position};
use tokio_postgres::types::Type;

use crate::database::Inner;
use crate::fault::{Fate, Fault};
use crate::limit::pause;
use crate::link::{Link, Parameter};
use crate::removal::{Doomed, find, find_present, remove};
use crate::requests::{Hold, Request};
use crate::row::{key, position};
use crate::shared::Shared;
use crate::writer::Writer;

/// Most records of the entities that one statement removes together.
const RECORDS_MAX: i64 = 10_000;

/// The pause between two attempts to learn the outcome of a statement.
const PAUSE: Duration = Duration::from_millis(500);

/// How often a statement is sent again whose outcome is unknown, or that changed nothing.
const ATTEMPTS: u32 = 5;

/// The connection on which entities are removed; one statement at a time, so that no two of them change
/// the same range.
pub(crate) type Pruner = tokio::sync::Mutex<Option<Link>>;

/// Entities that are being removed. Nothing is appended to them meanwhile.
#[derive(Debug, Default)]
pub(crate) struct BeingRemoved(Mutex<BTreeSet<(Partition, EntityRef)>>);

impl BeingRemoved {
    pub(crate) fn contains(&self, partition: Partition, entity: &EntityRef) -> bool {
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        !held.is_empty() && held.contains(&(partition, entity.clone()))
    }

    fn change(&self, change: impl FnOnce(&mut BTreeSet<(Partition, EntityRef)>)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Holds entities until it is dropped.
struct RemovalGuard<'a> {
    shared: &'a Shared,
    entities: Vec<(Partition, EntityRef)>,
}

impl<'a> RemovalGuard<'a> {
    fn new(shared: &'a Shared, partition: Partition, doomed: &[Doomed]) -> Self {
        let entities: Vec<_> = doomed.iter().map(|it| (partition, it.entity.clone())).collect();
        shared.being_removed.change(|held| held.extend(entities.iter().cloned()));
        Self { shared, entities }
    }
}

impl Drop for RemovalGuard<'_> {
    fn drop(&mut self) {
        self.shared.being_removed.change(|held| {
            for entity in &self.entities {
                held.remove(entity);
            }
        });
    }
}

/// Removes entities whose last records are these, each completely or not at all; returns how many
/// records each had. If some were removed and then an error occurs, the others count as skipped.
pub(crate) async fn prune(
    inner: Arc<Inner>,
    partition: Partition,
    entities: Vec<(EntityRef, Position)>,
) -> Result<Vec<u64>, Error> {
    let shared = &inner.shared;
    let mut counts: Vec<u64> = vec![0; entities.len()];
    let mut pruner = shared.pruner.lock().await;
    let found = find(shared, &mut pruner, partition, &entities).await;
    let mut doomed = found.map_err(|fault| fault.unavailable())?;
    while !doomed.is_empty() {
        let mut records = 0;
        let fits = |one: &&Doomed| {
            records += one.records;
            records <= RECORDS_MAX
        };
        let count = doomed.iter().take_while(fits).count().max(1);
        let some: Vec<Doomed> = doomed.drain(..count).collect();
        match remove_all(&inner, &mut pruner, partition, &some).await {
            Ok(Some(removed)) => {
                for (one, records) in some.iter().zip(removed) {
                    counts[one.index] = records;
                }
            }
            // Such as one that is too large for the time limit. The others must not wait behind it.
            Ok(None) => {}
            Err(error) if counts.iter().all(|count| *count == 0) => return Err(error),
            Err(error) => {
                tracing::warn!(%partition, %error, "some entities were not pruned");
                break;
            }
        }
    }
    Ok(counts)
}

/// Removes these entities by one statement; returns how many records each had, or `None` if the database
/// refuses to, which is logged.
async fn remove_all(
    inner: &Inner,
    pruner: &mut Option<Link>,
    partition: Partition,
    doomed: &[Doomed],
) -> Result<Option<Vec<u64>>, Error> {
    let shared = &inner.shared;
    let _guard = RemovalGuard::new(shared, partition, doomed);
    let entities: Vec<(EntityRef, Position)> =
        doomed.iter().map(|it| (it.entity.clone(), position(it.last))).collect();
    let mut unknown = None;
    for _ in 0..ATTEMPTS {
        shared.check_owned(partition)?;
        let epoch = hold(inner, partition, &entities, unknown.take()).await?;
        let link = shared.connector.renew(pruner).await.map_err(|fault| fault.unavailable())?;
        let limit = shared.settings.statement_limit;
        let fault = match remove(link, limit, partition, epoch, doomed).await {
            Ok(Some(removed)) => return Ok(Some(removed)),
            // The writer has another epoch since, or another process has taken the partition.
            Ok(None) => {
                unknown = Some("the partition has another epoch".to_owned());
                continue;
            }
            Err(fault) => fault,
        };
        match fault.fate {
            Fate::Refused | Fate::Recorded => {
                let names: Vec<String> = doomed.iter().map(|it| it.entity.to_string()).collect();
                tracing::warn!(entities = %names.join(" "), why = %fault.what, "not pruned");
                return Ok(None);
            }
            Fate::Retry => {}
            Fate::Unknown => {
                let left = settle(inner, pruner, partition, &entities, &fault.what).await?;
                // It removed all of them, except those that have another last record by now.
                if left.len() < doomed.len() {
                    let count = |one: &Doomed| match left.contains(&one.entity) {
                        true => 0,
                        false => u64::try_from(one.records).unwrap_or_default(),
                    };
                    return Ok(Some(doomed.iter().map(count).collect()));
                }
            }
        }
    }
    Err(Error::Unavailable { what: "pruning failed; check the database's log".to_owned() })
}

/// Finds out whether the statement that removes these entities was executed, for as long as that takes;
/// returns the entities that are left, with whatever records.
async fn settle(
    inner: &Inner,
    pruner: &mut Option<Link>,
    partition: Partition,
    entities: &[(EntityRef, Position)],
    why: &str,
) -> Result<BTreeSet<EntityRef>, Error> {
    let shared = &inner.shared;
    *pruner = None;
    let mut is_over = false;
    loop {
        if !is_over {
            // With another epoch, the statement is over or has no effect any more.
            match hold(inner, partition, entities, Some(why.to_owned())).await {
                Ok(_) => is_over = true,
                // The writer cannot reach the database either.
                Err(Error::Unavailable { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        if is_over {
            match find_present(shared, pruner, partition, entities).await {
                Ok(left) => return Ok(left),
                Err(fault) => tracing::debug!(why = %fault.what, "pruning waits for the database"),
            }
            *pruner = None;
        }
        shared.check_owned(partition)?;
        pause(PAUSE).await;
    }
}

/// Waits until nothing that was requested before is on its way to these entities; returns the epoch.
async fn hold(
    inner: &Inner,
    partition: Partition,
    entities: &[(EntityRef, Position)],
    unknown: Option<String>,
) -> Result<i64, Error> {
    let entities = entities.to_vec();
    inner.ask(|answer| Request::Hold(Hold { partition, entities, unknown, answer })).await
}

impl Writer {
    /// Answers with the epoch of a partition some of whose entities are about to be removed. Nothing is
    /// on its way to them, and the last position of the partition does not depend on their records from
    /// now on.
    pub(crate) async fn hold(&mut self, hold: Hold) {
        let Hold { partition, entities, unknown, answer } = hold;
        let held = self.prepare(partition, &entities, unknown).await;
        // The caller may have gone away.
        let _ = answer.send(held);
    }

    async fn prepare(
        &mut self,
        partition: Partition,
        entities: &[(EntityRef, Position)],
        unknown: Option<String>,
    ) -> Result<i64, Error> {
        if let Some(why) = unknown {
            let found = self.take_again(&BTreeMap::new(), &why).await;
            self.compare(&found.ok_or(Error::Closed)?);
        }
        let shared = Arc::clone(&self.shared);
        self.connection().await.map_err(|fault| fault.unavailable())?;
        shared.check_owned(partition)?;
        for (entity, _) in entities {
            self.recent.remove(partition, entity);
        }
        let head = self.heads.get(&partition).copied().unwrap_or_default();
        if entities.iter().any(|(_, last)| key(*last) == head.last) {
            // Whether or not they are removed in the end.
            if let Some(head) = self.heads.get_mut(&partition) {
                head.checksum = None;
            }
            let raised = self.raise_floor(partition, head.epoch, head.last).await;
            raised.inspect_err(|_| self.link = None).map_err(|fault| fault.unavailable())?;
        }
        Ok(head.epoch)
    }

    /// Notes the last position that was assigned, which is right whether or not its record is removed.
    async fn raise_floor(
        &mut self,
        partition: Partition,
        epoch: i64,
        last: i64,
    ) -> Result<(), Fault> {
        let sql = "UPDATE sandglass.partitions SET floor = greatest(floor, $3) \
                   WHERE partition = $1 AND epoch = $2";
        let number = i16::from(partition.number());
        let parameters: [Parameter<'_>; 3] =
            [(&number, Type::INT2), (&epoch, Type::INT8), (&last, Type::INT8)];
        let limit = self.shared.settings.statement_limit;
        self.connection().await?.query(limit, sql, &parameters).await.map(drop)
    }
}
