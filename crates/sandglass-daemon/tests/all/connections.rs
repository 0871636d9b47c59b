//! Clients that are slow, silent, half gone, or too many.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Duration;

use sandglass_daemon::{Key, Settings};
use sandglass_http::Settings as Connections;
use serde_json::json;

use crate::client::{Answer, connect, exchange, request};
use crate::operations::{until_ended, waiting};
use crate::world::{Make, World};

const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_client_that_never_completes_its_head_or_body_is_disconnected() {
    let connections = Connections { head_timeout: SHORT, ..Connections::default() };
    let settings = Settings { connections, body_timeout: SHORT, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    let mut silent = connect(world.address);
    silent.write_all(b"GET /healthz HTTP/1.1\r\nhost: loc").expect("it listens");
    let mut rest = Vec::new();
    // It ends: with a word, without one, or by a reset.
    let _ = silent.read_to_end(&mut rest);
    let head = b"POST /v1/entities/Session/1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
                 content-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let mut slow = connect(world.address);
    slow.write_all(head).expect("it listens");
    Answer::read(&mut slow).expect("an answer").refuses(408, "slow_request");
}

#[test]
fn a_body_that_is_cut_off_or_endless_is_refused() {
    let world = World::new();
    let head = |length: &str| {
        format!(
            "POST /v1/entities/Session/1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\n{length}\r\n\r\n"
        )
    };
    let mut broken = connect(world.address);
    broken.write_all(head("content-length: 100").as_bytes()).expect("it listens");
    broken.write_all(b"{").expect("it listens");
    broken.shutdown(Shutdown::Write).expect("it is connected");
    Answer::read(&mut broken).expect("an answer").refuses(400, "bad_json");
    // Nothing was said of its size.
    let mut endless = head("transfer-encoding: chunked").into_bytes();
    let chunk = [b"10000\r\n".as_slice(), &[b' '; 0x10000], b"\r\n"].concat();
    (0..40).for_each(|_| endless.extend_from_slice(&chunk));
    exchange(world.address, &endless).refuses(413, "too_large");
    world.get("/v1/entities/Session/1").refuses(404, "unknown_entity");
}

#[test]
fn a_client_that_closed_its_sending_side_gets_the_response() {
    let world = World::new();
    let mut half = connect(world.address);
    half.write_all(&request("POST", "/v1/entities/Session/1", &[], b"")).expect("it listens");
    half.shutdown(Shutdown::Write).expect("it is connected");
    Answer::read(&mut half).expect("an answer").is(201);
}

#[test]
fn a_client_that_disconnects_cancels_nothing() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let target = "/v1/entities/Session/1/actions/Wait?wait=settled";
    let mut gone = connect(world.address);
    gone.write_all(&request("POST", target, &[], b"")).expect("it listens");
    while world.get("/v1/dispatches?in_flight=true").json()["dispatches"] == json!([]) {}
    drop(gone);
    let listed = world.get("/v1/dispatches?in_flight=true").is(200).json();
    assert_eq!(listed["dispatches"].as_array().map(Vec::len), Some(1));
}

