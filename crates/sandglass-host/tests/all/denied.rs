//! Calls that are refused or fail, and guests that ignore that: the outcome, and the reason in the
//! report.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_host::{
    Context, Destination, Dispatch, DispatchDeadline, Host, Manifest, OnDenied, Outcome,
    RecordingLimits, RunReport, Settings,
};
use sandglass_model::{CallOutcome, FailureKind, GuestLimits, Recording, RequestOutcome};
use serde_json::json;

use crate::server::{Script, Server};

const SUCCESS: &str = r#"{"action":"Finish","success":true,"params":{}}"#;
const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");

/// A guest that executes `call`, whatever that returns, and then sets `result`. `url` is at 1024, and
/// a batch with a request to it at 2048.
fn guest(url: &str, call: &str, result: &str) -> String {
    let text = |text: &str| text.replace('"', "\\\"");
    let batch = json!([{ "method": "GET", "url": url }]).to_string();
    let call = call
        .replace("URL", &format!("(i32.const 1024) (i32.const {})", url.len()))
        .replace("BATCH", &format!("(i32.const 2048) (i32.const {})", batch.len()));
    format!(
        r#"(module
        (import "env" "host_http_call" (func $get
            (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "env" "host_http_call_batch" (func $batch
            (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_scratch_set" (func $keep (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_last_error" (func $last_error (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set_result (param i32 i32)))
        (memory (export "memory") 2)
        (data (i32.const 16) "GET")
        (data (i32.const 1024) "{}")
        (data (i32.const 2048) "{}")
        (data (i32.const 4096) "{}")
        (func (export "run") (param i32 i32) (result i32)
            {call}
            (call $set_result (i32.const 4096) (i32.const {}))
            (i32.const 0)))"#,
        text(url),
        text(&batch),
        text(result),
        result.len()
    )
}

const GET: &str = "(drop (call $get (i32.const 16) (i32.const 3) URL (i32.const 0) (i32.const 0) \
                   (i32.const 0) (i32.const 0) (i32.const 8192) (i32.const 65536)))";
const ASK_WHY: &str = "(drop (call $last_error (i32.const 8192) (i32.const 0)))";

struct World {
    host: Host,
}

impl World {
    fn new() -> Self {
        let host_call_timeout = Duration::from_millis(300);
        let settings = Settings { max_runs: 2, host_call_timeout, ..Settings::default() };
        Self { host: Host::builder().settings(settings).build().expect("a host") }
    }

    async fn run(&self, guest: &[u8], manifest: Manifest, does: &str) -> RunReport {
        let integration = self.host.load(guest, manifest).expect("a guest");
        let config = [("does".to_owned(), does.to_owned())].into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(Duration::from_secs(10)))
            .recorded(RecordingLimits::default());
        self.host.run(&integration, dispatch).await.expect("it ran")
    }

    async fn core(&self, guest: &str, manifest: Manifest) -> RunReport {
        self.run(guest.as_bytes(), manifest, "").await
    }
}

fn manifest() -> Manifest {
    Manifest::named("guest")
}

fn failure(report: &RunReport) -> (FailureKind, &str) {
    match &report.outcome {
        Outcome::Failed(failure) => (failure.kind, &failure.message),
        other => panic!("a failure, not {other:?}"),
    }
}

fn is_completed(report: &RunReport) -> bool {
    matches!(report.outcome, Outcome::Completed(_))
}

/// The error of the first call that failed.
fn error(report: &RunReport) -> (CallOutcome, &str) {
    let mut calls = report.story.calls.iter();
    let call = calls.find(|call| call.outcome != CallOutcome::Ok).expect("a call failed");
    (call.outcome, call.error.as_deref().expect("it states why"))
}

#[tokio::test]
async fn a_guest_that_ignores_a_refusal_has_failed_and_its_replay_agrees() {
    let world = World::new();
    let text = guest("http://nowhere.invalid/", GET, SUCCESS);
    let report = world.core(&text, manifest()).await;
    let (kind, message) = failure(&report);
    assert_eq!(kind, FailureKind::Denied);
    assert!(message.starts_with("the host `nowhere.invalid` is not allowed"), "{message}");
    assert_eq!(report.result().map(|result| &result["action"]), Some(&json!("Finish")));
    let (outcome, error) = error(&report);
    assert_eq!(outcome, CallOutcome::Failed);
    assert_eq!(error, message);
    let request = &report.story.requests[0];
    assert_eq!(
        (request.outcome, request.error.as_deref()),
        (RequestOutcome::Refused, Some(message))
    );

    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let run = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let again = world.host.load_for_replay(text.as_bytes(), &run).expect("the guest");
    let end = RecordedEnd::from(&report);
    let replayed = world.host.replay(&again, Replay::new(&run, &end)).await.expect("replayed");
    assert_eq!(replayed.divergence, None);
}

#[tokio::test]
async fn a_refusal_that_the_guest_asks_about_or_the_manifest_reports_is_no_failure() {
    let world = World::new();
    let url = "http://nowhere.invalid/";
    let asks = guest(url, &format!("{GET}{ASK_WHY}"), SUCCESS);
    let report = world.core(&asks, manifest()).await;
    assert!(is_completed(&report), "{report:?}");
    // It asks too early.
    let early = guest(url, &format!("{ASK_WHY}{GET}"), SUCCESS);
    assert_eq!(failure(&world.core(&early, manifest()).await).0, FailureKind::Denied);
    let ignores = guest(url, GET, SUCCESS);
    let report = world.core(&ignores, manifest().on_denied(OnDenied::Report)).await;
    assert!(is_completed(&report), "{report:?}");
    assert!(error(&report).1.contains("is not allowed"), "the reason is reported");
}

#[tokio::test]
async fn a_failure_of_the_guest_itself_is_kept() {
    let own = r#"{"success":false,"error":"the tool is down"}"#;
    let report = World::new().core(&guest("http://nowhere.invalid/", GET, own), manifest()).await;
    assert_eq!(failure(&report), (FailureKind::GuestFailure, "the tool is down"));
    assert!(error(&report).1.contains("is not allowed"));
}

#[tokio::test]
async fn a_scratch_that_is_not_granted_is_a_refusal_and_a_part_of_a_batch_is_none() {
    let world = World::new();
    let keep = guest("http://nowhere.invalid/", "(drop (call $keep URL URL))", SUCCESS);
    let report = world.core(&keep, manifest()).await;
    let (kind, message) = failure(&report);
    assert!(
        kind == FailureKind::Denied && message.contains("no scratch was granted"),
        "{report:?}"
    );
    // The result of a batch states why its requests failed.
    let batch = "(drop (call $batch BATCH (i32.const 8192) (i32.const 65536)))";
    let batch = guest("http://nowhere.invalid/", batch, SUCCESS);
    let report = world.core(&batch, manifest()).await;
    assert!(is_completed(&report), "{report:?}");
    let request = &report.story.requests[0];
    let error = request.error.as_deref().expect("the reason is reported");
    assert!(request.outcome == RequestOutcome::Refused && error.contains("not allowed"), "{error}");
    // It does not stand for the refusal before it.
    let both = format!("{GET}(drop (call $batch BATCH (i32.const 8192) (i32.const 65536)))");
    let report = world.core(&guest("http://nowhere.invalid/", &both, SUCCESS), manifest()).await;
    assert_eq!(failure(&report).0, FailureKind::Denied);
}

#[tokio::test]
async fn a_component_that_ignores_a_refusal_fails_if_its_manifest_wants_that() {
    let world = World::new();
    for (does, why) in [("ask", "ask targets"), ("signal", "signals of this integration")] {
        let report = world.run(COMPONENT, manifest(), does).await;
        assert!(is_completed(&report), "{report:?}");
        let (outcome, reason) = error(&report);
        assert!(outcome == CallOutcome::Failed && reason.contains(why), "{report:?}");
        let strict = manifest().on_denied(OnDenied::Fail);
        let report = world.run(COMPONENT, strict, does).await;
        let (kind, message) = failure(&report);
        assert!(kind == FailureKind::Denied && message.contains(why), "{report:?}");
    }
}

#[tokio::test]
async fn the_report_states_why_a_call_failed_that_the_guest_ignores() {
    let world = World::new();
    // A port of this machine on which nobody listens any more.
    let closed = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let large = Script { status: 200, body: "x".repeat(4_000), ..Script::default() };
    let large = Server::start(large).await;
    let silent = Server::start(Script { never: true, ..Script::default() }).await;
    for (url, call_outcome, request_outcome, why) in [
        (
            format!("http://{closed}/"),
            CallOutcome::Failed,
            RequestOutcome::Failed,
            "onnection refused",
        ),
        (large.url(), CallOutcome::Failed, RequestOutcome::Failed, "larger than the 2000 bytes"),
        (silent.url(), CallOutcome::TimedOut, RequestOutcome::GivenUp, "TIMEOUT after"),
    ] {
        let limits = GuestLimits { response_bytes: 2_000, ..GuestLimits::default() };
        let host: Destination = "127.0.0.1".parse().expect("a host");
        let granted = manifest().limits(limits).allow_hosts([host]);
        let report = world.core(&guest(&url, GET, SUCCESS), granted).await;
        assert!(is_completed(&report), "no refusal: {report:?}");
        let (outcome, error) = error(&report);
        assert!(outcome == call_outcome && error.contains(why), "{why}: {report:?}");
        assert_eq!(report.story.requests[0].outcome, request_outcome);
        let json = serde_json::to_value(&report).expect("JSON");
        assert_eq!(json["calls"][0]["error"], json!(error));
    }
}
