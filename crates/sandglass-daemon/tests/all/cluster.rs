//! A daemon that is a member of a cluster: what it forwards to the owner of an entity, and what a client
//! gets if the owner is not there.

use std::convert::Infallible;
use std::io::{Read as _, Write as _};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{Request, Response};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures_util::StreamExt as _;
use sandglass_daemon::{ClusterKey, Key, Keys, Permission, Route};
use sandglass_model::{Clock as _, SystemClock};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::client::{Answer, connect, exchange, request};
use crate::operations::until_ended;
use crate::peers::{Fault, OTHER, OWNER, Pair, ROUTER, member};
use crate::world::{Make, World};

const CLUSTER_KEY: &str = "all-hosts-share-this-key";
pub(crate) const ANN: &str = "anns-key-opens-everything";
const BOB: &str = "bobs-key-is-for-looking";
pub(crate) const EVE: &str = "eves-key-is-for-one-tenant";
const TOUCH: &str = "/v1/entities/Session/1/actions/Touch";

fn keyed() -> Make {
    let keys: Keys = [
        Key::new("ann", ANN).expect("a key"),
        Key::new("bob", BOB).expect("a key").may([Permission::Read]),
        Key::new("eve", EVE).expect("a key").tenant("acme"),
    ]
    .into_iter()
    .collect();
    Make { keys, ..Make::default() }
}

pub(crate) fn keyed_pair() -> Pair {
    Pair::of(keyed, Some(CLUSTER_KEY), Some(CLUSTER_KEY))
}

impl World {
    #[track_caller]
    pub(crate) fn send(
        &self,
        key: &str,
        method: &str,
        target: &str,
        more: &[(&str, &str)],
    ) -> Answer {
        let bearer = format!("Bearer {key}");
        let mut headers = vec![("authorization", bearer.as_str())];
        headers.extend(more);
        self.ask(method, target, &headers, b"")
    }
}

/// A response without what is different each time.
fn text(answer: &Answer) -> String {
    let lines = answer.head.lines().filter(|line| !line.to_lowercase().starts_with("date: "));
    let head: Vec<&str> = lines.collect();
    format!("{}\n\n{}", head.join("\n"), String::from_utf8_lossy(&answer.body))
}

