//! JSON from guests and clients, which may contain only a limited number of values.

use sandglass_source::json::{self, Error, MAX_VALUES};
use serde_json::Value;

use crate::promise;

/// Checks that the result equals that of serde, and never has more values than are allowed.
pub(crate) fn read(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    match json::read::<Value>(text) {
        Ok(value) => {
            assert!(size(&value) <= MAX_VALUES as usize, "it holds too many values");
            assert_eq!(serde_json::from_str::<Value>(text).ok(), Some(value.clone()));
            let again = json::read::<Value>(&value.to_string()).expect("it was written as JSON");
            assert_eq!(again, value);
        }
        Err(Error::Invalid(error)) => {
            promise::check_location(&error);
            promise::check_text(&error);
            // A key with the reserved prefix of serde_json is refused, although serde_json accepts
            // it. The prefix contains a `$`, which the text may also have as an escape.
            let is_reserved = text.contains("$") || text.contains("\\u");
            assert!(is_reserved || serde_json::from_str::<Value>(text).is_err(), "{error}");
        }
        Err(refused) => promise::check_text(&refused),
    }
}

/// Counts the values as [`MAX_VALUES`] does. The result is a lower bound, because only one value is
/// left of those with duplicate keys.
fn size(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(size).sum::<usize>(),
        Value::Object(fields) => 8 + fields.values().map(|field| 1 + size(field)).sum::<usize>(),
        _ => 1,
    }
}
