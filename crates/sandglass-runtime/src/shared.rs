//! What all entities of a runtime share, with the common path of appending and publishing.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, Weak};
use std::time::Duration;

use sandglass_journal::{self as journal, Batch, Journals, Positions};
use sandglass_liveness::session::Ceilings;
use sandglass_liveness::{Decided, Entity, Input, Known, Refusal, Spec, decide_knowing};
use sandglass_model::{
    Clock, EntityRef, Entropy, Event as RecordedEvent, Observed, Position, Record, Sequence,
    SpawnObstacle, Unspawnable, WallTime,
};
use sandglass_telemetry::Telemetry;
use sandglass_telemetry::metrics::Health;
use tokio::sync::{Semaphore, broadcast};

use crate::account_sampling::AccountSampling;
use crate::activity::ActiveElsewhere;
use crate::actor::{Handle, Restored};
use crate::blocked::Blocked;
use crate::conversations::Conversations;
use crate::delivering::OpenAsks;
use crate::handlers::Handlers;
use crate::inner::Inner;
use crate::moving::LostPartitions;
use crate::other_hosts::Way;
use crate::publish::Event;
use crate::quota::SpawnQuota;
use crate::resting::Rests;
use crate::serving::Hold;
use crate::specs::Specs;
use crate::table::Table;
use crate::waiting::WaitGraph;
use crate::waking::{Unread, read_before};
use crate::watch;

/// What all entities of a runtime share.
pub(crate) struct Shared {
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) entropy: Arc<dyn Entropy>,
    pub(crate) journal: Journals,
    pub(crate) handlers: Arc<dyn Handlers>,
    pub(crate) telemetry: Telemetry,
    pub(crate) events: broadcast::Sender<Event>,
    pub(crate) journal_works: AtomicBool,
    pub(crate) wait_graph: WaitGraph,
    pub(crate) conversations: Conversations,
    pub(crate) rests: Rests,
    pub(crate) lost: LostPartitions,
    /// The way to entities of other hosts; closed if there are none.
    pub(crate) way: Way,
    pub(crate) active_elsewhere: ActiveElsewhere,
    /// The asks of other hosts that are open.
    pub(crate) open_asks: OpenAsks,
    /// Through which asks reach entities; `None` until all entities are recovered.
    pub(crate) runtime: watch::Sender<Option<Weak<Inner>>>,
    pub(crate) specs: watch::Sender<Arc<Specs>>,
    pub(crate) table: Table,
    pub(crate) blocked: Arc<Blocked>,
    pub(crate) accounts: AccountSampling,
    /// Read through [`Shared::ceilings`].
    pub(crate) present_ceilings: RwLock<Arc<Ceilings>>,
    /// Who may stop and resume sessions; `None` if every caller may.
    pub(crate) operators: Option<BTreeSet<String>>,
    /// How long a shutdown waits for handlers, in milliseconds, once there is one.
    pub(crate) shutdown_grace_ms: AtomicU64,
    /// Permits for [`WAKING_MAX`](crate::waking::WAKING_MAX) entities that timers wake.
    pub(crate) waking: Arc<Semaphore>,
    pub(crate) spawn_quota: Arc<SpawnQuota>,
}

