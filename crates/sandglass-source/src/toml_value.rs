//! TOML values as JSON.

use sandglass_model::Object;
use serde_json::Value;
use toml::de::{DeInteger, DeTable, DeValue};

/// The number, where it fits.
#[must_use]
pub fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// A table as an object.
#[must_use]
pub fn object(table: &DeTable<'_>) -> Object {
    table.iter().map(|(key, item)| (key.get_ref().to_string(), value(item.get_ref()))).collect()
}

/// The value as JSON. A date and an integer that doesn't fit are their text; a float
/// that JSON has no number for is null. The nesting is bounded by the parser.
#[must_use]
pub fn value(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::from(text.as_ref()),
        DeValue::Boolean(flag) => Value::from(*flag),
        DeValue::Integer(number) => {
            integer(number).map_or_else(|| Value::from(number.to_string()), Value::from)
        }
        DeValue::Float(number) => number.as_str().parse::<f64>().map_or(Value::Null, Value::from),
        DeValue::Datetime(moment) => Value::from(moment.to_string()),
        DeValue::Array(items) => items.iter().map(|item| self::value(item.get_ref())).collect(),
        DeValue::Table(table) => Value::Object(object(table).into_iter().collect()),
    }
}
