//! How much work a schema is, before anything is checked by it: how many rules are applied to one
//! value at most, with what is referred to written out.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Largest cost of a schema.
const COST_MAX: u64 = 100_000;
/// Most patterns of a schema: each becomes a program.
const PATTERNS_MAX: usize = 64;
/// How deep rules may be nested, with what is referred to.
const DEPTH_MAX: usize = 128;

/// What holds names of its own, each with a schema.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];
/// What is applied where something refers to it, and there alone.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// What holds values, which no rules stand in.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "$comment"];
/// What looks at its rules once more, to find out what they have looked at, or which failed.
const TWICE: [&str; 8] = [
    "anyOf",
    "oneOf",
    "not",
    "if",
    "contains",
    "unevaluatedProperties",
    "unevaluatedItems",
    "propertyNames",
];

/// The cost of `schema`.
///
/// # Errors
/// It is too large, or refers to itself or to what isn't in it.
pub(super) fn of(schema: &Value) -> Result<u64, String> {
    let mut costs = Costs { root: schema, known: BTreeMap::new(), patterns: 0 };
    let cost = costs.of(schema, 0)?;
    if cost > COST_MAX {
        return Err(format!(
            "with all that it refers to written out it has more than {COST_MAX} rules; make it \
             simpler"
        ));
    }
    Ok(cost)
}

/// How many values there are in `value`, itself among them.
pub(super) fn values(value: &Value) -> u64 {
    let inside = match value {
        Value::Array(list) => list.iter().map(values).sum(),
        Value::Object(fields) => fields.values().map(values).sum(),
        _ => 0,
    };
    1_u64.saturating_add(inside)
}

struct Costs<'s> {
    root: &'s Value,
    /// By what refers to them; none for those that are being found out.
    known: BTreeMap<&'s str, Option<u64>>,
    patterns: usize,
}

impl<'s> Costs<'s> {
    fn of(&mut self, schema: &'s Value, depth: usize) -> Result<u64, String> {
        if depth > DEPTH_MAX {
            return Err(format!("its rules are nested more than {DEPTH_MAX} deep; flatten it"));
        }
        match schema {
            Value::Object(fields) => self.of_rules(fields, depth),
            Value::Array(schemas) => self.of_all(schemas.iter(), depth),
            _ => Ok(1),
        }
    }

    fn of_rules(&mut self, fields: &'s Map<String, Value>, depth: usize) -> Result<u64, String> {
        let mut cost = 1_u64;
        for (key, rule) in fields {
            let key = key.as_str();
            let own = match rule {
                Value::String(target) if key == "$ref" => self.of_target(target, depth)?,
                Value::String(_) if key == "$dynamicRef" || key == "$recursiveRef" => {
                    return Err(format!("`{key}` isn't taken: write out what it refers to"));
                }
                Value::String(_) if key == "$id" && depth > 0 => {
                    return Err("only a whole schema may have an `$id`".to_owned());
                }
                Value::String(_) if key == "pattern" => {
                    self.note_patterns(1)?;
                    1
                }
                _ if DEFINITIONS.contains(&key) => 0,
                _ if DATA.contains(&key) => values(rule),
                Value::Object(named) if MAPS.contains(&key) => {
                    if key == "patternProperties" {
                        self.note_patterns(named.len())?;
                    }
                    self.of_all(named.values(), depth)?
                }
                rule => self.of(rule, depth + 1)?,
            };
            cost = cost.saturating_add(own);
        }
        let is_twice = TWICE.iter().any(|key| fields.contains_key(*key));
        Ok(if is_twice { cost.saturating_mul(2) } else { cost })
    }

    fn of_all(
        &mut self,
        schemas: impl Iterator<Item = &'s Value>,
        depth: usize,
    ) -> Result<u64, String> {
        let mut cost = 0_u64;
        for schema in schemas {
            cost = cost.saturating_add(self.of(schema, depth + 1)?);
        }
        Ok(cost)
    }

    fn of_target(&mut self, target: &'s str, depth: usize) -> Result<u64, String> {
        let shown: String = target.chars().take(100).collect();
        match self.known.get(target) {
            Some(Some(cost)) => return Ok(*cost),
            Some(None) => return Err(format!("`{shown}` refers to itself; write it out")),
            None => {}
        }
        let pointer = target.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
        let found = pointer.and_then(|pointer| self.root.pointer(pointer));
        let found = found.ok_or_else(|| {
            format!("`$ref` must be `#` and a JSON pointer into the schema, and is `{shown}`")
        })?;
        self.known.insert(target, None);
        let cost = self.of(found, depth + 1)?;
        self.known.insert(target, Some(cost));
        Ok(cost)
    }

    fn note_patterns(&mut self, more: usize) -> Result<(), String> {
        self.patterns = self.patterns.saturating_add(more);
        if self.patterns > PATTERNS_MAX {
            return Err(format!("it has more than {PATTERNS_MAX} patterns"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_counted_with_what_is_referred_to() {
        assert_eq!(of(&json!({})), Ok(1));
        assert_eq!(of(&json!(true)), Ok(1));
        let schema = json!({
            "$defs": { "n": { "type": "integer" }, "unused": { "type": "null" } },
            "properties": { "$ref": { "$ref": "#/$defs/n" }, "b": { "$ref": "#/$defs/n" } },
        });
        // Itself, two that refer, and what these refer to.
        assert_eq!(of(&schema), Ok(7));
        assert_eq!(of(&json!({ "const": { "$ref": "#/nowhere" } })), Ok(3));
        assert_eq!(of(&json!({ "anyOf": [true, true] })), Ok(6));
    }

    #[test]
    fn what_would_take_for_ever_is_refused() {
        let doubling = |depth: usize| {
            let twice = |next: usize| json!({ "allOf": vec![json!({ "$ref": format!("#/$defs/d{next}") }); 2] });
            let mut all: Map<String, Value> =
                (0..depth).map(|nth| (format!("d{nth}"), twice(nth + 1))).collect();
            all.insert(format!("d{depth}"), json!({ "type": "integer" }));
            json!({ "$ref": "#/$defs/d0", "$defs": all })
        };
        assert!(of(&doubling(5)).is_ok());
        assert!(of(&doubling(40)).expect_err("2^40").contains("more than 100000 rules"));
        let deep = (0..50).fold(json!(true), |inside, _| json!({ "anyOf": [inside] }));
        assert!(of(&deep).expect_err("2^50").contains("rules"));
        for (bad, why) in [
            (json!({ "$ref": "#" }), "refers to itself"),
            (
                json!({ "$defs": { "a": { "properties": { "b": { "$ref": "#/$defs/a" } } } }, "$ref": "#/$defs/a" }),
                "refers to itself",
            ),
            (json!({ "$ref": "#name" }), "a JSON pointer"),
            (json!({ "$ref": "https://example.com" }), "a JSON pointer"),
            (json!({ "$dynamicRef": "#a" }), "write out"),
            (json!({ "properties": { "a": { "$id": "urn:b" } } }), "only a whole schema"),
            (json!({ "allOf": vec![json!({ "pattern": "a" }); 65] }), "64 patterns"),
            (doubling(200), "nested more than 128 deep"),
        ] {
            let told = of(&bad).expect_err("too much");
            assert!(told.contains(why), "{told}");
        }
    }
}