#[test]
fn the_owner_serves_each_route_about_an_entity() {
    let pair = Pair::new();
    let (owner, router) = (&pair.owner, &pair.router);
    router.post("/v1/entities/Session/1", "").is(201);
    router.post("/v1/entities/Session/1", "").refuses(409, "entity_exists");
    router.post("/v1/entities/Session/1/signals/PartnerReplied", "7").is(204);
    let settled = "/v1/entities/Session/1/actions/Begin?wait=settled&timeout=60s";
    let taken = router.post(settled, r#"{"expected_sequence": 0}"#).is(200).json();
    assert_eq!(taken["waited"]["entity"]["state"], "Done");
    let dispatch = taken["dispatches"][0].as_str().expect("a dispatch").to_owned();
    router.post("/v1/entities/Session/2", "").is(201);
    let taken = router.post("/v1/entities/Session/2/actions/Wait", "").is(200).json();
    let waiting = taken["dispatches"][0].as_str().expect("a dispatch").to_owned();
    router.post(&format!("/v1/dispatches/{waiting}/cancel"), r#"{"reason": "enough"}"#).is(202);
    until_ended(owner, &format!("/v1/dispatches/{waiting}"));
    router.post(&format!("/v1/dispatches/{waiting}/retry"), "").is(200);
    router.post("/v1/entities/Bounded/1", r#"{"limits": {"run_timeout": "1h"}}"#).is(201);
    router.post("/v1/sessions/Bounded/1/resume", "").refuses(409, "not_stopped");
    router.post("/v1/sessions/Bounded/1/cancel", "").is(202);

    let sent = pair.peers.table().sent.len();
    let reads = [
        "/v1/entities/Session/1".to_owned(),
        "/v1/entities/Session/1/history?limit=3".to_owned(),
        "/v1/entities/Session/1/history?limit=0".to_owned(),
        "/v1/entities/Session/none".to_owned(),
        "/v1/entities/None/1".to_owned(),
        format!("/v1/dispatches/{dispatch}"),
        format!("/v1/dispatches/{dispatch}/story"),
        "/v1/sessions/Bounded/1".to_owned(),
        "/v1/sessions/Session/1".to_owned(),
    ];
    for target in &reads {
        assert_eq!(text(&router.get(target)), text(&owner.get(target)), "{target}");
    }
    assert_eq!(pair.peers.table().sent.len() - sent, reads.len(), "each was forwarded once");
    let forwarded = |method: &str| {
        pair.peers.table().sent.iter().filter(|sent| sent.method.as_str() == method).count()
    };
    assert_eq!((forwarded("GET"), forwarded("POST")), (reads.len(), 11));
}

#[test]
fn what_is_about_no_entity_or_cannot_be_read_is_served_here() {
    let pair = Pair::new();
    let router = &pair.router;
    // Lists are asked of the other hosts; see `hosts.rs`.
    pair.peers.change(|table| table.membership.hosts.truncate(1));
    router.get("/v1/dispatches?in_flight=true").is(200);
    router.get("/v1/sessions").is(200);
    router.get("/v1/live?once").is(200);
    router.get("/v1/modules").is(200);
    router.get("/metrics").is(200);
    router.get("/healthz").is(200);
    router.get(&format!("/v1/dispatches/{}", "0".repeat(32))).refuses(404, "unknown_dispatch");
    router.get("/v1/dispatches/zz").refuses(400, "bad_path");
    router.get("/v1/entities/a%0ab/1").refuses(400, "bad_path");
    router.get("/v1/entities/Session/%zz").refuses(400, "bad_path");
    router.ask("DELETE", "/v1/entities/Session/1", &[], b"").refuses(405, "method_not_allowed");
    router.get("/v1/entities").refuses(404, "unknown_path");
    assert!(pair.peers.table().sent.is_empty());
    let large = vec![b' '; (2 << 20) + 1];
    let json = [("content-type", "application/json")];
    router.ask("POST", TOUCH, &json, &large).refuses(413, "too_large");
    assert!(pair.peers.table().sent.is_empty(), "it was refused unread");
}

#[test]
fn a_target_arrives_exactly_as_it_was_sent() {
    let pair = Pair::new();
    for target in [
        "/v1/entities/Session/%2e%2e",
        "/v1/entities/Session/a%2Fb%3f",
        "/v1/entities/Session/%C3%A9",
    ] {
        pair.router.post(target, "").is(201);
        assert_eq!(pair.peers.table().sent.last().expect("sent").target, target);
        let found = pair.owner.get(target).is(200).json();
        assert_eq!(pair.router.get(target).is(200).json(), found);
    }
    assert_eq!(pair.owner.get("/v1/entities/Session/%2e%2e").json()["id"], "..");
}

#[test]
fn a_head_request_and_one_that_waits_for_100_are_forwarded() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    let head = request("HEAD", "/v1/entities/Session/1", &[], b"");
    let (here, there) = (exchange(pair.router.address, &head), exchange(pair.owner.address, &head));
    assert_eq!(text(&here), text(&there));
    assert!(
        here.body.is_empty() && here.header("content-length").is_some_and(|length| length != "0")
    );

    let mut stream = connect(pair.router.address);
    let head = format!(
        "POST {TOUCH} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).expect("it listens");
    let mut continues = [0; 25];
    stream.read_exact(&mut continues).expect("it permits the body");
    assert_eq!(&continues, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"{}").expect("it listens");
    Answer::read(&mut stream).expect("an answer").is(200);
    let table = pair.peers.table();
    assert_eq!(table.sent.last().expect("sent").headers.get("expect"), None);
}

#[test]
fn a_request_waits_for_the_next_owner() {
    let pair = Pair::new();
    pair.owner.post("/v1/entities/Session/1", "").is(201);
    // No owner is known, or the one that is known gives it away, or is gone.
    for before in [Route::Moving, pair.at_owner(), pair.at_owner()] {
        pair.owners.set_route(Route::Moving);
        pair.peers.set_route(before);
        pair.peers.table().waits = 0;
        let sequence = thread::scope(|scope| {
            let address = pair.router.address;
            let asking = scope
                .spawn(move || exchange(address, &request("POST", TOUCH, &[], b"")).is(200).json());
            // It has looked at least twice.
            pair.peers.until(|table| table.waits > 2);
            pair.owners.set_route(Route::Here);
            pair.peers.set_route(pair.at_owner());
            asking.join().expect("an answer")["sequence"].clone()
        });
        assert_eq!(pair.owner.get("/v1/entities/Session/1").json()["sequence"], sequence);
    }
    assert_eq!(pair.owner.get("/v1/entities/Session/1").json()["sequence"], 3);
}

#[test]
fn a_request_gives_up_after_four_seconds_and_was_not_done() {
    let pair = Pair::new();
    pair.owner.post("/v1/entities/Session/1", "").is(201);
    pair.owners.set_route(Route::Moving);
    let clock = SystemClock::new();
    for route in [Route::Moving, pair.at_owner()] {
        pair.peers.set_route(route);
        let begun = clock.now();
        let refused = pair.router.post(TOUCH, "");
        let took = clock.now().since(begun);
        assert!(took >= Duration::from_secs(4), "{took:?}");
        assert_eq!(refused.header("retry-after"), Some("1"));
        let error = refused.refuses(503, "owner_moving");
        assert!(
            error["message"].as_str().is_some_and(|text| text.contains("Session/1")),
            "{error}"
        );
    }
    // Even if the owner's connection is not accepted at all.
    pair.fail((0..10_000).map(|_| Fault::TimedOut));
    pair.router.get("/v1/entities/Session/1").refuses(503, "owner_moving");
    pair.owners.set_route(Route::Here);
    assert_eq!(pair.owner.get("/v1/entities/Session/1").json()["sequence"], 0);
}

#[test]
fn a_host_that_refuses_is_suspected_and_its_successor_gets_the_request() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    pair.peers.set_route(Route::At { host: OTHER, url: "http://127.0.0.1:1".to_owned() });
    pair.peers.table().if_suspected = Some(pair.at_owner());
    // Nothing listens on this port.
    assert_eq!(pair.router.post(TOUCH, "").is(200).json()["sequence"], 1);
    assert_eq!(pair.peers.table().suspected, [OTHER]);
}

#[test]
fn an_action_whose_response_is_lost_is_not_repeated() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    let sequence = || pair.owner.get("/v1/entities/Session/1").is(200).json()["sequence"].clone();
    pair.fail([Fault::ResponseLost]);
    let error = pair.router.post(TOUCH, "").refuses(502, "outcome_unknown");
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("read the entity")),
        "{error}"
    );
    assert_eq!(sequence(), 1, "it was done, once");
    pair.fail([Fault::RequestLost]);
    pair.router.post(TOUCH, "").refuses(502, "outcome_unknown");
    assert_eq!(sequence(), 1, "it was not done");
    // Nothing was sent, so it is.
    pair.fail([Fault::TimedOut, Fault::Refused]);
    pair.router.post(TOUCH, "").is(200);
    assert_eq!(sequence(), 2);
    let metrics = text(&pair.router.get("/metrics").is(200));
    for line in [
        r#"temper_cluster_forwards_total{outcome="ok"} 2"#,
        r#"temper_cluster_forwards_total{outcome="broken"} 2"#,
        r#"temper_cluster_forwards_total{outcome="unreachable"} 1"#,
        r#"temper_cluster_forwards_total{outcome="refused"} 1"#,
        r#"temper_cluster_request_failures_total{code="outcome_unknown"} 2"#,
        r#"temper_cluster_request_failures_total{code="owner_moving"} 0"#,
        "temper_cluster_forward_seconds_count 2",
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in\n{metrics}");
    }
}

