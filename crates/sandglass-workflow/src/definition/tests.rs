//! Which definitions are accepted, and which problems the others have.

use super::*;
use serde_json::json;

/// Two nodes and an edge, with a variable.
fn definition() -> Value {
    json!({
        "id": "one", "name": "One", "version": "1.0",
        "nodes": [node("a"), node("b")],
        "edges": [{"id": "e", "sourceNodeId": "a", "targetNodeId": "b"}],
        "triggers": [{"id": "manual", "type": "manual"}],
        "variables": [{"name": "v", "type": "number", "defaultValue": 3}],
        "metadata": {}, "settings": {},
    })
}

fn node(id: &str) -> Value {
    json!({
        "id": id, "typeId": "core.noop", "name": id, "position": {"x": 0, "y": 0.5},
        "config": {}, "inputs": {},
    })
}

/// The definition with `value` at `pointer`, whose parent exists; `null` removes the value.
pub(crate) fn with(pointer: &str, value: Value) -> String {
    let mut definition = definition();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    match definition.pointer_mut(parent).expect(pointer) {
        Value::Object(fields) if value.is_null() => drop(fields.remove(key)),
        Value::Object(fields) => drop(fields.insert(key.to_owned(), value)),
        Value::Array(items) if key == "-" => items.push(value),
        other => panic!("{other}"),
    }
    definition.to_string()
}

#[test]
fn a_loop_of_the_protocol_begins_at_its_orchestrator() {
    let text =
        include_str!("../../../sandglass-openwop/data/workflows/conformance-dispatch-loop.json");
    let definition = Definition::parse(text).expect("a definition");
    assert_eq!(definition.graph.entries(), [0]);
    assert!(!definition.graph.is_back(0));
    assert!(definition.graph.is_back(1));
    assert_eq!(definition.node("dispatch"), Some(1));
    assert_eq!(definition.node("none"), None);
}

#[test]
fn a_definition_has_the_values_of_its_text() {
    let mut value = definition();
    value["nodes"][1] = json!({
        "id": "b", "typeId": "vendor.x.y-Z_1", "name": "B", "position": {"x": 0, "y": 0},
        "config": {"k": [1]}, "disabled": true, "credentialsRef": "c", "settings": {"s": 1},
        "outputSensitivity": {"secret": true, "open": false},
        "inputs": {
            "a": {"type": "static", "value": null},
            "b": {"type": "variable", "variableName": "v"},
            "c": {"type": "variable", "variableName": "unknown", "optional": true},
            "d": {"type": "connection", "nodeId": "a", "outputKey": "out", "optional": true},
            "e": {"type": "expression", "expression": "variables.v + 1"},
        },
    });
    value["nodes"][1]["inputs"]["e"]["expression"] = json!("variables.v > 1");
    value["edges"][0]["condition"] = json!({"type": "equals", "left": "status", "right": "x"});
    value["edges"][0]["triggerRule"] = json!("any_failed");
    value["edges"][0]["sourceOutput"] = json!("o");
    value["settings"] = json!({"timeout": 10, "maxRetries": 2, "maxLoopbackIterations": 7.0});
    value["metadata"] = json!({"complianceClass": "phi", "more": 1});
    value["channels"] = json!({"log": {
        "reducer": "append", "maxSize": 5, "ttlMs": 6, "schemaVersion": 2, "sensitive": true,
        "access": {"readers": ["core.ai.*", "b"]},
    }});
    let text = value.to_string();
    let definition = Definition::parse(&text).expect("a definition");
    let b = &definition.nodes[1];
    assert_eq!(b.type_id, "vendor.x.y-Z_1");
    assert!(b.disabled && !definition.nodes[0].disabled);
    assert_eq!(b.config, Object::from([("k".to_owned(), json!([1]))]));
    assert_eq!(b.credentials_ref.as_deref(), Some("c"));
    assert_eq!(b.output_sensitivity.get("open"), Some(&false));
    assert_eq!(b.inputs["a"], Port::Static(Value::Null));
    assert_eq!(b.inputs["b"], Port::Variable { name: "v".into(), optional: false });
    assert_eq!(b.inputs["c"], Port::Variable { name: "unknown".into(), optional: true });
    let connection = Port::Connection { node: 0, output: "out".into(), optional: true };
    assert_eq!(b.inputs["d"], connection);
    assert!(matches!(&b.inputs["e"], Port::Expression(one) if one.text() == "variables.v > 1"));
    let edge = &definition.edges[0];
    assert_eq!((edge.source, edge.target), (0, 1));
    assert_eq!((&*edge.source_output, &*edge.target_input), ("o", "input"));
    assert_eq!(edge.trigger_rule, TriggerRule::AnyFailed);
    assert!(edge.condition.as_ref().is_some_and(|one| one.holds(&json!({"status": "x"}))));
    let settings = &definition.settings;
    assert_eq!((settings.timeout_ms, settings.max_retries), (Some(10), Some(2)));
    assert_eq!(settings.max_loopback_iterations, 7);
    assert_eq!(definition.compliance, ComplianceClass::Phi);
    assert_eq!(definition.metadata["more"], 1);
    let channel = &definition.channels["log"];
    assert_eq!((channel.reducer, channel.max_size), (Reducer::Append, Some(5)));
    assert_eq!((channel.ttl_ms, channel.schema_version), (Some(6), 2));
    assert!(channel.readers.allows("x", "core.ai.callPrompt"));
    assert!(channel.readers.allows("b", "core.noop"));
    assert!(!channel.readers.allows("x", "core.noop"));
    assert_eq!(channel.writers, Access::Open);
    assert_eq!(definition.digest, Digest::of(text.as_bytes()));
}

