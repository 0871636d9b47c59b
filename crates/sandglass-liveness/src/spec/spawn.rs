//! Reads and checks effects that concern other entities: `emit` and `spawn`.

use std::ops::Range;

use sandglass_model::EntityRef;
use sandglass_source::{Diagnostics, Table, did_you_mean, items_of, valid_name};

use super::{Action, Effect, Name, SPAWNS_MAX, SpawnEffect, SpawnId, Spec, VariableKind};

/// What stands for a new id in the id of a spawned entity.
pub(crate) const NEW_ID: &str = "{uuid}";

const SPAWN_HELP: &str = "write \"spawn('TYPE', 'ACTION', VARIABLE, ID)\", where VARIABLE and ID may be left \
                          out, and ID is a quoted text or `params.NAME`";
const EMIT_HELP: &str = "write \"emit EVENT\" or \"emit('EVENT')\"";

/// Reads `emit EVENT`, `emit('EVENT')` or `spawn('TYPE', 'ACTION', VARIABLE, ID)`; `None` if the text
/// is another effect, and `Some(None)` if it is wrong, which is reported.
pub(super) fn from_text(
    text: &str,
    span: &Range<usize>,
    out: &mut Diagnostics<'_>,
) -> Option<Option<Effect>> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let rest = rest.trim();
    let name = |text: &str| Name::new(text, span.clone());
    let effect = match word {
        "emit" | "emit_event" => match (rest.starts_with('('), arguments(rest).as_deref()) {
            (true, Some([Argument::Quoted(event)])) => Some(Effect::Emit { event: name(event) }),
            (false, _) if !rest.is_empty() => Some(Effect::Emit { event: name(rest) }),
            _ => None,
        },
        "spawn" => arguments(rest).and_then(|arguments| spawn_of(&arguments, name)),
        _ => return None,
    };
    if effect.is_none() {
        let help = if word == "spawn" { SPAWN_HELP } else { EMIT_HELP };
        out.error_with_help(span, format!("`{text}` is no effect"), help);
    }
    Some(effect.filter(|effect| names_of(effect).all(|name| valid_name(name, out).is_some())))
}

