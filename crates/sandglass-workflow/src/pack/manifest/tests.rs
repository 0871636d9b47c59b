//! Which manifests are accepted, and which problems the others have.

use super::*;
use serde_json::json;

fn manifest() -> Value {
    json!({
        "name": "vendor.acme.tools", "version": "1.2.3-rc.1+b", "engines": {"openwop": ">=1.0"},
        "nodes": [
            {"typeId": "vendor.acme.greet", "version": "1", "category": "data", "role": "pure"},
        ],
        "runtime": {"language": "wasm", "entry": "module.wasm", "format": "wasm"},
    })
}

fn with(pointer: &str, value: Value) -> String {
    let mut manifest = manifest();
    let (parent, key) = pointer.rsplit_once('/').expect("a pointer");
    match manifest.pointer_mut(parent).expect(pointer) {
        Value::Object(fields) if value.is_null() => drop(fields.remove(key)),
        Value::Object(fields) => drop(fields.insert(key.to_owned(), value)),
        Value::Array(items) if key == "-" => items.push(value),
        other => panic!("{other}"),
    }
    manifest.to_string()
}

#[test]
fn a_manifest_has_the_values_of_its_text() {
    let mut value = manifest();
    value["description"] = json!("Tools");
    value["license"] = json!("MIT");
    value["dependencies"] = json!({"vendor.acme.base": "^1"});
    value["peerDependencies"] = json!({"ai": "supported"});
    value["peerDependenciesMeta"] = json!({"ai": {"optional": true}});
    value["nodes"][0]["outputs"] = json!({"secret": {"sensitive": true, "x": 1}, "open": {}});
    value["runtime"] = json!({
        "language": "wasm", "requires": ["clock"], "entry": "./build/a.wasm",
        "wasm": {
            "abiVersion": 1, "memoryPagesInitial": 16, "memoryPagesMax": 256,
            "maxExecutionMs": 500, "fuel": 1_000_000,
        },
    });
    let text = value.to_string();
    let manifest = Manifest::parse(&text).expect("a manifest");
    assert_eq!((&*manifest.name, &*manifest.version), ("vendor.acme.tools", "1.2.3-rc.1+b"));
    assert_eq!(manifest.license.as_deref(), Some("MIT"));
    assert_eq!(manifest.dependencies["vendor.acme.base"], "^1");
    assert_eq!(manifest.entry, "build/a.wasm");
    let limits = WasmLimits {
        abi_version: Some(1),
        memory_pages_initial: Some(16),
        memory_pages_max: Some(256),
        max_execution_ms: Some(500),
        fuel: Some(1_000_000),
    };
    assert_eq!(manifest.wasm, limits);
    let node = manifest.node("vendor.acme.greet").expect("a node");
    assert_eq!(Category::parse(&node.category), Some(Category::Data));
    assert_eq!(node.sensitive_outputs, BTreeSet::from(["secret".to_owned()]));
    assert_eq!(manifest.digest, Digest::of(text.as_bytes()));
    let no_entry = Manifest::parse(&with("/runtime/entry", json!(null))).expect("a manifest");
    assert_eq!(no_entry.entry, DEFAULT_ENTRY);
}

#[test]
fn a_category_that_the_schema_does_not_have_is_accepted() {
    let text = with("/nodes/0/category", json!("examples"));
    let manifest = Manifest::parse(&text).expect("a manifest");
    assert_eq!(manifest.nodes[0].category, "examples");
    assert_eq!(Category::parse(&manifest.nodes[0].category), None);
}

#[test]
fn nodes_without_effects_are_pure() {
    for (role, capabilities, pure) in [
        ("pure", json!([]), true),
        ("pure", json!(["streamable"]), true),
        ("pure", json!(["side-effectful"]), false),
        ("gate", json!(["cacheable"]), true),
        ("gate", json!(["cacheable", "side-effectful"]), false),
        ("side-effect", json!([]), false),
    ] {
        let mut value = manifest();
        value["nodes"][0]["role"] = json!(role);
        value["nodes"][0]["capabilities"] = capabilities.clone();
        let manifest = Manifest::parse(&value.to_string()).expect("a manifest");
        assert_eq!(manifest.is_pure("vendor.acme.greet"), pure, "{role} {capabilities}");
        assert!(!manifest.is_pure("vendor.acme.other"));
    }
}

#[track_caller]
fn assert_problem(text: &str, path: &str, what: &str) {
    let problems = Manifest::parse(text).expect_err(text);
    let found = problems.iter().find(|one| one.path == path && one.what.contains(what));
    let found = found.unwrap_or_else(|| panic!("{path}: {what}: {problems:#?}"));
    assert!(found.place.is_some(), "{found}");
}

