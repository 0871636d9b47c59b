//! How an entity is created: what it begins with is one batch, and nothing of that is carried out
//! before it is durable.

use std::sync::Arc;

use sandglass_journal::{self as journal, Batch, Expected};
use sandglass_liveness::{Decided, Entity, Input, Spec, decide};
use sandglass_model::{EntityRef, Event, Position, RunLimits, Sequence, WallTime};

use super::committing::Durable;
use super::messages::input_of;
use super::reservations::Reservations;
use super::{Actor, Channels, Restored};
use crate::asking::ParentBudget;
use crate::error::ActorError;
use crate::publish::Snapshot;
use crate::quota::SpawnSlot;
use crate::request::Request;
use crate::serving::Hold;
use crate::shared::{Shared, recorded};
use crate::snapshot;

/// What an entity begins with.
pub(crate) struct Creation {
    pub(crate) create: Input,
    /// The limits of its first run, if it is a session.
    pub(crate) limits: Option<RunLimits>,
    pub(crate) first: Option<First>,
    /// Its slot, if it is spawned.
    pub(crate) slot: Option<SpawnSlot>,
}

/// The action that an entity takes as it is created.
pub(crate) enum First {
    /// Its creator requests it; if it is refused, the entity is not created.
    Requested(Request),
    /// The entity is spawned; it is created even if it refuses the action.
    Spawned(Input),
}

/// An entity that was just created.
pub(crate) struct Created {
    restored: Restored,
    /// Its first action, which is durable and has to be carried out.
    first: Option<(Durable, Reservations)>,
    /// Why it did not take its first action, if it was spawned and refused that.
    pub(crate) action_refused: Option<String>,
    /// The time of its records.
    pub(crate) at: WallTime,
    slot: Option<SpawnSlot>,
}

impl Creation {
    /// Appends the creation of `name`, with what it begins with.
    pub(crate) async fn append(
        self,
        shared: &Shared,
        spec: Arc<Spec>,
        (name, hold): (EntityRef, &Hold),
    ) -> Result<Created, ActorError> {
        let Self { mut create, limits, first, slot } = self;
        let at = shared.clock.wall();
        let (mut created, mut entity) = begin(&spec, &name, &create, limits, at)?;
        let mut action_refused = None;
        let first = match first {
            None => None,
            Some(First::Requested(request)) => {
                Some(take_requested(shared, &spec, &entity, request, at).await?)
            }
            Some(First::Spawned(input)) => match take(shared, &spec, &entity, &input, at).await {
                Ok(taken) => Some(taken),
                Err(ActorError::Refused { refusal, .. }) => {
                    let refused = refusal.to_string();
                    if let Input::Create { spawned_by: Some(by), .. } = &mut create {
                        by.action_refused = Some(refused.clone());
                    }
                    action_refused = Some(refused);
                    (created, entity) = begin(&spec, &name, &create, limits, at)?;
                    None
                }
                Err(error) => return Err(error),
            },
        };
        let mut records = created.clone();
        if let Some((decided, _)) = &first {
            let sequences = entity.sequences(&decided.events);
            records.extend(sequences.zip(decided.events.iter().cloned()));
        }
        let count = u64::try_from(records.len()).unwrap_or(u64::MAX);
        let batch = Batch::new(name.clone(), Expected::None, at, records);
        let place = shared.append(batch, hold).await.map_err(|error| match error {
            journal::Error::Conflict { entity, .. } => ActorError::EntityExists(entity),
            journal::Error::Disowned { .. } if hold.is_gone() => {
                ActorError::Elsewhere(name.clone())
            }
            other => other.into(),
        })?;
        let mut places = (place.0..).map(Position);
        for ((sequence, event), place) in created.into_iter().zip(&mut places) {
            shared.publish(recorded(place, at, Some(name.clone()), sequence, event));
        }
        let (entity, first) = match first.zip(places.next()) {
            Some(((Decided { events, after }, reservations), first)) => {
                let sequences = entity.sequences(&events).collect();
                let durable = Durable { before: entity, events, sequences, first, at };
                (after, Some((durable, reservations)))
            }
            None => (entity, None),
        };
        let last = Position(place.0.saturating_add(count).saturating_sub(1));
        let due = snapshot::Due { records: count };
        let restored = Restored { spec, entity, last, due };
        Ok(Created { restored, first, action_refused, at, slot })
    }
}

/// The records that an entity begins with before it takes an action, and the entity that they make.
fn begin(
    spec: &Spec,
    name: &EntityRef,
    create: &Input,
    limits: Option<RunLimits>,
    at: WallTime,
) -> Result<(Vec<(Sequence, Event)>, Entity), ActorError> {
    let refused = |refusal| ActorError::Refused { entity: name.clone(), refusal };
    let Decided { mut events, after: mut entity } =
        decide(spec, None, create, at).map_err(refused)?;
    if let Some(limits) = limits {
        let start = Input::Start { limits };
        let started = decide(spec, Some(&entity), &start, at).map_err(refused)?;
        events.extend(started.events);
        entity = started.after;
    }
    Ok((events.into_iter().map(|event| (Sequence(0), event)).collect(), entity))
}

/// Decides the first action that a creator requests, which needs slots for all of its handlers.
async fn take_requested(
    shared: &Shared,
    spec: &Spec,
    entity: &Entity,
    request: Request,
    at: WallTime,
) -> Result<(Decided, Reservations), ActorError> {
    let (input, _root) = input_of(shared, &entity.entity, request)?;
    let (decided, reservations) = take(shared, spec, entity, &input, at).await?;
    match reservations.missing() {
        Some(busy) => Err(ActorError::Busy { entity: entity.entity.clone(), busy }),
        None => Ok((decided, reservations)),
    }
}

/// Decides the action that an entity takes as it is created, and reserves what its handlers need.
async fn take(
    shared: &Shared,
    spec: &Spec,
    entity: &Entity,
    input: &Input,
    at: WallTime,
) -> Result<(Decided, Reservations), ActorError> {
    let refused = |refusal| ActorError::refused(&entity.entity, refusal);
    let mut decided = shared.decide(spec, entity, input, at).await?.map_err(refused)?;
    let handlers = &*shared.handlers;
    let reservations =
        Reservations::reserve(handlers, &decided.events, &entity.tenant, ParentBudget::default());
    reservations.name_modules(handlers, &mut decided);
    Ok((decided, reservations))
}

impl Created {
    /// Its task, which has carried out what it began with.
    pub(crate) fn begin(self, shared: Arc<Shared>, channels: Channels) -> Actor {
        let Self { restored, first, slot, .. } = self;
        let mut actor = Actor::new(shared, restored, channels);
        actor.shown.show_created(|| Snapshot::of(&actor.entity));
        actor.spawn_slot = slot;
        if let Some((durable, reservations)) = first {
            actor.act_on(durable, reservations);
        }
        actor
    }
}