#[test]
fn a_definition_has_one_canonical_text() {
    let text = with("/description", json!("é"));
    let spaced = serde_json::to_string_pretty(&definition()).expect("JSON");
    let spaced = spaced.replacen('{', "{\"description\":\"\\u00e9\",", 1);
    let (one, other) = (Definition::parse(&text), Definition::parse(&spaced));
    let (one, other) = (one.expect("a definition"), other.expect("a definition"));
    assert_eq!(one.canonical, other.canonical);
    assert_ne!(one.digest, other.digest);
    let again = Definition::parse(&one.canonical).expect("a definition");
    assert_eq!(again.canonical, one.canonical);
    assert_eq!(
        Digest::of(b"abc").to_string(),
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    );
}

#[track_caller]
fn assert_problem(text: &str, path: &str, what: &str) {
    let problems = Definition::parse(text).expect_err(text);
    let found = problems.iter().find(|one| one.path == path && one.what.contains(what));
    let found = found.unwrap_or_else(|| panic!("{path}: {what}: {problems:#?}"));
    assert!(found.place.is_some(), "{found}");
}

#[test]
fn problems_of_nodes_are_reported_with_their_pointers() {
    let port = |port: Value| json!({ "p": port });
    for (pointer, value, path, what) in [
        ("/id", json!(null), "", "the definition has no `id`"),
        ("/id", json!("One"), "/id", "`One`; write a lower-case letter"),
        ("/id", json!("x".repeat(129)), "/id", "129 bytes, and 128 are allowed"),
        ("/id", json!(1), "/id", "must be a string, and is a number"),
        ("/nmae", json!(1), "/nmae", "did you mean `name`?"),
        ("/name", json!(""), "/name", "is empty"),
        ("/status", json!("on"), "/status", "can't be `on`"),
        ("/slug", json!("-x"), "/slug", "write a lower-case letter or digit"),
        ("/nodes", json!([]), "/nodes", "no node"),
        ("/nodes", json!({}), "/nodes", "must be a list, and is an object"),
        ("/nodes/-", json!(7), "/nodes/2", "the node must be an object"),
        ("/nodes/-", node("a"), "/nodes/2/id", "the node 0 has the id `a`, too"),
        ("/nodes/0/typeId", json!("Core.noop"), "/nodes/0/typeId", "a lower-case letter"),
        ("/nodes/0/typeId", json!(null), "/nodes/0", "no `typeId`"),
        ("/nodes/0/position", json!({"x": "1"}), "/nodes/0/position", "no `y`"),
        ("/nodes/0/color", json!(1), "/nodes/0/color", "unknown key `color` in the node"),
        ("/nodes/0/disabled", json!("yes"), "/nodes/0/disabled", "true or false"),
        ("/nodes/0/inputs", port(json!(3)), "/nodes/0/inputs/p", "must be an object"),
        ("/nodes/0/inputs", port(json!({})), "/nodes/0/inputs/p", "no `type`"),
        ("/nodes/0/inputs", port(json!({"type": "static"})), "/nodes/0/inputs/p", "no `value`"),
        (
            "/nodes/0/inputs",
            port(json!({"type": "constant", "value": 1})),
            "/nodes/0/inputs/p/type",
            "can't be `constant`",
        ),
        (
            "/nodes/0/inputs",
            port(json!({"type": "variable", "variableName": "w"})),
            "/nodes/0/inputs/p/variableName",
            "no variable is named `w`",
        ),
        (
            "/nodes/0/inputs",
            port(json!({"type": "connection", "nodeId": "c", "outputKey": "x"})),
            "/nodes/0/inputs/p/nodeId",
            "no node has the id `c`",
        ),
        (
            "/nodes/0/inputs",
            port(json!({"type": "expression", "expression": "a b"})),
            "/nodes/0/inputs/p/expression",
            "no path begins with `a`",
        ),
    ] {
        assert_problem(&with(pointer, value), path, what);
    }
}

