//! The types of variables, and how other values are converted to them.

use sandglass_source::{Diagnostics, Spot, toml_value};
use serde_json::Value;

use super::VariableKind;

impl VariableKind {
    /// Their names in spec files.
    pub const NAMES: [&str; 5] = ["string", "counter", "bool", "number", "list"];

    /// The type of this name, in each of its spellings.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Some(match name {
            "string" | "text" | "status" | "enum" | "timestamp" | "datetime" => Self::String,
            "counter" => Self::Counter,
            "bool" | "boolean" => Self::Bool,
            "number" | "int" | "integer" | "float" => Self::Number,
            "list" | "set" => Self::List,
            _ => return None,
        })
    }

    /// The type that a literal in an effect has.
    pub(super) fn of(literal: &Value) -> Self {
        match literal {
            Value::Bool(_) => Self::Bool,
            Value::Number(_) => Self::Counter,
            Value::String(text) if matches!(text.as_str(), "true" | "false") => Self::Bool,
            _ => Self::String,
        }
    }

    /// Its name in spec files.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Counter => "counter",
            Self::Bool => "bool",
            Self::Number => "number",
            Self::List => "list",
        }
    }

    /// What it holds, for people.
    #[must_use]
    pub const fn holds(self) -> &'static str {
        match self {
            Self::String => "a text",
            Self::Counter => "a whole number from 0",
            Self::Bool => "true or false",
            Self::Number => "a number",
            Self::List => "a list of texts",
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
            (Self::Number, Value::Number(_)) => Some(value.clone()),
            (Self::Number, Value::String(text)) => number(text.trim()),
            (Self::List, Value::Array(items)) => {
                items.iter().all(Value::is_string).then(|| value.clone())
            }
            _ => None,
        }
    }

    /// The value of a variable that declares none.
    #[must_use]
    pub fn zero(self) -> Value {
        match self {
            Self::String => Value::from(""),
            Self::Counter | Self::Number => Value::from(0),
            Self::Bool => Value::from(false),
            Self::List => Value::Array(Vec::new()),
        }
    }

    /// The `initial` value in a spec file. Texts that are no value of the type are zero.
    pub(super) fn initial(self, value: Spot<'_, '_>, out: &mut Diagnostics<'_>) -> Value {
        let json = toml_value::to_json(value.get_ref());
        let text = json.as_str().map(str::trim);
        let held = match (self, text) {
            (Self::List, Some(text)) => Some(list(text)),
            (Self::Bool, Some("1" | "yes" | "on")) => Some(Value::from(true)),
            (Self::Bool, Some("0" | "no" | "off")) => Some(Value::from(false)),
            (Self::String, _) => self.hold(&json),
            (_, Some("")) => Some(self.zero()),
            _ => self.hold(&json),
        };
        held.unwrap_or_else(|| {
            let message = format!("`initial` must be a {}, and is {json}", self.as_str());
            let help = format!("a {} holds {}", self.as_str(), self.holds());
            match text {
                Some(_) => {
                    let help = format!("{help}; the variable begins with {}", self.zero());
                    out.report_default(&value.span(), message, help);
                }
                None => out.error_with_help(&value.span(), message, help),
            }
            self.zero()
        })
    }
}

fn counter(number: i64) -> Option<Value> {
    (number >= 0).then(|| Value::from(number))
}

fn number(text: &str) -> Option<Value> {
    let whole = text.parse::<i64>().map(Value::from);
    whole.ok().or_else(|| text.parse().ok().and_then(serde_json::Number::from_f64).map(Value::from))
}

/// A list that is written as a text: `[a, 'b']`, or its only item.
fn list(text: &str) -> Value {
    let items = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let items = items.map_or_else(|| vec![text], |items| items.split(',').collect());
    let items = items.into_iter().map(|item| item.trim().trim_matches(['"', '\'']));
    items.filter(|item| !item.is_empty()).map(Value::from).collect()
}

/// The type of a value, for people.
pub(crate) const fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
