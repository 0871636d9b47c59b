//! What is refused, and how; and who is let in.

use serde_json::{Value, json};

use crate::binary::fixture;
use crate::client::{Ask, KEY};
use crate::host::{ECHO, SAMPLES, Setup, shared};
use crate::schema;

#[test]
fn each_error_has_the_error_envelope() {
    let host = shared();
    let run = host.run("conformance-noop").id.clone();
    let unknown = "run-00000000000000000000000000000000";
    for (line, status, code) in [
        ("GET /", 404, "not_found"),
        ("GET /v1", 404, "not_found"),
        ("GET /v1/nothing", 404, "not_found"),
        ("GET /v1/runs/", 404, "not_found"),
        ("POST /.well-known/openwop", 405, "method_not_allowed"),
        ("GET /v1/runs", 405, "method_not_allowed"),
        ("DELETE /v1/runs", 405, "method_not_allowed"),
        ("PUT /v1/runs/RUN", 405, "method_not_allowed"),
        ("POST /v1/runs/RUN", 405, "method_not_allowed"),
        ("POST /v1/runs/RUN/events", 405, "method_not_allowed"),
        ("GET /v1/runs/UNKNOWN", 404, "not_found"),
        ("GET /v1/runs/..%2f..%2fetc", 404, "not_found"),
        ("GET /v1/runs/%00", 404, "not_found"),
        ("GET /v1/runs/UNKNOWN/events", 404, "not_found"),
        ("GET /v1/runs/UNKNOWN/events/poll", 404, "not_found"),
        ("GET /v1/runs/RUN/events?more=1", 400, "validation_error"),
        ("POST /v1/runs/UNKNOWN/cancel", 404, "not_found"),
        ("POST /v1/runs", 400, "validation_error"),
    ] {
        let line = line.replace("RUN", &run).replace("UNKNOWN", unknown);
        host.ask(&Ask::new(&line)).fails(status, code);
    }
    let long = format!("GET /v1/runs/{}", "x".repeat(3_000));
    host.ask(&Ask::new(&long)).fails(400, "validation_error");
}

#[test]
fn endpoints_of_the_protocol_that_the_host_does_not_have_are_listed_and_return_501() {
    let host = shared();
    let run = host.run("conformance-noop").id.clone();
    let found = host.get("/.well-known/openwop").expect(200)["unimplementedEndpoints"].clone();
    let found = found.as_array().expect("a list");
    assert_eq!(found.len(), 8, "{found:?}");
    for line in found.iter().filter_map(Value::as_str) {
        let line = line.replace("{runId}", &run).replace("{artifactId}", "a");
        let line = line.replace("{token}", "t").replace("{webhookId}", "w");
        host.ask(&Ask::new(&line)).fails(501, "not_implemented");
        host.ask(&Ask::without_key(&line)).fails(401, "unauthenticated");
    }
}

#[test]
fn a_definition_is_returned_with_its_configurable_schema() {
    let schema = json!({ "type": "object", "properties": { "model": { "type": "string" } } });
    let nodes = json!([{ "id": "only", "typeId": "core.noop" }]);
    let setup = Setup::new().workflow("configured", &nodes, &[]);
    let file = setup.folder.path("workflows/configured.json");
    let text = std::fs::read_to_string(&file).expect("it was written");
    let mut definition: Value = serde_json::from_str(&text).expect("JSON");
    definition["configurableSchema"] = schema.clone();
    std::fs::write(&file, definition.to_string()).expect("written");
    let host = setup.start();
    let found = host.get("/v1/workflows/configured").expect(200);
    assert_eq!((&found["id"], &found["configurableSchema"]), (&json!("configured"), &schema));
    assert_eq!(found["nodes"][0]["typeId"], "core.noop");
    let found = host.get("/v1/workflows/conformance-noop").expect(200);
    assert_eq!(found["id"], "conformance-noop");
    host.get("/v1/workflows/none").fails(404, "workflow_not_found");
    host.post("/v1/workflows/configured", &json!({})).fails(405, "method_not_allowed");
}

#[test]
fn a_workflow_that_needs_a_capability_is_refused_unless_the_host_advertises_it() {
    let gate = |disabled: bool| {
        json!([
            { "id": "gate", "typeId": "core.conversationGate", "disabled": disabled },
            { "id": "other", "typeId": "core.noop" },
        ])
    };
    let setup = Setup::new().workflow("talk", &gate(false), &[("other", "gate")]);
    let host = setup.workflow("silent", &gate(true), &[("other", "gate")]).start();
    let refused = host.post("/v1/runs", &json!({ "workflowId": "talk" }));
    let details = refused.fails(400, "capability_required");
    let expected = json!({
        "requiredCapability": "conversationPrimitive", "offendingTypeId": "core.conversationGate",
        "nodeId": "gate",
    });
    assert_eq!(*details, expected);
    host.run("silent").finished().outputs();
    let found = host.get("/.well-known/openwop").expect(200);
    assert!(found.get("conversationPrimitive").is_none(), "{found}");
    let agents = (&found["agents"]["orchestrator"], &found["agents"]["dispatch"]);
    assert_eq!(agents, (&json!(true), &json!(true)));
    host.run("conformance-dispatch-loop").finished().outputs();
}