#[test]
fn a_part_of_a_response_is_not_a_response() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    pair.fail([Fault::BodyLost]);
    pair.router.post(TOUCH, "").refuses(502, "outcome_unknown");
    pair.fail([Fault::BodyLost]);
    assert_eq!(pair.router.get("/v1/entities/Session/1").is(200).json()["sequence"], 1);
    // The entity remembers the key.
    pair.fail([Fault::BodyLost]);
    let key = [("idempotency-key", "1")];
    let repeated = pair.router.ask("POST", TOUCH, &key, b"").is(200).json();
    assert_eq!(repeated["sequence"], 2);
    assert_eq!(pair.owner.get("/v1/entities/Session/1").json()["sequence"], 2);
}

#[test]
fn a_read_whose_response_is_lost_is_repeated() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    pair.fail([Fault::ResponseLost, Fault::RequestLost]);
    pair.router.get("/v1/entities/Session/1").is(200);
    assert_eq!(pair.peers.table().sent.len(), 4);
    pair.fail((0..10).map(|_| Fault::RequestLost));
    pair.router.get("/v1/entities/Session/1").refuses(503, "owner_moving");
    assert_eq!(pair.peers.table().faults.len(), 6, "it was sent four times");
}

#[test]
fn a_host_that_was_declared_dead_is_not_waited_for() {
    let pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    for (method, target, status) in [("POST", TOUCH, 502), ("GET", "/v1/entities/Session/1", 200)] {
        let (guard, dropped) = mpsc::channel();
        pair.fail([Fault::Hangs(guard)]);
        pair.peers.table().waits = 0;
        let address = pair.router.address;
        let found = thread::scope(|scope| {
            let asked = request(method, target, &[], b"");
            let asking = scope.spawn(move || exchange(address, &asked).status);
            pair.peers.until(|table| table.waits > 1);
            pair.peers.change(|table| table.membership.hosts[1].is_dead = true);
            asking.join().expect("an answer")
        });
        assert_eq!(found, status);
        assert!(dropped.recv().is_err(), "the request was ended");
        pair.peers.change(|table| table.membership.hosts[1].is_dead = false);
    }
}

