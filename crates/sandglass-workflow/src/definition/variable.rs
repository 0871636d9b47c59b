//! Variables that a definition declares.

use serde_json::Value;

use super::{ID_MAX_BYTES, PROSE_MAX_BYTES};
use crate::fields::{Fields, kind};
use crate::names::names;
use crate::problem::Problems;

/// A variable that runs begin with.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Variable {
    /// Its name, which is that of the input that sets it.
    pub name: String,
    /// What values it takes.
    pub kind: VariableType,
    /// What it is for.
    pub description: Option<String>,
    /// Whether a run needs it.
    pub required: bool,
    /// What it is where no input sets it.
    pub default: Option<Value>,
    /// Whether its value is masked wherever it is shown.
    pub sensitive: bool,
}

names! {
    /// What values a variable takes.
    VariableType {
        /// Texts.
        String = "string",
        /// Numbers, whole or not.
        Number = "number",
        /// True and false.
        Boolean = "boolean",
        /// Objects.
        Object = "object",
        /// Lists.
        Array = "array",
    }
}

impl VariableType {
    /// Whether it takes `value`. None takes null.
    #[must_use]
    pub const fn takes(self, value: &Value) -> bool {
        matches!(
            (self, value),
            (Self::String, Value::String(_))
                | (Self::Number, Value::Number(_))
                | (Self::Boolean, Value::Bool(_))
                | (Self::Object, Value::Object(_))
                | (Self::Array, Value::Array(_))
        )
    }

    /// One value of it, as a message says it.
    pub(crate) const fn shown(self) -> &'static str {
        match self {
            Self::String => "a string",
            Self::Number => "a number",
            Self::Boolean => "a boolean",
            Self::Object => "an object",
            Self::Array => "a list",
        }
    }
}

impl Variable {
    pub(super) fn read(value: &Value, path: String, out: &mut Problems) -> Option<Self> {
        let fields = Fields::of(value, path, "the variable", out)?;
        let known = ["name", "type", "description", "required", "defaultValue", "sensitive"];
        fields.only(&known, out);
        let name = fields.required_name("name", ID_MAX_BYTES, out);
        let declared = fields
            .required("type", out)
            .and_then(|_| fields.word("type", VariableType::WORDS, out));
        let description = fields.prose("description", PROSE_MAX_BYTES, out);
        let required = fields.flag("required", out);
        let sensitive = fields.flag("sensitive", out);
        // Editors write null where there is none.
        let default = fields.value("defaultValue").filter(|value| !value.is_null());
        let declared = declared?;
        if let Some(default) = default.filter(|default| !declared.takes(default)) {
            let what = format!(
                "the default must be {}, the variable's type, and is {}",
                declared.shown(),
                kind(default)
            );
            out.add(fields.under("defaultValue"), what);
        }
        Some(Self {
            name: name?.to_owned(),
            kind: declared,
            description,
            required,
            default: default.cloned(),
            sensitive,
        })
    }
}
