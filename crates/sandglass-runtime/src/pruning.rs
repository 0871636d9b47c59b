//! Removes entities that have ended, while the others continue.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures_util::future::try_join_all;
use sandglass_journal::{self as journal, EntityEntry, Journal, SELECTED_MAX, Select};
use sandglass_liveness::{Retention, retention};
use sandglass_model::{EntityRef, Position};

use crate::error::ActorError;
use crate::inner::Inner;
use crate::runtime::Runtime;
use crate::serving::Hold;
use crate::table::Sleep;

/// Entities that are removed at once: appends wait for some milliseconds meanwhile, and proceed
/// between two batches.
const PIECE: usize = 8;
/// Entities that are looked up at once.
const PAGE: usize = 256;

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
    /// runtime and its journal. Of a partitioned store, it acts on the partitions that this runtime
    /// serves, and [`Retention::Keep`] counts their entities alone. Their names can be used again afterwards. It continues if its
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
    // Those that have just fallen asleep are among the ended ones, too.
    inner.shared.write_rests().await?;
    // Without them, their parents would create them a second time.
    let spawning = inner.shared.table.lock().spawning();
    let holds = inner.shared.table.lock().serving.holds();
    let journals = inner.shared.journal.all();
    let served: Vec<(&Hold, &dyn Journal)> =
        holds.iter().filter_map(|hold| Some((hold, &**journals.get(hold.index)?))).collect();
    let most = match retention {
        Retention::Keep(most) => {
            let ended = served.iter().map(|(_, journal)| count_ended(*journal));
            shares(&try_join_all(ended).await?, most)
        }
        Retention::OlderThan(_) => vec![u64::MAX; served.len()],
    };
    let mut pruned = Pruned::default();
    for (of, most) in served.into_iter().zip(most) {
        prune_in(inner, of, retention, most, &spawning, &mut pruned).await?;
    }
    Ok(pruned)
}

/// How many of the `ended` entities of each journal may be removed, so that `kept` are left. Each
/// journal loses the same share of its oldest ones, rounded down, because positions of different
/// journals cannot be compared.
fn shares(ended: &[u64], kept: u64) -> Vec<u64> {
    let all: u128 = ended.iter().map(|ended| u128::from(*ended)).sum();
    let removed = all.saturating_sub(kept.into());
    let share = |ended: &u64| (u128::from(*ended) * removed).checked_div(all).unwrap_or_default();
    ended.iter().map(|ended| u64::try_from(share(ended)).unwrap_or(*ended)).collect()
}

/// Removes at most `left` entities from one journal, while its partition is served.
async fn prune_in(
    inner: &Inner,
    (hold, journal): (&Hold, &dyn Journal),
    retention: Retention,
    mut left: u64,
    spawning: &BTreeSet<EntityRef>,
    pruned: &mut Pruned,
) -> Result<(), ActorError> {
    let mut after = None;
    loop {
        let page = journal.select(Select::Ended, after, PAGE).await?;
        for piece in page.entries.chunks(PIECE) {
            let mut going = Vec::with_capacity(PIECE);
            let mut is_over = false;
            for EntityEntry { entity, last, .. } in piece {
                is_over = left == 0 || is_kept(inner, retention, entity, last.position).await?;
                if is_over {
                    break;
                }
                left -= 1;
                if !spawning.contains(entity) {
                    going.push((entity.clone(), last.position));
                }
            }
            remove(inner, hold, going, pruned).await?;
            if is_over || *inner.closing.borrow() || hold.is_gone() {
                return Ok(());
            }
            tokio::task::yield_now().await;
        }
        after = page.next;
        if after.is_none() {
            return Ok(());
        }
    }
}

/// How many entities have ended and rest.
async fn count_ended(journal: &dyn Journal) -> Result<u64, ActorError> {
    let (mut count, mut after) = (0_u64, None);
    loop {
        let page = journal.select(Select::Ended, after, SELECTED_MAX).await?;
        count = count.saturating_add(u64::try_from(page.entries.len()).unwrap_or(u64::MAX));
        after = page.next;
        if after.is_none() {
            return Ok(count);
        }
    }
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

/// Nothing wakes the entities meanwhile.
async fn remove(
    inner: &Inner,
    hold: &Hold,
    going: Vec<(EntityRef, Position)>,
    pruned: &mut Pruned,
) -> Result<(), ActorError> {
    let table = &inner.shared.table;
    let (mut named, mut taken): (Vec<_>, Vec<Option<Sleep>>) = Default::default();
    for (entity, last) in going {
        let (is_taken, sleep) = table.lock().take_out((&entity, hold), last);
        if is_taken {
            named.push((entity, last));
            taken.push(sleep);
        }
    }
    if named.is_empty() {
        return Ok(());
    }
    let answer = inner.shared.journal.prune(named.clone()).await;
    let removed = answer.as_ref().map_or(&[][..], Vec::as_slice);
    for (number, ((entity, _), sleep)) in named.into_iter().zip(taken).enumerate() {
        table.lock().left(&entity);
        match (removed.get(number), sleep) {
            (Some(records @ 1..), _) => {
                pruned.entities += 1;
                pruned.records += records;
            }
            // Another process has written to it, or the disk fails.
            (_, Some(sleep)) => table.put_back(&entity, hold, sleep),
            (_, None) => {}
        }
    }
    match answer {
        Err(journal::Error::Disowned { .. }) if inner.shared.journal.is_partitioned() => {
            inner.shared.lose_disowned(hold);
            Ok(())
        }
        answer => answer.map(|_| ()).map_err(ActorError::from),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_journal_loses_its_share_and_enough_are_kept() {
        assert_eq!(shares(&[10], 4), [6]);
        assert_eq!(shares(&[10, 0, 30], 20), [5, 0, 15]);
        assert_eq!(shares(&[3, 3, 3], 8), [0, 0, 0]);
        assert_eq!(shares(&[3, 3], 7), [0, 0]);
        assert_eq!(shares(&[0, 0], 0), [0, 0]);
        // Far more than any journal has.
        assert_eq!(shares(&[u64::MAX >> 4; 4], 0), [u64::MAX >> 4; 4]);
    }
}
