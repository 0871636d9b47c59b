//! The fields of the entity's state, by name.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::Guest;
use crate::measured::Measured;

/// Returns a field as text: a text without quotes, null as no text, and everything else as JSON.
pub(crate) fn as_text(value: &Value) -> Cow<'_, str> {
    match value {
        Value::String(text) => text.into(),
        Value::Null => "".into(),
        other => other.to_string().into(),
    }
}

/// Reads the fields from the context JSON: the object `fields` in the entity's state, or else the
/// state itself.
fn of_context(context: &[u8]) -> Map<String, Value> {
    let context: Value = serde_json::from_slice(context).unwrap_or_default();
    let Value::Object(mut context) = context else { return Map::new() };
    let Some(Value::Object(mut state)) = context.remove("entity_state") else { return Map::new() };
    match state.remove("fields") {
        Some(Value::Object(fields)) => fields,
        Some(other) => {
            state.insert("fields".to_owned(), other);
            state
        }
        None => state,
    }
}

/// The fields of an entity's state.
#[derive(Debug)]
pub struct Fields {
    by_name: Map<String, Value>,
    /// Their memory.
    bytes: u64,
}

impl Fields {
    fn of_context(context: &[u8]) -> Self {
        let by_name = of_context(context);
        let bytes = object_bytes(&by_name);
        Self { by_name, bytes }
    }
}

impl Measured for Fields {
    #[inline]
    fn uncharged_bytes(&self) -> u64 {
        self.bytes
    }
}

/// The heap memory of `value`, in bytes.
fn heap_bytes(value: &Value) -> u64 {
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => 0,
        Value::String(text) => text.capacity() as u64,
        Value::Array(items) => {
            (items.capacity() * size_of::<Value>()) as u64
                + items.iter().map(heap_bytes).sum::<u64>()
        }
        Value::Object(fields) => object_bytes(fields),
    }
}

/// The heap memory of `fields`: at most twice their entries, because a node of the map's tree is at
/// least half full.
fn object_bytes(fields: &Map<String, Value>) -> u64 {
    let entry = 2 * size_of::<(String, Value)>() as u64;
    fields.iter().map(|(name, value)| entry + name.capacity() as u64 + heap_bytes(value)).sum()
}

impl Guest {
    /// A field of the entity's state.
    pub fn field(&mut self, name: &str) -> Option<&Value> {
        let context = &self.context;
        // Most guests read no field, so the context is parsed on the first read.
        self.fields.get_or_insert_with(|| Fields::of_context(context.json())).by_name.get(name)
    }

    /// A field as bytes: a text without quotes, null as no bytes, and everything else as JSON.
    pub fn field_bytes(&mut self, name: &str) -> Option<Vec<u8>> {
        self.field(name).map(|value| as_text(value).into_owned().into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_from_fields_or_else_from_the_state() {
        let fields = of_context(br#"{"entity_state":{"status":"A","fields":{"n":1}}}"#);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["n"]);
        let fields = of_context(br#"{"entity_state":{"n":1,"fields":7}}"#);
        assert_eq!(fields.keys().collect::<Vec<_>>(), ["fields", "n"]);
        for none in [&b"{}"[..], b"[]", b"", br#"{"entity_state":[]}"#] {
            assert!(of_context(none).is_empty());
        }
    }

    #[test]
    fn texts_have_no_quotes() {
        assert_eq!(as_text(&Value::from("a\"b")), "a\"b");
        assert_eq!(as_text(&Value::Null), "");
        assert_eq!(as_text(&serde_json::json!({"a": [1]})), r#"{"a":[1]}"#);
    }
}
