//! JSON Schemas of definitions and packs: compiled and checked within limits, with patterns that take
//! linear time.

mod cost;

use jsonschema::{PatternOptions, Validator};
use serde_json::Value;

use crate::problem::Problem;

/// Largest schema, in bytes of JSON.
const SCHEMA_MAX_BYTES: usize = 64 << 10;
/// Largest program that a pattern may compile to, in bytes.
const PATTERN_MAX_BYTES: usize = 256 << 10;
/// Most work of one check: the cost of the schema times the number of values.
const WORK_MAX: u64 = 10_000_000;
/// Most work of a check that lists the differences: each difference takes memory, also those of branches
/// that do not apply.
const DIFFERENCES_WORK_MAX: u64 = 100_000;
/// Most differences that are reported.
const DIFFERENCES_MAX: usize = 20;
/// Longest text of a difference, in characters.
const DIFFERENCE_MAX_CHARS: usize = 300;

/// A schema that values can be checked against.
#[derive(Debug)]
pub struct Schema {
    validator: Validator,
    cost: u64,
}

impl Schema {
    /// Compiles a schema. Nothing is fetched: a reference to another document is an error.
    ///
    /// # Errors
    /// It is not a JSON Schema, refers to itself or to other documents, or is too large.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let bytes = schema.to_string().len();
        if bytes > SCHEMA_MAX_BYTES {
            return Err(format!(
                "the schema has {bytes} bytes, and {SCHEMA_MAX_BYTES} are allowed"
            ));
        }
        let cost = cost::of(schema)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_MAX_BYTES);
        let options = jsonschema::options().with_pattern_options(patterns);
        let validator = options.build(schema);
        let validator =
            validator.map_err(|error| format!("it is no JSON Schema: {}", shown(&error)))?;
        Ok(Self { validator, cost })
    }

    /// Where `value`, which is at `path`, differs from the schema. If it is large, the result is one
    /// problem without a place in it.
    pub fn differences(&self, path: &str, value: &Value) -> Vec<Problem> {
        let work = self.cost.saturating_mul(cost::values(value));
        if work > WORK_MAX {
            let what = "it has too many values to be checked by this schema; make it smaller";
            return vec![Problem::new(path, what)];
        }
        if self.validator.is_valid(value) {
            return Vec::new();
        }
        if work > DIFFERENCES_WORK_MAX {
            let what = "it differs from its schema, and is too large to report the differences \
                        place by place";
            return vec![Problem::new(path, what)];
        }
        let problem = |error: jsonschema::ValidationError<'_>| {
            Problem::new(format!("{path}{}", error.instance_path()), shown(&error))
        };
        self.validator.iter_errors(value).take(DIFFERENCES_MAX).map(problem).collect()
    }
}

fn shown(error: &jsonschema::ValidationError<'_>) -> String {
    error.to_string().chars().take(DIFFERENCE_MAX_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn differences_are_reported_with_their_place() {
        let schema = Schema::compile(&json!({
            "type": "object",
            "properties": { "n": { "type": "integer", "minimum": 1 } },
            "additionalProperties": false,
        }));
        let schema = schema.expect("a schema");
        assert_eq!(schema.differences("", &json!({ "n": 1 })), []);
        let found = schema.differences("/a", &json!({ "n": 0, "m": 1 }));
        assert!(found.iter().any(|problem| problem.path == "/a/n"), "{found:?}");
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn invalid_schemas_and_external_references_are_refused() {
        for bad in [
            json!({ "type": "nothing" }),
            json!({ "$ref": "https://example.com/other.json" }),
            json!({ "pattern": "(" }),
            json!({ "description": "x".repeat(SCHEMA_MAX_BYTES) }),
        ] {
            Schema::compile(&bad).expect_err("no schema");
        }
    }

    #[test]
    fn checks_with_too_much_work_are_refused_or_report_no_places() {
        let each = json!({ "items": { "minimum": 1 } });
        let schema = Schema::compile(&json!({ "allOf": vec![each; 100] })).expect("a schema");
        let zeros = |count: usize| json!(vec![0; count]);
        assert_eq!(schema.differences("", &zeros(10)).len(), DIFFERENCES_MAX);
        assert!(schema.differences("", &zeros(1_000))[0].what.contains("place by place"));
        assert_eq!(schema.differences("", &json!(vec![1; 1_000])), []);
        let found = schema.differences("", &zeros(60_000));
        assert!(found[0].what.contains("too many values"), "{found:?}");
        let found = schema.differences("", &json!("x".repeat(60_000 * 64)));
        assert!(found[0].what.contains("too many values"), "a long text is many: {found:?}");
    }
}
