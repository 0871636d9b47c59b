//! A request with an idempotency key is done once.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::client::{Ask, Reply};
use crate::host::{Host, Setup, shared};

#[track_caller]
fn ask(host: &Host, key: &str, nonce: &str) -> Reply {
    let body = json!({ "workflowId": "conformance-idempotent", "inputs": { "nonce": nonce } });
    host.ask(&Ask::new("POST /v1/runs").header("idempotency-key", key).json(&body))
}

fn is_replayed(reply: &Reply) -> bool {
    reply.header("openwop-idempotent-replay") == Some("true")
}

#[track_caller]
fn id(reply: Reply) -> Value {
    reply.expect(201)["runId"].take()
}

#[test]
fn a_repeated_request_returns_the_same_run_and_a_different_one_is_refused() {
    let host = shared();
    let first = ask(&host, "once-1", "a");
    assert_eq!(first.header("openwop-idempotent-replay"), None);
    let run = id(first);
    host.again(run.as_str().expect("an id")).finished();
    for _ in 0..2 {
        let again = ask(&host, "once-1", "a");
        assert!(is_replayed(&again), "{again:?}");
        assert_eq!(id(again), run);
    }
    ask(&host, "once-1", "b").fails(409, "idempotency_key_mismatch");
    assert_ne!(id(ask(&host, "once-2", "a")), run);
    // The order of keys and the space between them are the same request.
    let text = r#"{ "inputs": {"nonce":"a"},  "workflowId":"conformance-idempotent" }"#;
    let again = host.ask(&Ask::new("POST /v1/runs").header("idempotency-key", "once-1").text(text));
    assert!(is_replayed(&again), "{again:?}");
    assert_eq!(id(again), run);
    for wrong in ["", &"k".repeat(257)] {
        ask(&host, wrong, "a").fails(400, "validation_error");
    }
    let twice = Ask::new("POST /v1/runs").header("idempotency-key", "a");
    let twice = twice.header("idempotency-key", "b");
    host.ask(&twice.json(&json!({ "workflowId": "conformance-noop" })))
        .fails(400, "validation_error");
}

#[test]
fn a_key_outlives_its_host() {
    let host = Setup::new().start();
    let run = id(ask(&host, "once", "a"));
    let check = |host: &Host| {
        let again = ask(host, "once", "a");
        assert!(is_replayed(&again), "{again:?}");
        assert_eq!(id(again), run);
        ask(host, "once", "b").fails(409, "idempotency_key_mismatch");
        let log = host.again(run.as_str().expect("an id")).finished();
        assert_eq!(log.of("run.started").len(), 1);
    };
    let host = host.stop().start();
    check(&host);
    let host = host.kill().start();
    check(&host);
    let records = host.kill().journal();
    let is_birth = |record: &&Value| {
        let entity = record["entity"].as_str().unwrap_or_default();
        entity.starts_with("OpenwopRun/") && record["event"]["type"] == "created"
    };
    assert_eq!(records.iter().filter(is_birth).count(), 1);
}

#[test]
fn concurrent_requests_with_one_key_are_one_run() {
    const CLIENTS: usize = 20;
    let host = shared();
    let answers: Vec<Reply> = thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|_| scope.spawn(|| ask(&host, "crowd", "a"))).collect();
        clients.into_iter().map(|client| client.join().expect("it asked")).collect()
    });
    assert_eq!(answers.len(), CLIENTS);
    assert_eq!(answers.iter().filter(|answer| !is_replayed(answer)).count(), 1, "{answers:#?}");
    let runs: BTreeSet<String> =
        answers.into_iter().map(|answer| id(answer).as_str().expect("an id").to_owned()).collect();
    let [run] = &Vec::from_iter(runs)[..] else { panic!("not one run") };
    let log = host.again(run).finished();
    assert_eq!(log.nodes("node.started"), ["noop"]);
}

#[test]
fn a_repeated_fork_returns_the_same_run_and_a_different_one_is_refused() {
    let host = shared();
    let source = host.run("conformance-multi-node");
    let other = host.run("conformance-noop");
    let end = source.finished().events.len();
    other.finished();
    let fork = |run: &str, key: &str, body: &Value| {
        let line = format!("POST /v1/runs/{run}:fork");
        host.ask(&Ask::new(&line).header("idempotency-key", key).json(body))
    };
    let branch = json!({ "mode": "branch", "fromSeq": 3 });
    let replay = json!({ "mode": "replay" });
    for (key, body) in [("fork-1", &branch), ("fork-2", &replay)] {
        let first = fork(&source.id, key, body);
        assert!(!is_replayed(&first), "{first:?}");
        let again = fork(&source.id, key, body);
        assert!(is_replayed(&again), "{again:?}");
        assert_eq!(again.body["fromSeq"], first.body["fromSeq"]);
        let run = id(first);
        assert_eq!(id(again), run);
        host.again(run.as_str().expect("an id")).finished();
    }
    for (run, key, body) in [
        (&source.id, "fork-1", &json!({ "mode": "branch", "fromSeq": 0 })),
        (&source.id, "fork-1", &replay),
        (&source.id, "fork-2", &branch),
        (&other.id, "fork-1", &branch),
    ] {
        fork(run, key, body).fails(409, "idempotency_key_mismatch");
    }
    // A key of a fork is not one of a run.
    assert!(!is_replayed(&ask(&host, "fork-1", "a")));
    // Nothing is kept of a request that is refused.
    fork(&source.id, "fork-3", &json!({ "mode": "branch", "fromSeq": end }))
        .fails(422, "fork_past_end");
    assert!(!is_replayed(&fork(&source.id, "fork-3", &branch)));
}
