//! The types of variables, and how other values are converted to them.

use serde_json::Value;

use super::VariableKind;

impl VariableKind {
    /// Their names in spec files.
    pub const NAMES: [&str; 3] = ["string", "counter", "bool"];

    /// The type of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::String, Self::Counter, Self::Bool].into_iter().find(|kind| kind.as_str() == name)
    }

    /// Its name in spec files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Counter => "counter",
            Self::Bool => "bool",
        }
    }

    /// The value that a variable of this type has if it is set to `value`; `None` if that is of
    /// another type. Numbers and flags may be text, as users write them.
    #[must_use]
    pub fn hold(self, value: &Value) -> Option<Value> {
        match (self, value) {
            (Self::String, Value::String(text)) => Some(Value::from(text.as_str())),
            (Self::String, other) => Some(Value::from(other.to_string())),
            (Self::Counter, Value::Number(number)) => counter(number.as_i64()?),
            (Self::Counter, Value::String(text)) => counter(text.trim().parse().ok()?),
            (Self::Bool, Value::Bool(flag)) => Some(Value::from(*flag)),
            (Self::Bool, Value::String(text)) => text.trim().parse().map(Value::Bool).ok(),
            _ => None,
        }
    }

    /// The value of a variable that declares none.
    #[must_use]
    pub fn zero(self) -> Value {
        match self {
            Self::String => Value::from(""),
            Self::Counter => Value::from(0),
            Self::Bool => Value::from(false),
        }
    }
}

fn counter(number: i64) -> Option<Value> {
    (number >= 0).then(|| Value::from(number))
}
