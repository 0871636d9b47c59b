//! Invalid requests: each gets an error of the same shape, and none
//! is the daemon's fault.

use crate::client::{Answer, exchange, request};
use crate::world::{Make, World};
use sandglass_daemon::Settings;

const JSON: (&str, &str) = ("content-type", "application/json");

#[test]
fn each_mistake_has_its_code() {
    let world = World::new();
    world.post("/v1/entities/Session/1", "").is(201);
    let id = "0".repeat(32);
    let (long, huge) = ("x".repeat(300), "x".repeat(3 << 20));
    let deep = format!(r#"{{"params": {{"a": {}{}}}}}"#, "[".repeat(80), "]".repeat(80));
    let act = "/v1/entities/Session/1/actions/Touch";
    let get = |target: &str, status, code: &str| {
        world.get(target).refuses(status, code);
    };
    get("/nothing", 404, "unknown_path");
    get("/v1", 404, "unknown_path");
    get("/v1/entities/Session/1/", 404, "unknown_path");
    get("/v1/entities/Session/1/actions", 404, "unknown_path");
    get("/v1/entities//1", 400, "bad_path");
    get("/v1/entities/Session/%ff", 400, "bad_path");
    get("/v1/entities/Session/%00", 400, "bad_path");
    get("/v1/entities/Session/%0a", 400, "bad_path");
    get("/v1/entities/Session/%zz", 400, "bad_path");
    get("/v1/entities/Session/%e", 400, "bad_path");
    get("/v1/entities/Session/1?tenant=acme", 400, "bad_query");
    get("/v1/modules?limit=1", 400, "bad_query");
    for open in ["/?x=1", "/healthz?verbose", "/metrics?name=x", "/openapi.json?x"] {
        get(open, 400, "bad_query");
    }
    get(&format!("/v1/entities/Session/{long}"), 400, "bad_path");
    get(&format!("/v1/entities/{long}/1"), 400, "bad_path");
    get("/v1/entities/Ses%2Fsion/1", 400, "bad_path");
    get("/v1/entities/Session/1/history?limit=0", 400, "bad_query");
    get("/v1/entities/Session/1/history?limit=1001", 400, "bad_query");
    let refused = world.get("/v1/entities/Session/1/history?limit=many").refuses(400, "bad_query");
    let message = refused["message"].as_str().expect("a message");
    assert!(message.starts_with("the query is invalid: limit: "), "{message}");
    get("/v1/entities/Session/1/history?after=-1", 400, "bad_query");
    get("/v1/entities/Session/1/history?limit=1&limit=2", 400, "bad_query");
    get("/v1/entities/Session/1/history?page=2", 400, "bad_query");
    get("/v1/entities/Session/1/history?after=%ff", 400, "bad_query");
    get("/v1/dispatches", 400, "bad_query");
    get("/v1/dispatches?in_flight=false", 400, "bad_query");
    get("/v1/dispatches?in_flight=true&after=zz", 400, "bad_query");
    get("/v1/dispatches/zz", 400, "bad_path");
    get(&format!("/v1/dispatches/{}", "A".repeat(33)), 400, "bad_path");
    get("/v1/events?after=x", 400, "bad_query");
    get("/v1/events?follow=perhaps", 400, "bad_query");
    let refused = world.get("/v1/events?as=scream").refuses(400, "bad_query").to_string();
    for format in ["watchdog", "audit", "silence"] {
        assert!(refused.contains(format), "{refused}");
    }
    world.ask("GET", "/v1/events", &[("last-event-id", "one")], b"").refuses(400, "bad_header");
    let post = |target: &str, body: &str, status, code: &str| {
        world.post(target, body).refuses(status, code);
    };
    post(act, "{", 400, "bad_json");
    post(act, "{\"params\": {\"a\": 1e999}}", 400, "bad_json");
    post(act, "{} {}", 400, "bad_json");
    post(act, "nonsense", 400, "bad_json");
    post(act, "\u{feff}{}", 400, "bad_json");
    post(act, &deep, 400, "bad_json");
    post(act, &format!(r#"{{"params": {{"a": [{}1]}}}}"#, "1,".repeat(70_000)), 400, "bad_json");
    post(act, "[]", 400, "bad_body");
    post(act, "null", 400, "bad_body");
    post(act, r#"{"parmas": {}}"#, 400, "bad_body");
    post(act, r#"{"params": []}"#, 400, "bad_body");
    post(act, r#"{"expected_sequence": -1}"#, 400, "bad_body");
    post(act, r#"{"expected_sequence": 1.5}"#, 400, "bad_body");
    post(act, &format!(r#"{{"params": {{"a": "{huge}"}}}}"#), 413, "too_large");
    // Within the bound of a body, and above that of parameters.
    let large = &huge[..1 << 20];
    post(act, &format!(r#"{{"params": {{"a": "{large}"}}}}"#), 413, "too_large");
    post(&format!("{act}?wait=started"), "", 400, "bad_query");
    post(&format!("{act}?wait=settled&timeout=soon"), "", 400, "bad_query");
    post(&format!("{act}?wait=settled&timeout=-1s"), "", 400, "bad_query");
    post(&format!("{act}?wiat=settled"), "", 400, "bad_query");
    post(&format!("/v1/entities/Session/1/actions/{long}"), "", 400, "bad_path");
    let signals = "/v1/entities/Session/1/signals";
    let signal = format!("{signals}/PartnerReplied");
    for bad in [long.as_str(), "a%0ab", "%ff", "host_call", "action"] {
        post(&format!("{signals}/{bad}"), "", 400, "bad_path");
    }
    post(&format!("{signals}/"), "", 404, "unknown_path");
    post(&format!("{signal}?wait=settled"), "", 400, "bad_query");
    for bad in ["{", "nonsense", " ", "1 2", "1e999", &"[".repeat(80)] {
        post(&signal, bad, 400, "bad_json");
    }
    post(&signal, &format!("{}{}", "[".repeat(80), "]".repeat(80)), 400, "bad_json");
    post(&signal, &format!("\"{}\"", "x".repeat((64 << 10) - 1)), 413, "too_large");
    post(&signal, &format!("[{}1]", "1,".repeat(1_024)), 400, "bad_json");
    post("/v1/entities/Session/2?tenant=acme", "", 400, "bad_query");
    post(&format!("/v1/dispatches/{id}/retry?attempt=1"), "", 400, "bad_query");
    post(&format!("/v1/dispatches/{id}/cancel?reason=none"), "", 400, "bad_query");
    post("/v1/entities/Session/2", r#"{"tenant": ""}"#, 422, "bad_params");
    post("/v1/entities/Session/2", r#"{"tenant": "a\nb"}"#, 422, "bad_params");
    post(&format!("/v1/dispatches/{id}/cancel"), r#"{"reason": 1}"#, 400, "bad_body");
    post(
        &format!("/v1/dispatches/{id}/cancel"),
        &format!(r#"{{"reason": "{long}{long}"}}"#),
        400,
        "bad_body",
    );
    for body in [r#"{"budget_ms": 0}"#, r#"{"attempt": 0}"#, r#"{"attempt": "1"}"#] {
        post(&format!("/v1/dispatches/{id}/retry"), body, 400, "bad_body");
    }
    let ask = |method: &str, target: &str, headers: &[(&str, &str)], body: &str| {
        world.ask(method, target, headers, body.as_bytes())
    };
    ask("POST", act, &[("content-type", "text/plain")], "{}")
        .refuses(415, "unsupported_media_type");
    ask("POST", act, &[], "{}").refuses(415, "unsupported_media_type");
    ask("POST", &signal, &[], "1").refuses(415, "unsupported_media_type");
    let coded = [JSON, ("content-encoding", "gzip")];
    ask("POST", act, &coded, "{}").refuses(415, "unsupported_media_type");
    let coded = [("content-type", "application/wasm"), ("content-encoding", "zstd")];
    ask("PUT", "/v1/modules/waits", &coded, "(module)").refuses(415, "unsupported_media_type");
    ask("PUT", "/v1/modules/waits", &[JSON], "{}").refuses(415, "unsupported_media_type");
    let wasm = [("content-type", "application/wasm")];
    ask("PUT", "/v1/modules/waits", &wasm, "").refuses(422, "module_refused");
    ask("PUT", "/v1/modules/waits", &wasm, "\0asm").refuses(422, "module_refused");
    ask("PUT", "/v1/modules/waits", &wasm, "(module)").refuses(422, "module_refused");
    ask("PUT", "/v1/modules/other", &wasm, "(module)").refuses(404, "unknown_module");
    let refused = ask("DELETE", "/v1/modules/waits", &[], "");
    assert_eq!(refused.header("allow"), Some("PUT"));
    refused.refuses(405, "method_not_allowed");
    ask("PATCH", "/healthz", &[], "").refuses(405, "method_not_allowed");
    ask("BREW", "/healthz", &[], "").refuses(405, "method_not_allowed");
    // Nothing of all that did anything.
    let entity = world.get("/v1/entities/Session/1").is(200).json();
    assert_eq!(entity["sequence"], 0);
}

#[test]
fn no_input_causes_an_internal_error() {
    let head_timeout = std::time::Duration::from_secs(1);
    let connections = sandglass_http::Settings { head_timeout, ..Default::default() };
    let settings = Settings { connections, ..Settings::default() };
    let world = World::of(Make { settings, ..Make::default() });
    let mut random = Random(7);
    let pieces: &[&[u8]] = &[
        b"GET ",
        b"POST ",
        b"/v1/entities/",
        b"Session",
        b"/",
        b"%2f",
        b"%",
        b"%zz",
        b"\xff",
        b" HTTP/1.1\r\n",
        b"host: localhost\r\n",
        b"content-length: 5\r\n",
        b"content-length: x\r\n",
        b"transfer-encoding: chunked\r\n",
        b"content-type: application/json\r\n",
        b"\r\n",
        b"{",
        b"\0",
        b"5\r\nhello\r\n",
        b"0\r\n\r\n",
        b"?after=",
        b"99999999999999999999",
        b"&",
        b"..",
    ];
    for _ in 0..300 {
        let mut bytes = Vec::new();
        for _ in 0..random.below(12) {
            bytes.extend_from_slice(pieces[random.below(pieces.len())]);
        }
        bytes.extend_from_slice(b"\r\n\r\n");
        // It may close without a word; what it says is no failure of its own.
        if let Some(answer) = said(&world, &bytes) {
            assert!(
                answer.status < 500,
                "{:?} is answered {answer:?}",
                String::from_utf8_lossy(&bytes)
            );
        }
    }
    world.get("/healthz").is(200);
}

#[test]
fn a_head_that_is_too_large_is_refused_unread() {
    let world = World::new();
    let long = "x".repeat(100 << 10);
    for (target, headers) in
        [(format!("/{long}"), vec![]), ("/healthz".to_owned(), vec![("x", long.as_str())])]
    {
        let answer = exchange(world.address, &request("GET", &target, &headers, b""));
        assert!([414, 431].contains(&answer.status), "{answer:?}");
    }
}

fn said(world: &World, bytes: &[u8]) -> Option<Answer> {
    use std::io::Write as _;
    let mut stream = crate::client::connect(world.address);
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    Answer::read(&mut stream)
}

/// A few random numbers, the same each time (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("below a usize")
    }
}
