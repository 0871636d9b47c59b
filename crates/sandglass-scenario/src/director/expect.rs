//! Whether an expectation about the journal holds, and its sentence for people.

use std::fmt;

use sandglass_journal::Error;
use sandglass_liveness::replay::Summary;
use sandglass_model::{EntityRef, Event, Object, Record};
use sandglass_runtime::replay_journal;
use sandglass_source::printable;
use serde_json::Value;

use super::follower::JournalFollower;
use crate::file::{Bound, Expectation};

/// Whether an expectation holds.
#[derive(Debug)]
pub struct Verdict {
    /// Whether it holds.
    pub holds: bool,
    /// What was found, for people.
    pub found: String,
}

/// Checks an expectation about the journal against what is recorded now.
pub(super) fn check(
    expectation: &Expectation,
    follower: &mut JournalFollower,
) -> Result<Verdict, Error> {
    let (holds, about) = match expectation {
        Expectation::State { entity, state } => {
            let holds = follower.entity(entity).is_some_and(|progress| progress.state == *state);
            (holds, Some(entity))
        }
        Expectation::Transition { action, entity, params } => {
            (follower.any(|record| is_transition(record, action, entity, params))?, Some(entity))
        }
        Expectation::NoTransition { action, entity } => {
            let taken =
                follower.any(|record| is_transition(record, action, entity, &Object::new()))?;
            (!taken, Some(entity))
        }
        Expectation::Record { fields, entity } => {
            (follower.any(|record| is_record(record, fields, entity.as_ref()))?, entity.as_ref())
        }
        Expectation::NoRecord { fields, entity } => {
            let is_there = follower.any(|record| is_record(record, fields, entity.as_ref()))?;
            let found = if is_there { "there is one" } else { "there is none" };
            return Ok(Verdict { holds: !is_there, found: found.to_owned() });
        }
        Expectation::Replay { divergences } => return check_replay(*divergences, follower),
        // The worker is asked about these.
        Expectation::Metric { .. } | Expectation::Session { .. } => (false, None),
    };
    let found =
        about.map_or_else(|| describe_kinds(follower), |entity| describe_entity(entity, follower));
    Ok(Verdict { holds, found })
}

fn check_replay(expected: u64, follower: &mut JournalFollower) -> Result<Verdict, Error> {
    let summary = replay_journal(follower.reader()?, None, |_| Ok::<_, Error>(()))?;
    let first = summary.divergences.first().map_or(String::new(), |one| {
        let (recorded, expected) = (&one.recorded, &one.expected);
        format!("; first at position {}: {} is {recorded}, not {expected}", one.position, one.what)
    });
    let Summary { dispatches, timeouts, divergence_count, .. } = &summary;
    let found = format!(
        "{dispatches} dispatches, {timeouts} timeouts, {divergence_count} divergences{first}"
    );
    Ok(Verdict { holds: summary.divergence_count == expected, found })
}

fn describe_entity(entity: &EntityRef, follower: &JournalFollower) -> String {
    let Some(seen) = follower.entity(entity) else {
        return format!("this play has no record of {entity}");
    };
    let recent: Vec<&str> = seen.recent.iter().map(String::as_str).collect();
    let recent = if recent.is_empty() { "none".to_owned() } else { recent.join(", ") };
    format!("{entity} is in {}; its last transitions: {recent}", seen.state)
}

fn describe_kinds(follower: &JournalFollower) -> String {
    let kinds: Vec<String> =
        follower.kinds().iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    match &kinds[..] {
        [] => "nothing was recorded in this play".to_owned(),
        kinds => format!("no such record in this play; there are: {}", kinds.join(", ")),
    }
}

fn is_transition(record: &Record, action: &str, entity: &EntityRef, params: &Object) -> bool {
    let Event::Transition { action: taken, params: with, .. } = &record.event else { return false };
    record.entity.as_ref() == Some(entity) && taken == action && contains(with, params)
}

fn is_record(record: &Record, fields: &Object, entity: Option<&EntityRef>) -> bool {
    if entity.is_some() && record.entity.as_ref() != entity {
        return false;
    }
    match serde_json::to_value(&record.event) {
        Ok(Value::Object(event)) => fields
            .iter()
            .all(|(key, value)| event.get(key).is_some_and(|found| matches(found, value))),
        _ => false,
    }
}

/// Whether `all` has the fields `some`, among others.
pub(super) fn contains(all: &Object, some: &Object) -> bool {
    some.iter().all(|(key, value)| all.get(key).is_some_and(|found| matches(found, value)))
}

/// Whether `found` is as expected: objects may have more fields, everything else must be equal.
fn matches(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Object(found), Value::Object(expected)) => expected
            .iter()
            .all(|(key, value)| found.get(key).is_some_and(|found| matches(found, value))),
        (Value::Number(found), Value::Number(expected)) => {
            found == expected || found.as_f64() == expected.as_f64()
        }
        _ => found == expected,
    }
}

/// A sentence that holds or does not, printable.
impl fmt::Display for Expectation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Self::State { entity, state } => format!("{entity} is in {state}"),
            Self::Transition { action, entity, params } => {
                format!("{entity} takes {action}{}", describe_fields(params))
            }
            Self::NoTransition { action, entity } => format!("{entity} has never taken {action}"),
            Self::Record { fields, entity } => {
                let of = entity.as_ref().map_or(String::new(), |entity| format!(" of {entity}"));
                format!("there is a record{of}{}", describe_fields(fields))
            }
            Self::NoRecord { fields, entity } => {
                let of = entity.as_ref().map_or(String::new(), |entity| format!(" of {entity}"));
                format!("there is no record{of}{}", describe_fields(fields))
            }
            Self::Session { fields, entity } => {
                format!("{entity} is a session{}", describe_fields(fields))
            }
            Self::Metric { name, labels, bound } => {
                let labels: Vec<String> =
                    labels.iter().map(|(key, value)| format!("{key}={value:?}")).collect();
                let bound = match bound {
                    Bound::AtLeast(least) => format!("at least {least}"),
                    Bound::Equals(value) => format!("{value}"),
                };
                format!("{name}{{{}}} is {bound}", labels.join(","))
            }
            Self::Replay { divergences } => format!("a replay finds {divergences} divergences"),
        };
        f.write_str(&printable(&text))
    }
}

fn describe_fields(fields: &Object) -> String {
    if fields.is_empty() {
        return String::new();
    }
    let fields: Vec<String> =
        fields.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!(" with {}", fields.join(", "))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn objects_match_with_more_fields_and_other_values_only_whole() {
        let found = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x"});
        for expected in [json!({}), json!({"a": {"b": 1.0}}), json!({"a": {"c": [1, 2]}, "d": "x"})]
        {
            assert!(matches(&found, &expected), "{expected}");
        }
        for expected in [json!({"a": 1}), json!({"a": {"c": [1]}}), json!({"e": null})] {
            assert!(!matches(&found, &expected), "{expected}");
        }
    }
}
