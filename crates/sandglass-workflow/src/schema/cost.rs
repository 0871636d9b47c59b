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
/// As how many rules a pattern counts: its search may take many steps for each character.
const PATTERN_COST: u64 = 500;
/// Bytes of a text that count as one more value.
const TEXT_BYTES: usize = 64;

/// What holds names of its own, each with a schema.
const MAPS: [&str; 4] = ["properties", "patternProperties", "dependentSchemas", "dependencies"];
/// What is applied where something refers to it, and there alone.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];
/// What holds values, which no rules stand in.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "$comment"];
/// What gives what is in it another base for its references, or another meaning.
const BASES: [&str; 2] = ["$id", "$schema"];
/// The same in the fourth draft.
const BASES_OF_DRAFT_4: [&str; 2] = ["id", "$schema"];
/// What looks at its rules once more, to find out what they have looked at, or which failed.
const TWICE: [&str; 6] = ["anyOf", "oneOf", "not", "if", "contains", "propertyNames"];
/// What looks once more at all that stands beside it, at each level of it.
const AT_EACH_LEVEL: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

/// The cost of `schema`.
///
/// # Errors
/// It is too large, or refers to itself or to what isn't in it.
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

/// How many values there are in `value`, itself among them; long texts count as several.
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

/// Refuses what is not of the schema's own base: references in it would lead elsewhere than
/// they are followed here.
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

/// The same of one text `depth` levels in, under `key`.
fn refuse_base(key: &str, bases: [&str; 2], depth: usize) -> Result<(), String> {
    if depth > 0 && bases.contains(&key) {
        return Err(format!("only a whole schema may have `{key}`"));
    }
    Ok(())
}

/// Whether what stands under `key` has names of its own, each with a schema.
fn has_names(key: &str) -> bool {
    MAPS.contains(&key) || DEFINITIONS.contains(&key)
}

fn too_deep() -> String {
    format!("its rules are nested more than {DEPTH_MAX} deep; flatten it")
}

/// What a schema comes to with all that it refers to written out.
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
    /// By what refers to them; none for those that are being found out.
    known: BTreeMap<&'s str, Option<Cost>>,
    patterns: usize,
}

impl<'s> Costs<'s> {
    /// What is `depth` levels in.
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
                    // Also of what something refers to in data.
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
        assert_eq!(of(&json!({ "pattern": "a" })), Ok(501));
        // What stands under these names are names and data.
        let named = json!({ "properties": { "id": true }, "const": { "$id": "x" } });
        assert_eq!(of(&named), Ok(4));
        assert_eq!(of(&json!({ "x-widget": { "id": "a" } })), Ok(3));
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
        // Each is known when that which refers to it is looked at.
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
