//! Batches of requests: their number, the size of their responses together, and what ends them.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, Settings, Signal,
};
use sandglass_model::GuestLimits;
use serde_json::{Value, json};

use crate::server::{Script, Server};
use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Sends the batch in its entity's field `batch`, and reports the responses as its progress, or the
/// error as its status.
const SENDS: &str = r#"(module
    (import "env" "host_read_field" (func $field (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_http_call_batch" (func $batch (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
    (import "env" "host_emit_progress" (func $progress (param i32 i32) (result i32)))
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 4)
    (data (i32.const 8) "batch")
    (data (i32.const 32) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32) (local $n i32)
        (local.set $n (call $field
            (i32.const 8) (i32.const 5) (i32.const 65536) (i32.const 65536)))
        (local.set $n (call $batch
            (i32.const 65536) (local.get $n) (i32.const 131072) (i32.const 65536)))
        (if (i32.ge_s (local.get $n) (i32.const 0))
            (then (drop (call $progress (i32.const 131072) (local.get $n))))
            (else (drop (call $status (i32.const 131072)
                (call $error (i32.const 131072) (i32.const 1024))))))
        (call $set (i32.const 32) (i32.const 16))
        i32.const 0))"#;

/// The signal of a guest that sends `count` requests to `server`.
async fn signal_of(server: &Server, count: usize, manifest: Manifest) -> Signal {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let allowed = server.address.to_string().parse().expect("a host");
    let guest = host.load(SENDS.as_bytes(), manifest.allow_hosts([allowed])).expect("a guest");
    let batch = vec![json!({"method": "GET", "url": server.url()}); count];
    let context =
        Context { entity_state: json!({"fields": {"batch": batch}}), ..Context::default() };
    let received = Received::new();
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(LONG))
        .signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    let [signal] = &received.all()[..] else { panic!("{received:?}") };
    signal.clone()
}

fn responses(signal: Signal) -> Vec<Value> {
    let Signal::Progress(Value::Array(responses)) = signal else { panic!("{signal:?}") };
    responses
}

fn error(signal: Signal) -> String {
    let Signal::Status(error) = signal else { panic!("{signal:?}") };
    error
}

#[tokio::test]
async fn a_batch_may_have_64_requests_and_not_65() {
    let server = Server::start(Script { status: 204, ..Script::default() }).await;
    let responses = responses(signal_of(&server, 64, Manifest::named("sends")).await);
    assert_eq!(responses, vec![json!({"status": 204, "body": ""}); 64]);
    let error = error(signal_of(&server, 65, Manifest::named("sends")).await);
    assert!(error.contains("65 requests, and 64 are allowed"), "{error}");
    assert_eq!(server.requests().len(), 64, "nothing of the second batch was sent");
}

#[tokio::test]
async fn the_responses_of_a_batch_share_the_bound_of_one_response() {
    let script = Script { status: 200, body: "x".repeat(400), ..Script::default() };
    let server = Server::start(script).await;
    let limits = GuestLimits { response_bytes: 1000, ..GuestLimits::default() };
    let manifest = Manifest::named("sends").limits(limits);
    // More than are in flight at a time, so some begin when less of the bound is left.
    let responses = responses(signal_of(&server, 20, manifest).await);
    let (complete, too_large): (Vec<_>, Vec<_>) =
        responses.iter().partition(|response| response["status"] == 200);
    assert_eq!((complete.len(), too_large.len()), (2, 18), "{responses:?}");
    for response in too_large {
        assert_eq!((&response["status"], &response["body"]), (&json!(0), &json!("")));
        let error = response["error"].as_str().unwrap_or_default();
        assert!(error.contains("larger than the 1000 bytes"), "{error}");
    }
}

#[tokio::test]
async fn a_batch_that_waits_is_cut_by_the_soft_deadline() {
    let server = Server::start(Script { never: true, ..Script::default() }).await;
    let before = LONG - Duration::from_millis(200);
    let manifest = Manifest::named("sends").soft_deadline(before);
    let error = error(signal_of(&server, 3, manifest).await);
    assert!(error.contains("the soft deadline passed"), "{error}");
}
