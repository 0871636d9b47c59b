//! The cost of a schema, which is known before any check: how many rules apply to one value at most, with
//! all references expanded.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// Largest cost of a schema.
const COST_MAX: u64 = 100_000;
/// Most patterns of a schema: each is compiled to a program.
const PATTERNS_MAX: usize = 64;
/// How deep rules may be nested, with references expanded.
const DEPTH_MAX: usize = 128;
/// How many rules a pattern counts as: a search may take many steps for each character.
const PATTERN_COST: u64 = 500;
/// Bytes of a text that count as one more value.
const TEXT_BYTES: usize = 64;

/// Keywords whose values map names to schemas.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];
/// Keywords whose schemas apply only where a reference names them.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// Keywords with data, which contains no rules.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "$comment"];
/// Keywords that change the base of references, or the meaning of keywords.
const BASES: [&str; 2] = ["$id", "$schema"];
/// These keywords in draft 4.
const BASES_OF_DRAFT_4: [&str; 2] = ["id", "$schema"];
/// Keywords whose rules are evaluated twice, to find out what they evaluated or which failed.
const TWICE: [&str; 6] = ["anyOf", "oneOf", "not", "if", "contains", "propertyNames"];
/// Keywords that evaluate their siblings again, at each level.
const AT_EACH_LEVEL: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

/// The cost of `schema`.
///
/// # Errors
/// The schema is too large, or refers to itself or to other documents.
pub(super) fn of(schema: &Value) -> Result<u64, String> {
    let is_draft_4 = schema["$schema"].as_str().is_some_and(|draft| draft.contains("draft-04"));
    let bases = if is_draft_4 { BASES_OF_DRAFT_4 } else { BASES };
    refuse_bases(schema, bases, 0)?;
    let mut costs = Costs { root: schema, bases, known: BTreeMap::new(), patterns: 0 };
    let Cost { rules: cost, .. } = costs.of(schema, 0)?;
    if cost > COST_MAX {
        return Err(format!(
            "with all that it refers to written out it has more than {COST_MAX} rules; make it \
             simpler"
        ));
    }
    Ok(cost)
}

/// How many values `value` contains, itself included; a long text counts as several.
pub(super) fn values(value: &Value) -> u64 {
    let text = |text: &str| (text.len() / TEXT_BYTES) as u64;
    let inside = match value {
        Value::String(value) => text(value),
        Value::Array(list) => list.iter().map(values).sum(),
        Value::Object(fields) => {
            fields.iter().map(|(key, value)| text(key).saturating_add(values(value))).sum()
        }
        _ => 0,
    };
    1_u64.saturating_add(inside)
}

/// Refuses subschemas with a base of their own: their references would be resolved differently than
/// here.
fn refuse_bases(schema: &Value, bases: [&str; 2], depth: usize) -> Result<(), String> {
    if depth > DEPTH_MAX {
        return Err(too_deep());
    }
    match schema {
        Value::Array(schemas) => {
            schemas.iter().try_for_each(|schema| refuse_bases(schema, bases, depth + 1))
        }
        Value::Object(fields) => fields.iter().try_for_each(|(key, rule)| match rule {
            Value::String(_) => refuse_base(key, bases, depth),
            Value::Object(named) if has_names(key) => {
                named.values().try_for_each(|schema| refuse_bases(schema, bases, depth + 2))
            }
            _ if DATA.contains(&key.as_str()) => Ok(()),
            rule => refuse_bases(rule, bases, depth + 1),
        }),
        _ => Ok(()),
    }
}

/// Refuses the text `key`, `depth` levels deep, if it changes the base.
fn refuse_base(key: &str, bases: [&str; 2], depth: usize) -> Result<(), String> {
    if depth > 0 && bases.contains(&key) {
        return Err(format!("only a whole schema may have `{key}`"));
    }
    Ok(())
}

/// Whether the value of `key` maps names to schemas.
fn has_names(key: &str) -> bool {
    MAPS.contains(&key) || DEFINITIONS.contains(&key)
}

fn too_deep() -> String {
    format!("its rules are nested more than {DEPTH_MAX} deep; flatten it")
}