#[test]
fn packs_with_an_unusable_runtime_are_refused_with_the_reason() {
    for (pointer, value, path, what) in [
        ("/runtime/language", json!("python"), "/runtime/language", "and this is `python`"),
        (
            "/runtime/language",
            json!("wasm-component"),
            "/runtime/language",
            "`wasm` (core modules)",
        ),
        ("/runtime/format", json!("esm"), "/runtime/format", "must be `wasm`"),
        ("/runtime/requires", json!(["net.outbound"]), "/runtime/requires", "requires `net.outb"),
        ("/runtime/requires", json!(["fs.raed"]), "/runtime/requires", "did you mean `fs.read`"),
        ("/runtime/entry", json!("../x.wasm"), "/runtime/entry", "inside the pack's folder"),
        ("/runtime/entry", json!("a/../../x.wasm"), "/runtime/entry", "inside the pack's folder"),
        ("/runtime/entry", json!("/x.wasm"), "/runtime/entry", "inside the pack's folder"),
        ("/runtime/entry", json!("..\\x.wasm"), "/runtime/entry", "inside the pack's folder"),
        ("/runtime/entry", json!("C:x.wasm"), "/runtime/entry", "inside the pack's folder"),
        ("/runtime/entry", json!(""), "/runtime/entry", "is empty"),
        ("/runtime/entry", json!("a\0b"), "/runtime/entry", "a control character"),
        ("/runtime/wasm", json!({"fuel": 0}), "/runtime/wasm/fuel", "from 1 on, and is 0"),
        (
            "/runtime/wasm",
            json!({"memoryPagesMax": 65_537}),
            "/runtime/wasm/memoryPagesMax",
            "from 1 to 65536",
        ),
        (
            "/runtime/wasm",
            json!({"memoryPagesInitial": 2, "memoryPagesMax": 1}),
            "/runtime/wasm/memoryPagesInitial",
            "begins with 2 pages",
        ),
        ("/runtime/wasm", json!({"memory": 1}), "/runtime/wasm/memory", "unknown key"),
    ] {
        assert_problem(&with(pointer, value), path, what);
    }
}

#[test]
fn packs_with_unusable_nodes_or_requirements_are_refused_with_the_reason() {
    let node = manifest()["nodes"][0].clone();
    for (pointer, value, path, what) in [
        (
            "/nodes/0/requiresSecrets",
            json!([{"id": "k", "kind": "api-key"}]),
            "/nodes/0/requiresSecrets",
            "needs secrets",
        ),
        (
            "/nodes/0/requiredCredentials",
            json!([{"key": "k"}]),
            "/nodes/0/requiredCredentials",
            "needs credentials",
        ),
        (
            "/nodes/0/requiredModelCapabilities",
            json!(["reasoning"]),
            "/nodes/0/requiredModelCapabilities",
            "needs a model",
        ),
        (
            "/nodes/0/auth",
            json!({"type": "oauth2", "provider": "x"}),
            "/nodes/0/auth",
            "does no OAuth",
        ),
        ("/nodes/0/capabilities", json!(["cachable"]), "/nodes/0/capabilities", "`cacheable`"),
        ("/nodes/0/category", json!(null), "/nodes/0", "no `category`"),
        ("/nodes/0/category", json!(1), "/nodes/0/category", "must be a string"),
        ("/nodes/0/role", json!(null), "/nodes/0", "no `role`"),
        ("/nodes/-", node, "/nodes/1/typeId", "another node of the pack is of type"),
        ("/nodes", json!([]), "", "has no nodes"),
        ("/nodes", json!(null), "", "has no nodes"),
        ("/signing", json!({"method": "sigstore"}), "/signing", "signed (`sigstore`)"),
        ("/signing", json!({"signatureRef": "x"}), "/signing", "checks no such signatures"),
        ("/peerDependencies", json!({"ai": "1"}), "/peerDependencies/ai", "no such capability"),
        (
            "/connector",
            json!({"id": "c", "displayName": "C", "actions": [
                {"typeId": "vendor.acme.great", "displayName": "G"},
            ]}),
            "/connector/actions/0/typeId",
            "did you mean `vendor.acme.greet`?",
        ),
        ("/kind", json!("workflow-chain"), "/kind", "can't be `workflow-chain`"),
        ("/name", json!("acme.tools"), "/name", "vendor.ORGANISATION.PACK"),
        ("/name", json!("vendor.acme"), "/name", "vendor.ORGANISATION.PACK"),
        ("/version", json!("1.2"), "/version", "`1.2.3`"),
        ("/version", json!("1.2.3-"), "/version", "`1.2.3`"),
        ("/engines", json!({}), "/engines", "no `openwop`"),
        ("/runtime", json!(null), "", "no `runtime`"),
    ] {
        assert_problem(&with(pointer, value), path, what);
    }
    let mut agents = manifest();
    agents["nodes"] = json!([]);
    agents["agents"] = json!([{}]);
    let problems = Manifest::parse(&agents.to_string()).expect_err("it has no nodes");
    assert!(problems[0].what.contains("agents alone"), "{problems:?}");
}
