//! Reads the `effect` of an action, in each of its spellings.

use sandglass_model::limit::MAX_BUDGET_MS;
use toml::de::DeValue;

use sandglass_source::{
    Diagnostics, Spot, Table, did_you_mean, items_of, toml_value, valid_name, wrong_type,
};

use super::{Assigned, EFFECTS_MAX, Effect, Name, duration, spawn};

const KINDS: [&str; 6] = ["trigger", "increment", "set", "schedule", "emit", "spawn"];

const HELP: &str = "write \"trigger NAME\", \"increment VARIABLE\", \"set VARIABLE VALUE\", \
                    \"schedule ACTION SECONDS\" or \"emit EVENT\", or tables such as { type = \"trigger\", name = \"...\" }";

/// Reads `effect` of `action`: a string, a table, or a list of both.
pub(super) fn read(action: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Vec<Effect> {
    let Some(value) = action.value("effect") else { return Vec::new() };
    let items = items_of(value);
    if items.len() > EFFECTS_MAX {
        out.error(&value.span(), format!("an action may have {EFFECTS_MAX} effects at most"));
        return Vec::new();
    }
    items.into_iter().filter_map(|item| one(item, &action.label, out)).collect()
}

fn one(item: Spot<'_, '_>, label: &str, out: &mut Diagnostics<'_>) -> Option<Effect> {
    match item.get_ref() {
        DeValue::String(text) => from_text(text, item, out),
        DeValue::Table(values) => {
            let table = Table { values, label: format!("an effect of {label}"), span: item.span() };
            from_table(&table, out)
        }
        _ => {
            let message = wrong_type("effect", label, "a string, a table or a list", item);
            out.error_with_help(&item.span(), message, HELP);
            None
        }
    }
}

fn from_text(text: &str, item: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    if let Some(effect) = spawn::from_text(text, &item.span(), out) {
        return effect;
    }
    let words = words(text);
    let name =
        |text: &str, out: &mut Diagnostics<'_>| valid_name(Name::new(text, item.span()), out);
    match words[..] {
        ["trigger", trigger] => Some(Effect::Trigger { name: name(trigger, out)? }),
        ["increment", variable] => Some(Effect::Increment { variable: name(variable, out)? }),
        ["set", variable, value] => {
            let value = Assigned::Literal(value.trim_matches(['"', '\'']).into());
            Some(Effect::Set { variable: name(variable, out)?, value })
        }
        ["schedule", action, seconds] => {
            let delay_ms =
                seconds.parse().map_err(|_| format!("`{seconds}` is no number of seconds"));
            match delay_ms.and_then(duration::delay_from_seconds) {
                Ok(delay_ms) => Some(Effect::Schedule { action: name(action, out)?, delay_ms }),
                Err(message) => {
                    out.error_with_help(&item.span(), message, HELP);
                    None
                }
            }
        }
        _ => {
            out.error_with_help(&item.span(), format!("`{text}` is no effect"), HELP);
            None
        }
    }
}

/// The first two words, and the rest as a third.
fn words(text: &str) -> Vec<&str> {
    let (mut words, mut rest) = (Vec::new(), text.trim());
    while words.len() < 2
        && let Some((word, more)) = rest.split_once(char::is_whitespace)
    {
        words.push(word);
        rest = more.trim_start();
    }
    words.push(rest);
    words
}

fn from_table(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    let kind = table.required_text("type", out)?;
    match kind.as_str() {
        "trigger" => {
            table.only(&["type", "name"], out);
            Some(Effect::Trigger { name: table.required_name("name", out)? })
        }
        "increment" => {
            table.only(&["type", "var"], out);
            Some(Effect::Increment { variable: table.required_name("var", out)? })
        }
        "set" => set(table, out),
        "schedule" => schedule(table, out),
        "emit" | "emit_event" => {
            table.only(&["type", "event"], out);
            Some(Effect::Emit { event: table.required_name("event", out)? })
        }
        "spawn" | "spawn_entity" => spawn::from_table(table, out),
        other => {
            let message = format!("no effect is of type `{other}`");
            out.error_with_help(kind.span(), message, did_you_mean(other, KINDS));
            None
        }
    }
}

fn set(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    table.only(&["type", "var", "value", "param"], out);
    let variable = table.required_name("var", out)?;
    let value = match (table.value("value"), table.value("param")) {
        (Some(value), None) => Assigned::Literal(toml_value::to_json(value.get_ref())),
        (None, Some(_)) => Assigned::Param(table.name("param", out)?),
        _ => {
            let help = "give `value` for a literal, or `param` for a parameter of the action";
            out.error_with_help(&table.span, "a set has one of `value` and `param`", help);
            return None;
        }
    };
    Some(Effect::Set { variable, value })
}

fn schedule(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    table.only(&["type", "action", "delay_seconds"], out);
    let action = table.required_name("action", out)?;
    table.require("delay_seconds", out);
    let delay_ms = duration::delay_seconds(table, "delay_seconds", out)?;
    debug_assert!(delay_ms <= MAX_BUDGET_MS, "durations are bounded where they are read");
    Some(Effect::Schedule { action, delay_ms })
}