#[test]
fn a_forwarded_request_is_never_forwarded_again() {
    let pair = Pair::new();
    pair.owner.post("/v1/entities/Session/1", "").is(201);
    let by = OTHER.to_string();
    let forwarded = [("sandglass-forwarded-by", by.as_str())];
    let target = "/v1/entities/Session/1";
    for route in [pair.at_owner(), Route::Moving] {
        pair.peers.set_route(route);
        pair.router.ask("GET", target, &forwarded, b"").refuses(421, "not_owner");
    }
    pair.peers.set_route(Route::Here);
    pair.router.ask("GET", target, &forwarded, b"").is(200);
    assert!(pair.peers.table().sent.is_empty());
    pair.router
        .ask("GET", target, &[("sandglass-forwarded-by", "me")], b"")
        .refuses(400, "bad_header");
    // With a cluster key, only a host can forward.
    let pair = keyed_pair();
    pair.owner.send(ANN, "POST", target, &[]).is(201);
    pair.router.send(ANN, "GET", target, &forwarded).is(200);
    assert_eq!(pair.peers.table().sent[0].headers["sandglass-forwarded-by"], ROUTER.to_string());
    let trusted = [("sandglass-cluster-key", CLUSTER_KEY), forwarded[0]];
    pair.router.ask("GET", target, &trusted, b"").refuses(421, "not_owner");
}

