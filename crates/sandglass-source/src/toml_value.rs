//! Converts TOML values to JSON.

use sandglass_model::Object;
use serde_json::Value;
use toml::de::{DeInteger, DeTable, DeValue};

/// The number, or `None` if it does not fit.
#[must_use]
pub fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Converts a table to an object.
#[must_use]
pub fn to_object(table: &DeTable<'_>) -> Object {
    table.iter().map(|(key, item)| (key.get_ref().to_string(), to_json(item.get_ref()))).collect()
}

/// Converts a value to JSON. A date, and an integer that does not fit, become their text; a float
/// that JSON cannot represent becomes null. The parser bounds the nesting.
#[must_use]
pub fn to_json(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(number) => {
            integer(number).map_or_else(|| Value::from(number.to_string()), Value::from)
        }
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(moment) => Value::from(moment.to_string()),
        DeValue::Array(items) => items.iter().map(|item| to_json(item.get_ref())).collect(),
        DeValue::Table(table) => Value::Object(to_object(table).into_iter().collect()),
    }
}
