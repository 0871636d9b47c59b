//! Reads the `guard` of an action, and conditions that are written as tables.

use std::collections::BTreeSet;
use std::ops::Range;

use sandglass_model::RulesVersion;
use sandglass_source::{
    Diagnostics, Help, Name, Spot, Table, did_you_mean, items_of, nearest, toml_value, wrong_type,
};
use serde_json::Value;
use toml::de::DeValue;

use super::{Among, GUARD_DEPTH_MAX, GUARDS_MAX, Guard, Operand, Operator, READS_MAX, TERMS_MAX};
use crate::entity::STATUS;
use crate::spec::states::States;
use crate::spec::{Spec, check};

/// Reads `guard` of an action: a text, a table, or a list of both, all of which must hold.
pub(in crate::spec) fn read(
    action: &Table<'_, '_>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    all_of(action.value("guard")?, action, text, spec, out)
}

/// Reads the condition for starting an integration that is declared under an action: its `guard`, which
/// may read fields, and `to_state`, the state that the action has to lead to. `None` if it has neither.
pub(in crate::spec) fn of_trigger(
    trigger: &Table<'_, '_>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let to_state = trigger.name("to_state", out);
    if let Some(state) = &to_state {
        check::known_state(&States::of(&spec.states), state, out);
    }
    let in_state = to_state.map(|state| Guard::state_in([Value::from(state.as_str())].into_iter()));
    let guard = trigger.value("guard").and_then(|value| all_of(value, trigger, fields, spec, out));
    let guards: Vec<Guard> = in_state.into_iter().chain(guard).collect();
    (!guards.is_empty()).then(|| Guard::all(guards))
}

/// Checks that the condition of an invariant reads no other entity, whose state may change at any time.
pub(in crate::spec) fn check_own(guard: &Guard, at: &Range<usize>, out: &mut Diagnostics<'_>) {
    if !guard.others().is_empty() {
        let message =
            "an invariant cannot read the state of another entity, which may change at any time";
        out.error_with_help(at, message, "read it in the `guard` of the action that depends on it");
    }
}

/// Reports texts that a condition compares the state of the entity itself with, and that are no states.
pub(in crate::spec) fn check_states(
    guard: &Guard,
    at: &Range<usize>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) {
    let is_state = |operand: &Operand| match operand {
        Operand::State => true,
        Operand::Named(name) => name == STATUS && !spec.variables.contains_key(STATUS),
        _ => false,
    };
    let mut named: Vec<&str> = Vec::new();
    guard.compared(&mut |operand, values| {
        if is_state(operand) {
            named.extend(values.iter().filter_map(Value::as_str));
        }
    });
    // If the states cannot be read, that is the mistake, as for each other use of one.
    if named.is_empty() || spec.states.is_empty() {
        return;
    }
    let (states, mut seen) = (States::of(&spec.states), BTreeSet::new());
    let mut from = Some(at.start);
    for state in named.into_iter().filter(|state| states.number(state).is_none()) {
        if seen.insert(state) {
            // Each search begins behind the last one, so that all take time by the size of the text.
            let found = from.and_then(|from| quoted_at(state, from..at.end, out.source()));
            from = found.as_ref().map(|found| found.end);
            let message = format!("`{state}` is no declared state, so the entity is never in it");
            let help = did_you_mean(state, spec.states.iter().map(Name::as_str));
            out.report_default(found.as_ref().unwrap_or(at), message, help);
        }
    }
}

/// The first place in a part of `source` where `text` is written in quotes.
fn quoted_at(text: &str, part: Range<usize>, source: &str) -> Option<Range<usize>> {
    let start = part.start;
    let part = source.get(part)?;
    let mut found = part.match_indices(text).map(|(at, _)| at..at + text.len());
    let found = found.find(|found| {
        let quote = part[..found.start].chars().next_back();
        matches!(quote, Some('\'' | '"')) && part[found.end..].chars().next() == quote
    })?;
    Some(start + found.start..start + found.end)
}

