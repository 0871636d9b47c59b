//! Whether what came is what was expected.

use std::fmt;

use sandglass_model::RunReport;
use serde::Serialize;
use serde_json::{Number, Value, json};
use similar::{ChangeTag, TextDiff};

use crate::answer::Answer;
use crate::case::{Case, Expected, calls_of};
use crate::world::Met;

/// One thing that came out otherwise than expected.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// What: a key of [`Expected`], or `answers`.
    pub what: &'static str,
    /// What was expected.
    pub expected: Value,
    /// What came.
    pub found: Value,
}

impl Difference {
    const fn new(what: &'static str, expected: Value, found: Value) -> Self {
        Self { what, expected, found }
    }
}

/// Both in a line where they are short, and otherwise line by line: `-` was expected, `+` came.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, expected, found } = self;
        if !is_large(expected) && !is_large(found) {
            return write!(f, "{what}: expected {expected}, found {found}");
        }
        write!(f, "{what}:")?;
        let (expected, found) = (lines(expected), lines(found));
        for change in TextDiff::from_lines(&expected, &found).iter_all_changes() {
            let sign = match change.tag() {
                ChangeTag::Equal => ' ',
                ChangeTag::Delete => '-',
                ChangeTag::Insert => '+',
            };
            write!(f, "\n{sign} {}", change.value().trim_end_matches('\n'))?;
        }
        Ok(())
    }
}

fn is_large(value: &Value) -> bool {
    match value {
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    }
}

fn lines(value: &Value) -> String {
    let mut lines = match value {
        // A list of names: each in a line.
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join("\n")
        }
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    lines.push('\n');
    lines
}

/// What of `report`, and of what its world met, isn't what `case` expects.
pub(crate) fn differences(
    case: &Case,
    report: &RunReport,
    met: &Met,
    unwanted: &[(Answer, u32)],
) -> Vec<Difference> {
    let expected = &case.expected;
    let found = found(report, met);
    let mut all = Vec::new();
    let mut compare = |what: &'static str, expected: Option<Value>, found: Value| {
        if let Some(expected) = expected.filter(|expected| !same(expected, &found)) {
            all.push(Difference::new(what, expected, found));
        }
    };
    compare("outcome", Some(json!(expected.outcome)), json!(found.outcome));
    compare("action", said(&expected.action), json!(found.action));
    compare("params", expected.params.clone(), json!(found.params));
    compare("result", expected.result.clone(), json!(found.result));
    compare("error_kind", said(&expected.error_kind), json!(found.error_kind));
    compare("dying_span", said(&expected.dying_span), json!(found.dying_span));
    compare("calls", said(&expected.calls), json!(found.calls));
    compare("requests", said(&expected.requests), json!(found.requests));
    compare("bodies", said(&expected.bodies), json!(found.bodies));
    compare("asks", said(&expected.asks), json!(found.asks));
    compare("progress", said(&expected.progress), json!(found.progress));
    compare("status", said(&expected.status), json!(found.status));
    if let Some(part) = &expected.error
        && !found.error.as_ref().is_some_and(|message| message.contains(part))
    {
        all.push(Difference::new("error", json!(part), json!(found.error)));
    }
    let elapsed = report.deadline.elapsed_ms;
    let out_of = |least: bool, bound: Option<std::time::Duration>| {
        let bound = u64::try_from(bound?.as_millis()).unwrap_or(u64::MAX);
        (if least { elapsed < bound } else { elapsed > bound }).then_some(bound)
    };
    for (what, least, bound) in
        [("at_least", true, expected.at_least), ("at_most", false, expected.at_most)]
    {
        if let Some(bound) = out_of(least, bound) {
            let [expected, found] = [bound, elapsed].map(|millis| json!(format!("{millis} ms")));
            all.push(Difference::new(what, expected, found));
        }
    }
    // A case that lists its requests has those in it.
    for call in met.denied.iter().filter(|_| expected.requests.is_none()) {
        all.push(Difference::new("requests", json!("granted hosts alone"), json!(call)));
    }
    for call in &met.unanswered {
        all.push(Difference::new("answers", json!(format!("an answer to {call}")), Value::Null));
    }
    for (answer, used) in unwanted {
        let expected = format!("{} call(s): {}", answer.times.unwrap_or(0), answer.to);
        all.push(Difference::new("answers", json!(expected), json!(format!("{used} call(s)"))));
    }
    all
}

/// What is said of something, as JSON.
fn said(expected: &Option<impl Serialize>) -> Option<Value> {
    expected.as_ref().map(|expected| json!(expected))
}

/// What came, in the terms of what is expected.
pub(crate) fn found(report: &RunReport, met: &Met) -> Expected {
    let completion = match &report.outcome {
        sandglass_model::Outcome::Completed(completion) => Some(completion),
        _ => None,
    };
    let error = report.outcome.error();
    Expected {
        outcome: report.outcome.kind(),
        action: completion.and_then(|completion| completion.action.clone()),
        params: completion.map(|completion| json!(completion.params)),
        result: report.result().cloned(),
        error_kind: error.as_ref().map(|(kind, _)| kind.clone()),
        error: error.map(|(_, message)| message),
        dying_span: report.dying_span.clone(),
        calls: Some(calls_of(report)),
        requests: Some(met.requests.clone()),
        bodies: Some(met.bodies.clone()),
        asks: Some(met.asks.clone()),
        progress: Some(met.progress.clone()),
        status: met.status.clone(),
        at_least: None,
        at_most: None,
    }
}

/// Whether both are the same, where a whole number is the same with a point or without.
fn same(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Number(expected), Value::Number(found)) => same_number(expected, found),
        (Value::Array(expected), Value::Array(found)) => {
            expected.len() == found.len()
                && expected.iter().zip(found).all(|(expected, found)| same(expected, found))
        }
        (Value::Object(expected), Value::Object(found)) => {
            expected.len() == found.len()
                && expected.iter().all(|(name, expected)| {
                    found.get(name).is_some_and(|found| same(expected, found))
                })
        }
        _ => expected == found,
    }
}

fn same_number(expected: &Number, found: &Number) -> bool {
    let whole = |number: &Number| {
        let whole = number.as_i64().map(i128::from);
        whole.or_else(|| number.as_u64().map(i128::from))
    };
    #[allow(clippy::cast_possible_truncation, reason = "a float is no more exact")]
    let pointed = |number: &Number| {
        number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128)
    };
    expected == found
        || match (whole(expected), whole(found)) {
            (Some(expected), None) => pointed(found) == Some(expected),
            (None, Some(found)) => pointed(expected) == Some(found),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_the_same_with_a_point_or_without() {
        assert!(same(&json!({ "a": [1, 2.5] }), &json!({ "a": [1.0, 2.5] })));
        assert!(!same(&json!([1]), &json!([1, 2])));
        assert!(!same(&json!({ "a": 1 }), &json!({ "b": 1 })));
        assert!(!same(&json!(9_007_199_254_740_992.0), &json!(9_007_199_254_740_993_u64)));
        // Neighbours that are one and the same as floats.
        assert!(!same(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
    }

    #[test]
    fn large_ones_are_told_line_by_line() {
        let difference =
            Difference::new("calls", json!(["host_log", "host_ask"]), json!(["host_log"]));
        assert_eq!(difference.to_string(), "calls:\n  host_log\n- host_ask");
        let difference = Difference::new("outcome", json!("completed"), json!("failed"));
        assert_eq!(difference.to_string(), "outcome: expected \"completed\", found \"failed\"");
    }
}