/// The cost of a schema with all references expanded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cost {
    rules: u64,
    /// How deep it is nested.
    height: usize,
}

impl Cost {
    const RULE: Self = Self { rules: 1, height: 0 };

    /// Both, side by side.
    fn beside(self, other: Self) -> Self {
        let rules = self.rules.saturating_add(other.rules);
        Self { rules, height: self.height.max(other.height) }
    }

    /// One level further in.
    fn inside(self) -> Self {
        Self { height: self.height + 1, ..self }
    }
}

struct Costs<'s> {
    root: &'s Value,
    bases: [&'static str; 2],
    /// The costs by reference; `None` for those that are being computed.
    known: BTreeMap<&'s str, Option<Cost>>,
    patterns: usize,
}

impl<'s> Costs<'s> {
    /// The cost of a subschema, `depth` levels deep.
    fn of(&mut self, schema: &'s Value, depth: usize) -> Result<Cost, String> {
        if depth > DEPTH_MAX {
            return Err(too_deep());
        }
        match schema {
            Value::Object(fields) => self.of_rules(fields, depth),
            Value::Array(schemas) => self.of_all(schemas.iter(), depth),
            _ => Ok(Cost::RULE),
        }
    }

    fn of_rules(&mut self, fields: &'s Map<String, Value>, depth: usize) -> Result<Cost, String> {
        let mut cost = Cost::RULE;
        for (key, rule) in fields {
            let key = key.as_str();
            let own = match rule {
                Value::String(target) if key == "$ref" => self.of_target(target, depth)?,
                Value::String(_) if key == "$dynamicRef" || key == "$recursiveRef" => {
                    return Err(format!("`{key}` isn't taken: write out what it refers to"));
                }
                Value::String(_) if key == "pattern" => self.of_patterns(1)?,
                Value::String(_) => {
                    // Data can be the target of a reference, too.
                    refuse_base(key, self.bases, depth)?;
                    Cost::RULE
                }
                _ if DEFINITIONS.contains(&key) => Cost::default(),
                _ if DATA.contains(&key) => Cost { rules: values(rule), height: 0 },
                Value::Object(named) if MAPS.contains(&key) => {
                    let of_keys = match key {
                        "patternProperties" => self.of_patterns(named.len())?,
                        _ => Cost::default(),
                    };
                    of_keys.beside(self.of_all(named.values(), depth)?)
                }
                rule => self.of(rule, depth + 1)?.inside(),
            };
            cost = cost.beside(own);
        }
        let has_any = |keys: &[&str]| keys.iter().any(|key| fields.contains_key(*key));
        let times = if has_any(&AT_EACH_LEVEL) {
            cost.height as u64 + 2
        } else if has_any(&TWICE) {
            2
        } else {
            1
        };
        Ok(Cost { rules: cost.rules.saturating_mul(times), ..cost })
    }

    fn of_all(
        &mut self,
        mut schemas: impl Iterator<Item = &'s Value>,
        depth: usize,
    ) -> Result<Cost, String> {
        schemas.try_fold(Cost::default(), |cost, schema| {
            Ok(cost.beside(self.of(schema, depth + 1)?.inside()))
        })
    }

    fn of_target(&mut self, target: &'s str, depth: usize) -> Result<Cost, String> {
        let shown: String = target.chars().take(100).collect();
        let cost = match self.known.get(target) {
            Some(Some(cost)) => *cost,
            Some(None) => return Err(format!("`{shown}` refers to itself; write it out")),
            None => {
                let pointer = target.strip_prefix('#').filter(|pointer| !pointer.contains('%'));
                let found = pointer.and_then(|pointer| self.root.pointer(pointer));
                let found = found.ok_or_else(|| {
                    format!(
                        "`$ref` must be `#` and a JSON pointer into the schema, and is `{shown}`"
                    )
                })?;
                self.known.insert(target, None);
                let cost = self.of(found, depth + 1)?.inside();
                self.known.insert(target, Some(cost));
                cost
            }
        };
        if depth.saturating_add(cost.height) > DEPTH_MAX {
            return Err(too_deep());
        }
        Ok(cost)
    }