impl Shared {
    /// The upper bounds on the limits of a run that starts now.
    pub(crate) fn ceilings(&self) -> Arc<Ceilings> {
        Arc::clone(&self.present_ceilings.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the bounds for runs that start from now on.
    pub(crate) fn set_ceilings(&self, ceilings: Ceilings) {
        // One assignment, so a panic cannot leave half of it.
        *self.present_ceilings.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(ceilings);
    }

    /// Appends to the journal of the batch's entity, measures, and notes whether appends work. If the
    /// journal belongs to another host, its partition is lost.
    ///
    /// # Errors
    /// As [`Journals::append`]; [`journal::Error::Disowned`] also if the period `hold` is over.
    pub(crate) async fn append(
        &self,
        batch: Batch,
        hold: &Hold,
    ) -> Result<Position, journal::Error> {
        if hold.is_gone() {
            let what =
                "this process does not serve the partition of the entity any more".to_owned();
            return Err(journal::Error::Disowned { what });
        }
        let appended = self.append_by(self.journal.append(batch)).await;
        if let Err(journal::Error::Disowned { .. }) = &appended
            && self.journal.is_partitioned()
        {
            self.lose_disowned(hold);
        }
        appended
    }

    /// As [`Shared::append`], with the future result of an append.
    pub(crate) async fn append_by(
        &self,
        appending: impl Future<Output = Result<Positions, journal::Error>>,
    ) -> Result<Position, journal::Error> {
        let begun = self.clock.now();
        let answer = appending.await;
        let metrics = &self.telemetry.metrics;
        // One partition of many that this process does not own any more says nothing about the others.
        let is_given_up = matches!(answer, Err(journal::Error::Disowned { .. }));
        let works = !matches!(
            answer,
            Err(journal::Error::Unavailable { .. } | journal::Error::Damaged { .. })
        );
        if works && !is_given_up {
            metrics.journal_append(self.clock.now().since(begun));
        } else {
            metrics.journal_append_failed();
        }
        if !is_given_up && self.journal_works.swap(works, Ordering::Relaxed) != works {
            metrics.journal_health(if works { Health::Healthy } else { Health::Unhealthy });
            if let Err(error) = &answer {
                tracing::error!(%error, "the journal takes no appends; new dispatches are refused");
            } else {
                tracing::info!("the journal takes appends again");
            }
        }
        answer.map(|positions| positions.first)
    }

    /// Decides about `input`. An action that would spawn an entity which exists, or whose type has no
    /// spec, is refused, as far as that is known now. States of other entities that it depends on are
    /// read now.
    ///
    /// # Errors
    /// A state cannot be read from the journal.
    pub(crate) async fn decide(
        &self,
        spec: &Spec,
        entity: &Entity,
        input: &Input,
        at: WallTime,
    ) -> Result<Result<Decided, Refusal>, journal::Error> {
        let (mut unspawnable, mut observed) = (None, Vec::new());
        // Each turn makes more known: an entity that cannot be spawned once, and a bounded number of states.
        loop {
            let known = Known { unspawnable: unspawnable.as_ref(), observed: Some(&observed) };
            match decide_knowing(spec, Some(entity), input, at, known) {
                Err(Refusal::Unobserved(names)) => {
                    // Boxed, because few decisions depend on others.
                    observed.extend(Box::pin(self.observe(names, entity)).await?);
                }
                Ok(decided) if unspawnable.is_none() => {
                    unspawnable = self.find_unspawnable(&decided.events).await?;
                    if unspawnable.is_none() {
                        return Ok(Ok(decided));
                    }
                }
                decided => return Ok(decided),
            }
        }
    }

    /// The states of `names` as `reader` sees them.
    async fn observe(
        &self,
        names: Vec<EntityRef>,
        reader: &Entity,
    ) -> Result<Vec<Observed>, journal::Error> {
        let mut observed = Vec::with_capacity(names.len());
        for entity in names {
            let state = self.state_of(&entity, reader).await?;
            observed.push(Observed { entity, state });
        }
        Ok(observed)
    }

    /// The durable state of `name`, if it is an entity of the same tenant as `reader`. This never waits for
    /// the task of an entity, because two entities may read each other: one that shows nothing is read from
    /// the journal.
    async fn state_of(
        &self,
        name: &EntityRef,
        reader: &Entity,
    ) -> Result<Option<String>, journal::Error> {
        if *name == reader.entity {
            return Ok(Some(reader.state.clone()));
        }
        let shown = self.table.lock().awake(name).and_then(Handle::snapshot);
        let (tenant, state) = match shown {
            Some(shown) => (shown.tenant.clone(), shown.state.clone()),
            None => match read_before(self, name, Position(u64::MAX)).await {
                Ok(Some(Restored { entity, .. })) => (entity.tenant, entity.state),
                Ok(None) => return Ok(None),
                Err(Unread::Journal(
                    error @ (journal::Error::Unavailable { .. } | journal::Error::Closed),
                )) => return Err(error),
                Err(unread) => {
                    let error = journal::Error::from(unread);
                    // Waiting would not help, and the reader may have to end a handler.
                    tracing::error!(
                        entity = %name,
                        %error,
                        "an entity that a guard reads is damaged in the journal; for the guard, it does \
                         not exist; see `sandglass journal`"
                    );
                    return Ok(None);
                }
            },
        };
        Ok((tenant == reader.tenant).then_some(state))
    }

    /// The first entity that `events` would spawn and that is known not to be spawnable.
    async fn find_unspawnable(
        &self,
        events: &[RecordedEvent],
    ) -> Result<Option<Unspawnable>, journal::Error> {
        for event in events {
            let RecordedEvent::Spawning(spawn) = event else { continue };
            let reason = if !self.specs().types.contains_key(spawn.entity.entity_type()) {
                SpawnObstacle::UnknownType
            // Boxed, because few decisions spawn entities.
            } else if Box::pin(self.is_known(&spawn.entity)).await? {
                SpawnObstacle::Exists
            } else {
                continue;
            };
            return Ok(Some(Unspawnable { entity: spawn.entity.clone(), reason }));
        }
        Ok(None)
    }

    /// Whether an entity of this name exists or is being created.
    ///
    /// # Errors
    /// The journal cannot be read.
    pub(crate) async fn is_known(&self, entity: &EntityRef) -> Result<bool, journal::Error> {
        let known = self.table.lock().knows(entity);
        match known {
            Some(known) => Ok(known),
            None => Ok(self.journal.last_of(entity.clone()).await?.is_some()),
        }
    }

    /// How long a shutdown waits for handlers.
    pub(crate) fn shutdown_grace(&self) -> Duration {
        Duration::from_millis(self.shutdown_grace_ms.load(Ordering::Relaxed))
    }

    /// The specs as they are now.
    pub(crate) fn specs(&self) -> Arc<Specs> {
        Arc::clone(&self.specs.borrow())
    }

    /// Publishes to subscribers, if there are any.
    pub(crate) fn publish(&self, event: Event) {
        let _ = self.events.send(event);
    }
}

/// A record as it was appended.
pub(crate) fn recorded(
    position: Position,
    at: WallTime,
    entity: Option<EntityRef>,
    sequence: Sequence,
    event: RecordedEvent,
) -> Event {
    Event::Recorded(Arc::new(Record { position, at, entity, sequence, event }))
}
