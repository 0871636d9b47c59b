//! Removes entities that have ended, while the others continue.

use std::sync::Arc;

use sandglass_liveness::{Retention, retention};
use sandglass_model::{EntityRef, Position};

use crate::error::ActorError;
use crate::inner::Inner;
use crate::runtime::Runtime;
use crate::table::Sleep;

/// Entities that are removed at once: appends wait for some milliseconds meanwhile, and proceed
/// between two batches.
const PIECE: usize = 8;

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pruned {
    /// Entities.
    pub entities: u64,
    /// Records of these entities.
    pub records: u64,
}

impl Runtime {
    /// Removes entities that have ended, sleep, and that `retention` does not keep, from the
    /// runtime and its journal. Their names can be used again afterwards. It continues if its
    /// caller stops waiting.
    ///
    /// # Errors
    /// The journal cannot be read or written; entities that were removed before stay removed.
    pub async fn prune(&self, retention: Retention) -> Result<Pruned, ActorError> {
        let inner = Arc::clone(&self.0);
        let pruning = self.0.threads.spawn(async move { prune(&inner, retention).await });
        pruning.await.unwrap_or(Err(ActorError::Closed))
    }
}

async fn prune(inner: &Inner, retention: Retention) -> Result<Pruned, ActorError> {
    let mut ended = {
        let entities = inner.shared.table.lock();
        let mut ended = entities.ended();
        // Without them, their parents would create them a second time.
        let spawning = entities.spawning();
        ended.retain(|(_, entity)| !spawning.contains(entity));
        ended
    };
    ended.sort_unstable();
    if let Retention::Keep(most) = retention {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        ended.truncate(ended.len().saturating_sub(most));
    }
    let mut pruned = Pruned::default();
    for piece in ended.chunks(PIECE) {
        let mut going = Vec::with_capacity(PIECE);
        for (last, entity) in piece {
            if is_kept(inner, retention, entity, *last).await? {
                break;
            }
            going.push((entity.clone(), *last));
        }
        let is_over = going.len() < piece.len();
        remove(inner, going, &mut pruned).await?;
        if is_over || *inner.closing.borrow() {
            break;
        }
        tokio::task::yield_now().await;
    }
    Ok(pruned)
}

/// Whether an entity with this last record is too young to be removed.
async fn is_kept(
    inner: &Inner,
    retention: Retention,
    entity: &EntityRef,
    last: Position,
) -> Result<bool, ActorError> {
    let Retention::OlderThan(age) = retention else { return Ok(false) };
    let page = inner.shared.journal.read_entity(entity.clone(), last, 1).await?;
    let Some(entry) = page.entries.into_iter().next() else { return Ok(true) };
    let record = entry.into_record()?;
    Ok(!retention::is_older(record.at, age, inner.shared.clock.wall()))
}

/// From the table first, so that nothing wakes them meanwhile.
async fn remove(
    inner: &Inner,
    going: Vec<(EntityRef, Position)>,
    pruned: &mut Pruned,
) -> Result<(), ActorError> {
    let table = &inner.shared.table;
    let (mut named, mut taken): (Vec<_>, Vec<(EntityRef, Sleep)>) = Default::default();
    for (entity, last) in going {
        if let Some(sleep) = table.lock().take_out(&entity, last) {
            named.push((entity.clone(), last));
            taken.push((entity, sleep));
        }
    }
    if named.is_empty() {
        return Ok(());
    }
    let answer = inner.shared.journal.prune(named).await;
    let removed = answer.as_ref().map_or(&[][..], Vec::as_slice);
    for (number, (entity, sleep)) in taken.into_iter().enumerate() {
        match removed.get(number) {
            Some(records @ 1..) => {
                pruned.entities += 1;
                pruned.records += records;
            }
            // Another process has written to it, or the disk fails.
            Some(0) | None => table.put_back(&entity, sleep),
        }
    }
    answer.map(|_| ()).map_err(ActorError::from)
}
