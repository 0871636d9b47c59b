//! Compares what happened with what a case expects.

use std::fmt;

use sandglass_model::RunReport;
use serde::Serialize;
use serde_json::{Number, Value, json};
use similar::{ChangeTag, TextDiff};

use crate::answer::Answer;
use crate::case::{Case, Expected, called_functions};
use crate::world::Observed;

/// One difference between what was expected and what happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// A key of [`Expected`], or `answers`.
    pub what: &'static str,
    /// What was expected.
    pub expected: Value,
    /// What happened.
    pub actual: Value,
}

impl Difference {
    const fn new(what: &'static str, expected: Value, actual: Value) -> Self {
        Self { what, expected, actual }
    }
}

/// Short values are shown in one line, others as a diff: `-` was expected, `+` happened.
impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, expected, actual } = self;
        if !is_large(expected) && !is_large(actual) {
            return write!(f, "{what}: expected {expected}, found {actual}");
        }
        write!(f, "{what}:")?;
        let (expected, actual) = (lines(expected), lines(actual));
        for change in TextDiff::from_lines(&expected, &actual).iter_all_changes() {
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
        // A list of strings: one in each line.
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_string) => {
            let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
            items.join("\n")
        }
        other => serde_json::to_string_pretty(other).unwrap_or_default(),
    };
    lines.push('\n');
    lines
}

/// Lists what differs from the expectations of `case`. `unused` are answers that were used less often
/// than scripted, with how often they were used.
pub(crate) fn differences(
    case: &Case,
    actual: &Expected,
    report: &RunReport,
    observed: &Observed,
    unused: &[(Answer, u32)],
) -> Vec<Difference> {
    let expected = &case.expected;
    let mut all = Vec::new();
    let mut compare = |what: &'static str, expected: Option<Value>, actual: Value| {
        if let Some(expected) = expected.filter(|expected| !is_equal(expected, &actual)) {
            all.push(Difference::new(what, expected, actual));
        }
    };
    compare("outcome", Some(json!(expected.outcome)), json!(actual.outcome));
    compare("action", to_json(&expected.action), json!(actual.action));
    compare("params", expected.params.clone(), json!(actual.params));
    compare("result", expected.result.clone(), json!(actual.result));
    compare("error_kind", to_json(&expected.error_kind), json!(actual.error_kind));
    compare("dying_span", to_json(&expected.dying_span), json!(actual.dying_span));
    compare("calls", to_json(&expected.calls), json!(actual.calls));
    compare("requests", to_json(&expected.requests), json!(actual.requests));
    compare("bodies", to_json(&expected.bodies), json!(actual.bodies));
    compare("asks", to_json(&expected.asks), json!(actual.asks));
    compare("signals", to_json(&expected.signals), json!(actual.signals));
    compare("progress", to_json(&expected.progress), json!(actual.progress));
    compare("status", to_json(&expected.status), json!(actual.status));
    if let Some(part) = &expected.error
        && !actual.error.as_ref().is_some_and(|message| message.contains(part))
    {
        all.push(Difference::new("error", json!(part), json!(actual.error)));
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
            let [expected, actual] = [bound, elapsed].map(|millis| json!(format!("{millis} ms")));
            all.push(Difference::new(what, expected, actual));
        }
    }
    // If a case lists its requests, the list contains the denied ones.
    for call in observed.denied.iter().filter(|_| expected.requests.is_none()) {
        all.push(Difference::new("requests", json!("granted hosts only"), json!(call)));
    }
    for call in &observed.unanswered {
        all.push(Difference::new("answers", json!(format!("an answer to {call}")), Value::Null));
    }
    for (answer, used) in unused {
        let expected = format!("{} call(s): {}", answer.times.unwrap_or(0), answer.to);
        all.push(Difference::new("answers", json!(expected), json!(format!("{used} call(s)"))));
    }
    all
}

fn to_json(expected: &Option<impl Serialize>) -> Option<Value> {
    expected.as_ref().map(|expected| json!(expected))
}

/// Returns what happened, in the form of an expectation.
pub(crate) fn actual(report: &RunReport, observed: &Observed) -> Expected {
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
        calls: Some(called_functions(report)),
        requests: Some(observed.requests.clone()),
        bodies: Some(observed.bodies.clone()),
        asks: Some(observed.asks.clone()),
        signals: Some(observed.signals.clone()),
        progress: Some(observed.progress.clone()),
        status: observed.status.clone(),
        at_least: None,
        at_most: None,
    }
}

/// Whether both are equal. An integer equals a float with the same value.
fn is_equal(expected: &Value, actual: &Value) -> bool {
    match (expected, actual) {
        (Value::Number(expected), Value::Number(actual)) => is_equal_number(expected, actual),
        (Value::Array(expected), Value::Array(actual)) => {
            expected.len() == actual.len()
                && expected.iter().zip(actual).all(|(expected, actual)| is_equal(expected, actual))
        }
        (Value::Object(expected), Value::Object(actual)) => {
            expected.len() == actual.len()
                && expected.iter().all(|(name, expected)| {
                    actual.get(name).is_some_and(|actual| is_equal(expected, actual))
                })
        }
        _ => expected == actual,
    }
}

fn is_equal_number(expected: &Number, actual: &Number) -> bool {
    let integer = |number: &Number| {
        let signed = number.as_i64().map(i128::from);
        signed.or_else(|| number.as_u64().map(i128::from))
    };
    #[allow(clippy::cast_possible_truncation, reason = "a float with this value is exact")]
    let integral_float = |number: &Number| {
        number.as_f64().filter(|float| float.fract() == 0.0).map(|float| float as i128)
    };
    expected == actual
        || match (integer(expected), integer(actual)) {
            (Some(expected), None) => integral_float(actual) == Some(expected),
            (None, Some(actual)) => integral_float(expected) == Some(actual),
            _ => false,
        }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_integer_equals_a_float_with_the_same_value() {
        assert!(is_equal(&json!({ "a": [1, 2.5] }), &json!({ "a": [1.0, 2.5] })));
        assert!(!is_equal(&json!([1]), &json!([1, 2])));
        assert!(!is_equal(&json!({ "a": 1 }), &json!({ "b": 1 })));
        assert!(!is_equal(&json!(9_007_199_254_740_992.0), &json!(9_007_199_254_740_993_u64)));
        // Adjacent integers that round to the same float.
        assert!(!is_equal(&json!(9_007_199_254_740_993_u64), &json!(9_007_199_254_740_992_u64)));
    }

    #[test]
    fn large_values_are_shown_as_a_diff() {
        let difference =
            Difference::new("calls", json!(["host_log", "host_ask"]), json!(["host_log"]));
        assert_eq!(difference.to_string(), "calls:\n  host_log\n- host_ask");
        let difference = Difference::new("outcome", json!("completed"), json!("failed"));
        assert_eq!(difference.to_string(), "outcome: expected \"completed\", found \"failed\"");
    }
}
