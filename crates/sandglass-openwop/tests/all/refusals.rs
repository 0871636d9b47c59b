//! Bodies that violate the document are refused with 400, and valid ones never cause an internal error:
//! each value of a valid body is replaced by many others.

use std::io::{Read as _, Write as _};

use sandglass_openwop::Settings;
use serde_json::{Map, Value, json};

use crate::client::{connect, request};
use crate::host::{KEY, Make, World};
use crate::pointers::pointers;

/// The values that replace each value.
fn others() -> Vec<Value> {
    let mut others = vec![
        json!(null),
        json!(true),
        json!(0),
        json!(-1),
        json!(-0.0),
        json!(1),
        json!(2.5),
        json!(1.0),
        json!(1e300),
        json!(u64::MAX),
        json!(i64::MIN),
        json!(""),
        json!("x"),
        json!("replay"),
        json!("branch"),
        json!("é\u{0}\u{7f}\u{85}"),
        json!([]),
        json!([1]),
        json!([""]),
        json!(["x"]),
        json!({}),
        json!({"x": 1}),
        json!({"": 1}),
        json!({"\u{85}": 1}),
        json!([[[[[{"x": null}]]]]]),
    ];
    // Around the limits of texts and lists.
    others.extend([128, 129, 256, 257, 4_096, 4_097].map(|length| json!("x".repeat(length))));
    others.extend([100, 101].map(|length| json!(vec!["x"; length])));
    others.extend([256, 257].map(|length| json!(["x".repeat(length)])));
    others.extend([256, 257].map(|length| json!({ "x".repeat(length): 1 })));
    others.extend([1_000, 1_001].map(|length| {
        Value::Object((0..length).map(|n| (format!("i{n}"), json!(1))).collect::<Map<_, _>>())
    }));
    others
}

/// `good` with each value replaced by each other one, each property removed, and a property added to
/// each object.
fn variants(good: &Value) -> Vec<Value> {
    let mut all = Vec::new();
    pointers(good, String::new(), &mut all);
    let mut variants = vec![good.clone()];
    for pointer in all {
        let mut with = |change: &dyn Fn(&mut Value)| {
            let mut variant = good.clone();
            change(variant.pointer_mut(&pointer).expect("it is there"));
            variants.push(variant);
        };
        for other in others() {
            with(&|value| *value = other.clone());
        }
        if let Some(fields) = good.pointer(&pointer).and_then(Value::as_object) {
            for key in fields.keys() {
                with(&|value| drop(value.as_object_mut().and_then(|fields| fields.remove(key))));
            }
            for more in ["unknown", "workflowID", "mockProvider", ""] {
                with(&|value| value[more] = json!({"id": "x"}));
            }
        }
    }
    variants
}

/// Sends each variant of `good`; returns how many were refused, and how many were not.
fn drive(world: &World, template: &str, target: &str, good: &Value) -> (usize, usize) {
    let operation = &world.document.text["paths"][template]["post"];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let validator = world.document.validator(schema);
    assert!(validator.is_valid(good), "{good:#}");
    let (mut refused, mut other) = (0, 0);
    for body in variants(good) {
        let answer = world.post(target, &body.to_string());
        let shown: String = body.to_string().chars().take(500).collect();
        assert!(answer.status < 500, "{shown}: {}", answer.text());
        if validator.is_valid(&body) {
            other += 1;
        } else {
            refused += 1;
            assert_eq!(answer.status, 400, "{shown}: {}", answer.text());
            let error = answer.json();
            assert_eq!(error["error"], "validation_error", "{shown}");
        }
    }
    (refused, other)
}

#[test]
fn bodies_that_violate_the_document_are_refused() {
    let world = World::new();
    let run = world.ended("conformance-multi-node");
    let waiting = world.run(&json!({"workflowId": "approval"}));
    world.until_waiting(&waiting);
    let fork = "/v1/runs/{runId}:fork";
    let forked = format!("/v1/runs/{run}:fork");
    for (template, target, good) in [
        (
            "/v1/runs",
            "/v1/runs".to_owned(),
            json!({
                "workflowId": "conformance-identity",
                "inputs": {"payload": {"a": [1]}, "more": null},
                "configurable": {
                    "runTimeoutMs": 60_000, "recursionLimit": 50, "maxLoopIterations": 5,
                    "model": "m", "escalationThreshold": 0.5, "temperature": 1, "maxTokens": 5, "promptOverrides": {"p": "t"},
                    "free": {"a": 1},
                },
                "tags": ["a"], "metadata": {"k": {"l": 1}},
                "tenantId": "t", "scopeId": "s", "callbackUrl": "https://example.com/",
            }),
        ),
        (fork, forked.clone(), json!({"mode": "replay", "fromSeq": 1})),
        (
            fork,
            forked,
            json!({
                "mode": "branch", "fromSeq": 1,
                "runOptionsOverlay": {
                    "configurable": {"recursionLimit": 50}, "tags": ["a"], "metadata": {"k": 1},
                },
            }),
        ),
        ("/v1/runs/{runId}/cancel", format!("/v1/runs/{run}/cancel"), json!({"reason": "enough"})),
        (
            "/v1/runs/{runId}/interrupts/{nodeId}",
            format!("/v1/runs/{waiting}/interrupts/ask"),
            json!({"resumeValue": {"action": "accept"}}),
        ),
    ] {
        let (refused, other) = drive(&world, template, &target, &good);
        assert!(refused > 30 && other > 0, "{template}: {refused} refused, and {other} not");
    }
}

