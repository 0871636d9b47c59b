//! Reads `[[case]]` and `[defaults]`.

use std::time::Duration;

use sandglass_model::WallTime;
use sandglass_source::{Diagnostics, Table};
use serde_json::Value;

use super::{answer, any, any_or_json, expected, text};
use crate::case::Case;

/// Longest deadline; the host has the same limit.
const DEADLINE_MAX: Duration = Duration::from_millis(sandglass_model::limit::MAX_BUDGET_MS);
/// Most answers in one case.
const ANSWERS_MAX: usize = 10_000;

const KEYS: [&str; 16] = [
    "action",
    "input",
    "input_json",
    "entity",
    "state",
    "state_json",
    "config",
    "secrets",
    "streams",
    "tenant",
    "agent_id",
    "session_id",
    "attempt",
    "deadline",
    "now",
    "answer",
];

/// Reads the defaults of all cases in a file.
pub(super) fn defaults(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Case {
    table.only(&KEYS, out);
    let mut case = Case::default();
    read_keys(table, &mut case, out);
    case
}

/// Reads one case.
pub(super) fn read(table: &Table<'_, '_>, defaults: &Case, out: &mut Diagnostics<'_>) -> Case {
    let mut known = vec!["name", "expect"];
    known.extend_from_slice(&KEYS);
    table.only(&known, out);
    let mut case = defaults.clone();
    let name = table.required_text("name", out);
    if name.as_ref().is_some_and(|name| name.trim().is_empty()) {
        let message = "the name is empty";
        out.error_with_help(&table.span_of("name"), message, "describe what the case shows");
    }
    case.name = name.map(|name| name.to_string()).unwrap_or_default();
    read_keys(table, &mut case, out);
    if let Some(table) = table.table("expect", format!("expect of {}", table.label), out) {
        case.expected = expected::read(&table, out);
    }
    case
}

fn read_keys(table: &Table<'_, '_>, case: &mut Case, out: &mut Diagnostics<'_>) {
    if let Some(action) = table.name("action", out) {
        case.action = action.to_string();
    }
    match any_or_json(table, "input", out) {
        Some(Value::Object(input)) => case.input = input.into_iter().collect(),
        Some(_) => {
            let key = if table.has("input") { "input" } else { "input_json" };
            let message = format!("`{key}` in {} must be a table", table.label);
            out.error(&table.span_of(key), message);
        }
        None => {}
    }
    if let Some(entity) = table.text("entity", out) {
        match entity.parse() {
            Ok(entity) => case.entity = entity,
            Err(error) => out.error(entity.span(), format!("{error}")),
        }
    }
    case.state = any_or_json(table, "state", out).unwrap_or(std::mem::take(&mut case.state));
    case.config.extend(table.texts_by_name("config", out));
    case.secrets.extend(table.texts_by_name("secrets", out));
    let streams = table.texts_by_name("streams", out).into_iter();
    case.streams.extend(streams.map(|(name, text)| (name, text.into_bytes())));
    if let Some(tenant) = table.name("tenant", out) {
        case.tenant = tenant.to_string();
    }
    case.agent_id = text(table, "agent_id", out).or(case.agent_id.take());
    case.session_id = text(table, "session_id", out).or(case.session_id.take());
    if let Some(attempt) = table.count("attempt", 1..=u64::from(u32::MAX), out) {
        case.attempt = u32::try_from(attempt).unwrap_or(u32::MAX);
    }
    let deadlines = Duration::from_millis(1)..=DEADLINE_MAX;
    case.deadline = table.duration_within("deadline", deadlines, out).unwrap_or(case.deadline);
    case.now = now(table, out).unwrap_or(case.now);
    let answers =
        table.tables("answer", |number| format!("answer {number} of {}", table.label), out);
    if answers.len() > ANSWERS_MAX {
        out.error(&table.span_of("answer"), format!("a case has at most {ANSWERS_MAX} answers"));
    }
    let read = answers.iter().take(ANSWERS_MAX).filter_map(|table| answer::read(table, out));
    // The answers of the case precede those of the defaults.
    let answers: Vec<_> = read.chain(std::mem::take(&mut case.answers)).collect();
    case.answers = answers;
}

fn now(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<WallTime> {
    let value = any(table, "now")?;
    let moment: Option<jiff::Timestamp> = value.as_str().and_then(|text| text.parse().ok());
    if moment.is_none() {
        let message = format!("`now` in {} is not a time", table.label);
        out.error_with_help(&table.span_of("now"), message, "write it as 2026-01-01T00:00:00Z");
    }
    moment.map(|moment| WallTime::from_millis(moment.as_millisecond()))
}