#[test]
fn waiting_requests_are_bounded_and_leave_slots_for_others() {
    let settings = Settings { max_waiting: 1, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    world.post("/v1/entities/Session/1", "").is(201);
    world.post("/v1/entities/Session/2", "").is(201);
    let waits = |id: u8| format!("/v1/entities/Session/{id}/actions/Wait?wait=settled");
    let mut first = connect(world.address);
    first.write_all(&request("POST", &waits(1), &[], b"")).expect("it listens");
    let dispatch = loop {
        let listed = world.get("/v1/dispatches?in_flight=true").json();
        if let Some(dispatch) = listed["dispatches"][0]["dispatch"].as_str() {
            break dispatch.to_owned();
        }
    };
    world.post(&waits(2), "").refuses(429, "busy");
    // Refused before it was taken.
    assert_eq!(world.get("/v1/entities/Session/2").is(200).json()["state"], "Idle");
    world.post(&format!("/v1/dispatches/{dispatch}/cancel"), "").is(202);
    let settled = Answer::read(&mut first).expect("an answer").is(200).json();
    assert_eq!(settled["waited"]["outcomes"][0]["outcome"]["outcome"], "cancelled");
}

#[test]
fn sockets_without_a_key_delay_neither_health_checks_nor_clients_with_one() {
    let key = "a-key-for-ann-of-16";
    let keys = [Key::new("ann", key).expect("long enough")].into_iter().collect();
    let long = Duration::from_secs(3_600);
    let connections =
        Connections { head_timeout: long, idle_timeout: long, ..Connections::default() };
    let settings = Settings { connections, ..Settings::default() };
    let world = World::of(Make { settings, keys, ..Make::default() });
    let authorization = format!("Bearer {key}");
    let headers = [("authorization", &*authorization)];
    let silent: Vec<_> = (0..300).map(|_| connect(world.address)).collect();
    world.get("/healthz").is(200);
    world.ask("GET", "/v1/modules", &headers, b"").is(200);
    let refused: Vec<_> = (0..300)
        .map(|_| {
            let mut refused = connect(world.address);
            // It may be closed by now.
            let _ = refused.write_all(b"GET /v1/modules HTTP/1.1\r\nhost: localhost\r\n\r\n");
            refused
        })
        .collect();
    world.get("/healthz").is(200);
    world.ask("GET", "/v1/modules", &headers, b"").is(200);
    drop((silent, refused));
}

#[test]
fn waits_of_one_tenant_leave_slots_to_others_and_do_not_delay_health_checks() {
    let texts = ["a-key-for-tenant-a", "a-key-for-tenant-b", "a-key-for-operators"];
    let key = |owner: &str, text: &str| Key::new(owner, text).expect("long enough");
    let keys =
        [key("ann", texts[0]).tenant("a"), key("bob", texts[1]).tenant("b"), key("olga", texts[2])];
    let connections = Connections { max_connections: 16, ..Connections::default() };
    let settings = Settings { connections, max_waiting: 8, ..Settings::default() };
    let keys = keys.into_iter().collect();
    let host = sandglass_host::Settings { max_runs: 4, max_queued: 64, ..Default::default() };
    let host = sandglass_host::Settings { max_queued_per_tenant: 64, ..host };
    let world = World::of(Make { settings, keys, host: Some(host), ..Make::default() });
    let bearer = texts.map(|text| format!("Bearer {text}"));
    let headers = |who: usize| [("authorization", &*bearer[who])];
    let waits = |who: usize, id: &str| {
        world.ask("POST", &format!("/v1/entities/Session/{id}"), &headers(who), b"").is(201);
        let target = format!("/v1/entities/Session/{id}/actions/Wait?wait=settled");
        let mut waits = connect(world.address);
        waits.write_all(&request("POST", &target, &headers(who), b"")).expect("it listens");
        waits
    };
    // Half of those that are not reserved for operators: 4 of 8 minus 1.
    let held: Vec<_> = (0..4).map(|id| waits(0, &format!("a{id}"))).collect();
    // As an operator sees them.
    let in_flight = || {
        let listed = world.ask("GET", "/v1/dispatches?in_flight=true", &headers(2), b"");
        listed.is(200).json()["dispatches"].as_array().map_or(0, Vec::len)
    };
    while in_flight() < 4 {}
    let mut refused = waits(0, "a-more");
    let error = Answer::read(&mut refused).expect("an answer").refuses(429, "busy");
    assert!(error["message"].as_str().is_some_and(|text| text.contains("4 of 8")), "{error}");
    // Another tenant still waits, and then also operators.
    let others = [waits(1, "b"), waits(2, "c")];
    while in_flight() < 6 {}
    // More connections that stay open than there may be.
    let kept: Vec<_> = (0..40)
        .map(|_| {
            let mut kept = connect(world.address);
            let target = format!(
                "GET /v1/modules HTTP/1.1\r\nhost: localhost\r\nauthorization: {}\r\n\r\n",
                bearer[0]
            );
            kept.write_all(target.as_bytes()).expect("it listens");
            kept.peek(&mut [0]).expect("an answer");
            kept
        })
        .collect();
    world.get("/healthz").is(200);
    world.ask("GET", "/v1/entities/Session/b", &headers(1), b"").is(200);
    drop((held, others, kept));
}

#[test]
fn a_shutdown_answers_all_requests_and_frees_the_address() {
    let mut world = World::new();
    waiting(&world, "1");
    world.post("/v1/entities/Session/2", "").is(201);
    let mut waits = connect(world.address);
    let target = "/v1/entities/Session/2/actions/Wait?wait=settled";
    waits.write_all(&request("POST", target, &[], b"")).expect("it listens");
    while world.get("/v1/dispatches?in_flight=true").json()["dispatches"][1].is_null() {}
    assert_eq!(world.shutdown(Duration::from_secs(2)), 0, "all is recorded");
    // What came of it, unless the journal was closed before it could be looked up: it was
    // taken nevertheless.
    let answer = Answer::read(&mut waits).expect("an answer");
    if answer.status == 200 {
        let outcome = &answer.json()["waited"]["outcomes"][0]["outcome"];
        assert_eq!(
            (&outcome["outcome"], &outcome["by"]),
            (&json!("cancelled"), &json!("shutdown"))
        );
    } else {
        let taken = answer.is(202).json();
        assert_eq!(taken["state"], "Executing", "{taken}");
        assert!(taken["waited"]["untold"].is_string(), "{taken}");
    }
    assert!(TcpStream::connect(world.address).is_err(), "it still listens");
}

#[test]
fn an_action_without_a_slot_changes_nothing_and_states_when_to_retry() {
    let host = sandglass_host::Settings { max_runs: 1, max_queued: 1, ..Default::default() };
    let world = World::of(Make { host: Some(host), ..Make::default() });
    let first = waiting(&world, "first");
    waiting(&world, "second");
    world.post("/v1/entities/Session/third", "").is(201);
    let answer = world.post("/v1/entities/Session/third/actions/Wait", "");
    let seconds: u64 =
        answer.header("retry-after").and_then(|text| text.parse().ok()).expect("a time");
    assert!((1..=3_600).contains(&seconds), "{answer:?}");
    answer.refuses(429, "busy");
    let third = world.get("/v1/entities/Session/third").is(200).json();
    assert_eq!((&third["state"], &third["in_flight"]), (&json!("Idle"), &json!([])));
    // With a handler gone there is room for one.
    world.post(&format!("/v1/dispatches/{first}/cancel"), "").is(202);
    until_ended(&world, &format!("/v1/dispatches/{first}"));
    world.post("/v1/entities/Session/third/actions/Wait", "").is(200);
}

#[test]
fn a_disk_that_hangs_does_not_hold_requests_beyond_their_timeout() {
    let settings = Settings { request_timeout: SHORT, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    world.post("/v1/entities/Session/1", "").is(201);
    world.journal.set_hanging(true);
    world.post("/v1/entities/Session/2", "").refuses(503, "timed_out");
    world.post("/v1/entities/Session/1/actions/Touch", "").refuses(503, "timed_out");
    world.get("/v1/modules").is(200);
    world.journal.set_hanging(false);
    // What was given up on by its client was not given up on by the runtime.
    while world.get("/v1/entities/Session/1").is(200).json()["fields"]["sum"] != 1 {}
}

#[test]
fn a_shutdown_on_a_full_disk_reports_what_is_not_recorded() {
    let mut world = World::new();
    waiting(&world, "1");
    world.journal.set_failing(Some("disk full".to_owned()));
    assert_eq!(world.shutdown(Duration::from_secs(2)), 1);
}
