//! Any JSON is either a valid definition or manifest, or has problems.

use std::sync::LazyLock;

use jsonschema::Validator;
use proptest::collection::vec;
use proptest::prelude::*;
use sandglass_workflow::definition::Definition;
use sandglass_workflow::pack::Manifest;
use sandglass_workflow::{PROBLEMS_MAX, Problem};
use serde_json::{Map, Value, json};

use crate::pointers::pointers;

/// Words with a meaning somewhere, so that generated JSON is not refused at once.
const WORDS: &[&str] = &[
    "id",
    "name",
    "version",
    "nodes",
    "edges",
    "triggers",
    "variables",
    "channels",
    "metadata",
    "settings",
    "typeId",
    "position",
    "x",
    "y",
    "config",
    "inputs",
    "type",
    "value",
    "static",
    "variable",
    "variableName",
    "connection",
    "nodeId",
    "outputKey",
    "expression",
    "sourceNodeId",
    "targetNodeId",
    "condition",
    "left",
    "right",
    "equals",
    "contains",
    "regex",
    "status",
    "output.approved",
    "output == 1",
    "(a|b)*",
    "reducer",
    "append",
    "access",
    "a",
    "b",
    "number",
    "required",
    "defaultValue",
    "manual",
    "runtime",
    "language",
    "wasm",
    "entry",
    "module.wasm",
    "requires",
    "signing",
    "engines",
    "role",
    "pure",
    "category",
    "data",
    "1.0.0",
    "é~/\u{0}",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![9 => proptest::sample::select(WORDS).prop_map(str::to_owned), 1 => ".{0,12}"]
}

fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(|number| json!(number)),
        word().prop_map(Value::from),
    ]
}

