//! Reads the `effect` of an action, in each of its spellings.

use std::borrow::Cow;
use std::ops::Range;

use sandglass_model::limit::MAX_BUDGET_MS;
use serde_json::Value;
use toml::de::DeValue;

use sandglass_source::{
    Diagnostics, Spot, Table, did_you_mean, items_of, toml_value, valid_name, wrong_type,
};

use super::{Assigned, EFFECTS_MAX, Effect, Name, duration, spawn};

const KINDS: [&str; 12] = [
    "trigger",
    "increment",
    "decrement",
    "set",
    "set_bool",
    "set_counter_from_param",
    "list_append",
    "list_remove_at",
    "schedule",
    "schedule_at",
    "emit",
    "spawn",
];

const HELP: &str = "write \"trigger NAME\", \"VARIABLE = VALUE\", \"VARIABLE += 1\", \
                    \"append(LIST, params.P)\", \"schedule ACTION SECONDS\" or \"emit EVENT\", or \
                    tables such as { type = \"trigger\", name = \"...\" }";

const VALUE_HELP: &str =
    "write a whole number, true, false, a quoted text, `params.PARAMETER`, or a variable";

/// Returns `source` with the quotes around lists of tables of `effect` blanked out, as in
/// `effect = '[{ .. }]'`, and their places. All places in the text stay as they were.
pub(super) fn without_quotes(source: &str) -> (Cow<'_, str>, Vec<Range<usize>>) {
    let (mut text, mut quoted, mut start) = (Cow::Borrowed(source), Vec::new(), 0);
    for line in source.split_inclusive('\n') {
        let list = line.trim_start().strip_prefix("effect").and_then(|rest| {
            let list = rest.trim_start().strip_prefix('=')?.trim();
            let inside = list.strip_prefix("'[")?.strip_suffix("]'")?;
            (inside.trim_start().starts_with('{') && !inside.contains('\'')).then_some(list)
        });
        if let Some(list) = list {
            let at = start + line.find(list).unwrap_or_default();
            let end = at + list.len();
            text.to_mut().replace_range(at..=at, " ");
            text.to_mut().replace_range(end - 1..end, " ");
            quoted.push(at..end);
        }
        start += line.len();
    }
    (text, quoted)
}

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
    let name =
        |text: &str, out: &mut Diagnostics<'_>| valid_name(Name::new(text, item.span()), out);
    if let Some((variable, operator, value)) = assignment(text) {
        if value.is_empty() {
            return no_value(text, item, out);
        }
        let (variable, value) = (name(variable, out)?, parse_assigned(value, item, out)?);
        return Some(match operator {
            "+=" => Effect::Increment { variable, by: value },
            "-=" => Effect::Decrement { variable, by: value },
            _ => Effect::Set { variable, value },
        });
    }
    if let Some((function, arguments)) = call(text) {
        if arguments.iter().any(|argument| argument.is_empty()) {
            return no_value(text, item, out);
        }
        return match (function, &arguments[..]) {
            ("append", [list, value]) => Some(Effect::Append {
                variable: name(list, out)?,
                value: parse_assigned(value, item, out)?,
            }),
            ("remove_at", [list, index]) => Some(Effect::RemoveAt {
                variable: name(list, out)?,
                index: parse_assigned(index, item, out)?,
            }),
            ("schedule", [action, seconds]) => {
                schedule_effect(unquoted(action), seconds, item, out)
            }
            ("schedule_at", [action, field]) => Some(Effect::ScheduleAt {
                action: name(unquoted(action), out)?,
                field: name(field, out)?,
            }),
            _ => unknown(text, item, out),
        };
    }
    match words(text)[..] {
        ["trigger", trigger] => Some(Effect::Trigger { name: name(trigger, out)? }),
        [verb @ ("increment" | "decrement"), variable] => {
            Some(count_effect(verb, name(variable, out)?, one_more()))
        }
        [verb @ ("increment" | "decrement"), variable, by] if by.starts_with("by ") => {
            let by = amount(by["by ".len()..].trim(), item, out)?;
            Some(count_effect(verb, name(variable, out)?, by))
        }
        ["set", variable, value] => {
            let value = Assigned::Literal(unquoted(value).into());
            Some(Effect::Set { variable: name(variable, out)?, value })
        }
        ["schedule", action, seconds] => schedule_effect(action, seconds, item, out),
        ["schedule_at", field, action] => {
            Some(Effect::ScheduleAt { action: name(action, out)?, field: name(field, out)? })
        }
        _ => unknown(text, item, out),
    }
}

fn unknown(text: &str, item: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    out.error_with_help(&item.span(), format!("`{text}` is no effect"), HELP);
    None
}

fn no_value(text: &str, item: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    let message = format!("a value is missing in `{}`", text.trim());
    out.error_with_help(&item.span(), message, VALUE_HELP);
    None
}

pub(super) fn count_effect(verb: &str, variable: Name, by: Assigned) -> Effect {
    match verb {
        "increment" => Effect::Increment { variable, by },
        _ => Effect::Decrement { variable, by },
    }
}

pub(super) fn one_more() -> Assigned {
    Assigned::Literal(Value::from(1))
}

fn schedule_effect(
    action: &str,
    seconds: &str,
    item: Spot<'_, '_>,
    out: &mut Diagnostics<'_>,
) -> Option<Effect> {
    let delay_ms = seconds.parse().map_err(|_| format!("`{seconds}` is no number of seconds"));
    match delay_ms.and_then(duration::delay_from_seconds) {
        Ok(delay_ms) => {
            let action = valid_name(Name::new(action, item.span()), out)?;
            Some(Effect::Schedule { action, delay_ms })
        }
        Err(message) => {
            let help = "write \"schedule ACTION SECONDS\", such as \"schedule Remind 60\"";
            out.error_with_help(&item.span(), message, help);
            None
        }
    }
}

