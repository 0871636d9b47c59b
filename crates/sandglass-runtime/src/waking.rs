//! How an entity that sleeps comes back: a request or one of its timers has it read from the
//! journal. One task waits for the timers of all entities.

use std::future::Future;
use std::sync::{Arc, Weak};

use sandglass_journal as journal;
use sandglass_liveness::Fold;
use sandglass_model::{EntityRef, Position};
use tokio::sync::OwnedSemaphorePermit;

use crate::actor::{Actor, Channels, Restored};
use crate::error::ActorError;
use crate::inner::Inner;
use crate::panics::CatchPanic;
use crate::shared::Shared;
use crate::snapshot;
use crate::specs::Specs;
use crate::table::Sleep;
use crate::timer;
use crate::watch;

/// Most entities that timers and new specs wake at once, until each has done what woke it: enough
/// to fill the journal's groups, and few enough that a hundred thousand timers that fire together
/// do not bring them all into memory.
pub(crate) const WAKING_MAX: usize = 256;

/// Records that are read at once of an entity that wakes. A journal may have one reader for all;
/// this occupies it for some milliseconds, and other reads come in between.
const PIECE: usize = 128;

/// The life of an entity that was asleep, until it sleeps again. `permit` is its permit, if a timer
/// woke it.
pub(crate) async fn wake(
    shared: Arc<Shared>,
    entity: EntityRef,
    sleep: Sleep,
    channels: Channels,
    permit: Option<OwnedSemaphorePermit>,
) {
    match read_before(&shared, &entity, Position(u64::MAX)).await {
        Ok(Some(read)) => {
            let mut actor = Actor::resumed(Arc::clone(&shared), read, sleep, channels, permit);
            if actor.has_lost_runs()
                && let Err(error) = actor.recover().await
            {
                tracing::error!(%entity, %error, "handlers in flight cannot be ended");
                let now = shared.clock.now();
                shared.table.put_back(&entity, Sleep::of_lost(now));
                return actor.give_up(&error);
            }
            Box::pin(actor.run_loop()).await;
        }
        // Its task was lost before it was created.
        Ok(None) if sleep.last.is_none() => {
            shared.table.lock().forget(&entity);
            channels.refuse(&ActorError::UnknownEntity(entity));
        }
        read => {
            let gone = || damaged(Position(0), format!("{entity} is gone"));
            let error = read.err().unwrap_or_else(gone);
            tracing::error!(%entity, %error, "an entity cannot be read from the journal");
            let sleep = sleep.unread(&entity, &shared.specs(), shared.clock.now());
            shared.table.put_back(&entity, sleep);
            channels.refuse(&error);
        }
    }
}

/// Lives the life of an entity. If it unwinds, through a fault of the embedder's code or of the
/// runtime, the entity is put to sleep. The next request, or a timer, has it read from the journal
/// again, and what was in flight then ends as interrupted.
pub(crate) async fn unless_lost(
    shared: Arc<Shared>,
    entity: EntityRef,
    life: impl Future<Output = ()>,
) {
    if CatchPanic(Box::pin(life)).await.is_none() {
        tracing::error!(%entity, "an entity's task panicked; it is read from the journal again");
        let now = shared.clock.now();
        shared.table.put_back(&entity, Sleep::of_lost(now));
    }
}

/// An entity as its records before `before` make it; `None` if it has none.
pub(crate) async fn read_before(
    shared: &Shared,
    name: &EntityRef,
    before: Position,
) -> Result<Option<Restored>, ActorError> {
    let mut fold = Fold::of(shared.specs().known.clone());
    let (mut next, mut last) = (Some(Position(0)), Position(0));
    let mut due = snapshot::Due::default();
    while let Some(from) = next {
        let page = shared.journal.read_entity(name.clone(), from, PIECE).await?;
        next = page.next;
        let is_first = last == Position(0);
        for entry in page.entries {
            let record = entry.into_record()?;
            if record.position >= before {
                next = None;
                break;
            }
            last = record.position;
            due.records += 1;
            fold.apply(&record).map_err(|unfit| damaged(last, unfit.to_string()))?;
        }
        if is_first && next.is_some() {
            let skipped =
                snapshot::skip_to(shared.journal.of(name), &mut fold, name, last..before).await?;
            if let Some(at) = skipped {
                (last, next) = (at, Some(Position(at.0.saturating_add(1))));
                due = snapshot::Due::default();
            }
        }
    }
    let Some(entity) = fold.take(name) else { return Ok(None) };
    let spec = fold.spec(entity.spec).cloned();
    let spec = spec.ok_or_else(|| damaged(last, format!("the spec of {name} is gone")))?;
    Ok(Some(Restored { spec, entity, last, due }))
}

fn damaged(position: Position, what: String) -> ActorError {
    let place = format!("position {position}");
    ActorError::Journal(journal::Error::Damaged { place, what })
}

/// Wakes the sleepers that obey another spec than `specs` has for their type, so that they change
/// to it, until all have or a later reload replaces `specs`.
pub(crate) async fn wake_outdated(
    shared: Arc<Shared>,
    runtime: Weak<Inner>,
    specs: Arc<Specs>,
    mut closing: watch::Receiver<bool>,
) {
    let mut after: Option<EntityRef> = None;
    loop {
        let permit = tokio::select! {
            biased;
            _ = closing.changed() => return,
            permit = Arc::clone(&shared.waking).acquire_owned() => permit,
        };
        let (Ok(permit), Some(runtime)) = (permit, runtime.upgrade()) else { return };
        if !Arc::ptr_eq(&specs, &shared.specs()) {
            return;
        }
        after = runtime.wake_outdated(after.as_ref(), &specs, permit);
        if after.is_none() {
            return;
        }
    }
}

/// Wakes sleepers when their timers fire, until the runtime shuts down or is gone.
pub(crate) async fn watch_alarms(
    shared: Arc<Shared>,
    runtime: Weak<Inner>,
    mut closing: watch::Receiver<bool>,
) {
    loop {
        let next = shared.table.lock().next_alarm();
        let due = async {
            timer::until(&*shared.clock, next).await;
            Arc::clone(&shared.waking).acquire_owned().await.ok()
        };
        let permit = tokio::select! {
            // A timer that fires comes before cleaning up, however many entities fall asleep.
            biased;
            _ = closing.changed() => return,
            permit = due => permit,
            () = shared.table.fallen_asleep() => None,
        };
        let Some(runtime) = runtime.upgrade() else { return };
        match permit {
            Some(permit) => runtime.wake_due(permit),
            // An entity that has fallen asleep has left its task behind.
            None => runtime.sweep(),
        }
    }
}
