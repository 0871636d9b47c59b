//! Requests and responses of core modules piece by piece, and calls of the Connect protocol, against a
//! real server.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, RecordingLimits, RunReport,
    Settings, Signal,
};
use sandglass_model::{GuestLimits, Recording};
use serde_json::{Value, json};

use crate::server::{Script, Server};
use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A guest that executes `body`. `$begin` begins a POST to `url`, whose handles are `$request` and
/// `$response`; `$say` sets a text in its memory as the status, and `$why` the last error.
fn guest(url: &str, body: &str) -> String {
    let length = url.len();
    format!(
        r#"(module
        (import "env" "host_http_stream_begin_outbound"
            (func $begin_outbound (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "env" "host_http_stream_try_write" (func $write (param i32 i32 i32) (result i32)))
        (import "env" "host_http_stream_read" (func $read (param i32 i32 i32) (result i32)))
        (import "env" "host_http_stream_close" (func $close (param i32) (result i32)))
        (import "env" "host_http_stream_response_head"
            (func $head (param i32 i32 i32) (result i32)))
        (import "env" "host_http_stream_send_response_head"
            (func $send_head (param i32 i32 i32) (result i32)))
        (import "env" "host_connect_call"
            (func $connect (param i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 4)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 32) "POST")
        (data (i32.const 48) "[[\"x-of-guest\",\"yes\"]]")
        (data (i32.const 80) "first,second")
        (data (i32.const 128) "{url}")
        (func $begin_at (param $request i32) (param $response i32) (result i32)
            (call $begin_outbound (i32.const 32) (i32.const 4) (i32.const 128)
                (i32.const {length}) (i32.const 48) (i32.const 22)
                (local.get $request) (local.get $response)))
        (func $begin (result i32) (call $begin_at (i32.const 1024) (i32.const 1028)))
        (func $request (result i32) (i32.load (i32.const 1024)))
        (func $response (result i32) (i32.load (i32.const 1028)))
        (func $call (param $out i32) (param $out_len i32) (result i32)
            (call $connect (i32.const 128) (i32.const {length}) (i32.const 48) (i32.const 22)
                (i32.const 80) (i32.const 12) (local.get $out) (local.get $out_len)))
        (func $say (param $at i32) (param $len i32)
            (drop (call $status (local.get $at) (local.get $len))))
        (func $why
            (call $say (i32.const 2048) (call $error (i32.const 2048) (i32.const 1024))))
        ;; Traps unless both are the same.
        (func $is (param $found i32) (param $expected i32)
            (if (i32.ne (local.get $found) (local.get $expected)) (then unreachable)))
        (func $body (local $at i32) (local $n i32)
            {body})
        (func (export "run") (param i32 i32) (result i32)
            (call $body)
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

fn host() -> Host {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

fn manifest() -> Manifest {
    Manifest::named("streams").allow_hosts(["127.0.0.1".parse().expect("a host")])
}

fn dispatch(budget: Duration) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
}

/// Executes the guest, and returns its report and the statuses that it has set.
async fn run(host: &Host, guest: &str, manifest: Manifest) -> (RunReport, Vec<String>) {
    let integration = host.load(guest.as_bytes(), manifest).expect("a guest");
    let received = Received::new();
    let dispatch =
        dispatch(LONG).recorded(RecordingLimits::default()).signals(Arc::clone(&received) as _);
    let report = host.run(&integration, dispatch).await.expect("it ran");
    let statuses = received.all().into_iter().map(|signal| match signal {
        Signal::Status(status) => status,
        other => panic!("{other:?}"),
    });
    (report, statuses.collect())
}

/// The statuses of a guest that completes.
async fn statuses(guest: &str, manifest: Manifest) -> Vec<String> {
    let (report, statuses) = run(&host(), guest, manifest).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    statuses
}

async fn replay(host: &Host, guest: &str, report: &RunReport) -> Replayed {
    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let recorded = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let guest = host.load_for_replay(guest.as_bytes(), &recorded).expect("the guest");
    let end = RecordedEnd::from(report);
    host.replay(&guest, Replay::new(&recorded, &end)).await.expect("it is replayed")
}

fn answers(status: u16, body: &str) -> Script {
    Script { status, body: body.to_owned(), ..Script::default() }
}

/// Sends two pieces, and reads the response three bytes at a time.
const EXCHANGE: &str = "
    (call $is (call $begin) (i32.const 0))
    (call $is (call $write (call $request) (i32.const 80) (i32.const 6)) (i32.const 6))
    (call $is (call $write (call $request) (i32.const 80) (i32.const 0)) (i32.const 0))
    (call $is (call $write (call $request) (i32.const 86) (i32.const 6)) (i32.const 6))
    (call $is (call $close (call $request)) (i32.const 0))
    (call $is (call $head (call $response) (i32.const 4096) (i32.const 8)) (i32.const -2))
    (call $say (i32.const 4096) (call $head (call $response) (i32.const 4096) (i32.const 999)))
    (local.set $at (i32.const 8192))
    (loop $more
        (local.set $n (call $read (call $response) (local.get $at) (i32.const 3)))
        (local.set $at (i32.add (local.get $at) (local.get $n)))
        (br_if $more (i32.gt_s (local.get $n) (i32.const 0))))
    (call $is (local.get $n) (i32.const 0))
    (call $say (i32.const 8192) (i32.sub (local.get $at) (i32.const 8192)))
    (call $is (call $close (call $response)) (i32.const 0))";

#[tokio::test]
async fn a_request_is_written_and_its_response_read_piece_by_piece_and_replayed_without_a_server() {
    let server = Server::start(answers(201, "a longer answer")).await;
    let (host, guest) = (host(), guest(&server.url(), EXCHANGE));
    let (report, statuses) = run(&host, &guest, manifest()).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let [head, body] = statuses.as_slice() else { panic!("{statuses:?}") };
    let head: Value = serde_json::from_str(head).expect("JSON");
    assert_eq!(head["status"], 201);
    let length = json!(["content-length", "15"]);
    assert!(head["headers"].as_array().expect("a list").contains(&length), "{head}");
    assert_eq!(body, "a longer answer");

    let requests = server.requests();
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    assert!(request.contains("x-of-guest: yes") && request.contains("traceparent: "), "{request}");
    let sent = request.find("first,").zip(request.find("second"));
    assert!(sent.is_some_and(|(first, second)| first < second), "{request}");
    let story = &report.story.requests[0];
    assert_eq!((story.host.clone(), story.status), (server.address.to_string(), Some(201)));

    drop(server);
    let calls = report.host_calls.count;
    assert_eq!(replay(&host, &guest, &report).await, Replayed { calls, divergence: None });
}

#[tokio::test]
async fn a_request_to_a_host_that_is_not_granted_does_not_begin() {
    let server = Server::start(answers(200, "")).await;
    let guest = guest(&server.url(), "(call $is (call $begin) (i32.const -4)) (call $why)");
    let statuses = statuses(&guest, Manifest::named("streams")).await;
    assert!(statuses[0].contains("is not allowed for this integration"), "{statuses:?}");
    assert!(server.requests().is_empty());
}

#[tokio::test]
async fn a_request_that_fails_has_a_head_with_the_status_0_and_the_reason() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let body = "
        (call $is (call $begin) (i32.const 0))
        (call $is (call $close (call $request)) (i32.const 0))
        (call $say (i32.const 4096)
            (call $head (call $response) (i32.const 4096) (i32.const 999)))
        (call $why)
        (call $is (call $read (call $response) (i32.const 4096) (i32.const 9)) (i32.const 0))
        (call $is (call $begin) (i32.const 0))
        (call $is (call $close (call $request)) (i32.const 0))
        (call $is (call $read (call $response) (i32.const 4096) (i32.const 9)) (i32.const -4))";
    let statuses = statuses(&guest(&format!("http://{free}/"), body), manifest()).await;
    let head: Value = serde_json::from_str(&statuses[0]).expect("JSON");
    assert_eq!(
        (&head["status"], &head["headers"][0][0]),
        (&json!(0), &json!("x-temper-stream-error"))
    );
    assert_eq!(head["headers"][0][1], json!(statuses[1]), "the same reason");
    assert!(statuses[1].contains("the request failed"), "{statuses:?}");
}

#[tokio::test]
async fn no_handle_pointer_or_length_of_a_guest_reaches_what_it_may_not() {
    let server = Server::start(answers(200, "abc")).await;
    let nowhere = "(i32.const -2)";
    let body = format!(
        "
        (call $is (call $begin_at {nowhere} (i32.const 1028)) (i32.const -4))
        (call $is (call $begin_at (i32.const 1024) (i32.const -1)) (i32.const -4))
        (call $is (call $begin_outbound (i32.const 32) (i32.const -1) (i32.const 128)
            (i32.const 5) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 1028))
            (i32.const -4))
        (call $is (call $begin) (i32.const 0))
        (call $is (call $write (call $request) {nowhere} (i32.const 2)) (i32.const -4))
        (call $is (call $write (call $request) (i32.const 80) (i32.const -1)) (i32.const -4))
        (call $is (call $write (call $response) (i32.const 80) (i32.const 1)) (i32.const -3))
        (call $is (call $write (i32.const -1) (i32.const 80) (i32.const 1)) (i32.const -3))
        (call $is (call $read (call $request) (i32.const 4096) (i32.const 9)) (i32.const -3))
        (call $is (call $head (i32.const 99) (i32.const 4096) (i32.const 9)) (i32.const -3))
        (call $is (call $close (i32.const 0)) (i32.const -3))
        (call $is (call $close (call $request)) (i32.const 0))
        (call $is (call $close (call $request)) (i32.const -3))
        (call $is (call $write (call $request) (i32.const 80) (i32.const 1)) (i32.const -3))
        (call $is (call $read (call $response) {nowhere} (i32.const 9)) (i32.const -4))
        (call $is (call $read (call $response) (i32.const 4096) (i32.const 0)) (i32.const -4))
        (call $is (call $read (call $response) (i32.const 4096) (i32.const -1)) (i32.const -4))
        (call $is (call $read (call $response) (i32.const 4096) (i32.const 9)) (i32.const 3))
        (call $is (call $send_head (call $response) (i32.const 80) (i32.const 2)) (i32.const -3))
        (call $why)
        (call $is (call $call {nowhere} (i32.const 9)) (i32.const -1))
        (call $is (call $connect (i32.const 128) (i32.const -1) (i32.const 0) (i32.const 0)
            (i32.const 0) (i32.const 0) (i32.const 4096) (i32.const 9)) (i32.const -1))"
    );
    let statuses = statuses(&guest(&server.url(), &body), manifest()).await;
    assert!(statuses[0].starts_with("no request from outside waits"), "{statuses:?}");
    assert_eq!(server.requests().len(), 2, "those whose buffers were valid when they began");
}

#[tokio::test]
async fn a_handler_has_16_exchanges_at_a_time() {
    let server = Server::start(answers(200, "")).await;
    let body = "
        (loop $more
            (call $is (call $begin) (i32.const 0))
            (local.set $n (i32.add (local.get $n) (i32.const 1)))
            (br_if $more (i32.lt_u (local.get $n) (i32.const 16))))
        (local.set $at (call $request))
        (call $is (call $begin) (i32.const -4))
        (call $why)
        (call $is (call $close (call $request)) (i32.const 0))
        (call $is (call $close (call $response)) (i32.const 0))
        (call $is (call $begin) (i32.const 0))
        (call $is (i32.gt_u (call $request) (local.get $at)) (i32.const 1))";
    let limits = GuestLimits { host_memory_bytes: Some(64 << 20), ..GuestLimits::default() };
    let statuses = statuses(&guest(&server.url(), body), manifest().limits(limits)).await;
    assert!(statuses[0].contains("16 open streams"), "{statuses:?}");
}

#[tokio::test]
async fn a_handler_is_killed_in_the_function_in_which_it_waits() {
    let never = Server::start(Script { never: true, ..Script::default() }).await;
    let drip = Some(Duration::from_secs(3600));
    let slow = Server::start(Script { drip, ..answers(200, "late") }).await;
    let begun = "(call $is (call $begin) (i32.const 0))";
    let closed = format!("{begun} (call $is (call $close (call $request)) (i32.const 0))");
    let writes = "(loop $more
        (drop (call $write (call $request) (i32.const 4096) (i32.const 65536))) (br $more))";
    let heads = "(drop (call $head (call $response) (i32.const 4096) (i32.const 99)))";
    let reads = "(loop $more
        (drop (call $read (call $response) (i32.const 4096) (i32.const 99))) (br $more))";
    let calls = "(drop (call $call (i32.const 4096) (i32.const 99)))";
    for (server, body, function) in [
        (&never, format!("{begun} {writes}"), "host_http_stream_try_write"),
        (&never, format!("{closed} {heads}"), "host_http_stream_response_head"),
        (&slow, format!("{closed} {reads}"), "host_http_stream_read"),
        (&never, calls.to_owned(), "host_connect_call"),
    ] {
        let host = host();
        let guest = guest(&server.url(), &body);
        let integration = host.load(guest.as_bytes(), manifest()).expect("a guest");
        let dispatch = dispatch(Duration::from_millis(300)).recorded(RecordingLimits::default());
        let report = host.run(&integration, dispatch).await.expect("it ran");
        let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(exceeded.dying_span, function, "{report:?}");
        assert_eq!(replay(&host, &guest, &report).await.divergence, None, "{function}");
    }
}

#[tokio::test]
async fn a_wait_that_reaches_its_own_limit_is_an_error_and_the_request_goes_on() {
    let server = Server::start(Script { after: Duration::from_secs(1), ..answers(200, "x") }).await;
    let body = "
        (call $is (call $begin) (i32.const 0))
        (call $is (call $close (call $request)) (i32.const 0))
        (call $is (call $read (call $response) (i32.const 4096) (i32.const 9)) (i32.const -4))
        (call $why)
        (loop $again (br_if $again
            (i32.eq (i32.const -4) (call $read (call $response) (i32.const 4096) (i32.const 9)))))
        (call $say (i32.const 4096) (i32.const 1))";
    let limit = ("host_http_stream_read".to_owned(), Duration::from_millis(50));
    let manifest = manifest().host_call_timeouts([limit]);
    let statuses = statuses(&guest(&server.url(), body), manifest).await;
    assert!(statuses[0].contains("The limit was 50 ms."), "{statuses:?}");
    assert_eq!(statuses[1], "x");
    assert_eq!(server.requests().len(), 1);
}

/// A stream of one message of up to 255 bytes, and its end.
fn connect_stream(message: &str, end: &str) -> Script {
    let length = |text: &str| char::from(u8::try_from(text.len()).expect("short"));
    let (message_length, end_length) = (length(message), length(end));
    let body = format!("\0\0\0\0{message_length}{message}\u{2}\0\0\0{end_length}{end}");
    answers(200, &body)
}

#[tokio::test]
async fn the_messages_of_a_connect_call_are_a_list_of_texts() {
    let server = Server::start(connect_stream(r#"{"n":1}"#, "{}")).await;
    let body = "
        (call $is (call $call (i32.const 4096) (i32.const 5)) (i32.const -2))
        (call $say (i32.const 4096) (call $call (i32.const 4096) (i32.const 999)))";
    let (host, guest) = (host(), guest(&server.url(), body));
    let (report, statuses) = run(&host, &guest, manifest()).await;
    assert_eq!(statuses, [r#"["{\"n\":1}"]"#], "{report:?}");
    for request in server.requests() {
        for header in [
            "post / http/1.1",
            "content-type: application/connect+json",
            "connect-protocol-version: 1",
            "content-length: 17",
            "x-of-guest: yes",
        ] {
            assert!(request.contains(header), "{request}");
        }
    }
    drop(server);
    assert_eq!(replay(&host, &guest, &report).await.divergence, None);
}

#[tokio::test]
async fn why_a_connect_call_failed_is_the_last_error() {
    let failed = "(call $is (call $call (i32.const 4096) (i32.const 999)) (i32.const -1))
        (call $why)";
    let ended = "(call $say (i32.const 4096) (call $call (i32.const 4096) (i32.const 999)))
        (call $why)";
    let unavailable = r#"{"error":{"code":"unavailable","message":"later"}}"#;
    let large = GuestLimits { response_bytes: 20, ..GuestLimits::default() };
    let usual = GuestLimits::default();
    for (script, limits, body, expected) in [
        (answers(503, "down"), usual, failed, &["the call failed with HTTP 503: down"][..]),
        (answers(200, "abc"), usual, failed, &["an envelope is cut off"]),
        (answers(200, &"x".repeat(21)), large, failed, &["larger than the 20 bytes"]),
        (connect_stream("1", unavailable), usual, ended, &[r#"["1"]"#, "unavailable: later"]),
    ] {
        let server = Server::start(script).await;
        let found = statuses(&guest(&server.url(), body), manifest().limits(limits)).await;
        assert_eq!(found.len(), expected.len(), "{found:?}");
        assert!(found.iter().zip(expected).all(|(found, one)| found.contains(one)), "{found:?}");
    }
    let refused = statuses(&guest("http://10.0.0.1/", failed), manifest()).await;
    assert!(refused[0].contains("not allowed"), "{refused:?}");
}
