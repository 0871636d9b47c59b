//! Every operation of the served document, with each status that it declares; none is left out.

use std::collections::BTreeSet;

use sandglass_openwop::{DISCOVERY_PATH, EventKind, OPENAPI_PATH, Settings};
use serde_json::{Value, json};

use crate::client::{Answer, connect, exchange, request};
use crate::host::{KEY, Make, World};

/// Statuses that a test cannot cause at will: they need a client that is slow for seconds, a full
/// mailbox, an internal error of the host, an unreadable journal, or another host that ends.
fn is_rare(operation: &str, status: u16) -> bool {
    match status {
        408 | 500 | 502 => true,
        429 => !["POST /v1/runs", "POST /v1/runs/{runId}:fork"].contains(&operation),
        // A stop takes effect at once, and is recorded later.
        503 => operation.starts_with("GET /v1/") || operation.ends_with("/cancel"),
        _ => false,
    }
}

#[test]
fn every_operation_of_the_document_does_what_it_says() {
    let world = World::new();
    describes_itself(&world);
    reads_workflows(&world);
    creates_and_reads(&world);
    processes_a_request_once(&world);
    follows_events(&world);
    polls_events(&world);
    cancels(&world);
    forks(&world);
    resolves(&world);
    refuses_what_cannot_be_read(&world);
    follows_links(&world);
    reports_a_failing_journal(&world);
    reports_its_health(&world);
    // A host without capacity refuses runs. Its own document declares the status.
    let full = World::of(Make {
        settings: Settings { max_active_runs: 1, ..Settings::default() },
        ..Make::default()
    });
    let run = full.run(&json!({"workflowId": "conformance-cancellable"}));
    full.until(&run, |event| event["type"] == "node.started");
    let refused = full.post("/v1/runs", r#"{"workflowId": "conformance-noop"}"#).is(429);
    assert_eq!(refused.json()["error"], "rate_limited");
    full.post(&format!("/v1/runs/{run}:fork"), r#"{"mode": "branch", "fromSeq": 0}"#).is(429);
    full.post(&format!("/v1/runs/{run}/cancel"), "").is(200);
    let driven_elsewhere =
        |operation: &str, status: u16| !full.not_driven().contains(&(operation.to_owned(), status));
    let left = world.not_driven().into_iter().filter(|(operation, status)| {
        !is_rare(operation, *status) && !driven_elsewhere(operation, *status)
    });
    assert_eq!(left.collect::<Vec<_>>(), []);
}

fn describes_itself(world: &World) {
    for path in [DISCOVERY_PATH, OPENAPI_PATH] {
        let served = world.ask("GET", path, &[], b"").is(200);
        let etag = served.header("etag").expect("a tag").to_owned();
        for known in [etag.clone(), format!("\"x\", W/{etag}"), "*".to_owned()] {
            world.ask("GET", path, &[("if-none-match", &known)], b"").is(304);
        }
        world.ask("GET", path, &[("if-none-match", "\"other\"")], b"").is(200);
        world.ask("GET", &format!("{path}?{}", "x".repeat(2_100)), &[], b"").is(400);
        let head = exchange(world.address, &request("HEAD", path, &[], b""));
        assert_eq!((head.status, head.body.len()), (200, 0));
    }
    let document = &world.document.text;
    assert_eq!(document["info"]["version"], env!("CARGO_PKG_VERSION"));
    let types = &document["components"]["schemas"]["Event"]["properties"]["type"]["enum"];
    let types = types.as_array().expect("a list").iter().filter_map(Value::as_str);
    let own = EventKind::ALL.iter().map(|kind| kind.as_str()).chain(["state.snapshot"]);
    assert_eq!(types.collect::<BTreeSet<_>>(), own.collect());
}

fn reads_workflows(world: &World) {
    let workflow = world.get("/v1/workflows/linear").is(200).json();
    assert_eq!(workflow["id"], "linear");
    assert_eq!(workflow["nodes"].as_array().map(Vec::len), Some(3));
    world.ask("GET", "/v1/workflows/linear", &[], b"").is(401);
    world.get("/v1/workflows/%ff").is(400);
    assert_eq!(world.get("/v1/workflows/none").is(404).json()["error"], "workflow_not_found");
}

fn creates_and_reads(world: &World) {
    let body = json!({
        "workflowId": "conformance-identity", "inputs": {"payload": {"a": [1, null]}},
        "configurable": {"runTimeoutMs": 1e9, "recursionLimit": 5.0, "temperature": 0.5},
        "tags": ["x", "é"], "metadata": {"k": {"l": 1}},
    });
    let run = world.run(&body);
    world.until_over(&run);
    let snapshot = world.snapshot(&run);
    assert_eq!(snapshot["status"], "completed");
    assert_eq!(snapshot["outputs"], json!({"payload": {"a": [1, null]}}));
    assert_eq!((&snapshot["tags"], &snapshot["metadata"]), (&body["tags"], &body["metadata"]));
    world.post("/v1/runs", r#"{"workflowId": "nobody"}"#).is(404);
    world.post("/v1/runs", r#"{"workflowId": "conformance-identity"}"#).is(400);
    world.post("/v1/runs", "").is(400);
    world.get(&format!("/v1/runs/run-{}", "0".repeat(32))).is(404);
    world.get("/v1/runs/1").is(404);
}

fn processes_a_request_once(world: &World) {
    let ask = |key: &str, nonce: &str| {
        let body = json!({"workflowId": "conformance-idempotent", "inputs": {"nonce": nonce}});
        world.post_with("/v1/runs", &[("idempotency-key", key)], body.to_string().as_bytes())
    };
    let first = ask("key one", "1").is(201);
    assert_eq!(first.header("openwop-idempotent-replay"), None);
    let again = ask("key one", "1").is(201);
    assert_eq!(again.header("openwop-idempotent-replay"), Some("true"));
    assert_eq!(again.json()["runId"], first.json()["runId"]);
    assert_eq!(ask("key one", "2").is(409).json()["error"], "idempotency_key_mismatch");
    for bad in ["", "é", "a\tb", &"k".repeat(257)] {
        ask(bad, "1").is(400);
    }
}

fn follows_events(world: &World) {
    let run = world.ended("log");
    let at = format!("/v1/runs/{run}/events");
    let all = world.get(&at).is(200).json()["events"].as_array().expect("a list").len();
    for (mode, listed, events) in
        [("debug", all, all), ("updates", 3, 3), ("values", 1, 4), ("messages", 0, 0)]
    {
        let target = format!("{at}?streamMode={mode}&bufferMs=50");
        assert_eq!(
            world.get(&target).is(200).json()["events"].as_array().map(Vec::len),
            Some(listed)
        );
        let stream = world.get_with(&target, "accept", "text/event-stream").is(200);
        assert_eq!(frames(&stream.body).len(), events, "{mode}");
    }
    let stream = world.get_with(&at, "accept", "text/event-stream").is(200);
    let event = &world.document.text["components"]["schemas"]["Event"];
    for frame in frames(&stream.body) {
        assert!(world.document.validator(event).is_valid(&frame), "{frame:#}");
    }
    let key = format!("Bearer {KEY}");
    let resumed = |last: &str, accept: &str| {
        let headers = [("authorization", &*key), ("accept", accept), ("last-event-id", last)];
        world.ask("GET", &format!("{at}?streamMode=debug"), &headers, b"")
    };
    for (last, left) in [("0", all - 1), ("18446744073709551615", 0)] {
        assert_eq!(frames(&resumed(last, "text/event-stream").is(200).body).len(), left, "{last}");
    }
    for bad in ["", "x", "-1", "1.5", "18446744073709551616"] {
        resumed(bad, "text/event-stream").is(400);
        resumed(bad, "application/json").is(400);
    }
    let unknown = world.get(&format!("{at}?streamMode=other")).is(400).json();
    assert_eq!(unknown["error"], "unsupported_stream_mode");
    world.get(&format!("{at}?streamMode=debug&streamMode=debug")).is(400);
    world.get(&format!("{at}?mode=debug")).is(400);
    world.get_with(&at, "accept", "image/png").is(406);
    world.get("/v1/runs/1/events").is(404);
    world.get_with("/v1/runs/1/events", "accept", "text/event-stream").is(404);
}

/// The events of a stream, whose frames repeat the number and the type of the event.
fn frames(body: &[u8]) -> Vec<Value> {
    let text = str::from_utf8(body).expect("text");
    let frames = text.split("\n\n").filter(|frame| !frame.is_empty() && !frame.starts_with(':'));
    let read = |frame: &str| {
        let field = |name: &str| {
            let line = frame.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_else(|| panic!("no {name} in {frame}"))
        };
        let event: Value = serde_json::from_str(field("data: ")).expect("JSON");
        assert_eq!(event["sequence"].to_string(), field("id: "));
        assert_eq!(event["type"], field("event: "));
        event
    };
    frames.map(read).collect()
}

#[test]
fn a_poll_does_not_read_again_what_the_one_before_has_read() {
    let world = World::new();
    let run = world.run(&json!({"workflowId": "approval"}));
    world.until_waiting(&run);
    let poll =
        || world.get(&format!("/v1/runs/{run}/events/poll")).is(200).json()["events"].clone();
    let before = poll();
    world.remove_records(&run);
    assert_eq!(poll(), before);
}

#[test]
fn the_log_of_a_run_that_is_over_is_not_kept() {
    let world = World::new();
    let run = world.ended("conformance-multi-node");
    world.remove_records(&run);
    // The last poll may still have its log.
    let poll = || world.get(&format!("/v1/runs/{run}/events/poll")).status;
    assert!((0..20_000).any(|_| poll() == 404), "events of a removed run are shown");
}

fn polls_events(world: &World) {
    let run = world.ended("conformance-multi-node");
    let at = format!("/v1/runs/{run}/events/poll");
    let all = world.get(&at).is(200).json();
    assert_eq!(
        (&all["isComplete"], all["events"].as_array().map(Vec::len)),
        (&json!(true), Some(8))
    );
    for (query, events) in [
        ("lastSequence=-1", 8),
        ("lastSequence=3", 4),
        ("lastSequence=3&timeout=0.5", 4),
        ("lastSequence=7", 0),
        ("lastSequence=18446744073709551615&timeout=1e9", 0),
    ] {
        let polled = world.get(&format!("{at}?{query}")).is(200).json();
        assert_eq!(polled["events"].as_array().map(Vec::len), Some(events), "{query}");
        assert_eq!(polled["isComplete"], true, "{query}");
    }
    for bad in [
        "lastSequence=-2",
        "lastSequence=",
        "lastSequence=1.5",
        "lastSequence=18446744073709551616",
        "timeout=-1",
        "timeout=inf",
        "timeout=NaN",
        "timeout=soon",
        "timeout=",
        "timeout=1&timeout=1",
        "after=1",
    ] {
        world.get(&format!("{at}?{bad}")).is(400);
    }
    world.get("/v1/runs/1/events/poll").is(404);
}

fn cancels(world: &World) {
    let run = world.run(&json!({"workflowId": "conformance-cancellable"}));
    let at = format!("/v1/runs/{run}/cancel");
    let said = world.post(&at, r#"{"reason": "enough"}"#).is(200).json();
    assert_eq!(said["runId"], run);
    world.until_over(&run);
    assert_eq!(world.post(&at, "{}").is(200).json()["status"], "cancelled");
    let over = world.ended("conformance-noop");
    let ended = world.post(&format!("/v1/runs/{over}/cancel"), "").is(200).json();
    assert_eq!(ended, json!({"runId": over, "status": "completed"}));
    world.post("/v1/runs/1/cancel", "").is(404);
}

fn forks(world: &World) {
    let run = world.ended("conformance-multi-node");
    let at = format!("/v1/runs/{run}:fork");
    let replay = world.post(&at, r#"{"mode": "replay", "fromSeq": 2}"#).is(201).json();
    assert_eq!((&replay["mode"], &replay["fromSeq"]), (&json!("replay"), &json!(2)));
    let overlay = json!({
        "mode": "branch", "fromSeq": 3,
        "runOptionsOverlay": {"configurable": {"recursionLimit": 2}, "tags": ["t"], "metadata": {}},
    });
    let branch = world.post(&at, &overlay.to_string()).is(201).json();
    let branch = branch["runId"].as_str().expect("an id");
    world.until_over(branch);
    let snapshot = world.snapshot(branch);
    assert_eq!(snapshot["forkedFrom"], json!({"runId": run, "fromSeq": 3, "mode": "branch"}));
    assert_eq!(snapshot["tags"], json!(["t"]));
    world.post(&at, r#"{"mode": "branch", "fromSeq": 8}"#).is(422);
    world.post(&at, r#"{"mode": "branch", "fromSeq": -1}"#).is(400);
    world.post(&at, r#"{"mode": "replay", "runOptionsOverlay": {}}"#).is(400);
    // The copied events have used up the limit.
    let used = json!({
        "mode": "branch", "fromSeq": 5, "runOptionsOverlay": {"configurable": {"recursionLimit": 1}},
    });
    world.post(&at, &used.to_string()).is(400);
    world.post("/v1/runs/1:fork", r#"{"mode": "replay"}"#).is(404);
    let active = world.run(&json!({"workflowId": "approval"}));
    world.until_waiting(&active);
    let refused = world.post(&format!("/v1/runs/{active}:fork"), r#"{"mode": "replay"}"#).is(409);
    assert_eq!(refused.json()["error"], "run_active");
}

fn resolves(world: &World) {
    let run = world.run(&json!({"workflowId": "approval"}));
    let node = world.until_waiting(&run);
    let at = format!("/v1/runs/{run}/interrupts/{node}");
    let bad = world.post(&at, r#"{"resumeValue": {"action": "shrug"}}"#).is(400).json();
    assert_eq!(bad["details"]["path"], "/resumeValue/action");
    world.post(&format!("/v1/runs/{run}/interrupts/nobody"), r#"{"resumeValue": 1}"#).is(404);
    // The run records it twice.
    let large = json!({"resumeValue": {"action": "accept", "comment": "x".repeat(600 << 10)}});
    world.post(&at, &large.to_string()).is(413);
    world.post(&at, r#"{"resumeValue": {"action": "accept"}}"#).is(200);
    let late = world.post(&at, r#"{"resumeValue": {"action": "accept"}}"#).is(409).json();
    assert_eq!(late["error"], "interrupt_already_resolved");
    world.until_over(&run);
    assert_eq!(world.snapshot(&run)["status"], "completed");
    world.post("/v1/runs/1/interrupts/ask", r#"{"resumeValue": 1}"#).is(404);
}

/// Refusals of every operation that has a body or needs a key.
fn refuses_what_cannot_be_read(world: &World) {
    let run = world.ended("conformance-noop");
    let posts = [
        "/v1/runs".to_owned(),
        format!("/v1/runs/{run}:fork"),
        format!("/v1/runs/{run}/cancel"),
        format!("/v1/runs/{run}/interrupts/noop"),
    ];
    let deep = format!(r#"{{"inputs": {}{}}}"#, r#"{"a":"#.repeat(70), "}".repeat(70));
    let many = format!(r#"{{"inputs": {{"a": [{}1]}}}}"#, "1,".repeat(70_000));
    for target in &posts {
        let text = [("content-type", "text/plain")];
        assert_eq!(
            world.post_with(target, &text, b"{}").is(415).json()["error"],
            "unsupported_media_type"
        );
        let coded = [("content-encoding", "gzip")];
        world.post_with(target, &coded, b"{}").is(415);
        for bad in ["{", "[]", "null", "7", "\"x\"", "{} {}", "\u{feff}{}", "{\"a\": 1e999}", " "] {
            world.post(target, bad).is(400);
        }
        world.post_with(target, &[], b"{\"a\": \"\xff\"}").is(400);
        world.post(target, &deep).is(400);
        world.post(target, &many).is(400);
        world.post(target, &format!(r#"{{"x": "{}"}}"#, "x".repeat(1 << 20))).is(413);
        world.ask("POST", target, &[("content-type", "application/json")], b"{}").is(401);
    }
    let gets = [
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/events"),
        format!("/v1/runs/{run}/events/poll"),
        "/metrics".to_owned(),
    ];
    for target in &gets {
        for bad in ["Bearer ", "Bearer another-key-of-these", "Basic YTpi", KEY] {
            world.ask("GET", target, &[("authorization", bad)], b"").is(401);
        }
        world.ask("GET", target, &[], b"").is(401);
    }
    let long = "x".repeat(2_100);
    for target in gets.iter().chain(["/healthz".to_owned()].iter()) {
        world.get(&format!("{target}?{long}")).is(400);
    }
    for path in ["/v1/runs/%ff", "/v1/runs/%", "/v1/runs/%zz/events", "/v1/runs/%ff/events/poll"] {
        world.get(path).is(400);
    }
    for path in ["/v1/runs/%ff:fork", "/v1/runs/%ff/cancel", "/v1/runs/1/interrupts/%ff"] {
        world.post(path, "{}").is(400);
    }
    for path in ["/", "/v1", "/v1/runs/", "/v1/nothing", "/v1/runs//events", "/v2/runs"] {
        assert_eq!(world.get(path).is(404).json()["error"], "not_found");
    }
    for (method, target, allowed) in [
        ("GET", "/v1/runs".to_owned(), "POST"),
        ("PUT", gets[1].clone(), "GET,HEAD"),
        ("DELETE", posts[2].clone(), "POST"),
        ("PATCH", DISCOVERY_PATH.to_owned(), "GET,HEAD"),
        ("POST", gets[0].clone(), "GET,HEAD"),
        ("GET", posts[1].clone(), "POST"),
        ("DELETE", gets[0].clone(), "GET,HEAD"),
        ("OPTIONS", posts[1].clone(), "POST"),
        ("BREW", "/healthz".to_owned(), "GET,HEAD"),
    ] {
        let key = format!("Bearer {KEY}");
        let refused = world.ask(method, &target, &[("authorization", &key)], b"").is(405);
        assert_eq!(refused.header("allow"), Some(allowed), "{method} {target}");
        assert_eq!(refused.json()["error"], "method_not_allowed");
    }
    // Requests that are not HTTP may be answered or not; they do not break the host.
    for bytes in
        [&b"\0\0\r\n\r\n"[..], b"GET\r\n\r\n", b"GET / HTTP/9\r\n\r\n", b"POST /v1/runs\r\n\r\n"]
    {
        use std::io::Write as _;
        let mut stream = connect(world.address);
        stream.write_all(bytes).expect("it listens");
        let answer = Answer::read(&mut stream);
        assert!(answer.is_none_or(|answer| answer.status < 500));
    }
}

/// The links that the document declares for a response lead somewhere.
fn follows_links(world: &World) {
    let mut links = 0;
    let run = world.ended("conformance-noop");
    let create = world.post("/v1/runs", r#"{"workflowId": "conformance-noop"}"#).is(201).json();
    let created = create["runId"].as_str().expect("an id").to_owned();
    world.until_over(&created);
    let fork = world.post(&format!("/v1/runs/{run}:fork"), r#"{"mode": "replay"}"#).is(201).json();
    let waiting = world.run(&json!({"workflowId": "approval"}));
    world.until_waiting(&waiting);
    let looked = world.snapshot(&waiting);
    for (template, method, answer) in [
        ("/v1/runs", "post", &create),
        ("/v1/runs/{runId}:fork", "post", &fork),
        ("/v1/runs/{runId}", "get", &looked),
    ] {
        let responses = world.document.text["paths"][template][method]["responses"].as_object();
        let declared = responses
            .into_iter()
            .flatten()
            .filter_map(|(_, response)| response["links"].as_object());
        for (name, link) in declared.flatten() {
            links += 1;
            let id = link["operationId"].as_str().expect("an operation");
            let mut found = operation(world, id).unwrap_or_else(|| panic!("{name}: no {id}"));
            for (parameter, expression) in link["parameters"].as_object().expect("parameters") {
                let place = expression.as_str().and_then(|one| one.strip_prefix("$response.body#"));
                let value = answer.pointer(place.expect("of the body"));
                let value = value.and_then(Value::as_str).expect("it is there");
                found.1 = found.1.replace(&format!("{{{parameter}}}"), value);
            }
            let (method, target) = found;
            assert!(!target.contains('{'), "{name}: {target}");
            let status = if method == "GET" {
                world.get(&target).status
            } else {
                let body = link.get("requestBody").map(ToString::to_string).unwrap_or_default();
                world.post(&target, &body).status
            };
            // A run that is over cannot be cancelled, and an answer must not be empty.
            assert!([200, 201, 400, 409].contains(&status), "{name} is answered {status}");
        }
    }
    assert_eq!(links, 5 + 4 + 3);
}

/// The method and the template of an operation.
fn operation(world: &World, id: &str) -> Option<(String, String)> {
    world.document.operations().into_iter().find_map(|operation| {
        let (method, template) = operation.split_once(' ')?;
        let found = &world.document.text["paths"][template][method.to_lowercase()];
        (found["operationId"] == id).then(|| (method.to_owned(), template.to_owned()))
    })
}

/// While the journal is failing, requests have no effect.
fn reports_a_failing_journal(world: &World) {
    let waiting = world.run(&json!({"workflowId": "approval"}));
    world.until_waiting(&waiting);
    world.journal.set_failing(Some("disk full at /secret/place".to_owned()));
    for (target, body) in [
        ("/v1/runs".to_owned(), r#"{"workflowId": "conformance-noop"}"#),
        (format!("/v1/runs/{waiting}:fork"), r#"{"mode": "branch", "fromSeq": 0}"#),
        (format!("/v1/runs/{waiting}/interrupts/ask"), r#"{"resumeValue": {"action": "accept"}}"#),
    ] {
        let refused = world.post(&target, body).is(503);
        assert_eq!(refused.header("retry-after"), Some("1"), "{target}");
        assert_eq!(refused.json()["error"], "service_unavailable");
    }
    let health = world.ask("GET", "/healthz", &[], b"").is(503).json();
    assert_eq!(health["details"]["reasons"], json!(["journal"]));
    world.journal.set_failing(None);
    // The answer had no effect.
    assert_eq!(world.snapshot(&waiting)["status"], "waiting-approval");
    world.post(&format!("/v1/runs/{waiting}/cancel"), "").is(200);
    world.until_over(&waiting);
}

fn reports_its_health(world: &World) {
    world.ended("conformance-noop");
    assert_eq!(world.ask("GET", "/healthz", &[], b"").is(200).json(), json!({"healthy": true}));
    let metrics = world.get_with("/metrics", "accept", "text/plain").is(200);
    let text = String::from_utf8(metrics.body).expect("text");
    assert!(text.contains("temper_wasm_epoch_ticker_healthy 1"), "{text}");
    world.close();
    let health = world.ask("GET", "/healthz", &[], b"").is(503).json();
    assert_eq!(health["details"]["reasons"], json!(["shutting_down"]));
}

#[test]
fn only_operations_that_the_document_declares_open_need_no_key() {
    let world = World::new();
    for operation in world.document.operations() {
        let (method, template) = operation.split_once(' ').expect("both");
        let described = &world.document.text["paths"][template][method.to_lowercase()];
        let is_open = described["security"] == json!([]);
        let target = template.replace("{runId}", "1").replace("{nodeId}", "1");
        let answer = exchange(world.address, &request(method, &target, &[], b""));
        assert_eq!(answer.status == 401, !is_open, "{operation}: {}", answer.status);
    }
}
