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
    /// Its name, which is also the name of the input that sets it.
    pub name: String,
    /// The type of its values.
    pub kind: VariableType,
    /// What it is for.
    pub description: Option<String>,
    /// Whether a run needs it.
    pub required: bool,
    /// Its value if no input sets it.
    pub default: Option<Value>,
    /// Whether clients see its value masked.
    pub sensitive: bool,
}

names! {
    /// The type of a variable's values.
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
    /// Whether `value` is of this type; null is of none.
    #[must_use]
    pub fn takes(self, value: &Value) -> bool {
        !value.is_null() && kind(value) == self.shown()
    }

    /// One value of the type, in the words of [`kind`].
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
    pub(super) fn read(value: &Value, path: String, out: &Problems) -> Option<Self> {
        Fields::closed(value, path, "the variable", out, |fields| {
            let name = fields.required_name("name", ID_MAX_BYTES);
            let declared = fields.required_word("type", VariableType::WORDS);
            // Editors write null for no default.
            let default = fields.value("defaultValue").filter(|value| !value.is_null());
            if let (Some(declared), Some(default)) = (declared, default)
                && !declared.takes(default)
            {
                let (wanted, is) = (declared.shown(), kind(default));
                let what =
                    format!("the default must be {wanted}, the variable's type, and is {is}");
                fields.report("defaultValue", what);
            }
            Some(Self {
                description: fields.prose("description", PROSE_MAX_BYTES),
                required: fields.flag("required"),
                sensitive: fields.flag("sensitive"),
                default: default.cloned(),
                name: name?.to_owned(),
                kind: declared?,
            })
        })?
    }
}
