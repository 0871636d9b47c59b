//! JSON Schemas that definitions and packs bring along: compiled within bounds, with patterns
//! that take linear time.

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

/// Largest schema, in bytes of JSON.
const SCHEMA_MAX_BYTES: usize = 64 << 10;
/// Largest program that a pattern may become, in bytes.
const PATTERN_MAX_BYTES: usize = 256 << 10;
/// Most differences that are told.
const TOLD_MAX: usize = 20;
/// Longest text of one, in characters.
const TOLD_MAX_CHARS: usize = 300;

/// A schema that values can be checked against.
#[derive(Debug)]
pub(crate) struct Schema(Validator);

impl Schema {
    /// Compiles it. What it refers to outside of itself is an error: nothing is fetched.
    ///
    /// # Errors
    /// It is no JSON Schema, or too large.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_MAX_BYTES {
            return Err(format!(
                "the schema has {bytes} bytes, and {SCHEMA_MAX_BYTES} are allowed"
            ));
        }
        let patterns = PatternOptions::regex().size_limit(PATTERN_MAX_BYTES);
        let options = jsonschema::options().with_pattern_options(patterns);
        let validator = options.build(schema);
        validator.map(Self).map_err(|error| format!("it is no JSON Schema: {}", shown(&error)))
    }

    /// What of `value` isn't as the schema says: the place in it, as a JSON pointer, and what.
    pub(crate) fn differences(&self, value: &Value) -> Vec<(String, String)> {
        let errors = self.0.iter_errors(value).take(TOLD_MAX);
        errors.map(|error| (error.instance_path().to_string(), shown(&error))).collect()
    }
}

fn shown(error: &jsonschema::ValidationError<'_>) -> String {
    error.to_string().chars().take(TOLD_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_schema_refuses_is_told_with_its_place() {
        let schema = Schema::compile(&json!({
            "type": "object",
            "properties": { "n": { "type": "integer", "minimum": 1 } },
            "additionalProperties": false,
        }));
        let schema = schema.expect("a schema");
        assert_eq!(schema.differences(&json!({ "n": 1 })), []);
        let told = schema.differences(&json!({ "n": 0, "m": 1 }));
        assert!(told.iter().any(|(path, _)| path == "/n"), "{told:?}");
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn what_is_no_schema_of_its_own_is_refused() {
        for bad in [
            json!({ "type": "nothing" }),
            json!({ "$ref": "https://example.com/other.json" }),
            json!({ "pattern": "(" }),
            json!({ "description": "x".repeat(SCHEMA_MAX_BYTES) }),
        ] {
            Schema::compile(&bad).expect_err("no schema");
        }
    }
}
