//! How a write changes a channel, depending on its reducer.

use serde_json::{Map, Value, json};

use crate::definition::{Channel, Reducer};

/// Most entries of a channel; also the default.
const ENTRIES_MAX: u64 = 10_000;

/// The state of the channel after `written`, from the state before.
pub(crate) fn reduce(channel: &Channel, before: Option<Value>, written: Value) -> Value {
    match channel.reducer {
        Reducer::Replace => written,
        Reducer::Append | Reducer::Feedback => listed(channel, entries(before), written),
        Reducer::Message => {
            let entries = entries(before);
            let is_there = entries.iter().any(|entry| are_same(entry, &written, "messageId"));
            if is_there { Value::Array(entries) } else { listed(channel, entries, written) }
        }
        Reducer::Votes => {
            let mut entries = entries(before);
            // Each voter has one vote: the last.
            entries.retain(|vote| !are_same(vote, &written, "voter"));
            listed(channel, entries, written)
        }
        Reducer::Merge => merged(before, written),
        Reducer::Counter => counted(before, &written),
    }
}

fn entries(before: Option<Value>) -> Vec<Value> {
    match before {
        Some(Value::Array(entries)) => entries,
        None | Some(Value::Null) => Vec::new(),
        Some(other) => vec![other],
    }
}

/// Whether both have the same value of `key`.
fn are_same(one: &Value, other: &Value, key: &str) -> bool {
    one.get(key).is_some() && one.get(key) == other.get(key)
}

/// The entries with `written` appended; only the last ones if there are too many.
fn listed(channel: &Channel, mut entries: Vec<Value>, written: Value) -> Value {
    entries.push(written);
    let most = channel.max_size.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let excess = entries.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
    entries.drain(..excess);
    Value::Array(entries)
}

/// The fields of both; a value that is not an object becomes the field `value`.
fn merged(before: Option<Value>, written: Value) -> Value {
    let mut fields = match before {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    };
    match written {
        Value::Object(more) => fields.extend(more),
        other => drop(fields.insert("value".to_owned(), other)),
    }
    Value::Object(fields)
}

/// The sum of both; a value that is not a number counts as 1.
fn counted(before: Option<Value>, written: &Value) -> Value {
    let before = before.filter(Value::is_number).unwrap_or_else(|| json!(0));
    let written = if written.is_number() { written.clone() } else { json!(1) };
    if let (Some(count), Some(more)) = (before.as_i64(), written.as_i64()) {
        return json!(count.saturating_add(more));
    }
    let sum = before.as_f64().unwrap_or(0.0) + written.as_f64().unwrap_or(0.0);
    // JSON has no infinity.
    json!(sum.clamp(f64::MIN, f64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition;
    use crate::definition::tests::with;

    fn channel(declared: &Value) -> Channel {
        let text = with("/channels", json!({ "c": declared }));
        let definition = Definition::parse(&text).expect("a definition");
        definition.channels["c"].clone()
    }

    #[test]
    fn each_reducer_applies_writes_by_its_rule() {
        for (declared, written, expected) in [
            (json!({ "reducer": "replace" }), json!([1, 2]), json!(2)),
            (json!({ "reducer": "append", "maxSize": 2 }), json!([1, 2, 3]), json!([2, 3])),
            (json!({ "reducer": "feedback" }), json!(["a", "a"]), json!(["a", "a"])),
            (
                json!({ "reducer": "message" }),
                json!([{ "messageId": 1, "n": 1 }, { "messageId": 1, "n": 2 }, { "n": 3 }]),
                json!([{ "messageId": 1, "n": 1 }, { "n": 3 }]),
            ),
            (
                json!({ "reducer": "votes" }),
                json!([{ "voter": "a", "yes": true }, { "voter": "b" }, { "voter": "a", "yes": false }]),
                json!([{ "voter": "b" }, { "voter": "a", "yes": false }]),
            ),
            (
                json!({ "reducer": "merge" }),
                json!([{ "a": 1, "b": 1 }, { "b": 2 }, 3]),
                json!({ "a": 1, "b": 2, "value": 3 }),
            ),
            (json!({ "reducer": "counter" }), json!([2, "once", 3]), json!(6)),
            (json!({ "reducer": "counter" }), json!([1, 0.5]), json!(1.5)),
            (json!({ "reducer": "counter" }), json!([0.5, 2, "once"]), json!(3.5)),
            (json!({ "reducer": "counter" }), json!([f64::MAX, f64::MAX]), json!(f64::MAX)),
            (json!({ "reducer": "counter" }), json!([i64::MAX, 1]), json!(i64::MAX)),
        ] {
            let channel = channel(&declared);
            let writes = written.as_array().expect("a list").clone();
            let after =
                writes.into_iter().fold(None, |before, one| Some(reduce(&channel, before, one)));
            assert_eq!(after, Some(expected), "{declared}");
        }
    }
}