#[test]
fn problems_outside_of_nodes_are_reported_with_their_pointers() {
    let edge = |from: &str, to: &str| json!({"id": "f", "sourceNodeId": from, "targetNodeId": to});
    for (pointer, value, path, what) in [
        ("/edges/-", edge("a", "c"), "/edges/1/targetNodeId", "no node has the id `c`"),
        ("/edges/-", edge("a", "b"), "/edges/1", "the edge 0 leads from and to the same"),
        ("/edges/0/triggerRule", json!("all"), "/edges/0/triggerRule", "can't be `all`"),
        ("/edges/0/condition", json!({}), "/edges/0/condition", "no `type`"),
        (
            "/edges/0/condition",
            json!({"type": "regex", "left": "status", "right": "("}),
            "/edges/0/condition/right",
            "is no regular expression: unclosed group",
        ),
        ("/triggers/0/type", json!("cron"), "/triggers/0/type", "can't be `cron`"),
        ("/triggers/0/nodeId", json!("z"), "/triggers/0/nodeId", "no node has the id `z`"),
        ("/variables/0/type", json!("int"), "/variables/0/type", "can't be `int`"),
        (
            "/variables/0/defaultValue",
            json!("3"),
            "/variables/0/defaultValue",
            "must be a number, the variable's type, and is a string",
        ),
        (
            "/variables/-",
            json!({"name": "v", "type": "string"}),
            "/variables/1/name",
            "another variable is named `v`",
        ),
        ("/channels", json!({"c": {}}), "/channels/c", "no `reducer`"),
        (
            "/channels",
            json!({"c": {"reducer": "vendor.x.sum"}}),
            "/channels/c/reducer",
            "this host has no reducer `vendor.x.sum`",
        ),
        ("/channels", json!({"c": {"reducer": "sum"}}), "/channels/c/reducer", "can't be `sum`"),
        (
            "/channels",
            json!({"c": {"reducer": "append", "ttlMs": 0}}),
            "/channels/c/ttlMs",
            "a whole number from 1 to 31536000000, and is 0",
        ),
        (
            "/channels",
            json!({"c": {"reducer": "append", "access": "closed"}}),
            "/channels/c/access",
            "and is `closed`",
        ),
        (
            "/channels",
            json!({"c": {"reducer": "append", "access": {"readers": ["*x"]}}}),
            "/channels/c/access/readers",
            "`*x` is no node's id",
        ),
        ("/settings/timeout", json!(-1), "/settings/timeout", "from 0 on, and is -1"),
        ("/settings/logLevel", json!("trace"), "/settings/logLevel", "can't be `trace`"),
        ("/metadata/complianceClass", json!("x"), "/metadata/complianceClass", "can't be `x`"),
        ("/groups", json!([{"id": "g"}]), "/groups/0", "no `name`"),
    ] {
        assert_problem(&with(pointer, value), path, what);
    }
}

#[test]
fn all_problems_are_reported_at_once_up_to_a_limit() {
    let mut value = definition();
    value["id"] = json!("ONE");
    value["edges"][0]["targetNodeId"] = json!("z");
    assert_eq!(Definition::parse(&value.to_string()).expect_err("two").len(), 2);
    let nodes: Vec<_> = (0..NODES_MAX).map(|_| json!({})).collect();
    value["nodes"] = json!(nodes);
    let problems = Definition::parse(&value.to_string()).expect_err("many");
    assert_eq!(problems.len(), crate::PROBLEMS_MAX);
}

#[test]
fn each_limit_applies() {
    let nodes = |count: usize| (0..count).map(|n| node(&format!("n{n}"))).collect::<Vec<_>>();
    let mut many = definition();
    many["nodes"] = json!(nodes(NODES_MAX));
    many["edges"] = json!([]);
    assert!(Definition::parse(&many.to_string()).is_ok());
    many["nodes"] = json!(nodes(NODES_MAX + 1));
    let problems = Definition::parse(&many.to_string()).expect_err("too many");
    assert!(problems[0].what.contains("1001 items, and 1000 are allowed"), "{problems:?}");

    let large = with("/description", json!("x".repeat(DEFINITION_MAX_BYTES)));
    let problems = Definition::parse(&large).expect_err("too large");
    assert!(problems[0].what.contains("1048576 are allowed"), "{problems:?}");

    let expression = |count: usize| {
        let mut value = definition();
        value["edges"] = (0..count)
            .map(|n| {
                json!({
                    "id": format!("e{n}"), "sourceNodeId": "a", "targetNodeId": "b",
                    "condition": {"type": "expression", "expression": format!("output.n == {n}")},
                })
            })
            .collect();
        Definition::parse(&value.to_string())
    };
    assert!(expression(EXPRESSIONS_MAX).is_ok());
    let problems = expression(EXPRESSIONS_MAX + 1).expect_err("too many");
    assert!(problems[0].what.contains("1001 expressions"), "{problems:?}");
}

#[test]
fn the_longest_chain_with_a_loop_is_read() {
    let mut value = definition();
    let nodes: Vec<_> = (0..NODES_MAX).map(|n| node(&format!("n{n}"))).collect();
    value["nodes"] = json!(nodes);
    value["edges"] = (0..NODES_MAX)
        .map(|n| {
            let next = (n + 1) % NODES_MAX;
            json!({
                "id": format!("e{n}"),
                "sourceNodeId": format!("n{n}"), "targetNodeId": format!("n{next}"),
            })
        })
        .collect();
    let definition = Definition::parse(&value.to_string()).expect("a definition");
    assert_eq!(definition.graph.entries(), [0]);
    assert_eq!(definition.graph.order().len(), NODES_MAX);
}