fn any_json() -> impl Strategy<Value = Value> {
    leaf().prop_recursive(5, 64, 8, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..8).prop_map(Value::from),
            vec((word(), inner), 0..8)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// A valid definition.
fn valid() -> Value {
    let node = |id: &str| {
        json!({
            "id": id, "typeId": "core.noop", "name": id, "position": {"x": 0, "y": 0},
            "config": {}, "inputs": {
                "s": {"type": "static", "value": 1},
                "v": {"type": "variable", "variableName": "v"},
                "c": {"type": "connection", "nodeId": "a", "outputKey": "o"},
                "e": {"type": "expression", "expression": "variables.v > 1"},
            },
        })
    };
    json!({
        "id": "one", "name": "One", "version": "1", "nodes": [node("a"), node("b")],
        "edges": [
            {"id": "e", "sourceNodeId": "a", "targetNodeId": "b", "triggerRule": "any_success",
             "condition": {"type": "regex", "left": "output.x", "right": "^a+$"}},
            {"id": "f", "sourceNodeId": "b", "targetNodeId": "a"},
        ],
        "triggers": [{"id": "m", "type": "manual", "nodeId": "a"}],
        "variables": [{"name": "v", "type": "number", "defaultValue": 1}],
        "channels": {"c": {"reducer": "append", "access": {"readers": ["a"]}}},
        "metadata": {"tags": ["t"]}, "settings": {"timeout": 1},
    })
}

/// A valid manifest.
fn valid_pack() -> Value {
    json!({
        "name": "vendor.x.y", "version": "1.0.0", "engines": {"openwop": "*"},
        "nodes": [{"typeId": "vendor.x.y", "version": "1", "category": "data", "role": "pure",
                   "capabilities": ["cacheable"], "outputs": {"o": {"sensitive": true}}}],
        "runtime": {"language": "wasm", "entry": "module.wasm", "requires": ["clock"],
                    "wasm": {"abiVersion": 1, "fuel": 1}},
    })
}

/// `valid` with other values in some places.
fn damaged(valid: fn() -> Value) -> impl Strategy<Value = Value> {
    vec((any::<proptest::sample::Index>(), any_json()), 1..4).prop_map(move |damages| {
        let mut value = valid();
        for (index, damage) in damages {
            let mut all = Vec::new();
            pointers(&value, String::new(), &mut all);
            let pointer = index.get(&all);
            if let Some(spot) = value.pointer_mut(pointer) {
                *spot = damage;
            }
        }
        value
    })
}

/// A schema of the protocol; references to schemas that are not here accept everything.
fn schema(text: &str) -> Validator {
    let mut schema: Value = serde_json::from_str(text).expect("JSON");
    let mut all = Vec::new();
    pointers(&schema, String::new(), &mut all);
    for pointer in all.iter().filter(|pointer| pointer.ends_with("/$ref")) {
        let elsewhere = |name: &Value| name.as_str().is_some_and(|name| !name.starts_with('#'));
        if schema.pointer(pointer).is_some_and(elsewhere) {
            let parent = &pointer[..pointer.len() - "/$ref".len()];
            *schema.pointer_mut(parent).expect("a parent") = json!(true);
        }
    }
    jsonschema::validator_for(&schema).expect("a schema")
}

static DEFINITIONS: LazyLock<Validator> = LazyLock::new(|| {
    schema(include_str!("../../../sandglass-openwop/data/schemas/workflow-definition.schema.json"))
});
static MANIFESTS: LazyLock<Validator> = LazyLock::new(|| {
    schema(include_str!("../../../sandglass-openwop/data/schemas/node-pack-manifest.schema.json"))
});

fn check_valid(validator: &Validator, value: &Value) {
    if let Err(error) = validator.validate(value) {
        panic!("the host accepts it, but the protocol's schema does not: {error}\n{value}");
    }
}

fn check_problems(problems: &[Problem], text: &str) {
    assert!((1..=PROBLEMS_MAX).contains(&problems.len()), "{problems:?}");
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in problems {
        assert!(!problem.what.is_empty() && !problem.what.chars().any(char::is_control));
        if let Some(place) = problem.place {
            let line = lines[place.line - 1].chars().count();
            assert!((1..=line + 1).contains(&place.column), "{problem}");
        }
    }
}

fn check_definition(text: &str) {
    match Definition::parse(text) {
        Err(problems) => check_problems(&problems, text),
        Ok(definition) => {
            check_valid(&DEFINITIONS, &serde_json::from_str(text).expect("JSON"));
            let again = Definition::parse(&definition.canonical).expect("it was accepted");
            assert_eq!(again.canonical, definition.canonical);
            assert_eq!(again.nodes, definition.nodes);
            assert_eq!(again.graph, definition.graph);
            assert_eq!(definition.graph.order().len(), definition.nodes.len());
        }
    }
}

fn check_manifest(text: &str) {
    match Manifest::parse(text) {
        Err(problems) => check_problems(&problems, text),
        Ok(_) => {
            let mut value: Value = serde_json::from_str(text).expect("JSON");
            let runtime = value["runtime"].as_object_mut().expect("an object");
            // RFC 0008 has `wasm`, and the schema does not; the entry has a default in this host.
            runtime.remove("wasm");
            runtime.entry("entry").or_insert_with(|| json!("module.wasm"));
            // The host warns of an unknown category, because published packs have some.
            for node in value["nodes"].as_array_mut().expect("a list") {
                if node["category"].is_string() {
                    node["category"] = json!("control");
                }
            }
            check_valid(&MANIFESTS, &value);
        }
    }
}

#[test]
fn all_workflows_of_the_protocol_are_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../sandglass-openwop/data/workflows");
    let mut read = 0;
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a text");
        let definition = Definition::parse(&text).expect("a definition");
        assert_eq!(path.file_stem().and_then(|stem| stem.to_str()), Some(&*definition.id));
        read += 1;
    }
    assert_eq!(read, 14);
}

#[test]
fn valid_files_are_accepted() {
    Definition::parse(&valid().to_string()).expect("a definition");
    check_definition(&valid().to_string());
    Manifest::parse(&valid_pack().to_string()).expect("a manifest");
    check_manifest(&valid_pack().to_string());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn any_text_is_a_definition_or_has_problems(text in ".{0,200}") {
        check_definition(&text);
        check_manifest(&text);
    }

    #[test]
    fn any_json_is_a_definition_or_has_problems(value in any_json()) {
        let text = serde_json::to_string_pretty(&value).expect("JSON");
        check_definition(&text);
        check_manifest(&text);
    }

    #[test]
    fn any_damaged_definition_is_valid_or_has_problems(value in damaged(valid)) {
        check_definition(&serde_json::to_string_pretty(&value).expect("JSON"));
    }

    #[test]
    fn any_damaged_manifest_is_valid_or_has_problems(value in damaged(valid_pack)) {
        check_manifest(&serde_json::to_string_pretty(&value).expect("JSON"));
    }
}