/// An argument of an effect that is written like a call.
enum Argument<'t> {
    Quoted(&'t str),
    Param(&'t str),
    Word(&'t str),
}

/// The arguments in `('A', b, params.c)`; `None` if that is not what the text is.
fn arguments(text: &str) -> Option<Vec<Argument<'_>>> {
    let mut rest = text.strip_prefix('(')?.strip_suffix(')')?.trim();
    let mut arguments = Vec::new();
    while !rest.is_empty() {
        let (argument, after) = argument(rest)?;
        arguments.push(argument);
        rest = match after.trim_start().split_once(',') {
            Some(("", more)) if !more.trim().is_empty() => more.trim_start(),
            None if after.trim().is_empty() => "",
            _ => return None,
        };
    }
    Some(arguments)
}

fn argument(text: &str) -> Option<(Argument<'_>, &str)> {
    if let Some(quote) = text.chars().next().filter(|first| matches!(first, '\'' | '"')) {
        let (quoted, after) = text[1..].split_once(quote)?;
        return Some((Argument::Quoted(quoted), after));
    }
    let (word, after) = text.split_at(text.find(',').unwrap_or(text.len()));
    let word = word.trim();
    let argument = word.strip_prefix("params.").map_or(Argument::Word(word), Argument::Param);
    (!word.contains(['\'', '"', '(', ')'])).then_some((argument, after))
}

fn spawn_of(arguments: &[Argument<'_>], name: impl Fn(&str) -> Name) -> Option<Effect> {
    let [Argument::Quoted(entity_type), Argument::Quoted(action), rest @ ..] = arguments else {
        return None;
    };
    let (store_id_in, id) = match rest {
        [] => (None, None),
        [Argument::Word(variable)] => (Some(variable), None),
        [Argument::Word(variable), id] => (Some(variable), Some(id)),
        _ => return None,
    };
    let id = match id {
        None => SpawnId::Template(name(NEW_ID)),
        Some(Argument::Quoted(id)) => SpawnId::Template(name(id)),
        Some(Argument::Param(param)) => SpawnId::Param(name(param)),
        Some(Argument::Word(_)) => return None,
    };
    Some(Effect::Spawn(Box::new(SpawnEffect {
        entity_type: name(entity_type),
        id,
        initial_action: Some(name(action)),
        store_id_in: store_id_in.map(|variable| name(variable)),
        copy_fields: Vec::new(),
    })))
}

fn names_of(effect: &Effect) -> impl Iterator<Item = Name> {
    let names = match effect {
        Effect::Emit { event } => vec![event.clone()],
        Effect::Spawn(spawn) => {
            let (SpawnId::Template(id) | SpawnId::Param(id)) = &spawn.id;
            let names = [&spawn.entity_type, id].into_iter();
            names.chain(&spawn.initial_action).chain(&spawn.store_id_in).cloned().collect()
        }
        _ => Vec::new(),
    };
    names.into_iter()
}

/// Reads a table of the type `spawn` or `spawn_entity`.
pub(super) fn from_table(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    const KEYS: [&str; 6] =
        ["type", "entity_type", "entity_id_source", "initial_action", "store_id_in", "copy_fields"];
    table.only(&KEYS, out);
    let id = match table.name("entity_id_source", out) {
        Some(source) if !source.contains(NEW_ID) => SpawnId::Param(source),
        Some(template) => SpawnId::Template(template),
        None => SpawnId::Template(Name::new(NEW_ID, table.span.clone())),
    };
    let initial_action = table.name("initial_action", out);
    let store_id_in = table.name("store_id_in", out);
    let copy_fields = copy_fields(table, out);
    let entity_type = table.required_name("entity_type", out)?;
    let spawn = SpawnEffect { entity_type, id, initial_action, store_id_in, copy_fields };
    Some(Effect::Spawn(Box::new(spawn)))
}

/// The names in `copy_fields`: a list, or one text with commas.
fn copy_fields(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Name> {
    let Some(value) = table.value("copy_fields") else { return Vec::new() };
    if !items_of(value).iter().all(|item| item.get_ref().is_str()) {
        return table.names("copy_fields", out);
    }
    let texts = table.texts("copy_fields", out);
    let names = texts.iter().flat_map(|text| {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| Name::new(part, text.span().clone()))
    });
    names.filter_map(|name| valid_name(name, out)).collect()
}

/// Checks the entities that one action spawns.
pub(super) fn check(
    spec: &Spec,
    action: &Action,
    actions: &std::collections::BTreeSet<String>,
    out: &mut Diagnostics<'_>,
) {
    for (count, spawn) in action.spawns().enumerate() {
        if count == SPAWNS_MAX {
            let message = format!("an action may spawn {SPAWNS_MAX} entities at most");
            out.error(spawn.entity_type.span(), message);
        }
        check_name(spawn, &action.params, out);
        if let Some(variable) = &spawn.store_id_in
            && let Some(declared) = spec.variables.get(variable.as_str())
            && declared.kind != VariableKind::String
        {
            let message = format!("`{variable}` is a {}", declared.kind.as_str());
            out.error_with_help(variable.span(), message, "an id is stored in a string");
        }
        if let Some(action) = &spawn.initial_action
            && spawn.entity_type == spec.name
            && !actions.contains(action.as_str())
            && !spec.unread.has_action
        {
            let help = did_you_mean(action, actions.iter().map(String::as_str));
            out.error_with_help(action.span(), format!("no action is named `{action}`"), help);
        }
    }
}

/// Checks the name of a spawned entity, as far as it is known.
fn check_name(spawn: &SpawnEffect, params: &[Name], out: &mut Diagnostics<'_>) {
    let id = match &spawn.id {
        SpawnId::Template(template) => template.replace(NEW_ID, &"0".repeat(36)),
        SpawnId::Param(param) => {
            if !params.contains(param) {
                let message = format!("the action has no parameter `{param}`");
                let help = "the entity gets a new id, unless a request gives the parameter; write \
                            \"{uuid}\" if that is intended";
                out.warning(param.span(), message, help);
            }
            "id".to_owned()
        }
    };
    if let Err(invalid) = EntityRef::new(spawn.entity_type.as_str(), id) {
        out.error(spawn.entity_type.span(), invalid.to_string());
    }
}
