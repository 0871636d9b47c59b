//! What the effects of an action make of an entity's variables.

use sandglass_model::{Object, RulesVersion};
use serde_json::Value;

use super::refusal::UnfitParam;
use super::{Refusal, VARIABLES_MAX_BYTES, check_size};
use crate::spec::{Action, Assigned, Effect, Spec, VariableKind, type_of};

/// Returns the variables after the effects of `action`.
pub(super) fn apply(
    spec: &Spec,
    action: &Action,
    params: &Object,
    before: &Object,
) -> Result<Object, Refusal> {
    let mut variables = before.clone();
    // Values in the spec itself are bounded by the size of the spec, unless they are appended.
    let mut may_grow = false;
    for effect in &action.effects {
        let Some((variable, assigned)) = effect.changes() else { continue };
        let declared = spec.variables.get(variable.as_str());
        let of = declared.map_or(VariableKind::String, |variable| variable.kind);
        let value = match assigned {
            Assigned::Literal(value) => Some(value.clone()),
            Assigned::Variable(from) => {
                let value = variables.get(from.as_str());
                value.and_then(|value| effect.uses(of).hold(value))
            }
            Assigned::Param(param) => {
                let wanted = Wanted { variable, of, kind: effect.uses(of) };
                from_param(spec, action, params, param, &wanted)?
            }
        };
        let Some(value) = value else { continue };
        let is_appended = matches!(effect, Effect::Append { .. });
        may_grow |= is_appended || !matches!(assigned, Assigned::Literal(_));
        let present = variables.remove(variable.as_str()).unwrap_or(Value::Null);
        let after = match effect {
            Effect::Increment { .. } => increment(&present, &value),
            Effect::Decrement { .. } => decrement(&present, &value),
            Effect::Append { .. } => append(present, value),
            Effect::RemoveAt { .. } => remove_at(present, &value),
            _ => value,
        };
        variables.insert(variable.to_string(), after);
    }
    if may_grow {
        check_size("variables", &variables, VARIABLES_MAX_BYTES)?;
    }
    Ok(variables)
}

/// What a parameter is used for.
struct Wanted<'a> {
    variable: &'a str,
    /// The type of the variable.
    of: VariableKind,
    /// The type that the parameter has to have.
    kind: VariableKind,
}

/// The value of a parameter; `None` if it is absent.
fn from_param(
    spec: &Spec,
    action: &Action,
    params: &Object,
    param: &str,
    wanted: &Wanted<'_>,
) -> Result<Option<Value>, Refusal> {
    let given = params.get(param);
    let held = given.and_then(|value| wanted.kind.hold(value));
    let (action, param) = (action.name.to_string(), param.to_owned());
    if spec.rules < RulesVersion::V3 {
        // Each parameter was required.
        let wanted = wanted.kind.holds();
        return held.map(Some).ok_or(Refusal::BadParam { action, param, wanted });
    }
    let Some(given) = given.filter(|value| !value.is_null()) else { return Ok(None) };
    held.map(Some).ok_or_else(|| {
        Refusal::UnfitParam(Box::new(UnfitParam {
            action,
            param,
            is: type_of(given),
            variable: wanted.variable.to_owned(),
            of: wanted.of.as_str(),
            wanted: wanted.kind.holds(),
        }))
    })
}

fn increment(present: &Value, by: &Value) -> Value {
    match (whole(present), by.as_i64()) {
        (Some(count), Some(by)) => Value::from(count.saturating_add(by)),
        _ => finite(present, float(present) + float(by)),
    }
}

/// Stops at 0, unless it was less before.
fn decrement(present: &Value, by: &Value) -> Value {
    match (whole(present), by.as_i64()) {
        (Some(count), Some(by)) => Value::from(count.saturating_sub(by).max(count.min(0))),
        _ => {
            let number = float(present);
            finite(present, (number - float(by)).max(number.min(0.0)))
        }
    }
}

fn whole(value: &Value) -> Option<i64> {
    if value.is_number() { value.as_i64() } else { Some(0) }
}

fn float(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The number, or what was there before if JSON cannot represent it.
fn finite(before: &Value, number: f64) -> Value {
    serde_json::Number::from_f64(number).map_or_else(|| before.clone(), Value::from)
}

fn items_of(list: Value) -> Vec<Value> {
    if let Value::Array(items) = list { items } else { Vec::new() }
}

fn append(list: Value, item: Value) -> Value {
    let mut items = items_of(list);
    items.push(item);
    Value::Array(items)
}

fn remove_at(list: Value, index: &Value) -> Value {
    let mut items = items_of(list);
    let index = index.as_u64().and_then(|index| usize::try_from(index).ok());
    if let Some(index) = index.filter(|index| *index < items.len()) {
        items.remove(index);
    }
    Value::Array(items)
}