#[test]
fn a_request_that_is_too_large_to_be_recorded_is_refused_without_effect() {
    let world = World::new();
    let with = |bytes: usize| {
        let inputs = json!({"payload": {"x": "x".repeat(bytes)}});
        json!({"workflowId": "conformance-identity", "inputs": inputs}).to_string()
    };
    let key = [("idempotency-key", "one")];
    // Within the limit of a body, and above that of a record.
    for bytes in [(1 << 20) - 100, (1 << 20) - 200] {
        let refused = world.post_with("/v1/runs", &key, with(bytes).as_bytes()).is(413).json();
        assert_eq!(refused["error"], "payload_too_large");
    }
    let metadata = json!({"workflowId": "conformance-noop", "metadata": {"x": "x".repeat(50_000)}});
    world.post("/v1/runs", &metadata.to_string()).is(400);
    let free = json!({"workflowId": "conformance-noop", "configurable": {"x": "x".repeat(65_536)}});
    world.post("/v1/runs", &free.to_string()).is(400);
    // The key is still unused. Outputs that are too large fail the run.
    let large = with((1 << 20) - 60_000);
    let created = world.post_with("/v1/runs", &key, large.as_bytes()).is(201).json();
    let run = created["runId"].as_str().expect("an id");
    world.until_over(run);
    let fork = format!("/v1/runs/{run}:fork");
    let overlay = |bytes: usize| {
        let more =
            json!({"metadata": {"x": "x".repeat(bytes)}, "configurable": {"x": "x".repeat(bytes)}});
        json!({"mode": "branch", "fromSeq": 1, "runOptionsOverlay": more}).to_string()
    };
    world.post(&fork, &overlay(40_000)).is(413);
    world.post(&fork, &overlay(10)).is(201);
}

#[test]
fn the_memory_of_all_logs_that_are_read_is_limited() {
    let settings = Settings { max_log_bytes: 1, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    // The log of another run may not have been freed yet. Each request takes some time, so this loop needs
    // no pause.
    let is_readable =
        |run: &str| (0..20_000).any(|_| world.get(&format!("/v1/runs/{run}")).status == 200);
    let [read, other] = [(); 2].map(|()| {
        let run = world.run(&json!({"workflowId": "approval"}));
        assert!(is_readable(&run), "a log without readers is kept");
        world.until_waiting(&run);
        run
    });
    let key = format!("Bearer {KEY}");
    let headers = [("authorization", &*key), ("accept", "text/event-stream")];
    let path = format!("/v1/runs/{read}/events");
    // The log that was read last may not have been freed yet: then the response is a short refusal.
    let mut readers = (0..20_000).map(|_| {
        let mut reader = connect(world.address);
        reader.write_all(&request("GET", &path, &headers, b"")).expect("it listens");
        reader.read_exact(&mut [0; 512]).map(|()| reader)
    });
    let reader = readers.find_map(Result::ok).expect("its first events");
    for path in [format!("/v1/runs/{other}"), format!("/v1/runs/{other}/events")] {
        let refused = world.get(&path).is(429);
        assert_eq!(refused.json()["error"], "rate_limited");
        assert!(refused.header("retry-after").is_some(), "{}", refused.text());
    }
    // Other readers share a log that is read already, and changing a run needs no log in memory.
    world.get(&path).is(200);
    world.run(&json!({"workflowId": "conformance-noop"}));
    let answer = r#"{"resumeValue": {"action": "accept"}}"#;
    world.post(&format!("/v1/runs/{other}/interrupts/ask"), answer).is(200);
    drop(reader);
    assert!(is_readable(&other), "a log without readers is kept");
}
