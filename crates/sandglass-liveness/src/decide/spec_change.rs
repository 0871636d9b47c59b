//! Whether an entity changes to another version of its spec: only if it has settled, and only if
//! the new version has a place for its state, variables and schedules.

use sandglass_model::{Event, Object, RulesVersion};
use serde_json::Value;

use super::Refusal;
use crate::entity::Entity;
use crate::session::Session;
use crate::spec::{Spec, VariableKind};

/// Decides the change of an entity that obeys `from` to the version `to`. New variables begin with
/// their initial values; the timer of the state restarts.
///
/// # Errors
/// The entity keeps its version, and nothing changes.
pub fn change_spec(from: &Spec, entity: &Entity, to: &Spec) -> Result<Vec<Event>, Refusal> {
    let unfit = |what: String| Refusal::SpecUnfit { what };
    if to.name != *entity.entity.entity_type() || to.digest == entity.spec {
        return Err(unfit("it is no other version of the entity's spec".to_owned()));
    }
    if from.is_terminal(&entity.state) {
        return Err(unfit(format!("the entity has ended in `{}`", entity.state)));
    }
    if !entity.is_settled() {
        return Err(unfit("a handler of the entity is in flight".to_owned()));
    }
    if !entity.is_at_rest() {
        return Err(unfit("an entity that it spawns is not created yet".to_owned()));
    }
    if !to.states.iter().any(|state| *state == *entity.state) {
        return Err(unfit(format!("it has no state `{}`", entity.state)));
    }
    let scheduled = entity.schedules().find(|one| !to.actions.contains_key(&one.action));
    if let Some(schedule) = scheduled {
        return Err(unfit(format!("it has no action `{}`, which is scheduled", schedule.action)));
    }
    if to.rules >= RulesVersion::V2 {
        check_held(entity, to).map_err(unfit)?;
    }
    let variables = variables(entity, to).map_err(unfit)?;
    Ok(vec![Event::SpecChanged { from: entity.spec, to: to.digest, variables }])
}

/// Held handlers, which the next run dispatches again, need their integration and a state that
/// accepts its endings. Version 1 of the rules did not check that.
fn check_held(entity: &Entity, to: &Spec) -> Result<(), String> {
    for held in entity.session().map(Session::held).unwrap_or_default() {
        let name = &held.integration;
        let Some(integration) = to.integrations.get(name) else {
            return Err(format!("it lacks integration `{name}`, which a held handler needs"));
        };
        if held.state != entity.state {
            continue;
        }
        let missing = to.endings_not_taken(integration, &entity.state);
        if !missing.is_empty() {
            let (state, missing) = (&entity.state, missing.join(", "));
            return Err(format!(
                "state `{state}` does not accept {missing}, which a held handler of `{name}` needs"
            ));
        }
    }
    Ok(())
}

fn variables(entity: &Entity, to: &Spec) -> Result<Object, String> {
    let mut variables = to.initial_variables();
    for (name, value) in &entity.variables {
        let Some(variable) = to.variables.get(name) else {
            return Err(format!("it has no variable `{name}`"));
        };
        if !holds(variable.kind, value) {
            return Err(format!("its variable `{name}` is of another type"));
        }
        variables.insert(name.clone(), value.clone());
    }
    Ok(variables)
}

fn holds(kind: VariableKind, value: &Value) -> bool {
    match kind {
        VariableKind::String => value.is_string(),
        VariableKind::Counter => value.is_u64(),
        VariableKind::Bool => value.is_boolean(),
        VariableKind::Number => value.is_number(),
        VariableKind::List => value.is_array(),
    }
}
