//! The steps of a scenario file. The one key that names its action determines what a step does.

use std::time::Duration;

use sandglass_liveness::session::LimitSettings;
use sandglass_model::Object;
use sandglass_source::{Diagnostics, Table, did_you_mean, toml_value};
use serde_json::Value;

use super::{Act, Restart, Step, expectation, value, with_servers};
use crate::protocol::Command;

/// The kinds of steps, and the keys that a step of each kind may have.
const KINDS: [(&str, &[&str]); 16] = [
    ("send", &["entity", "params", "expect_refused"]),
    ("create", &["limits"]),
    ("wait", &[]),
    ("signal", &["entity", "from", "payload"]),
    ("cancel", &["by", "reason", "expect_refused"]),
    ("resume", &["by", "limits", "expect_refused"]),
    ("restart", &["down_for"]),
    ("journal", &[]),
    ("expect_state", &["entity", "within"]),
    ("expect_transition", &["entity", "within", "params"]),
    ("expect_record", &["entity", "within"]),
    ("expect_no_transition", &["entity"]),
    ("expect_no_record", &["entity"]),
    ("expect_session", &["entity", "within"]),
    ("expect_metric", &["labels", "at_least", "equals", "within"]),
    ("expect_replay", &[]),
];

pub(super) fn read(
    table: &Table<'_, '_>,
    servers: &[&str],
    out: &mut Diagnostics<'_>,
) -> Option<Step> {
    let kinds: Vec<_> = KINDS.iter().filter(|(kind, _)| table.has(kind)).collect();
    let [(kind, keys)] = kinds[..] else {
        report_kinds(table, &kinds.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), out);
        return None;
    };
    let mut known = vec![*kind];
    known.extend_from_slice(keys);
    table.only(&known, out);
    let line = out.line(table.span_of(kind).start);
    Some(Step { line, act: act(kind, table, servers, out)? })
}

/// Reports a step with none or several of the keys that name an action.
fn report_kinds(table: &Table<'_, '_>, found: &[&str], out: &mut Diagnostics<'_>) {
    if let [first, second, ..] = found {
        let message = format!("{} has both `{first}` and `{second}`", table.label);
        out.error_with_help(&table.span_of(second), message, "make two steps of it");
        return;
    }
    let all: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).collect();
    // A key that no kind has is probably a misspelled action.
    let unknown = table.values.keys().find(|key| {
        let key = key.get_ref().as_ref();
        !KINDS.iter().any(|(_, others)| others.contains(&key))
    });
    match unknown.or_else(|| table.values.keys().next()) {
        Some(key) => {
            let message = format!("{} has no action", table.label);
            out.error_with_help(
                &key.span(),
                message,
                did_you_mean(key.get_ref(), all.iter().copied()),
            );
        }
        None => out.error(&table.span, format!("{} is empty", table.label)),
    }
}

fn act(
    kind: &str,
    table: &Table<'_, '_>,
    servers: &[&str],
    out: &mut Diagnostics<'_>,
) -> Option<Act> {
    Some(match kind {
        "wait" => Act::Wait { time: value::duration(table, "wait", out)? },
        "restart" => Act::Restart {
            how: restart(table, out)?,
            down_for: value::duration(table, "down_for", out).unwrap_or(Duration::ZERO),
        },
        "send" | "create" | "signal" | "cancel" | "resume" | "journal" => {
            let (label, command) = command(kind, table, servers, out)?;
            let expect_refused = value::text(table, "expect_refused", out);
            Act::Command { label, command, expect_refused }
        }
        _ => expectation::read(kind, table, out)?,
    })
}

/// A command to the runtime, and how the timeline names it.
fn command(
    kind: &str,
    table: &Table<'_, '_>,
    servers: &[&str],
    out: &mut Diagnostics<'_>,
) -> Option<(String, Command)> {
    let mut label = kind.to_owned();
    let command = match kind {
        "send" => {
            let entity = value::required_entity(table, "entity", out);
            let params = table.object("params", out);
            params.values().for_each(|value| check_servers(value, table, servers, out));
            let action = value::text(table, "send", out)?;
            label = format!("send {action}");
            Command::Send { action, entity: entity?, params }
        }
        "create" => Command::Create {
            entity: value::entity(table, "create", out)?,
            limits: limits(table, out),
        },
        "signal" => {
            let entity = value::required_entity(table, "entity", out);
            let name = value::text(table, "signal", out)?;
            label = format!("signal {name}");
            let from = value::entity(table, "from", out);
            let payload = table.value("payload").map(|value| toml_value::to_json(value.get_ref()));
            let payload = payload.unwrap_or_default();
            Command::Signal { name, entity: entity?, from, payload }
        }
        "cancel" => Command::Cancel {
            entity: value::entity(table, "cancel", out)?,
            by: by(table, out),
            reason: value::text(table, "reason", out).unwrap_or_default(),
        },
        "resume" => Command::Resume {
            entity: value::entity(table, "resume", out)?,
            by: by(table, out),
            limits: limits(table, out),
        },
        _ => {
            let works = journal(table, out)?;
            label = format!("journal {}", if works { "works" } else { "fails" });
            Command::Journal { works }
        }
    };
    Some((label, command))
}

/// The operator in whose name a command is given.
fn by(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> String {
    value::text(table, "by", out).unwrap_or_else(|| "scenario".to_owned())
}

/// The limits of a run, as in a request.
fn limits(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Object {
    let limits = table.object("limits", out);
    if let Err(bad) = LimitSettings::of_request(&limits) {
        out.error(&table.span_of("limits"), bad.to_string());
    }
    limits
}

fn journal(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<bool> {
    match value::text(table, "journal", out)?.as_str() {
        "works" => Some(true),
        "fails" => Some(false),
        other => {
            let message = format!("`{other}` is not a state of the journal");
            let help = "write \"fails\" (as if the disk were full) or \"works\"";
            out.error_with_help(&table.span_of("journal"), message, help);
            None
        }
    }
}

fn restart(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Restart> {
    let how = value::text(table, "restart", out)?;
    match how.as_str() {
        "kill" => Some(Restart::Kill),
        "stop" => Some(Restart::Stop),
        _ => {
            let message = format!("`{how}` is not a way to restart");
            let help = "write \"kill\" (like a crash) or \"stop\" (in order)";
            out.error_with_help(&table.span_of("restart"), message, help);
            None
        }
    }
}

/// Reports the names in `value` of servers that the scenario does not have.
fn check_servers(
    value: &Value,
    table: &Table<'_, '_>,
    servers: &[&str],
    out: &mut Diagnostics<'_>,
) {
    match value {
        Value::String(text) => {
            let known = |name: &str| servers.contains(&name).then(String::new);
            if let Err(name) = with_servers(text, known) {
                let message = format!("there is no server `{name}`");
                out.error_with_help(
                    &table.span_of("params"),
                    message,
                    did_you_mean(&name, servers.iter().copied()),
                );
            }
        }
        Value::Array(items) => {
            items.iter().for_each(|item| check_servers(item, table, servers, out));
        }
        Value::Object(fields) => {
            fields.values().for_each(|field| check_servers(field, table, servers, out));
        }
        _ => {}
    }
}
