//! The steps that expect something.

use sandglass_model::Object;
use sandglass_model::id::NAME_MAX_BYTES;
use sandglass_telemetry::Prefix;
use sandglass_telemetry::table::{Definition, Kind, TABLE};

use super::table::{Findings, Table, nearest};
use super::{Act, Bound, Expectation, WITHIN_DEFAULT};
use crate::terminal::shortened;

/// The types of records, for a hint where one is misspelled.
const RECORD_TYPES: [&str; 9] = [
    "spec_registered",
    "created",
    "transition",
    "dispatched",
    "ended",
    "state_idle",
    "scheduled",
    "schedule_due",
    "signal",
];

pub(super) fn read(kind: &str, table: &Table<'_, '_>, out: &mut Findings<'_>) -> Option<Act> {
    let within = table.duration("within", out).unwrap_or(WITHIN_DEFAULT);
    let entity = |out: &mut Findings<'_>| table.required_entity("entity", out);
    let expectation = match kind {
        "expect_state" => {
            let entity = entity(out);
            Expectation::State { state: table.text(kind, out)?, entity: entity? }
        }
        "expect_transition" => {
            let entity = entity(out);
            let params = table.object("params", out);
            Expectation::Transition { action: table.text(kind, out)?, entity: entity?, params }
        }
        "expect_no_transition" => {
            let entity = entity(out);
            Expectation::NoTransition { action: table.text(kind, out)?, entity: entity? }
        }
        "expect_record" => {
            let entity = table.entity("entity", out);
            let fields = table.object(kind, out);
            known_type(&fields, table, out);
            Expectation::Record { fields, entity }
        }
        "expect_metric" => {
            let labels = table.text_table("labels", out);
            let bound = bound(table, out);
            let name = table.text(kind, out)?;
            known_metric(&name, table, out);
            Expectation::Metric { name, labels, bound: bound? }
        }
        _ => Expectation::Replay { divergences: table.count(kind, out)? },
    };
    Some(Act::Expect { expectation, within })
}

fn known_type(fields: &Object, table: &Table<'_, '_>, out: &mut Findings<'_>) {
    let named = fields.get("type").and_then(serde_json::Value::as_str);
    if let Some(name) = named.filter(|name| !RECORD_TYPES.contains(name)) {
        let message = format!("no record is of type `{name}`");
        out.error_with_help(&table.span_of("expect_record"), message, nearest(name, &RECORD_TYPES));
    }
}

/// Reports a name that no sample will ever have, and that would be 0 for ever.
fn known_metric(name: &str, table: &Table<'_, '_>, out: &mut Findings<'_>) {
    let known: Vec<String> = TABLE.iter().flat_map(samples).collect();
    if !known.iter().any(|known| known == name) {
        let message = format!("there is no metric `{}`", shortened(name, NAME_MAX_BYTES));
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        out.error_with_help(&table.span_of("expect_metric"), message, nearest(name, &known));
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

fn bound(table: &Table<'_, '_>, out: &mut Findings<'_>) -> Option<Bound> {
    match (table.number("at_least", out), table.number("equals", out)) {
        (Some(least), None) => Some(Bound::AtLeast(least)),
        (None, Some(value)) => Some(Bound::Equals(value)),
        (Some(_), Some(_)) => {
            out.error(&table.span_of("equals"), "`at_least` and `equals` exclude each other");
            None
        }
        (None, None) if table.has("at_least") || table.has("equals") => None,
        (None, None) => {
            let message = format!("{} doesn't say how much", table.label);
            out.error_with_help(&table.span, message, "add `at_least = 1` or `equals = 1`");
            None
        }
    }
}