#[test]
fn invalid_bodies_are_refused() {
    let host = shared();
    let post = Ask::new("POST /v1/runs");
    let deep = format!("{}1{}", "{\"a\":".repeat(300), "}".repeat(300));
    let deep = format!(r#"{{"workflowId":"conformance-noop","inputs":{deep}}}"#);
    for text in [
        "{",
        "nonsense",
        "[]",
        "null",
        "5",
        "\"conformance-noop\"",
        "{}",
        "{\"workflowId\":5}",
        "{\"workflowId\":\"\"}",
        "{\"workflowId\":\"conformance-noop\"}}",
        "{\"workflowId\":\"conformance-noop\",\"more\":1}",
        "{\"workflowId\":\"conformance-noop\",\"inputs\":[]}",
        "{\"workflowId\":\"conformance-noop\",\"tags\":[1]}",
        "{\"workflowId\":\"conformance-noop\",\"metadata\":null}",
        "{\"workflowId\":\"conformance-noop\",\"workflowId\":\"linear\"}",
        "{\"workflowId\":\"conformance-noop\",\"inputs\":{\"a\":{\"b\":1,\"b\":1}}}",
        &deep,
    ] {
        host.ask(&post.clone().text(text)).fails(400, "validation_error");
    }
    let unknown = json!({ "workflowId": "nobody-has-it" });
    let refused = host.ask(&post.clone().json(&unknown));
    refused.fails(404, "workflow_not_found");
    assert!(!refused.text.contains("nobody-has-it"), "{refused:?}");
    for wrong in [json!(""), json!(5), json!(null), json!("x".repeat(2_049))] {
        let body = json!({ "workflowId": "conformance-noop", "callbackUrl": wrong });
        host.ask(&post.clone().json(&body)).fails(400, "validation_error");
    }
    let body = json!({
        "workflowId": "conformance-noop", "tenantId": "t", "scopeId": "s",
        "callbackUrl": "https://example.com/",
    });
    let made = host.ask(&post.clone().json(&body)).expect(201);
    assert_eq!(made["unsupported"], json!(["callbackUrl", "scopeId", "tenantId"]), "{made}");
    let large =
        json!({ "workflowId": "conformance-noop", "metadata": { "a": "x".repeat(2 << 20) } });
    let found = host.get("/.well-known/openwop").expect(200);
    let most = found["limits"]["maxRequestBodyBytes"].as_u64().expect("a number");
    assert!(most < 2 << 20, "{found}");
    host.ask(&post.clone().json(&large)).fails(413, "payload_too_large");
    let plain = post.clone().header("content-type", "text/plain");
    let plain = plain.header("x-note", "no JSON");
    assert!([400, 415].contains(&host.ask(&plain).status));
    host.run("conformance-noop").finished();
}

#[test]
fn runs_are_not_visible_without_the_key() {
    let host = shared();
    let run = host.run("conformance-noop").id.clone();
    for line in [
        "POST /v1/runs",
        "GET /v1/runs/RUN",
        "GET /v1/runs/RUN/events",
        "GET /metrics",
        "GET /v1/runs/RUN/events/poll",
        "POST /v1/runs/RUN/cancel",
        "POST /v1/runs/RUN:fork",
        "POST /v1/runs/RUN/interrupts/noop",
        "GET /v1/nothing",
    ] {
        let line = line.replace("RUN", &run);
        let nobody = Ask::without_key(&line);
        let half = &KEY[..KEY.len() - 1];
        for ask in [
            nobody.clone(),
            nobody.clone().header("authorization", &format!("Bearer {half}")),
            nobody.clone().header("authorization", &format!("Bearer {KEY}x")),
            nobody.clone().header("authorization", &format!("Basic {KEY}")),
            nobody.clone().header("authorization", KEY),
            nobody.clone().header("authorization", "Bearer"),
        ] {
            let refused = host.ask(&ask);
            refused.fails(401, "unauthenticated");
            assert!(refused.header("www-authenticate").is_some(), "{refused:?}");
        }
    }
    assert_eq!(host.ask(&Ask::without_key("GET /healthz")).status, 200);
}

#[test]
fn discovery_needs_no_key() {
    let host = shared();
    let found = host.ask(&Ask::without_key("GET /.well-known/openwop"));
    let tag = found.header("etag").expect("a tag").to_owned();
    assert!(found.header("cache-control").is_some(), "{found:?}");
    let document = found.expect(200);
    schema::discovery(&document);
    assert!(document["protocolVersion"].as_str().is_some_and(|version| version.starts_with("1.")));
    let fixtures = document["fixtures"].as_array().expect("a list");
    assert!(fixtures.contains(&json!("conformance-noop")), "{document}");
    assert_eq!(document["replay"]["modes"], json!(["replay", "branch"]));
    assert_eq!(document["multiAgent"]["executionModel"]["supported"], true);
    assert_eq!(document["nodePackRuntimes"]["wasm"]["abiVersions"], json!([1]));
    for (key, value) in document["capabilities"].as_object().expect("an object") {
        assert_eq!(&document[key], value, "mirrored");
    }
    let again = Ask::without_key("GET /.well-known/openwop").header("if-none-match", &tag);
    let unchanged = host.ask(&again);
    assert_eq!((unchanged.status, unchanged.text.as_str()), (304, ""), "{unchanged:?}");
    let described = host.ask(&Ask::without_key("GET /v1/openapi.json")).expect(200);
    let version = described["openapi"].as_str().expect("a text");
    assert!(version.starts_with("3.1"), "{version}");
}

#[test]
fn the_key_is_in_no_output_and_no_file() {
    let setup = Setup::new().packs(&[ECHO]).variable("SANDGLASS_LOG", "trace");
    let host = setup.start();
    host.run("conformance-noop").finished();
    let stranger = "the-key-of-a-stranger-0815";
    let ask = Ask::without_key("GET /v1/runs/x");
    let ask = ask.header("authorization", &format!("Bearer {stranger}"));
    host.ask(&ask).fails(401, "unauthenticated");
    host.post("/v1/runs", &json!({})).fails(400, "validation_error");
    let metrics = host.get("/metrics").text;
    let setup = host.stop();
    let said = setup.said();
    assert!(said.contains("INFO"), "it says what it does: {said}");
    let kept: String = setup.journal().iter().map(Value::to_string).collect();
    for text in [&said, &kept, &metrics] {
        assert!(!text.contains(KEY) && !text.contains(stranger), "{text}");
    }
}

#[test]
fn unusable_definitions_are_skipped_and_named() {
    let setup = Setup::new();
    setup.workflows_of(&fixture("openwop/bad-workflows"));
    // Each quote of it is four characters where it is kept.
    let quoted =
        json!([{ "id": "only", "typeId": "core.noop", "config": { "q": "\"".repeat(300_000) } }]);
    let host = setup.workflow("too-large-to-keep", &quoted, &[]).start();
    let found = host.get("/.well-known/openwop").expect(200)["fixtures"].clone();
    let found: Vec<&str> =
        found.as_array().expect("a list").iter().filter_map(Value::as_str).collect();
    assert!(found.is_sorted() && found.contains(&"linear"), "{found:?}");
    assert_eq!(found.iter().filter(|id| id.contains("doubled-workflow-id")).count(), 1);
    host.run("conformance-noop").finished();
    let bad = [
        "bad-regex",
        "doubled-node-id",
        "not-utf8",
        "recursive-schema",
        "syntax-error",
        "too-large-to-keep",
        "two-orchestrators",
        "unknown-node-in-edge",
        "unknown-reducer",
        "vendor-reducer",
    ];
    for id in bad {
        assert!(!found.contains(&id), "{id}");
        let body = json!({ "workflowId": id });
        host.post("/v1/runs", &body).fails(404, "workflow_not_found");
    }
    let said = host.stop().said();
    for name in bad.iter().chain(&["doubled-workflow-id-2"]) {
        let line = said
            .lines()
            .find(|line| line.contains("left out") && line.contains(&format!("{name}.json")));
        assert!(line.is_some(), "`{name}` isn't named in {said}");
    }
    assert!(!said.contains("doubled-workflow-id-1.json`: "), "the first of them stays: {said}");
}

#[test]
#[cfg(target_os = "linux")]
fn a_failing_journal_is_a_503_and_the_retry_succeeds_once_it_works() {
    let host = Setup::new().packs(&[SAMPLES]).start();
    let run = host.run("spin");
    run.until_started("spin", 1);
    let asking = host.run("approval");
    asking.until_waiting();
    host.limit_files(Some(1));
    let accept = json!({ "action": "accept" });
    host.post("/v1/runs", &json!({ "workflowId": "linear" })).fails(503, "service_unavailable");
    asking.answer("ask", &accept).fails(503, "service_unavailable");
    let refused = run.cancel(&json!({ "reason": "full" }));
    refused.fails(503, "service_unavailable");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    host.get("/healthz").fails(503, "service_unavailable");
    host.limit_files(None);
    // Nobody has to ask for it again.
    let log = run.finished();
    assert_eq!(log.last()["type"], "run.cancelled", "{log:#?}");
    assert_eq!(log.last()["payload"]["reason"], "full", "{log:#?}");
    assert_eq!(asking.snapshot()["status"], "waiting-approval");
    asking.answer("ask", &accept).expect(200);
    asking.finished().outputs();
}
