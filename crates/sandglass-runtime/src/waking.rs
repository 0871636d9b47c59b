//! How an entity that sleeps comes back: a request or one of its timers has it read from the
//! journal. One task waits for the timers of all entities.

use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sandglass_journal::{self as journal, Select};
use sandglass_liveness::Fold;
use sandglass_liveness::fold::Unfit;
use sandglass_model::{EntityRef, Position};
use tokio::sync::OwnedSemaphorePermit;

use crate::actor::{Actor, Channels, Restored};
use crate::error::ActorError;
use crate::inner::Inner;
use crate::panics::CatchPanic;
use crate::serving::Hold;
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
    let mut hold = channels.hold.clone();
    let read = tokio::select! {
        biased;
        read = read_before(&shared, &entity, Position(u64::MAX)) => read,
        // Requests must not wait for a store that does not respond.
        () = hold.gone() => return channels.refuse(&ActorError::Elsewhere(entity)),
    };
    match read {
        Ok(Some(read)) => {
            let mut actor = Actor::resumed(Arc::clone(&shared), read, sleep, channels, permit);
            if actor.has_lost_runs()
                && let Err(error) = actor.recover().await
            {
                if !matches!(error, ActorError::Elsewhere(_)) {
                    tracing::error!(%entity, %error, "handlers in flight cannot be ended");
                }
                let now = shared.clock.now();
                shared.table.put_back(&entity, &hold, Sleep::of_lost(now));
                return actor.give_up(&error);
            }
            Box::pin(actor.run_loop()).await;
        }
        _ if hold.is_gone() => channels.refuse(&ActorError::Elsewhere(entity)),
        // There is no such entity, or its task was lost before it was created.
        Ok(None) if sleep.last.is_none() => {
            let is_here = shared.table.forget(&entity, &hold);
            let error = if is_here { ActorError::UnknownEntity } else { ActorError::Elsewhere };
            channels.refuse(&error(entity));
        }
        read => {
            let gone = || Unread::of(Position(0), format!("{entity} is gone"));
            let error = ActorError::from(read.err().unwrap_or_else(gone));
            tracing::error!(%entity, %error, "an entity cannot be read from the journal");
            let is_damaged = !matches!(error, ActorError::JournalUnavailable { .. });
            let sleep = sleep.unread(&entity, &shared.specs(), shared.clock.now(), is_damaged);
            if sleep.is_superfluous() {
                shared.table.forget(&entity, &hold);
            } else {
                shared.table.put_back(&entity, &hold, sleep);
            }
            channels.refuse(&error);
        }
    }
}

/// Lives the life of an entity. If it unwinds, through a fault of the embedder's code or of the
/// runtime, the entity is put to sleep. The next request, or a timer, has it read from the journal
/// again, and what was in flight then ends as interrupted.
pub(crate) async fn unless_lost(
    shared: Arc<Shared>,
    (entity, hold): (EntityRef, Hold),
    life: impl Future<Output = ()>,
) {
    if CatchPanic(Box::pin(life)).await.is_none() {
        tracing::error!(%entity, "an entity's task panicked; it is read from the journal again");
        let now = shared.clock.now();
        shared.table.put_back(&entity, &hold, Sleep::of_lost(now));
    }
}

/// Why an entity cannot be read.
#[derive(Debug)]
pub(crate) enum Unread {
    Journal(journal::Error),
    /// A record does not fit the ones before it.
    Unfit {
        position: Position,
        unfit: Unfit,
    },
}

impl Unread {
    fn of(position: Position, what: String) -> Self {
        Self::Journal(journal::Error::Damaged { place: format!("position {position}"), what })
    }
}

impl From<journal::Error> for Unread {
    fn from(error: journal::Error) -> Self {
        Self::Journal(error)
    }
}

impl From<Unread> for journal::Error {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Journal(error) => error,
            Unread::Unfit { position, unfit } => {
                Self::Damaged { place: format!("position {position}"), what: unfit.to_string() }
            }
        }
    }
}

impl From<Unread> for ActorError {
    fn from(unread: Unread) -> Self {
        journal::Error::from(unread).into()
    }
}

/// An entity as its records before `before` make it; `None` if it has none.
pub(crate) async fn read_before(
    shared: &Shared,
    name: &EntityRef,
    before: Position,
) -> Result<Option<Restored>, Unread> {
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
            let position = last;
            fold.apply(&record).map_err(|unfit| Unread::Unfit { position, unfit })?;
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
    let spec = spec.ok_or_else(|| Unread::of(last, format!("the spec of {name} is gone")))?;
    Ok(Some(Restored { spec, entity, last, due }))
}

/// The wait after the journal could not be read.
const AGAIN: Duration = Duration::from_secs(5);

/// Wakes the sleepers that obey another spec than `specs` has for their type, so that they change
/// to it, until all have or a later reload replaces `specs`. They are those of the partition `of`, or of
/// all that are served.
pub(crate) async fn wake_outdated(
    shared: Arc<Shared>,
    runtime: Weak<Inner>,
    specs: Arc<Specs>,
    of: Option<usize>,
    mut closing: watch::Receiver<bool>,
) {
    let wake = async {
        // The journal may not have noted yet that these rest.
        let mut after: Option<EntityRef> = None;
        loop {
            let (permit, runtime) = permit_for(&shared, &runtime, &specs).await?;
            after = runtime.wake_outdated(after.as_ref(), &specs, permit);
            if after.is_none() {
                break;
            }
        }
        for (entity_type, spec) in &*specs.types {
            let (entity_type, spec) = (entity_type.clone(), spec.digest);
            let which = Select::OtherSpec { entity_type, spec };
            let mut after = None;
            loop {
                let of = shared.served(of);
                let selecting =
                    shared.journal.select_of(&of, which.clone(), after.clone(), WAKING_MAX);
                let page = match selecting.await {
                    Ok(page) => page,
                    Err(journal::Error::Closed) => return None,
                    Err(error) => {
                        tracing::warn!(
                            %error,
                            "the entities that obey an earlier spec cannot be read; it is tried again"
                        );
                        timer::until(&*shared.clock, shared.clock.now().after(AGAIN)).await;
                        continue;
                    }
                };
                for entry in page.entries {
                    let (permit, runtime) = permit_for(&shared, &runtime, &specs).await?;
                    let obeyed = entry.rest.and_then(|rest| rest.spec);
                    let obeyed = obeyed.and_then(|digest| specs.known.get(&digest).cloned());
                    runtime.wake_stored(&entry.entity, obeyed, permit);
                }
                after = page.next;
                if after.is_none() {
                    break;
                }
            }
        }
        Some(())
    };
    tokio::select! {
        biased;
        _ = closing.changed() => {}
        _ = wake => {}
    }
}

/// The permit to wake one more entity; `None` if a later reload replaced `specs`, or the runtime is
/// gone.
async fn permit_for(
    shared: &Shared,
    runtime: &Weak<Inner>,
    specs: &Arc<Specs>,
) -> Option<(OwnedSemaphorePermit, Arc<Inner>)> {
    let permit = Arc::clone(&shared.waking).acquire_owned().await.ok()?;
    let runtime = runtime.upgrade()?;
    let is_present = Arc::ptr_eq(&specs.types, &shared.specs().types);
    is_present.then_some((permit, runtime))
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