/// The value of the header with a principal.
fn principal(value: &Value) -> String {
    URL_SAFE_NO_PAD.encode(value.to_string())
}

#[test]
fn what_a_client_sends_as_a_host_counts_for_nothing() {
    let pair = keyed_pair();
    let target = "/v1/entities/Session/1";
    pair.owner.send(ANN, "POST", target, &[]).is(201);
    let all =
        principal(&json!({"owner": "ann", "tenant": null, "may": ["read", "act", "operate"]}));
    let by = OWNER.to_string();
    let as_host = [("sandglass-principal", all.as_str()), ("sandglass-forwarded-by", by.as_str())];
    for world in [&pair.router, &pair.owner] {
        // Its own permissions count.
        world.send(BOB, "POST", TOUCH, &as_host).refuses(403, "forbidden");
        world.send(EVE, "GET", target, &as_host).refuses(404, "unknown_entity");
        world.ask("GET", target, &as_host, b"").refuses(401, "unauthorized");
        // Also if it hides the headers from a proxy.
        let hidden =
            [as_host[0], ("connection", "close, sandglass-principal, sandglass-cluster-key")];
        world.send(BOB, "POST", TOUCH, &hidden).refuses(403, "forbidden");
        world.send(BOB, "GET", target, &hidden).is(200);
    }
    for sent in &pair.peers.table().sent {
        let headers = &sent.headers;
        assert_eq!(headers.get_all("sandglass-principal").iter().count(), 1);
        assert_eq!(headers.get_all("sandglass-cluster-key").iter().count(), 1);
        assert_ne!(headers["sandglass-principal"], all);
        assert_eq!(headers["sandglass-forwarded-by"], ROUTER.to_string());
        assert_eq!(headers.get("authorization"), None, "the owner does not need the client's key");
    }
    assert_eq!(pair.owner.send(ANN, "GET", target, &[]).json()["sequence"], 0);
}

