//! The header `Idempotency-Key`: an action is taken once, however often it is sent.

use serde_json::{Value, json};

use crate::client::Answer;
use crate::world::World;

const TOUCH: &str = "/v1/entities/Session/1/actions/Touch";

fn send(world: &World, target: &str, key: &str, body: &str) -> Answer {
    let headers = [("content-type", "application/json"), ("idempotency-key", key)];
    world.ask("POST", target, &headers, body.as_bytes())
}

/// The records of an entity, as its history shows them.
fn records(world: &World, entity: &str) -> Vec<Value> {
    let history = world.get(&format!("/v1/entities/{entity}/history")).is(200).json();
    let entries = history["entries"].as_array().expect("entries").iter();
    entries.map(|entry| entry["event"].clone()).collect()
}

#[test]
fn the_same_request_gets_the_first_response_again() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let body = r#"{"params": {"n": 1}, "expected_sequence": 0}"#;
    let first = send(&world, TOUCH, "8e03978e-40d5", body).is(200).json();
    world.post(TOUCH, "").is(200);
    // Bare or quoted, it is the same key.
    for key in ["8e03978e-40d5", "\"8e03978e-40d5\""] {
        assert_eq!(send(&world, TOUCH, key, body).is(200).json(), first);
    }
    let records = records(&world, "Session/1");
    let kinds: Vec<&Value> = records.iter().map(|record| &record["type"]).collect();
    assert_eq!(kinds, ["created", "transition", "transition"]);
    let kept = &records[1]["idempotency"];
    assert_eq!((&kept["key"], &kept["expected"]), (&json!("8e03978e-40d5"), &json!(0)));
    assert_eq!(records[2].get("idempotency"), None);
}

#[test]
fn a_request_that_is_sent_again_waits_for_the_first_ones_handlers() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let begin = "/v1/entities/Session/1/actions/Begin";
    let settled = format!("{begin}?wait=settled&timeout=60s");
    let first = send(&world, begin, "a", "").is(200).json();
    assert_eq!(first.get("waited"), None);
    let waited = send(&world, &settled, "a", "").is(200).json();
    for part in ["state", "sequence", "dispatches", "position"] {
        assert_eq!(waited[part], first[part], "{part}");
    }
    let outcome = &waited["waited"]["outcomes"][0];
    assert_eq!(outcome["dispatch"], first["dispatches"][0]);
    assert_eq!(outcome["outcome"]["outcome"], "completed");
    assert_eq!(send(&world, &settled, "a", "{}").is(200).json(), waited);
    assert_eq!(send(&world, begin, "a", "").is(200).json(), first);
}

#[test]
fn another_request_with_the_key_is_refused_and_a_refused_one_may_be_sent_again() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let finish = "/v1/entities/Session/1/actions/Finish";
    for _ in 0..2 {
        send(&world, finish, "a", "").refuses(409, "not_taken");
    }
    send(&world, TOUCH, "a", r#"{"expected_sequence": 3}"#).refuses(409, "conflict");
    send(&world, TOUCH, "a", "").is(200);
    for (target, body) in [
        (finish, ""),
        (TOUCH, r#"{"params": {"n": 1}}"#),
        (TOUCH, r#"{"expected_sequence": 0}"#),
        ("/v1/entities/Session/1/actions/Unknown", ""),
    ] {
        let refused = send(&world, target, "a", body).refuses(422, "idempotency_key_reused");
        let message = refused["message"].as_str().expect("a message");
        assert!(message.contains("sequence 1; send each request"), "{message}");
        assert_eq!(refused.get("retry_after_ms"), None);
    }
    // The keys of another entity are other keys.
    world.post("/v1/entities/Session/2", "").is(201);
    send(&world, "/v1/entities/Session/2/actions/Touch", "a", r#"{"params": {}}"#).is(200);
}

#[test]
fn an_invalid_key_is_refused_with_what_is_valid() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let (longest, long) = ("k".repeat(255), "k".repeat(256));
    let quoted = format!("\"{longest}\"");
    for bad in
        ["", "a b", "a, b", "\"\"", "\"a", "\"a\"b", "\"a\";q=1", "\"a b\"", "\"a\\b\"", "é", &long]
    {
        let refused = send(&world, TOUCH, bad, "").refuses(400, "bad_header");
        let message = refused["message"].as_str().expect("a message");
        assert!(message.contains("`Idempotency-Key`"), "{message}");
        assert!(message.contains("1 to 255 visible characters"), "{message}");
    }
    let twice = [("idempotency-key", "a"), ("idempotency-key", "a")];
    world.ask("POST", TOUCH, &twice, b"").refuses(400, "bad_header");
    assert_eq!(records(&world, "Session/1").len(), 1);
    send(&world, TOUCH, &longest, "").is(200);
    let again = send(&world, TOUCH, &quoted, "").is(200).json();
    assert_eq!(again["sequence"], 1);
}

#[test]
fn a_key_on_another_operation_is_refused_and_on_a_reading_one_ignored() {
    let world = World::new();
    let dispatch = "0".repeat(32);
    world.post("/v1/entities/Session/1", "").is(201);
    for target in [
        "/v1/entities/Session/2",
        "/v1/entities/Session/1/signals/PartnerReplied",
        "/v1/sessions/Session/1/cancel",
        "/v1/sessions/Session/1/resume",
        &format!("/v1/dispatches/{dispatch}/retry"),
        &format!("/v1/dispatches/{dispatch}/cancel"),
    ] {
        let refused = send(&world, target, "a", "").refuses(400, "bad_header");
        let message = refused["message"].as_str().expect("a message");
        assert!(message.contains("on actions only"), "{target}: {message}");
    }
    world.ask("PUT", "/v1/modules/m", &[("idempotency-key", "a")], b"").refuses(400, "bad_header");
    world.get("/v1/entities/Session/2").refuses(404, "unknown_entity");
    for target in ["/v1/entities/Session/1", "/v1/entities/Session/1/history", "/healthz"] {
        world.ask("GET", target, &[("idempotency-key", "a")], b"").is(200);
    }
}
