//! Pointers into a JSON value.

use serde_json::Value;

/// Pointers to all values in a value, itself included.
pub(crate) fn pointers(value: &Value, path: String, out: &mut Vec<String>) {
    out.push(path.clone());
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, format!("{path}/{index}"), out);
            }
        }
        Value::Object(fields) => {
            for (key, value) in fields {
                pointers(value, format!("{path}/{key}"), out);
            }
        }
        _ => {}
    }
}