/// The parts of `VARIABLE = VALUE`, `VARIABLE += VALUE` and `VARIABLE -= VALUE`.
fn assignment(text: &str) -> Option<(&str, &str, &str)> {
    let (left, value) = text.split_once('=')?;
    let operator = if left.ends_with('+') {
        "+="
    } else if left.ends_with('-') {
        "-="
    } else {
        "="
    };
    let variable = left.trim_end_matches(['+', '-']).trim();
    let is_name =
        !variable.is_empty() && !variable.contains(|c: char| c.is_whitespace() || c == '(');
    is_name.then(|| (variable, operator, value.trim()))
}

/// The parts of `FUNCTION(ARGUMENT, ...)`. Quoted arguments may have commas.
fn call(text: &str) -> Option<(&str, Vec<&str>)> {
    let (function, rest) = text.trim().strip_suffix(')')?.split_once('(')?;
    let mut quote = None;
    let arguments = rest.split(|c| {
        match quote {
            None if matches!(c, '\'' | '"') => quote = Some(c),
            Some(opened) if opened == c => quote = None,
            _ => {}
        }
        c == ',' && quote.is_none()
    });
    Some((function.trim(), arguments.map(str::trim).collect()))
}

fn unquoted(text: &str) -> &str {
    text.trim_matches(['"', '\''])
}

/// A literal, `params.P` or the name of a variable.
fn parse_assigned(text: &str, item: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Assigned> {
    let name =
        |text: &str, out: &mut Diagnostics<'_>| valid_name(Name::new(text, item.span()), out);
    let is_quoted = text.starts_with(['"', '\'']);
    if !is_quoted && text.contains(|c: char| c.is_whitespace() || "[]{}()+*/".contains(c)) {
        out.error_with_help(&item.span(), format!("`{text}` is no value"), VALUE_HELP);
        return None;
    }
    Some(match (text, text.parse::<i64>(), text.strip_prefix("params.")) {
        (_, Ok(number), _) => Assigned::Literal(Value::from(number)),
        ("true" | "false", ..) => Assigned::Literal(Value::from(text == "true")),
        _ if is_quoted => Assigned::Literal(Value::from(unquoted(text))),
        (_, _, Some(param)) => Assigned::Param(name(param, out)?),
        _ => Assigned::Variable(name(text, out)?),
    })
}

/// A number, or the name of a parameter.
fn amount(text: &str, item: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Assigned> {
    Some(match parse_assigned(text, item, out)? {
        Assigned::Variable(param) => Assigned::Param(param),
        other => other,
    })
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
        verb @ ("increment" | "decrement") => {
            table.only(&["type", "var", "by", "amount"], out);
            let variable = table.required_name("var", out)?;
            let by = table.value("by").or_else(|| table.value("amount"));
            let by = by.map_or_else(|| Some(one_more()), |by| amount_of(by, table, out))?;
            Some(count_effect(verb, variable, by))
        }
        "set" => set(table, out),
        "set_bool" => {
            table.only(&["type", "var", "value"], out);
            let variable = table.required_name("var", out)?;
            let value = table.flag("value", out).unwrap_or_default();
            Some(Effect::Set { variable, value: Assigned::Literal(Value::from(value)) })
        }
        "set_counter_from_param" => {
            table.only(&["type", "var", "param"], out);
            let variable = table.required_name("var", out)?;
            let param = table.name("param", out).unwrap_or_else(|| variable.clone());
            Some(Effect::Set { variable, value: Assigned::Param(param) })
        }
        "list_append" => list_append(table, out),
        "list_remove_at" => list_remove_at(table, out),
        "schedule" => schedule(table, out),
        "schedule_at" => {
            table.only(&["type", "action", "field"], out);
            let action = table.required_name("action", out)?;
            Some(Effect::ScheduleAt { action, field: table.required_name("field", out)? })
        }
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

/// A number, its text, or the name of a parameter.
fn amount_of(
    value: Spot<'_, '_>,
    table: &Table<'_, '_>,
    out: &mut Diagnostics<'_>,
) -> Option<Assigned> {
    match value.get_ref() {
        DeValue::String(text) => amount(text.trim(), value, out),
        DeValue::Integer(_) => Some(Assigned::Literal(toml_value::to_json(value.get_ref()))),
        _ => {
            let message = wrong_type("by", &table.label, "a number or a parameter", value);
            out.error(&value.span(), message);
            None
        }
    }
}

fn list_append(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    table.only(&["type", "var", "list", "param", "value"], out);
    let variable = list(table, out)?;
    let value = match table.value("value") {
        Some(value) => Assigned::Literal(toml_value::to_json(value.get_ref())),
        None => Assigned::Param(table.name("param", out).unwrap_or_else(|| variable.clone())),
    };
    Some(Effect::Append { variable, value })
}

fn list_remove_at(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Effect> {
    table.only(&["type", "var", "list", "param"], out);
    let variable = list(table, out)?;
    let usual = || Name::new(format!("{variable}_index"), variable.span().clone());
    let index = Assigned::Param(table.name("param", out).unwrap_or_else(usual));
    Some(Effect::RemoveAt { variable, index })
}

/// The list of an effect, in both spellings of its key.
fn list(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Name> {
    if table.has("list") { table.name("list", out) } else { table.required_name("var", out) }
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
