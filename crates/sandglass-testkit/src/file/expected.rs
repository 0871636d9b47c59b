//! Reads `[case.expect]`.

use std::time::Duration;

use sandglass_model::OutcomeKind;
use sandglass_source::{Diagnostics, Table, did_you_mean};

use super::{any_or_json, list, text, texts};
use crate::case::Expected;

/// The outcomes that are possible in a kit.
const OUTCOMES: [OutcomeKind; 5] = [
    OutcomeKind::Completed,
    OutcomeKind::Failed,
    OutcomeKind::TimedOut,
    OutcomeKind::Trapped,
    OutcomeKind::Limit,
];
const TIME_MAX: Duration = Duration::from_millis(sandglass_model::limit::MAX_BUDGET_MS);

/// The keys, in the order in which they are written.
pub(crate) const KEYS: [&str; 16] = [
    "outcome",
    "action",
    "params",
    "result",
    "error_kind",
    "error",
    "dying_span",
    "calls",
    "requests",
    "bodies",
    "asks",
    "signals",
    "progress",
    "status",
    "at_least",
    "at_most",
];

pub(super) fn read(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Expected {
    let mut known = vec!["params_json", "result_json"];
    known.extend_from_slice(&KEYS);
    table.only(&known, out);
    let within = Duration::ZERO..=TIME_MAX;
    let at_least = table.duration_within("at_least", within.clone(), out);
    let at_most = table.duration_within("at_most", within, out);
    if at_least.zip(at_most).is_some_and(|(least, most)| least > most) {
        let message = format!("`at_least` is larger than `at_most` in {}", table.label);
        out.error(&table.span_of("at_most"), message);
    }
    Expected {
        outcome: outcome(table, out).unwrap_or(OutcomeKind::Completed),
        action: text(table, "action", out),
        params: any_or_json(table, "params", out),
        result: any_or_json(table, "result", out),
        error_kind: text(table, "error_kind", out),
        error: text(table, "error", out),
        dying_span: text(table, "dying_span", out),
        calls: texts(table, "calls", out),
        requests: texts(table, "requests", out),
        bodies: list(table, "bodies", out),
        asks: list(table, "asks", out),
        signals: list(table, "signals", out),
        progress: list(table, "progress", out),
        status: text(table, "status", out),
        at_least,
        at_most,
    }
}

fn outcome(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<OutcomeKind> {
    let name = table.text("outcome", out)?;
    let found = OUTCOMES.into_iter().find(|outcome| outcome.as_str() == name.as_str());
    if found.is_none() {
        let help = did_you_mean(&name, OUTCOMES.iter().map(|outcome| outcome.as_str()));
        out.error_with_help(name.span(), format!("`{name}` is not an outcome"), help);
    }
    found
}
