//! What a variable may hold, and how other values become that.

use serde_json::Value;

use super::VariableKind;

impl VariableKind {
    /// The names that a spec file gives them.
    pub const NAMES: [&str; 3] = ["string", "counter", "bool"];

    /// The kind of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "string" => Some(Self::String),
            "counter" => Some(Self::Counter),
            "bool" => Some(Self::Bool),
            _ => None,
        }
    }

    /// The name that a spec file gives it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Counter => "counter",
            Self::Bool => "bool",
        }
    }

    /// What a variable of this kind holds when it is given `value`; none where it
    /// can't be meant. Numbers and flags may come as text, as users write them.
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
