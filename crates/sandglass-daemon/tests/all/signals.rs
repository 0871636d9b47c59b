//! Signals from outside: durable when they are answered, and counted by timers and sessions.

use sandglass_journal::{Batch, Expected, Journal as _};
use sandglass_model::{EntityRef, Event, Position, Record};
use serde_json::{Value, json};

use crate::world::World;

/// The signals of an entity, as its history shows them.
fn signals(world: &World, entity: &str) -> Vec<Value> {
    let history = world.get(&format!("/v1/entities/{entity}/history")).is(200).json();
    let entries = history["entries"].as_array().expect("entries").iter();
    let events = entries.map(|entry| entry["event"].clone());
    events.filter(|event| event["type"] == "signal").collect()
}

#[test]
fn a_signal_is_recorded_with_its_payload_and_changes_nothing_else() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let before = world.get("/v1/entities/Session/1").is(200).json();
    for (name, body) in [
        ("PartnerReplied", ""),
        ("PartnerReplied", "null"),
        ("a%2Fb%20%C3%A9", r#"{"paid": [1, {"by": "é"}]}"#),
        ("heartbeat", "7"),
        ("status", "\"fine\""),
    ] {
        let sent = world.post(&format!("/v1/entities/Session/1/signals/{name}"), body).is(204);
        assert!(sent.body.is_empty(), "{sent:?}");
    }
    // An empty body needs no media type.
    let bare = "/v1/entities/Session/1/signals/PartnerReplied";
    world.ask("POST", bare, &[], b"").is(204);
    // The largest payload.
    let large = format!("\"{}\"", "x".repeat((64 << 10) - 2));
    world.post("/v1/entities/Session/1/signals/large", &large).is(204);

    assert_eq!(world.get("/v1/entities/Session/1").is(200).json(), before);
    let recorded = signals(&world, "Session/1");
    let found: Vec<_> = recorded.iter().map(|one| (&one["name"], &one["payload"])).collect();
    let paid = json!({"paid": [1, {"by": "é"}]});
    let large: Value = serde_json::from_str(&large).expect("JSON");
    let expected = [
        (&json!("PartnerReplied"), &Value::Null),
        (&json!("PartnerReplied"), &Value::Null),
        (&json!("a/b é"), &paid),
        (&json!("heartbeat"), &json!(7)),
        (&json!("status"), &json!("fine")),
        (&json!("PartnerReplied"), &Value::Null),
        (&json!("large"), &large),
    ];
    assert_eq!(found, expected);
    for one in &recorded {
        assert_eq!((one.get("from"), one.get("dispatch")), (None, None), "it is from outside");
    }
}

#[test]
fn only_a_listed_signal_restarts_the_timer_of_the_state() {
    let world = World::new();
    world.post("/v1/entities/Bounded/1", "").is(201);
    for name in ["PartnerReplied", "milestone", "partnerReplied"] {
        world.post(&format!("/v1/entities/Bounded/1/signals/{name}"), "").is(204);
    }
    // Another state has no timer.
    world.post("/v1/entities/Bounded/1/actions/Work", "").is(200);
    world.post("/v1/entities/Bounded/1/signals/PartnerReplied", "").is(204);
    let restarts: Vec<Value> =
        signals(&world, "Bounded/1").iter().map(|one| one["resets_idle"].clone()).collect();
    assert_eq!(restarts, [true, false, false, false]);
}

#[test]
fn a_signal_is_a_sign_of_life_of_a_session_unless_it_is_synthetic() {
    let world = World::new();
    world.post("/v1/entities/Bounded/1", "").is(201);
    let last = |name: &str| {
        world.post(&format!("/v1/entities/Bounded/1/signals/{name}"), "").is(204);
        let status = world.get("/v1/sessions/Bounded/1").is(200).json();
        let last = &status["last_signal"];
        (last["kind"].clone(), last.get("of").cloned())
    };
    assert_eq!(last("milestone"), (json!("milestone"), None));
    assert_eq!(last("note"), (json!("note"), None));
    assert_eq!(last("keep_alive").0, "note", "it is synthetic");
}

#[test]
fn an_entity_that_takes_no_actions_takes_no_signals() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    world.post("/v1/entities/Session/1/actions/Begin?wait=settled&timeout=60s", "").is(200);
    let ended = world.post("/v1/entities/Session/1/signals/PartnerReplied", "");
    let message = ended.refuses(409, "not_taken")["message"].to_string();
    assert!(message.contains("state `Done` doesn't take `PartnerReplied`"), "{message}");

    world.post("/v1/entities/Bounded/1", "").is(201);
    world.post("/v1/sessions/Bounded/1/cancel", "").is(202);
    let stopped = world.post("/v1/entities/Bounded/1/signals/PartnerReplied", "");
    stopped.refuses(409, "already_stopped");
    assert_eq!(signals(&world, "Session/1").len() + signals(&world, "Bounded/1").len(), 0);
}

#[test]
fn a_signal_that_cannot_be_recorded_is_refused() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let at = "/v1/entities/Session/1/signals/PartnerReplied";
    world.journal.set_failing(Some("disk full".to_owned()));
    let refused = world.post(at, "");
    assert_eq!(refused.header("retry-after"), Some("1"));
    refused.refuses(503, "journal_unavailable");
    world.journal.set_failing(None);
    assert_eq!(signals(&world, "Session/1").len(), 0);
    // The journal is tried again after a while; an action that is taken shows that it was.
    let touch = "/v1/entities/Session/1/actions/Touch";
    assert!((0..20_000).any(|_| world.post(touch, "").status == 200));
    world.post(at, "").is(204);
    assert_eq!(signals(&world, "Session/1").len(), 1);
}

#[test]
fn an_entity_that_another_process_writes_takes_no_signals() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    world.post("/v1/entities/Session/1/actions/Touch", "").is(200);
    let entity: EntityRef = "Session/1".parse().expect("a name");
    world.block_on(async {
        let page = world.journal.read(Position(1), 100).await.expect("readable");
        let records = page.into_records().expect("intact");
        let last = records.last().expect("there are some").position;
        let is_transition = |record: &Record| matches!(record.event, Event::Transition { .. });
        let stolen = records.into_iter().find(is_transition).expect("the transition");
        let next = vec![(stolen.sequence.next(), stolen.event)];
        let batch = Batch::new(entity, Expected::At(last), stolen.at, next);
        world.journal.append(batch).await.expect("it follows");
    });
    world.post("/v1/entities/Session/1/signals/PartnerReplied", "").refuses(503, "unavailable");
}
