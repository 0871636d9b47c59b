//! Every operation of the served document, and a check that none is omitted.

use sandglass_model::{EntityRef, Object};
use serde_json::{Value, json};

use crate::world::{ELSEWHERE, FINISHES, World};

/// An entity whose handler waits: its name and the dispatch.
pub(crate) fn waiting(world: &World, id: &str) -> String {
    world.post(&format!("/v1/entities/Session/{id}"), "").is(201);
    let taken = world.post(&format!("/v1/entities/Session/{id}/actions/Wait"), "{}").is(200).json();
    assert_eq!(taken["state"], "Executing");
    taken["dispatches"][0].as_str().expect("a dispatch").to_owned()
}

#[test]
fn every_operation_of_the_document_works_as_described() {
    let world = World::new();
    creates_and_reads(&world);
    acts_and_waits(&world);
    sends_a_signal(&world);
    pages_a_history(&world);
    finds_cancels_and_retries(&world);
    shows_what_is_operated_elsewhere(&world);
    stops_and_resumes_sessions(&world);
    lists_and_puts_modules(&world);
    reports_its_state(&world);
    // Event streams are tested in `events.rs`; here it only has to respond.
    let ahead = world.ask("GET", "/v1/events", &[("last-event-id", "999999")], b"");
    ahead.refuses(409, "ahead_of_journal");
    world.get("/openapi.json").is(200);
    world.get("/v1/live?once").is(200);
    world.get("/v1/cluster").refuses(404, "no_cluster");
    world.get("/v1/cluster/whoami").refuses(404, "no_cluster");
    world.post("/v1/cluster/drain", "").refuses(404, "no_cluster");
    world.post("/v1/cluster/activate", r#"{"generation": 1}"#).refuses(404, "no_cluster");
    world.post("/v1/cluster/upgrade-format", "").refuses(404, "no_cluster");
    world.post("/v1/cluster/nudge", "").refuses(404, "no_cluster");
    world.post("/v1/cluster/deliver", "").refuses(404, "no_cluster");
    world.get("/").is(200);
    assert_eq!(world.unused_operations(), Vec::<String>::new());
}

fn stops_and_resumes_sessions(world: &World) {
    let short = r#"{"limits": {"run_timeout": "50ms"}}"#;
    world.post("/v1/entities/Bounded/1", short).is(201);
    let at = "/v1/sessions/Bounded/1";
    let stands = |status: &str| world.get(at).is(200).json()["status"] == *status;
    // Each attempt is a request, so this neither spins nor needs a pause.
    assert!((0..20_000).any(|_| stands("BLOCKED")), "{}", world.get(at).is(200).json());
    let blocked = world.get(at).is(200).json();
    assert_eq!(blocked["stop_reason_code"], "watchdog_wall_clock_exceeded");
    let refused = world.post("/v1/entities/Bounded/1/actions/Close", "");
    assert!(refused.refuses(409, "already_stopped")["message"].is_string());
    world.post(&format!("{at}/resume"), r#"{"run_seq": 7}"#).refuses(409, "not_stopped");
    let bad = r#"{"limits": {"run_timeout": "soon"}}"#;
    let bad = world.post(&format!("{at}/resume"), bad).refuses(422, "bad_params");
    assert!(
        bad["message"].as_str().is_some_and(|message| message.contains("`run_timeout`")),
        "{bad}"
    );
    let resume = r#"{"run_seq": 1, "limits": {"run_timeout": "1h"}}"#;
    world.post(&format!("{at}/resume"), resume).is(200);
    world.post(&format!("{at}/resume"), "").refuses(409, "not_stopped");
    let page = world.get("/v1/sessions?limit=1").is(200).json();
    assert_eq!(page["sessions"][0]["session"], "Bounded/1");
    let stopped = world.post(&format!("{at}/cancel"), r#"{"reason": "enough"}"#).is(202).json();
    assert_eq!((&stopped["status"], &stopped["recorded"]), (&json!("cancelled"), &json!(true)));
    world.post(&format!("{at}/cancel"), "").refuses(409, "already_stopped");
    assert!(stands("DONE"));
    cancels_what_waits_to_be_resumed(world);
    world.get("/v1/sessions/Session/1").refuses(409, "no_session");
    world.post("/v1/sessions/Session/1/cancel", "").refuses(409, "no_session");
    world.get("/v1/sessions/Bounded/2").refuses(404, "unknown_entity");
}

fn cancels_what_waits_to_be_resumed(world: &World) {
    let short = r#"{"limits": {"run_timeout": "50ms"}}"#;
    world.post("/v1/entities/Bounded/3", short).is(201);
    let at = "/v1/sessions/Bounded/3";
    let stands = |status: &str| world.get(at).is(200).json()["status"] == *status;
    assert!((0..20_000).any(|_| stands("BLOCKED")), "{}", world.get(at).is(200).json());
    let cancelled = world.post(&format!("{at}/cancel"), "").is(202).json();
    assert_eq!((&cancelled["run_seq"], &cancelled["recorded"]), (&json!(2), &json!(true)));
    assert!(stands("DONE"));
    world.post(&format!("{at}/resume"), "").refuses(409, "already_stopped");
}

fn creates_and_reads(world: &World) {
    let born = world.post("/v1/entities/Session/1", r#"{"tenant": "acme"}"#).is(201).json();
    assert_eq!((&born["state"], &born["tenant"]), (&json!("Idle"), &json!("acme")));
    assert_eq!(world.get("/v1/entities/Session/1").is(200).json(), born);
    world.post("/v1/entities/Session/1", "").refuses(409, "entity_exists");
    // Every valid name can be written in a path.
    let odd = world.post("/v1/entities/Session/a%2Fb%20%C3%A9%3F", "").is(201).json();
    assert_eq!(odd["id"], "a/b é?");
    world.get("/v1/entities/Session/a%2Fb%20%C3%A9%3F").is(200);
    world.get("/v1/entities/Session/2").refuses(404, "unknown_entity");
    world.post("/v1/entities/Door/1", "").refuses(404, "unknown_type");
}

fn acts_and_waits(world: &World) {
    let at = "/v1/entities/Session/1/actions";
    let touched = world.post(&format!("{at}/Touch"), r#"{"expected_sequence": 0}"#).is(200).json();
    assert_eq!((&touched["sequence"], &touched["dispatches"]), (&json!(1), &json!([])));
    assert_eq!(touched.get("waited"), None);
    world.post(&format!("{at}/Touch"), r#"{"expected_sequence": 0}"#).refuses(409, "conflict");
    world.post(&format!("{at}/Finish"), "").refuses(409, "not_taken");
    let unknown = world.post(&format!("{at}/Tuoch"), "").refuses(404, "unknown_action");
    assert!(unknown["message"].as_str().expect("text").contains("`Touch`"), "{unknown}");
    let params = json!({"params": {"text": "é\u{0}", "deep": [[{"a": null}]]}}).to_string();
    let settled = format!("{at}/Begin?wait=settled&timeout=60s");
    let done = world.post(&settled, &params).is(200).json();
    let waited = &done["waited"];
    assert_eq!((&waited["settled"], &waited["entity"]["state"]), (&json!(true), &json!("Done")));
    assert_eq!(waited["outcomes"][0]["dispatch"], done["dispatches"][0]);
    let outcome = &waited["outcomes"][0]["outcome"];
    assert_eq!(outcome["outcome"], "completed");
    assert_eq!(outcome["params"]["trigger_params"]["text"], "é\u{0}");
    assert_eq!(outcome["params"]["tenant"], "acme");
    // The wait ends before it has settled; the action was taken, and the handler continues.
    world.post("/v1/entities/Session/slow", "").is(201);
    let slow = "/v1/entities/Session/slow/actions/Wait?wait=settled&timeout=10ms";
    let over = world.post(slow, "").is(202).json();
    assert_eq!(
        (&over["waited"]["settled"], &over["waited"]["outcomes"]),
        (&json!(false), &json!([]))
    );
    assert_eq!(over["waited"]["entity"]["in_flight"][0]["dispatch"], over["dispatches"][0]);
}

/// Further tests are in `signals.rs`.
fn sends_a_signal(world: &World) {
    world.post("/v1/entities/Bounded/signalled", "").is(201);
    let at = "/v1/entities/Bounded/signalled/signals/PartnerReplied";
    let sent = world.post(at, "[1]").is(204);
    assert!(sent.body.is_empty(), "{sent:?}");
    let unknown = "/v1/entities/Bounded/nobody/signals/PartnerReplied";
    world.post(unknown, "").refuses(404, "unknown_entity");
}

fn pages_a_history(world: &World) {
    let at = "/v1/entities/Session/1/history";
    let whole = world.get(at).is(200).json();
    let kinds: Vec<&Value> = entries(&whole).iter().map(|one| &one["event"]["type"]).collect();
    assert_eq!(kinds, ["created", "transition", "transition", "dispatched", "ended", "transition"]);
    assert_eq!(whole["next"], Value::Null);
    let (mut paged, mut target) = (Vec::new(), format!("{at}?limit=4"));
    loop {
        let page = world.get(&target).is(200).json();
        paged.extend(entries(&page).iter().cloned());
        let Some(next) = page["next"].as_u64() else { break };
        target = format!("{at}?limit=4&after={next}");
    }
    assert_eq!(&paged, entries(&whole));
}

#[test]
fn a_page_of_large_records_is_bounded_in_size() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let large = format!(r#"{{"params": {{"note": "{}"}}}}"#, "x".repeat(700 << 10));
    for _ in 0..3 {
        world.post("/v1/entities/Session/1/actions/Touch", &large).is(200);
    }
    let history = "/v1/entities/Session/1/history?limit=1000";
    let first = world.get(history).is(200).json();
    let after = first["next"].as_u64().expect("there is more");
    let second = world.get(&format!("{history}&after={after}")).is(200).json();
    assert_eq!((entries(&first).len(), entries(&second).len()), (3, 1));
    assert_eq!(second["next"], json!(null));
}

fn entries(page: &Value) -> &Vec<Value> {
    page["entries"].as_array().expect("entries")
}

fn shows_what_is_operated_elsewhere(world: &World) {
    let entity = EntityRef::new(ELSEWHERE, "1").expect("short");
    let taken = world.block_on(async {
        world.daemon.runtime().create(entity.clone()).await.expect("it is new");
        world.daemon.runtime().send(&entity, "Work", Object::default()).await.expect("it is open")
    });
    let (at, dispatch) = (format!("/v1/entities/{entity}"), taken.dispatches[0]);
    let session = format!("/v1/sessions/{entity}");
    for target in [
        format!("/v1/entities/{ELSEWHERE}/2"),
        format!("{at}/actions/Close"),
        format!("{at}/signals/PartnerReplied"),
        format!("/v1/dispatches/{dispatch}/cancel"),
        format!("/v1/dispatches/{dispatch}/retry"),
        format!("{session}/resume"),
    ] {
        world.post(&target, "").refuses(403, "forbidden");
    }
    assert_eq!(world.get(&at).is(200).json()["state"], "Working");
    world.get(&format!("{at}/history")).is(200);
    world.get(&format!("/v1/dispatches/{dispatch}")).is(200);
    world.post(&format!("{session}/cancel"), "").is(202);
    until_ended(world, &format!("/v1/dispatches/{dispatch}"));
}

fn finds_cancels_and_retries(world: &World) {
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    world.post("/v1/entities/Session/3", "").is(201);
    let parent = format!("00-{trace}-00f067aa0ba902b7-01");
    let target = "/v1/entities/Session/3/actions/Wait";
    let taken = world.ask("POST", target, &[("traceparent", &parent)], b"").is(200).json();
    let dispatch = taken["dispatches"][0].as_str().expect("a dispatch");
    let listed = world.get("/v1/dispatches?in_flight=true").is(200).json();
    let runs = listed["dispatches"].as_array().expect("a list");
    let mine = runs.iter().find(|run| run["dispatch"] == dispatch).expect("it is in flight");
    assert_eq!((&mine["entity"], &mine["integration"]), (&json!("Session/3"), &json!("slow")));
    let first = world.get("/v1/dispatches?in_flight=true&limit=1").is(200).json();
    let next = first["next"].as_str().expect("there are two");
    let second = world.get(&format!("/v1/dispatches?in_flight=true&limit=1&after={next}"));
    assert_ne!(second.is(200).json()["dispatches"], first["dispatches"]);

    let at = format!("/v1/dispatches/{dispatch}");
    let flying = world.get(&at).is(200).json();
    assert_eq!((&flying["status"], &flying["attempt"]), (&json!("in_flight"), &json!(1)));
    assert!(flying["trace"].as_str().expect("text").contains(trace), "{flying}");
    let story = world.get(&format!("{at}/story")).is(200).json();
    assert_eq!((&story["outcome"], &story["entity"]), (&json!(null), &json!("Session/3")));
    world.post(&format!("{at}/cancel"), r#"{"reason": "enough"}"#).is(202);
    let ended = until_ended(world, &at);
    let story = world.get(&format!("{at}/story")).is(200).json();
    assert_eq!((&story["outcome"], &story["trace_id"]), (&json!("cancelled"), &json!(trace)));
    assert_eq!(story["seen_before"]["count"], 0, "{story}");
    assert!(story["next"].as_array().is_some_and(|next| !next.is_empty()), "{story}");
    let unknown = format!("/v1/dispatches/{}/story", "0".repeat(32));
    world.get(&unknown).refuses(404, "unknown_dispatch");
    assert_eq!(ended["ended"]["outcome"]["outcome"], "cancelled");
    let reason = ended["ended"]["outcome"]["reason"].as_str().expect("text");
    assert!(reason.contains("enough") && reason.contains("local"), "{reason}");
    let story = world.get(&format!("{at}/story")).is(200).json();
    let explained = (&story["outcome"], &story["transition"]["to"], &story["dying_span"]);
    assert_eq!(explained.0, "cancelled");
    assert_eq!((explained.1, explained.2), (&json!("Failed"), &ended["ended"]["dying_span"]));
    assert!(story["next"].as_array().is_some_and(|next| !next.is_empty()), "{story}");
    world.post(&format!("{at}/cancel"), "").refuses(409, "not_in_flight");
    let budget = r#"{"budget_ms": 7200000, "reason": "once more"}"#;
    let again = world.post(&format!("{at}/retry"), budget).is(200).json();
    assert_eq!(again["dispatches"], json!([dispatch]));
    let again = world.get(&at).is(200).json();
    assert_eq!((&again["status"], &again["attempt"]), (&json!("in_flight"), &json!(2)));
    assert_eq!(again["budget_ms"], 7_200_000);
    world.post(&format!("{at}/retry"), "").refuses(409, "not_retried");
    let history = world.get("/v1/entities/Session/3/history").is(200).json().to_string();
    assert!(history.contains("once more") && history.contains(r#""by":"local""#), "{history}");
    world.post(&format!("{at}/cancel"), "").is(202);
    until_ended(world, &at);
    let of_the_first = r#"{"attempt": 1}"#;
    world.post(&format!("{at}/retry"), of_the_first).refuses(409, "not_retried");
    world.post(&format!("{at}/retry"), r#"{"attempt": 2}"#).is(200);
    world.post(&format!("{at}/cancel"), "").is(202);
    until_ended(world, &at);
    let unknown = format!("/v1/dispatches/{}", "0".repeat(32));
    world.get(&unknown).refuses(404, "unknown_dispatch");
    world.get(&format!("{unknown}/story")).refuses(404, "unknown_dispatch");
    world.post(&format!("{unknown}/cancel"), "").refuses(404, "unknown_dispatch");
    world.post(&format!("{unknown}/retry"), "").refuses(404, "unknown_dispatch");
}

/// A dispatch once it has ended.
pub(crate) fn until_ended(world: &World, at: &str) -> Value {
    loop {
        let dispatch = world.get(at).is(200).json();
        if dispatch["status"] == "ended" {
            return dispatch;
        }
    }
}

#[test]
fn the_document_marks_optional_bodies_and_modules_as_bytes() {
    let document = World::new().get("/openapi.json").is(200).json();
    let create = &document["paths"]["/v1/entities/{type}/{id}"]["post"]["requestBody"];
    assert_eq!(create["required"], json!(false));
    let signal = "/v1/entities/{type}/{id}/signals/{name}";
    let signal = &document["paths"][signal]["post"]["requestBody"];
    let any = json!({"application/json": {"schema": {}}});
    assert_eq!((&signal["required"], &signal["content"]), (&json!(false), &any));
    let put = &document["paths"]["/v1/modules/{name}"]["put"]["requestBody"];
    let bytes = json!({"application/octet-stream": {}, "application/wasm": {}});
    assert_eq!((&put["required"], &put["content"]), (&json!(true), &bytes));
}

fn lists_and_puts_modules(world: &World) {
    let list = world.get("/v1/modules").is(200).json();
    let names: Vec<&Value> =
        list["modules"].as_array().expect("a list").iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["finishes", "waits"]);
    let wasm = [("content-type", "application/wasm")];
    let module = wat::parse_str(FINISHES).expect("it is text");
    let put = world.ask("PUT", "/v1/modules/waits", &wasm, &module).is(200).json();
    assert_eq!((&put["source"], &put["by"]), (&json!("put_in_memory"), &json!("local")));
}

fn reports_its_state(world: &World) {
    let metrics = world.get("/metrics").is(200);
    let text = String::from_utf8(metrics.body).expect("text");
    assert!(text.contains("temper_wasm_epoch_ticker_healthy 1"), "{text}");
    assert_eq!(world.get("/healthz").is(200).json(), json!({"healthy": true, "reasons": []}));
    world.journal.set_failing(Some("disk full at /secret/place".to_owned()));
    let refused = world.post("/v1/entities/Session/never", "");
    let retry = refused.header("retry-after").map(str::to_owned);
    refused.refuses(503, "journal_unavailable");
    assert_eq!(retry.as_deref(), Some("1"));
    let health = world.get("/healthz").is(503).json();
    assert_eq!(health["reasons"][0]["code"], "journal");
    assert!(!health.to_string().contains("secret"), "{health}");
    world.journal.set_failing(None);
    world.post("/v1/entities/Session/4", "").is(201);
    world.get("/healthz").is(200);
}
