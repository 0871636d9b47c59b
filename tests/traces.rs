//! The trace of a killed handler, as a collector receives it: the kill and the
//! transition that follows are one story.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

mod binary;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::sync::mpsc;
use std::thread;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use prost::Message;

use binary::{Folder, Running, fixture, sandglass, with_variable};

/// A collector that keeps every span that it is sent.
struct Collector {
    endpoint: String,
    spans: mpsc::Receiver<Span>,
}

impl Collector {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let (received, spans) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let received = received.clone();
                thread::spawn(move || serve(stream, &received));
            }
        });
        Self { endpoint, spans }
    }

    /// All that came. The sender has ended, and it flushes before it does.
    fn spans(&self) -> Vec<Span> {
        self.spans.try_iter().collect()
    }
}

fn serve(stream: TcpStream, received: &mpsc::Sender<Span>) {
    let mut stream = BufReader::new(stream);
    while let Some(body) = request(&mut stream) {
        let export = ExportTraceServiceRequest::decode(&body[..]).expect("OTLP");
        let scopes = export.resource_spans.into_iter().flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            // The test may have seen enough.
            let _ = received.send(span);
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        if stream.get_mut().write_all(answer).is_err() {
            return;
        }
    }
}

/// The body of the next request; none at the end of the connection.
fn request(stream: &mut BufReader<TcpStream>) -> Option<Vec<u8>> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().expect("a number");
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(body)
}

fn attribute(span: &Span, key: &str) -> Option<String> {
    let attribute = span.attributes.iter().find(|attribute| attribute.key == key)?;
    match attribute.value.as_ref()?.value.as_ref()? {
        Value::StringValue(text) => Some(text.clone()),
        other => Some(format!("{other:?}")),
    }
}

fn only<'a>(spans: &'a [Span], what: &str, holds: impl Fn(&Span) -> bool) -> &'a Span {
    let found: Vec<&Span> = spans.iter().filter(|span| holds(span)).collect();
    match found[..] {
        [span] => span,
        _ => panic!("{} spans are {what}, of {spans:#?}", found.len()),
    }
}

#[test]
fn the_kill_and_the_transition_that_follows_are_one_trace() {
    let collector = Collector::start();
    let guest = fixture("wat/sleeps_in_wasi_poll.wat");
    with_variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        &collector.endpoint,
        &[&"run", &guest, &"--deadline", &"150ms", &"--entity", &"Session/hung"],
    )
    .exits(124);
    let spans = collector.spans();

    let killed = only(&spans, "a dispatch", |span| span.name == "sandglass.dispatch");
    assert_eq!(attribute(killed, "error.type").as_deref(), Some("handler_deadline_exceeded"));
    assert_eq!(
        attribute(killed, "sandglass.dying_span").as_deref(),
        Some("wasi_snapshot_preview1.poll_oneoff")
    );
    assert_eq!(killed.status.as_ref().map(|status| status.code()), Some(StatusCode::Error));

    let call = only(&spans, "the host call", |span| span.name == "sandglass.host_call");
    assert_eq!(call.parent_span_id, killed.span_id);
    assert_eq!(attribute(call, "error.type").as_deref(), Some("unfinished"), "{call:?}");

    let timed_out = only(&spans, "the transition", |span| {
        attribute(span, "sandglass.action").as_deref() == Some("HandlerTimedOut")
    });
    assert_eq!(timed_out.trace_id, killed.trace_id, "one trace");
    assert_eq!(timed_out.parent_span_id, killed.span_id, "its child");
    assert!(timed_out.links.iter().any(|link| link.span_id == killed.span_id), "and linked");

    let asked = only(&spans, "the transition that asked", |span| {
        span.name == "sandglass.transition"
            && attribute(span, "sandglass.action").as_deref() == Some("Run")
    });
    assert_eq!(killed.parent_span_id, asked.span_id);
    let root = only(&spans, "the request", |span| span.name == "sandglass.request");
    assert_eq!(asked.parent_span_id, root.span_id);
    assert!(root.parent_span_id.is_empty(), "nobody's span is above it: {root:?}");
}