#[test]
fn headers_of_one_connection_are_not_passed_on() {
    let pair = Pair::new();
    pair.owner.post("/v1/entities/Session/1", "").is(201);
    let headers = [
        ("connection", "close, x-secret"),
        ("x-secret", "1"),
        ("x-kept", "2"),
        ("te", "trailers"),
        ("keep-alive", "timeout=9"),
        ("proxy-authorization", "Basic abc"),
        ("origin", "http://localhost"),
        ("sec-fetch-site", "same-origin"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ];
    pair.router.ask("GET", "/v1/entities/Session/1", &headers, b"").is(200);
    let sent = pair.peers.table().sent.pop().expect("sent").headers;
    let mut names: Vec<&str> = sent.keys().map(axum::http::HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["sandglass-forwarded-by", "traceparent", "x-kept"]);
    let response = Response::builder()
        .header("connection", "x-hop")
        .header("x-hop", "1")
        .header("keep-alive", "timeout=9")
        .header("x-end", "2")
        .body(Body::from("{}"));
    pair.fail([Fault::Instead(response.expect("a response"))]);
    let got = exchange(pair.router.address, &request("GET", "/v1/entities/Session/1", &[], b""));
    assert_eq!(
        (got.header("x-hop"), got.header("keep-alive"), got.header("x-end")),
        (None, None, Some("2"))
    );
    assert_eq!(got.body, b"{}");
}

#[test]
fn a_client_of_one_tenant_stays_in_it_on_every_host() {
    let pair = keyed_pair();
    let router = &pair.router;
    router.send(ANN, "POST", "/v1/entities/Session/1", &[]).is(201);
    let own = router.send(EVE, "POST", "/v1/entities/Session/2", &[]).is(201).json();
    assert_eq!(own["tenant"], "acme");
    router.send(EVE, "GET", "/v1/entities/Session/1", &[]).refuses(404, "unknown_entity");
    router.send(EVE, "POST", TOUCH, &[]).refuses(404, "unknown_entity");
    router.send(EVE, "POST", "/v1/entities/Session/2/actions/Touch", &[]).is(200);
    router.send(BOB, "GET", "/v1/entities/Session/2", &[]).is(200);
    router.send(BOB, "POST", "/v1/entities/Session/3", &[]).refuses(403, "forbidden");
    router
        .send("no-such-key-anywhere", "GET", "/v1/entities/Session/1", &[])
        .refuses(401, "unauthorized");
    // Who did it is recorded with the name of the key.
    router.send(ANN, "POST", "/v1/entities/Bounded/1", &[]).is(201);
    router.send(ANN, "POST", "/v1/sessions/Bounded/1/cancel", &[]).is(202);
    let history = router.send(ANN, "GET", "/v1/entities/Bounded/1/history", &[]).is(200);
    assert!(String::from_utf8_lossy(&history.body).contains(r#""by":"ann""#), "{}", history.text());
}

#[test]
fn only_the_cluster_key_makes_a_host() {
    let pair = keyed_pair();
    let target = "/v1/entities/Session/1";
    pair.owner.send(ANN, "POST", target, &[]).is(201);
    let reads = principal(&json!({"owner": "ann", "tenant": null, "may": ["read"]}));
    let with = |key: &str, principal: &str| {
        let headers = [("sandglass-cluster-key", key), ("sandglass-principal", principal)];
        pair.owner.ask("GET", target, &headers, b"")
    };
    with(CLUSTER_KEY, &reads).is(200);
    for wrong in ["", "all-hosts-share-this-ke", "all-hosts-share-this-key2", ANN] {
        with(wrong, &reads).refuses(401, "wrong_cluster_key");
    }
    let twice = [
        ("sandglass-cluster-key", CLUSTER_KEY),
        ("sandglass-cluster-key", CLUSTER_KEY),
        ("sandglass-principal", &reads),
    ];
    pair.owner.ask("GET", target, &twice, b"").refuses(401, "wrong_cluster_key");
    with(CLUSTER_KEY, "nonsense").refuses(400, "bad_header");
    // No more than what is sent.
    let nothing = principal(&json!({"owner": "ann", "tenant": null, "may": []}));
    with(CLUSTER_KEY, &nothing).refuses(403, "forbidden");
    let other = principal(&json!({"owner": "eve", "tenant": "acme", "may": ["read"]}));
    with(CLUSTER_KEY, &other).refuses(404, "unknown_entity");
    // A host has no permissions of its own.
    pair.owner
        .ask("GET", target, &[("sandglass-cluster-key", CLUSTER_KEY)], b"")
        .refuses(403, "forbidden");

    let pair = Pair::new();
    pair.owner
        .ask("GET", target, &[("sandglass-cluster-key", CLUSTER_KEY)], b"")
        .refuses(401, "wrong_cluster_key");
    pair.owner
        .ask("GET", target, &[("sandglass-principal", &reads)], b"")
        .refuses(401, "wrong_cluster_key");
}

#[test]
fn hosts_with_different_keys_do_not_blame_the_client() {
    let pair = Pair::of(keyed, Some("another-key-than-the-others"), Some(CLUSTER_KEY));
    let refused = pair.router.send(ANN, "GET", "/v1/entities/Session/1", &[]);
    let message = refused.refuses(503, "unavailable")["message"].to_string();
    assert!(message.contains("cluster key") && !message.contains(CLUSTER_KEY), "{message}");
}

#[test]
fn a_response_is_passed_on_as_it_arrives() {
    let pair = Pair::new();
    let (pieces, mut receiver) = tokio::sync::mpsc::unbounded_channel::<Bytes>();
    let arriving = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
    let body = Body::from_stream(arriving.map(Ok::<_, Infallible>));
    pair.fail([Fault::Instead(Response::new(body))]);
    let mut stream = connect(pair.router.address);
    let asked = request("GET", "/v1/entities/Session/1", &[], b"");
    stream.write_all(&asked).expect("it listens");
    let mut text = String::new();
    for piece in ["first", "second"] {
        pieces.send(Bytes::from(piece)).expect("it is read");
        while !text.contains(piece) {
            let mut some = [0; 64];
            let count = stream.read(&mut some).expect("more");
            assert!(count > 0, "{text}");
            text.push_str(&String::from_utf8_lossy(&some[..count]));
        }
        assert_eq!(text.contains("second"), piece == "second");
    }
}

#[test]
fn a_client_that_leaves_ends_the_forwarded_request() {
    let pair = Pair::new();
    let (guard, dropped) = mpsc::channel();
    pair.fail([Fault::Hangs(guard)]);
    let request = Request::builder().uri("/v1/entities/Session/1").header("host", "localhost");
    let request = request.body(Body::empty()).expect("a request");
    let router = pair.router.daemon.router();
    let serving = pair.router.spawn(async move { router.oneshot(request).await.map(drop) });
    pair.peers.until(|table| table.sent.len() == 1);
    serving.abort();
    assert!(dropped.recv().is_err(), "the guard was dropped");
}

#[test]
fn a_host_that_shuts_down_passes_requests_to_its_successor() {
    let mut pair = Pair::new();
    pair.router.post("/v1/entities/Session/1", "").is(201);
    pair.router.post("/v1/entities/Session/1/actions/Wait", "").is(200);
    let (address, owner) = (pair.owner.address, pair.at_owner());
    let by = ROUTER.to_string();
    let ends = thread::scope(|scope| {
        let Pair { owner: world, peers, .. } = &mut pair;
        let ends = scope.spawn(|| world.shutdown(Duration::from_secs(4)));
        let look = |headers: &[(&str, &str)]| {
            exchange(address, &request("GET", "/v1/entities/Session/1", headers, b""))
        };
        // It still accepts connections, or the others would take it for dead.
        while look(&[]).status == 200 {}
        look(&[]).refuses(503, "shutting_down");
        look(&[("sandglass-forwarded-by", &by)]).refuses(421, "not_owner");
        peers.set_route(owner);
        ends.join().expect("it ended")
    });
    assert_eq!(ends, 0);
}

#[test]
fn a_host_without_a_lease_is_not_healthy() {
    let pair = Pair::new();
    pair.router.get("/healthz").is(200);
    pair.peers.table().is_trusted = false;
    let health = pair.router.get("/healthz").is(503).json();
    assert_eq!(health["reasons"][0]["code"], "ownership");
}

#[test]
fn the_cluster_is_described() {
    let pair = keyed_pair();
    let mut drained = member(OTHER, "also");
    drained.is_draining = true;
    let mut alone = member(sandglass_model::HostId::from_bytes([4; 16]), "alone");
    (alone.is_dead, alone.url) = (true, None);
    pair.peers.change(|table| {
        table.membership.hosts.truncate(2);
        table.membership.hosts.extend([drained, alone]);
        table.membership.partitions[5].owner = None;
    });
    let router = &pair.router;
    let cluster = || router.send(BOB, "GET", "/v1/cluster", &[]).is(200).json();
    let shown = cluster();
    assert_eq!((&shown["host"], &shown["generation"]), (&json!(ROUTER), &Value::Null));
    let hosts: Vec<Value> = shown["hosts"].as_array().expect("hosts").clone();
    let of = |key: &str| hosts.iter().map(|host| host[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["alone", "also", "owner", "router"]);
    assert_eq!(of("state"), ["dead", "draining", "live", "live"]);
    assert_eq!(of("partitions"), [0, 0, 63, 0]);
    assert_eq!(of("url")[0], Value::Null);
    assert_eq!(shown["partitions"].as_array().map(Vec::len), Some(64));
    assert_eq!(shown["partitions"][5], json!({"partition": 5, "owner": null, "epoch": 3}));
    assert_eq!(shown["partitions"][6]["owner"], json!(OWNER));
    pair.peers.table().silent_for = Some(Duration::from_millis(2_500));
    let also = cluster()["hosts"][1].clone();
    assert_eq!((&also["state"], &also["last_seen_ms"]), (&json!("silent"), &json!(2_500)));
    router.send(EVE, "GET", "/v1/cluster", &[]).refuses(403, "forbidden");
}

#[test]
fn an_operator_drains_a_host() {
    let pair = keyed_pair();
    let bearer = format!("Bearer {ANN}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let drain = |body: &Value| {
        let body = body.to_string();
        pair.router.ask("POST", "/v1/cluster/drain", &headers, body.as_bytes())
    };
    let done = drain(&json!({"host": OWNER, "draining": true})).is(200).json();
    assert_eq!(done, json!({"host": OWNER, "draining": true}));
    drain(&json!({"host": "other", "draining": false})).is(200);
    drain(&json!({})).is(200);
    assert_eq!(pair.peers.table().drained, [(OWNER, true), (OTHER, false), (ROUTER, true)]);
    drain(&json!({"host": "none"})).refuses(404, "unknown_host");
    drain(&json!({"host": sandglass_model::HostId::from_bytes([9; 16])}))
        .refuses(404, "unknown_host");
    drain(&json!({"hosts": "other"})).refuses(400, "bad_body");
    pair.peers.table().membership.hosts[2].name = "owner".to_owned();
    drain(&json!({"host": "owner"})).refuses(422, "bad_params");
    pair.peers.table().drains = false;
    drain(&json!({})).refuses(503, "journal_unavailable");
    pair.router.send(BOB, "POST", "/v1/cluster/drain", &[]).refuses(403, "forbidden");
    pair.router.send(EVE, "POST", "/v1/cluster/drain", &[]).refuses(403, "forbidden");
}

#[test]
fn only_hosts_report_what_they_own() {
    let pair = keyed_pair();
    let key = ("sandglass-cluster-key", CLUSTER_KEY);
    let who = pair.owner.ask("GET", "/v1/cluster/whoami", &[key], b"").is(200).json();
    assert_eq!(who["host"], OWNER.to_string());
    let proof = who["key_proof"].as_str().expect("a proof");
    let accepts = |key: &str| ClusterKey::new(key).expect("a key").accepts_proof(OWNER, proof);
    assert!(accepts(CLUSTER_KEY) && !accepts("this-is-another-key-than-theirs"));
    pair.owner.send(ANN, "GET", "/v1/cluster/whoami", &[]).refuses(403, "forbidden");
    let json = ("content-type", "application/json");
    let nudge = |body: &Value| {
        let body = body.to_string();
        pair.router.ask("POST", "/v1/cluster/nudge", &[key, json], body.as_bytes())
    };
    nudge(&json!({"host": OWNER, "owned": [{"partition": 63, "epoch": 9}]})).is(204);
    let nudged = pair.peers.table().nudged.pop().expect("a nudge");
    assert_eq!(nudged, (OWNER, vec![(sandglass_model::Partition::new(63).expect("the last"), 9)]));
    let many = vec![json!({"partition": 1, "epoch": 1}); 65];
    for bad in [
        json!({}),
        json!({"host": "me"}),
        json!({"host": OWNER, "owned": [{"partition": 64, "epoch": 1}]}),
        json!({"host": OWNER, "owned": many}),
    ] {
        nudge(&bad).refuses(400, "bad_body");
    }
    pair.router.send(ANN, "POST", "/v1/cluster/nudge", &[]).refuses(403, "forbidden");
    assert!(pair.peers.table().nudged.is_empty());
    // Without a cluster key, the hosts are on one machine, whose clients may do everything.
    let pair = Pair::new();
    pair.router.get("/v1/cluster/whoami").is(200);
    pair.router.post("/v1/cluster/nudge", &json!({"host": OWNER}).to_string()).is(204);
}
