//! How large a value is as JSON.

use serde_json::Value;

/// Approximate size of `value` as JSON, in bytes, computed without rendering it.
#[must_use]
pub fn json_size(value: &Value) -> usize {
    match value {
        Value::Null | Value::Bool(_) => 5,
        Value::Number(_) => 8,
        Value::String(text) => text.len().saturating_add(2),
        // Readers bound the depth of values.
        Value::Array(values) => values
            .iter()
            .map(json_size)
            .fold(2, |all, one| all.saturating_add(one).saturating_add(1)),
        Value::Object(fields) => fields.iter().fold(2, |all, (key, value)| {
            all.saturating_add(key.len()).saturating_add(json_size(value)).saturating_add(4)
        }),
    }
}
