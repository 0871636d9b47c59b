//! Entities that a transition spawns: which, how each spawn ends, and the first action of a spawned
//! entity.

use sandglass_model::spawn::spawn_uuid;
use sandglass_model::{
    EntityRef, Event, Object, Sequence, Spawn, SpawnObstacle, SpawnResult, TraceContext,
    TransitionCause, Unspawnable,
};
use serde_json::Value;

use super::action::{ActionContext, MayRefuse};
use super::{PARAMS_MAX_BYTES, Refusal, size};
use crate::entity::{Entity, parent_fields};
use crate::spec::{Action, NEW_ID, SpawnEffect, SpawnId};

/// Most entities that one entity spawns at a time: they are kept in memory until they are created.
pub const SPAWNING_MAX: usize = 64;
/// Largest parameters for all the entities that one transition spawns, in bytes as JSON: they go into
/// one transaction of the journal.
pub const SPAWNED_MAX_BYTES: usize = 4 << 20;

/// How a spawn ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpawnEnd {
    /// The sequence of the transition that spawned the entity.
    pub spawned_at: Sequence,
    /// Its number within the transition.
    pub index: u32,
    /// How.
    pub result: SpawnResult,
}

/// The entities that `action` spawns, taken with `params`.
pub(super) fn spawns(
    entity: &Entity,
    action: &Action,
    params: &Object,
    trace: TraceContext,
    may_refuse: MayRefuse<'_>,
) -> Result<Vec<Spawn>, Refusal> {
    let mut effects: Vec<&SpawnEffect> = action.spawns().collect();
    let room = SPAWNING_MAX.saturating_sub(entity.spawning().len());
    match may_refuse {
        MayRefuse::Everything(_) if effects.len() > room => {
            return Err(Refusal::TooManySpawns { max: SPAWNING_MAX });
        }
        MayRefuse::Everything(_) => {}
        MayRefuse::Invariants | MayRefuse::Nothing => effects.truncate(room),
    }
    if effects.is_empty() {
        return Ok(Vec::new());
    }
    let each_max_bytes = PARAMS_MAX_BYTES.min(SPAWNED_MAX_BYTES / effects.len());
    let sequence = entity.sequence.next();
    let trace = trace.of_transition(entity.incarnation, sequence);
    let mut spawns: Vec<Spawn> = Vec::new();
    for (index, effect) in (0..).zip(effects) {
        let new_id = spawn_uuid(entity.incarnation, sequence, index);
        let spawned = match (name_of(action, effect, params, &new_id), may_refuse) {
            (named, MayRefuse::Everything(_)) => named?,
            // An action that has to end the state cannot be refused for a parameter.
            (named, _) => named.or_else(|_| name_of(action, effect, &Object::new(), &new_id))?,
        };
        let is_doubled = spawned == entity.entity
            || spawns.iter().any(|spawn| spawn.entity == spawned)
            || entity.spawning().any(|(_, spawn)| spawn.entity == spawned);
        check_spawnable(&spawned, is_doubled, may_refuse)?;
        let mut params = first_params(entity, effect, params);
        if size(&params, each_max_bytes).is_none() {
            if let MayRefuse::Everything(_) = may_refuse {
                let what = "parameters for an entity that it spawns";
                return Err(Refusal::TooLarge { what, max: each_max_bytes });
            }
            // What cannot be refused goes without them.
            params = parent_fields(&entity.entity).into();
        }
        spawns.push(Spawn {
            index,
            entity: spawned,
            action: effect.initial_action.as_ref().map(ToString::to_string),
            params,
            stored_in: effect.store_id_in.as_ref().map(ToString::to_string),
            trace,
        });
    }
    Ok(spawns)
}

/// Errors if the action is refused because it would spawn this entity.
fn check_spawnable(
    spawned: &EntityRef,
    is_doubled: bool,
    may_refuse: MayRefuse<'_>,
) -> Result<(), Refusal> {
    let MayRefuse::Everything(known) = may_refuse else { return Ok(()) };
    let known = known.filter(|known| known.entity == *spawned).cloned();
    let doubled = || Unspawnable { entity: spawned.clone(), reason: SpawnObstacle::Exists };
    match known.or_else(|| is_doubled.then(doubled)) {
        Some(unspawnable) => Err(Refusal::Unspawnable(unspawnable)),
        None => Ok(()),
    }
}

/// The name of the entity that `effect` spawns.
fn name_of(
    action: &Action,
    effect: &SpawnEffect,
    params: &Object,
    new_id: &str,
) -> Result<EntityRef, Refusal> {
    let (id, param) = match &effect.id {
        SpawnId::Template(template) => (template.replace(NEW_ID, new_id), template),
        SpawnId::Param(param) => {
            let given = params.get(param.as_str()).and_then(Value::as_str);
            (given.filter(|id| !id.is_empty()).unwrap_or(new_id).to_owned(), param)
        }
    };
    EntityRef::new(effect.entity_type.as_str(), id).map_err(|_| Refusal::BadParam {
        action: action.name.to_string(),
        param: param.to_string(),
        wanted: "the id of an entity",
    })
}

/// The parameters of the first action of a spawned entity: those of its parent's action, its parent,
/// and copied fields of the parent as they were before.
fn first_params(entity: &Entity, effect: &SpawnEffect, params: &Object) -> Object {
    if effect.initial_action.is_none() {
        return Object::new();
    }
    let copied = effect.copy_fields.iter().filter_map(|field| {
        let value = entity.variables.get(field.as_str());
        let value = value.or_else(|| entity.fields().get(field))?;
        Some((field.to_string(), value.clone()))
    });
    let mut first = params.clone();
    first.extend(parent_fields(&entity.entity));
    first.extend(copied);
    first
}

/// Takes the first action of an entity that another one spawned.
pub(super) fn first_action(
    entity: &Entity,
    context: &ActionContext<'_>,
    (action, params): (&str, &Object),
    trace: TraceContext,
) -> Result<Vec<Event>, Refusal> {
    if entity.spawned_by().is_none() || entity.sequence != Sequence(0) {
        return Err(Refusal::NotSpawned);
    }
    context.take(action, params, &TransitionCause::Spawned, trace)
}

/// Records how a spawn ended.
pub(super) fn record_end(entity: &Entity, end: &SpawnEnd) -> Result<Vec<Event>, Refusal> {
    let SpawnEnd { spawned_at, index, result } = end;
    let (spawned_at, index) = (*spawned_at, *index);
    let spawn = entity.spawn(spawned_at, index).ok_or(Refusal::NotSpawned)?;
    let entity = spawn.entity.clone();
    Ok(vec![match result {
        SpawnResult::Created { action_refused } => {
            Event::Spawned { spawned_at, index, entity, action_refused: action_refused.clone() }
        }
        SpawnResult::Refused(reason) => {
            Event::SpawnRefused { spawned_at, index, entity, reason: *reason }
        }
    }])
}
