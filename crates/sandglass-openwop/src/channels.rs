//! What a write makes of a channel, by its reducer.

use serde_json::{Map, Value, json};

use crate::definition::{Channel, Reducer};

/// Most entries of a channel that doesn't say how many it keeps.
const ENTRIES_MAX: u64 = 10_000;

/// What `written` makes of what was in the channel before.
pub(crate) fn reduce(channel: &Channel, before: Option<Value>, written: Value) -> Value {
    match channel.reducer {
        Reducer::Replace => written,
        Reducer::Append | Reducer::Feedback => appended(channel, before, written, |_, _| false),
        Reducer::Message => appended(channel, before, written, same("messageId")),
        Reducer::Votes => {
            let mut votes = appended(channel, before, Value::Null, |_, _| true);
            if let Value::Array(votes) = &mut votes {
                let voter = |vote: &Value| vote.get("voter").or(vote.get("userId")).cloned();
                // Each voter has one vote: the last.
                votes.retain(|vote| voter(&written).is_none() || voter(vote) != voter(&written));
            }
            appended(channel, Some(votes), written, |_, _| false)
        }
        Reducer::Merge => {
            let mut fields = match before {
                Some(Value::Object(fields)) => fields,
                _ => Map::new(),
            };
            match written {
                Value::Object(more) => fields.extend(more),
                other => {
                    fields.insert("value".to_owned(), other);
                }
            }
            Value::Object(fields)
        }
        Reducer::Counter => {
            let before = before.unwrap_or_default();
            // A counter is counted on by what is written, or by one.
            match (before.as_i64().unwrap_or(0), written.as_i64()) {
                (count, Some(more)) => json!(count.saturating_add(more)),
                (count, None) => match written.as_f64() {
                    Some(more) => json!(before.as_f64().unwrap_or(0.0) + more),
                    None => json!(count.saturating_add(1)),
                },
            }
        }
    }
}

fn same(key: &'static str) -> impl Fn(&Value, &Value) -> bool {
    move |one, other| one.get(key).is_some() && one.get(key) == other.get(key)
}

/// The entries with `written` behind them, where none of them `is_it`; the last ones, where
/// there are too many.
fn appended(
    channel: &Channel,
    before: Option<Value>,
    written: Value,
    is_it: impl Fn(&Value, &Value) -> bool,
) -> Value {
    let mut entries = match before {
        Some(Value::Array(entries)) => entries,
        None | Some(Value::Null) => Vec::new(),
        Some(other) => vec![other],
    };
    if !entries.iter().any(|entry| is_it(entry, &written)) && !written.is_null() {
        entries.push(written);
    }
    let most = channel.max_size.unwrap_or(ENTRIES_MAX).min(ENTRIES_MAX);
    let excess = entries.len().saturating_sub(usize::try_from(most).unwrap_or(usize::MAX));
    entries.drain(..excess);
    Value::Array(entries)
}
