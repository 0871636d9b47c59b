//! The steps of a scenario file that state an expectation.

use sandglass_liveness::session::Status;
use sandglass_model::id::NAME_MAX_BYTES;
use sandglass_model::{Event, Object};
use sandglass_source::{Diagnostics, Table, did_you_mean, shortened};
use sandglass_telemetry::Prefix;
use sandglass_telemetry::table::{Definition, Kind, TABLE};

use super::{Act, Bound, Expectation, WITHIN_DEFAULT, value};

/// The statuses of sessions, which are suggested for a misspelled one.
const STATUSES: [&str; 7] = ["QUEUED", "RUNNING", "SILENT", "STUCK", "STOPPING", "BLOCKED", "DONE"];

pub(super) fn read(kind: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Act> {
    let within = value::duration(table, "within", out).unwrap_or(WITHIN_DEFAULT);
    let entity = |out: &mut Diagnostics<'_>| value::required_entity(table, "entity", out);
    let expectation = match kind {
        "expect_state" => {
            let entity = entity(out);
            Expectation::State { state: value::text(table, kind, out)?, entity: entity? }
        }
        "expect_transition" => {
            let entity = entity(out);
            let params = table.object("params", out);
            Expectation::Transition {
                action: value::text(table, kind, out)?,
                entity: entity?,
                params,
            }
        }
        "expect_no_transition" => {
            let entity = entity(out);
            Expectation::NoTransition { action: value::text(table, kind, out)?, entity: entity? }
        }
        "expect_record" | "expect_no_record" => {
            let entity = value::entity(table, "entity", out);
            let fields = table.object(kind, out);
            check_type(&fields, kind, table, out);
            match kind {
                "expect_record" => Expectation::Record { fields, entity },
                _ => Expectation::NoRecord { fields, entity },
            }
        }
        "expect_session" => {
            let entity = entity(out);
            let fields = table.object(kind, out);
            check_status(&fields, table, out);
            Expectation::Session { fields, entity: entity? }
        }
        "expect_metric" => {
            let labels = table.texts_by_name("labels", out);
            let bound = bound(table, out);
            let name = value::text(table, kind, out)?;
            check_metric(&name, table, out);
            Expectation::Metric { name, labels, bound: bound? }
        }
        _ => Expectation::Replay { divergences: value::count(table, kind, out)? },
    };
    Some(Act::Expect { expectation, within })
}

fn check_status(fields: &Object, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
    let Some(status) = fields.get("status") else { return };
    if serde_json::from_value::<Status>(status.clone()).is_err() {
        let message = format!("there is no session status {status}");
        let help = did_you_mean(status.as_str().unwrap_or(""), STATUSES);
        out.error_with_help(&table.span_of("expect_session"), message, help);
    }
}

fn check_type(fields: &Object, kind: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
    let named = fields.get("type").and_then(serde_json::Value::as_str);
    if let Some(name) = named.filter(|name| !Event::KINDS.contains(name)) {
        let message = format!("there is no record type `{name}`");
        out.error_with_help(&table.span_of(kind), message, did_you_mean(name, Event::KINDS));
    }
}

/// Reports a name that no sample has: its value would always be 0.
fn check_metric(name: &str, table: &Table<'_, '_>, out: &mut Diagnostics<'_>) {
    let known: Vec<String> = TABLE.iter().flat_map(samples).collect();
    if !known.iter().any(|known| known == name) {
        let message = format!("there is no metric `{}`", shortened(name, NAME_MAX_BYTES));
        out.error_with_help(
            &table.span_of("expect_metric"),
            message,
            did_you_mean(name, known.iter().map(String::as_str)),
        );
    }
}

/// The names of a metric's samples.
fn samples(metric: &Definition) -> Vec<String> {
    let name = metric.full_name(&Prefix::default());
    match metric.kind {
        Kind::Histogram => ["bucket", "sum", "count"].map(|of| format!("{name}_{of}")).into(),
        Kind::Counter | Kind::Gauge => vec![name],
    }
}

fn bound(table: &Table<'_, '_>, out: &mut Diagnostics<'_>) -> Option<Bound> {
    match (value::number(table, "at_least", out), value::number(table, "equals", out)) {
        (Some(least), None) => Some(Bound::AtLeast(least)),
        (None, Some(value)) => Some(Bound::Equals(value)),
        (Some(_), Some(_)) => {
            out.error(&table.span_of("equals"), "set `at_least` or `equals`, not both");
            None
        }
        (None, None) if table.has("at_least") || table.has("equals") => None,
        (None, None) => {
            let message = format!("{} has no bound", table.label);
            out.error_with_help(&table.span, message, "add `at_least = 1` or `equals = 1`");
            None
        }
    }
}