    fn of_patterns(&mut self, more: usize) -> Result<Cost, String> {
        self.patterns = self.patterns.saturating_add(more);
        if self.patterns > PATTERNS_MAX {
            return Err(format!("it has more than {PATTERNS_MAX} patterns"));
        }
        Ok(Cost { rules: PATTERN_COST.saturating_mul(more as u64), height: 0 })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_counted_with_references_expanded() {
        assert_eq!(of(&json!({})), Ok(1));
        assert_eq!(of(&json!(true)), Ok(1));
        let schema = json!({
            "$defs": { "n": { "type": "integer" }, "unused": { "type": "null" } },
            "properties": { "$ref": { "$ref": "#/$defs/n" }, "b": { "$ref": "#/$defs/n" } },
        });
        // The schema, two references, and their targets.
        assert_eq!(of(&schema), Ok(7));
        assert_eq!(of(&json!({ "const": { "$ref": "#/nowhere" } })), Ok(3));
        assert_eq!(of(&json!({ "anyOf": [true, true] })), Ok(6));
        assert_eq!(of(&json!({ "pattern": "a" })), Ok(501));
        // Keys below these keywords are names and data.
        let named = json!({ "properties": { "id": true }, "const": { "$id": "x" } });
        assert_eq!(of(&named), Ok(4));
        assert_eq!(of(&json!({ "x-widget": { "id": "a" } })), Ok(3));
    }

    #[test]
    fn schemas_that_would_take_too_long_are_refused() {
        let doubling = |depth: usize| {
            let twice = |next: usize| json!({ "allOf": vec![json!({ "$ref": format!("#/$defs/d{next}") }); 2] });
            let mut all: Map<String, Value> =
                (0..depth).map(|nth| (format!("d{nth}"), twice(nth + 1))).collect();
            all.insert(format!("d{depth}"), json!({ "type": "integer" }));
            json!({ "$ref": "#/$defs/d0", "$defs": all })
        };
        assert!(of(&doubling(5)).is_ok());
        assert!(of(&doubling(40)).expect_err("2^40").contains("more than 100000 rules"));
        // The cost of each target is known before that of the schema that refers to it.
        let chain_known_from_its_end = |length: usize| {
            let to = |place: usize| json!({ "$ref": format!("#/$defs/c{place}") });
            let mut all: Map<String, Value> =
                (0..length).map(|nth| (format!("c{nth}"), to(nth + 1))).collect();
            all.insert(format!("c{length}"), json!(true));
            let places: Vec<Value> = (0..=length).rev().step_by(50).map(to).collect();
            json!({ "!": places, "$defs": all, "$ref": "#/$defs/c0" })
        };
        let unevaluated = |blocks: usize| {
            let all_of = |inside: Value| json!({ "allOf": [inside] });
            (0..blocks).fold(json!(true), |inside, _| {
                let five = (0..5).fold(inside, |inside, _| all_of(inside));
                json!({ "unevaluatedProperties": true, "allOf": [five] })
            })
        };
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
            (json!({ "$defs": { "a": { "$id": "urn:b" } } }), "only a whole schema"),
            (json!({ "$defs": { "a": { "b": [{ "$id": "urn:b" }] } } }), "only a whole schema"),
            (
                json!({ "$schema": "http://json-schema.org/draft-04/schema#", "not": { "id": "urn:b" } }),
                "only a whole schema",
            ),
            (json!({ "$defs": { "a": { "$schema": "urn:b" } } }), "only a whole schema"),
            (json!({ "$defs": { "default": { "$id": "urn:b" } } }), "only a whole schema"),
            (json!({ "properties": { "const": { "$id": "urn:b" } } }), "only a whole schema"),
            (json!({ "const": { "$id": "urn:b" }, "$ref": "#/const" }), "only a whole schema"),
            (unevaluated(10), "more than 100000 rules"),
            (json!({ "allOf": vec![json!({ "pattern": "a" }); 65] }), "64 patterns"),
            (doubling(200), "nested more than 128 deep"),
            (chain_known_from_its_end(2_000), "nested more than 128 deep"),
        ] {
            let found = of(&bad).expect_err("too much");
            assert!(found.contains(why), "{found}");
        }
    }
}