/// Reads the text of a condition that is the value of a key.
type ReadText = fn(&Name, &str, &Spec, &mut Diagnostics<'_>) -> Option<Guard>;

fn all_of(
    value: Spot<'_, '_>,
    owner: &Table<'_, '_>,
    read_text: ReadText,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let items = bounded_items(value, "guard", out)?;
    let mut guards = Vec::new();
    for item in items {
        match item.get_ref() {
            DeValue::String(written) => {
                let written = Name::new(written.as_ref(), item.span());
                guards.extend(read_text(&written, "guard", spec, out));
            }
            DeValue::Table(values) => {
                let label = format!("a guard of {}", owner.label);
                let table = Table { values, label, span: item.span() };
                guards.extend(from_table(&table, 0, spec, out));
            }
            _ => {
                let message =
                    wrong_type("guard", &owner.label, "a string, a table or a list", item);
                out.error(&item.span(), message);
            }
        }
    }
    let guard = (!guards.is_empty()).then(|| Guard::all(guards))?;
    check_states(&guard, &value.span(), spec, out);
    // A list may have further ones.
    if guard.others().len() > READS_MAX {
        let message =
            format!("a guard may name {READS_MAX} other entities or lists of them at most");
        out.error_with_help(&value.span(), message, "split the action into several");
        return None;
    }
    bounded(guard, &value.span(), spec, out)
}

/// Reads a condition on variables that is the value of `key`. Reports names that are no variables.
pub(in crate::spec) fn text(
    text: &Name,
    key: &str,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let (guard, unknown) = parse(text, key, spec, out)?;
    let place = if unknown.is_empty() { None } else { written_at(text, out.source()) };
    for name in unknown {
        let near = || nearest(&name, spec.variables.keys().map(String::as_str));
        // A name that an effect changes becomes a variable. That is reported there, unless it is misspelled
        // here, too.
        let is_changed = spec.unread.changed.contains(name.as_str());
        if spec.unread.may_be_variable(&name) || (is_changed && near().is_none()) {
            continue;
        }
        let help = Help(|| {
            let otherwise = "it reads the parameter of that name of an earlier action, and without \
                             one null, which equals nothing else; declare it in a [[state]]";
            match near() {
                Some(near) if is_changed => format!("did you mean `{near}`?"),
                Some(near) => format!("did you mean `{near}`? Otherwise, {otherwise}"),
                None => otherwise.to_owned(),
            }
        });
        let message = format!("{key}: no variable is named `{name}`");
        out.report_default(&within(text, place, name.span()), message, help);
    }
    Some(guard)
}

/// Reports a condition that takes too long to evaluate.
pub(in crate::spec) fn bounded(
    guard: Guard,
    at: &Range<usize>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let terms = guard.terms();
    if terms <= TERMS_MAX || spec.rules < RulesVersion::V3 {
        return Some(guard);
    }
    let message =
        format!("a condition may have {TERMS_MAX} terms at most, and this one has {terms}");
    let help = "a search in a list counts as 64; let an action store its result in a variable, and compare the variable";
    out.error_with_help(at, message, help);
    None
}

/// Reads a condition on fields that is the value of `key`. Any name may be a field.
pub(in crate::spec) fn fields(
    text: &Name,
    key: &str,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    parse(text, key, spec, out).map(|(guard, _)| guard)
}

fn parse(
    text: &Name,
    key: &str,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<(Guard, Vec<Name>)> {
    let parsed = Guard::parse(text, &spec.variables).map_err(|mistake| {
        let at = within(text, written_at(text, out.source()), &mistake.at);
        out.error_with_help(&at, format!("{key}: {}", mistake.message), mistake.help);
    });
    parsed.ok()
}

/// Where the text is written in the file; `None` if it is written with escapes.
fn written_at(text: &Name, source: &str) -> Option<usize> {
    let written = source.get(text.span().clone()).unwrap_or_default();
    let offset = written.find(text.as_str()).filter(|_| !text.is_empty())?;
    Some(text.span().start + offset)
}

/// The place in the file of `part` of a text: exact if it is known where that is written, otherwise the
/// whole text.
fn within(text: &Name, written_at: Option<usize>, part: &Range<usize>) -> Range<usize> {
    match written_at {
        Some(start) => start + part.start..start + part.end,
        None => text.span().clone(),
    }
}

fn bounded_items<'t, 's>(
    value: Spot<'t, 's>,
    what: &str,
    out: &mut Diagnostics<'_>,
) -> Option<Vec<Spot<'t, 's>>> {
    let items = items_of(value);
    if items.len() > GUARDS_MAX {
        out.error(&value.span(), format!("a list of `{what}` may have {GUARDS_MAX} items at most"));
        return None;
    }
    Some(items)
}

fn from_table(
    table: &Table<'_, '_>,
    depth: usize,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    const KINDS: [&str; 14] = [
        "state_in",
        "min_count",
        "max_count",
        "is_true",
        "is_false",
        "list_contains",
        "list_length_min",
        "field_equals",
        "field_in",
        "bool_true",
        "bool_false",
        "all_of",
        "any_of",
        "not",
    ];
    let kind = table.required_text("type", out)?;
    if depth >= GUARD_DEPTH_MAX {
        out.error(&table.span, "the guard is nested too deeply");
        return None;
    }
    match kind.as_str() {
        "cross_entity_state" | "cross_entity_state_in" => on_others(&kind, table, spec, out),
        "state_in" => {
            let states = table.texts("values", out);
            Some(Guard::state_in(states.iter().map(|state| Value::from(state.as_str()))))
        }
        "field_equals" | "field_in" | "bool_true" | "bool_false" => {
            let field = table.required_name("field", out)?.to_string();
            on_field(&kind, field, table, out)
        }
        "all_of" => inner(table, "guards", depth, spec, out).map(Guard::All),
        "any_of" => inner(table, "guards", depth, spec, out).map(Guard::Any),
        "not" => {
            let inner = inner(table, "guard", depth, spec, out)?;
            Some(Guard::Not(Box::new(Guard::all(inner))))
        }
        known if KINDS.contains(&known) => on_variable(&kind, table, spec, out),
        _ => {
            let message = format!("no guard is of type `{kind}`");
            out.error_with_help(kind.span(), message, did_you_mean(&kind, KINDS));
            None
        }
    }
}

/// The guards in a table that joins them.
fn inner(
    table: &Table<'_, '_>,
    key: &str,
    depth: usize,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Vec<Guard>> {
    table.require(key, out);
    let items = bounded_items(table.value(key)?, key, out)?;
    let read = |item: Spot<'_, '_>| {
        let label = table.label.clone();
        let Some(values) = item.get_ref().as_table() else {
            out.error(&item.span(), wrong_type(key, &label, "tables", item));
            return None;
        };
        from_table(&Table { values, label, span: item.span() }, depth + 1, spec, out)
    };
    items.into_iter().map(read).collect()
}

fn on_field(
    kind: &str,
    field: String,
    table: &Table<'_, '_>,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let key = if kind == "field_in" { "values" } else { "value" };
    let literals = match kind {
        "bool_true" => return Some(Guard::Is(field)),
        "bool_false" => vec![Value::from(false)],
        _ => {
            table.require(key, out);
            let items = bounded_items(table.value(key)?, key, out)?;
            items.into_iter().map(|item| toml_value::to_json(item.get_ref())).collect()
        }
    };
    // A field that the entity does not have is none of the literals.
    let (left, right) = (Operand::Named(field.clone()), Operand::Literal(Value::Null));
    let is_present = Guard::Compare { left, operator: Operator::NotEqual, right };
    let is_one = Guard::In { value: Operand::Named(field), among: Among::Literals(literals) };
    Some(Guard::All(vec![is_present, is_one]))
}

/// A condition on the states of other entities. `cross_entity_state_in`, which is one of triggers, may
/// read any field, and does not hold without an id.
fn on_others(
    kind: &str,
    table: &Table<'_, '_>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let entity_type = table.required_name("entity_type", out);
    let ids = table.required_name("entity_id_source", out)?;
    let statuses = |key: &str, out: &mut Diagnostics<'_>| -> Vec<Value> {
        let texts = table.texts(key, out);
        let given = texts.iter().map(|text| text.as_str()).filter(|text| !text.is_empty());
        given.map(Value::from).collect()
    };
    let allowed = statuses("required_status", out);
    let forbidden = statuses("forbidden_status", out);
    let is_required = table.flag("required", out).unwrap_or(false);
    // As a text, so that its types are checked in one place.
    let exists = format!("{}[{ids}].status != null", entity_type?);
    let read_text = if kind == "cross_entity_state" { text } else { fields };
    let exists = read_text(&Name::new(exists, table.span.clone()), "guard", spec, out)?;
    let Guard::Compare { left: state, .. } = &exists else { return None };
    let value = || state.clone();
    let is_allowed = Guard::In { value: value(), among: Among::Literals(allowed.clone()) };
    let is_not_forbidden =
        Guard::NotIn { value: value(), among: Among::Literals(forbidden.clone()) };
    if kind == "cross_entity_state_in" {
        return Some(is_allowed);
    }
    let mut guards = Vec::new();
    if !allowed.is_empty() {
        guards.push(is_allowed);
    } else if is_required {
        guards.push(exists);
    }
    if !forbidden.is_empty() {
        guards.push(is_not_forbidden);
    }
    if guards.is_empty() {
        let help = "add `required_status` or `forbidden_status`";
        out.report_default(&table.span, "the guard allows every state", help);
    }
    let guard = Guard::all(guards);
    // Without an id there is nothing to check, unless the id is required.
    let may_lack = !is_required && !allowed.is_empty();
    Some(if may_lack { Guard::Any(vec![Guard::Empty(ids.to_string()), guard]) } else { guard })
}

fn on_variable(
    kind: &str,
    table: &Table<'_, '_>,
    spec: &Spec,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    let variable = table.required_name("var", out)?;
    // The same condition as a text, so that its types are checked in one place.
    let written = match kind {
        "min_count" => format!("min {variable} {}", whole(table, "min", out)?),
        "max_count" => format!("max {variable} {}", whole(table, "max", out)?),
        "list_length_min" => format!("{kind} {variable} {}", whole(table, "min", out)?),
        "list_contains" => {
            let value = Value::from(table.required_text("value", out)?.as_str());
            let search = Name::new(format!("'' in {variable}"), table.span.clone());
            return match text(&search, "guard", spec, out)? {
                Guard::In { among, .. } => {
                    Some(Guard::In { value: Operand::Literal(value), among })
                }
                _ => None,
            };
        }
        verb => format!("{verb} {variable}"),
    };
    text(&Name::new(written, table.span.clone()), "guard", spec, out)
}

/// A whole number from 0, or its text; 0 if there is none.
fn whole(table: &Table<'_, '_>, key: &str, out: &mut Diagnostics<'_>) -> Option<u64> {
    let Some(value) = table.value(key) else { return Some(0) };
    let number = match toml_value::to_json(value.get_ref()) {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.trim().parse().ok(),
        _ => None,
    };
    if number.is_none() {
        out.error(&value.span(), wrong_type(key, &table.label, "a whole number from 0", value));
    }
    number
}

/// Reads a condition on fields that is written as a table.
pub(in crate::spec) fn predicate(
    item: Spot<'_, '_>,
    label: &str,
    depth: usize,
    out: &mut Diagnostics<'_>,
) -> Option<Guard> {
    const HELP: &str = "write { field = \"F\", equals = X }, with `absent = true` or `empty = true` \
                        instead of `equals`, or { any_of = [..] }, { all_of = [..] }, { not = {..} }";
    let DeValue::Table(values) = item.get_ref() else {
        out.error_with_help(&item.span(), wrong_type("condition", label, "a table", item), HELP);
        return None;
    };
    if depth >= GUARD_DEPTH_MAX {
        out.error(&item.span(), "the condition is nested too deeply");
        return None;
    }
    let table = Table { values, label: label.to_owned(), span: item.span() };
    let mut keys: Vec<&str> = table.entries().map(|(key, ..)| key).collect();
    keys.sort_unstable();
    let is_set = |key| table.value(key).is_some_and(|is| is.get_ref().as_bool() == Some(true));
    match keys[..] {
        ["any_of"] => Some(Guard::Any(predicates(&table, "any_of", depth, out)?)),
        ["all_of"] => Some(Guard::All(predicates(&table, "all_of", depth, out)?)),
        ["not"] => {
            let inner = predicate(table.value("not")?, label, depth + 1, out)?;
            Some(Guard::Not(Box::new(inner)))
        }
        ["absent", "field"] if is_set("absent") => field_equals(&table, Value::Null, out),
        ["empty", "field"] if is_set("empty") => {
            Some(Guard::Empty(table.name("field", out)?.to_string()))
        }
        ["equals", "field"] => {
            let value = toml_value::to_json(table.value("equals")?.get_ref());
            let is_present = Guard::Not(Box::new(field_equals(&table, Value::Null, out)?));
            let is_equal = field_equals(&table, value, out)?;
            Some(Guard::All(vec![is_present, is_equal]))
        }
        _ => {
            out.error_with_help(&table.span, "this is no condition on a field", HELP);
            None
        }
    }
}

fn predicates(
    table: &Table<'_, '_>,
    key: &str,
    depth: usize,
    out: &mut Diagnostics<'_>,
) -> Option<Vec<Guard>> {
    let items = bounded_items(table.value(key)?, key, out)?;
    items.into_iter().map(|item| predicate(item, &table.label, depth + 1, out)).collect()
}

fn field_equals(table: &Table<'_, '_>, value: Value, out: &mut Diagnostics<'_>) -> Option<Guard> {
    let left = Operand::Named(table.name("field", out)?.to_string());
    Some(Guard::Compare { left, operator: Operator::Equal, right: Operand::Literal(value) })
}