#[test]
fn a_collector_that_does_not_answer_changes_nothing() {
    let dead = TcpListener::bind("127.0.0.1:0").expect("loopback has ports");
    let endpoint = format!("http://{}", dead.local_addr().expect("bound"));
    drop(dead);
    let guest = fixture("wat/echo.wat");
    with_variable("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint, &[&"run", &guest])
        .exits(0)
        .says("spans were not exported: ");
}

#[test]
fn a_collector_that_accepts_everything_causes_no_message() {
    let collector = Collector::start();
    let guest = fixture("wat/echo.wat");
    let said = with_variable("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint, &[&"run", &guest]);
    let said = said.exits(0);
    assert!(!said.err.contains("not exported"), "{}", said.err);
}

#[test]
fn a_variable_without_effect_causes_a_warning() {
    let guest = fixture("wat/echo.wat");
    let said = with_variable("OTEL_METRICS_EXPORTER", "otlp", &[&"run", &guest]);
    said.exits(0).says("OTEL_METRICS_EXPORTER: `otlp` has no effect");
}

#[test]
fn a_handler_that_has_used_most_of_its_budget_is_reported_while_it_runs() {
    let guest = fixture("wat/sleeps_in_wasi_poll.wat");
    let said = sandglass(&[&"run", &guest, &"--deadline", &"500ms"]).exits(124);
    let told = "the handler still runs, in wasi_snapshot_preview1.poll_oneoff, ";
    said.says(told).says(" ms into its budget of 500 ms");
}

#[test]
fn a_wrong_variable_is_an_error_at_the_start() {
    let guest = fixture("wat/echo.wat");
    for (variable, value) in [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "not a URL"),
        ("OTEL_TRACES_EXPORTER", "smoke"),
        ("OTEL_BSP_SCHEDULE_DELAY", "soon"),
        ("SANDGLASS_LOG", "loud"),
    ] {
        with_variable(variable, value, &[&"run", &guest]).exits(125).says(variable);
        let said = with_variable(variable, value, &[&"run", &guest, &"--report", &"json"]);
        let said = said.exits(125);
        let report: serde_json::Value = serde_json::from_str(&said.out).expect("one object");
        assert_eq!(report["outcome"], "rejected", "{report}");
        let message = report["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(variable), "{report}");
    }
    with_variable("SANDGLASS_LOG", "loud", &[&"check", &guest]).exits(2).says("SANDGLASS_LOG");
}

/// A handler that never ends by itself.
const HANGS: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Executing", "TimedOut"]
initial = "Idle"
terminal = ["TimedOut"]
allow_indefinite_states = ["Idle", "Executing"]

[[action]]
name = "Ask"
from = ["Idle"]
to = "Executing"
effect = "trigger hang"

[[action]]
name = "HandlerTimedOut"
from = ["Executing"]
to = "TimedOut"

[[integration]]
name = "hang"
trigger = "hang"
type = "wasm"
module = "sleeps_until_the_end_of_time"
deadline = "600s"
on_success = "HandlerTimedOut"
on_failure = "HandlerTimedOut"
"#;

/// A daemon that exports its spans, and its address.
fn daemon(folder: &Folder, collector: &Collector) -> (Running, String) {
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_BSP_SCHEDULE_DELAY", "20"),
    ];
    let (specs, journal) = (folder.path("specs"), folder.path("runs.db"));
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 7] =
        [&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &"--journal", &journal];
    let mut running = Running::with_variables(&variables, Stdio::inherit(), &arguments);
    let address = running.address();
    (running, address)
}

fn post(address: &str, path: &str, headers: &str) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    assert!(answer.starts_with("HTTP/1.1 2"), "{answer}");
}

#[test]
fn a_lost_handler_and_its_consequences_after_a_restart_are_in_the_callers_trace() {
    let (collector, folder) = (Collector::start(), Folder::new());
    folder.write("specs/session.ioa.toml", HANGS);
    let guest = std::fs::read(fixture("wat/sleeps_until_the_end_of_time.wat")).expect("a guest");
    folder.write("specs/sleeps_until_the_end_of_time.wat", guest);
    let (running, address) = daemon(&folder, &collector);
    post(&address, "/v1/entities/Session/lost", "");
    let traceparent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    post(&address, "/v1/entities/Session/lost/actions/Ask", traceparent);
    // Killed, as nothing can prevent.
    drop(running);
    let (running, _) = daemon(&folder, &collector);
    running.signal("TERM");
    assert!(running.ended().success());

    let spans = collector.spans();
    let lost = only(&spans, "the handler's", |span| span.name == "sandglass.dispatch");
    assert_eq!(hex(&lost.trace_id), "0af7651916cd43dd8448eb211c80319c", "the caller's trace");
    assert_eq!(attribute(lost, "error.type").as_deref(), Some("interrupted"));
    let follows = only(&spans, "what follows", |span| {
        attribute(span, "sandglass.action").as_deref() == Some("HandlerTimedOut")
            && span.name == "sandglass.transition"
    });
    assert_eq!(follows.trace_id, lost.trace_id);
    assert_eq!(follows.parent_span_id, lost.span_id, "its child");
    assert!(follows.links.iter().any(|link| link.span_id == lost.span_id), "and linked");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
