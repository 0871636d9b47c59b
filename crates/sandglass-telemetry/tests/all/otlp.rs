//! Spans as a collector gets them.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::{Span, status::StatusCode};
use prost::Message as _;
use sandglass_model::{DispatchId, TraceContext};
use sandglass_telemetry::otlp::{self, Otlp, ShutdownReport};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::trace::{Kind, names};
use sandglass_telemetry::{Metrics, Prefix, SpanStart};

use crate::spans::start;

/// Far longer than anything here takes, so that a broken test ends.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A collector that takes one request.
struct Collector {
    endpoint: String,
    requests: mpsc::Receiver<(Vec<String>, ExportTraceServiceRequest)>,
}

impl Collector {
    fn listening() -> Self {
        Self::answering("200 OK\r\ncontent-type: application/x-protobuf".to_owned())
    }

    /// One that answers with this status, and the headers behind it.
    fn answering(head: String) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("it is bound"));
        let (sender, requests) = mpsc::sync_channel(8);
        thread::spawn(move || {
            let (stream, _) = listener.accept().expect("an exporter connects");
            sender.send(take(stream, &head)).expect("the test waits");
        });
        Self { endpoint, requests }
    }
}

fn take(stream: TcpStream, answer: &str) -> (Vec<String>, ExportTraceServiceRequest) {
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("a line of the head");
        if line.trim().is_empty() {
            break;
        }
        head.push(line.trim().to_owned());
    }
    let length = head
        .iter()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok())
        .expect("a length");
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    let answer = format!("HTTP/1.1 {answer}\r\ncontent-length: 0\r\n\r\n");
    reader.get_mut().write_all(answer.as_bytes()).expect("the exporter reads");
    (head, ExportTraceServiceRequest::decode(&*body).expect("an export request"))
}

fn exporting(variables: &[(&str, &str)]) -> Otlp {
    counted(variables, &Metrics::disabled())
}

fn counted(variables: &[(&str, &str)], metrics: &Metrics) -> Otlp {
    let variable = |name: &str| {
        let found = variables.iter().find(|(variable, _)| *variable == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    otlp::from_variables(variable, metrics).expect("valid").expect("an endpoint")
}

/// Stops the exporter, which may take its time; answers how many spans it has lost.
fn lost(otlp: Otlp) -> u64 {
    let stopped = otlp.shutdown(TIMEOUT);
    assert!(stopped.error.is_none(), "{stopped:?}");
    stopped.lost
}

fn texts(span: &Span) -> BTreeMap<&str, &str> {
    let attributes = span.attributes.iter();
    attributes
        .filter_map(|attribute| match attribute.value.as_ref()?.value.as_ref()? {
            Value::StringValue(text) => Some((attribute.key.as_str(), text.as_str())),
            _ => None,
        })
        .collect()
}

/// What the host and the runtime do when a handler is killed.
fn a_killed_handler_and_its_transition(otlp: &Otlp, request: TraceContext, run: TraceContext) {
    let tracer = otlp.tracer();
    let span = tracer.start(&SpanStart {
        parent: Some(request),
        attributes: &[(names::ENTITY_ID, "s-1".into())],
        ..start(names::DISPATCH, run)
    });
    let call =
        span.child(names::HOST_CALL, Kind::Client, &[(names::FUNCTION, "host_http_call".into())]);
    drop(call);
    span.set(&[(names::OUTCOME, "timed_out".into()), (names::DYING_SPAN, "host_http_call".into())]);
    span.error(names::HANDLER_DEADLINE_EXCEEDED, "killed after 2 s in host_http_call");
    span.end();
    let transition = TraceContext::root([9; 24]);
    let transition = TraceContext { span_id: transition.span_id, ..run };
    tracer
        .start(&SpanStart {
            parent: Some(run),
            links: &[run],
            attributes: &[(names::ACTION, "HandlerTimedOut".into())],
            ..start(names::TRANSITION, transition)
        })
        .end();
}

#[test]
fn a_killed_handler_and_its_transition_are_one_trace_at_the_collector() {
    let collector = Collector::listening();
    let otlp = exporting(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint),
        ("OTEL_EXPORTER_OTLP_HEADERS", "x-team=core%20team"),
    ]);
    let request = TraceContext::root([7; 24]);
    let run = request.of_dispatch(DispatchId::from_bytes([9; 16]), 1);
    a_killed_handler_and_its_transition(&otlp, request, run);
    assert_eq!(lost(otlp), 0);

    let (head, request_body) = collector.requests.recv_timeout(TIMEOUT).expect("one request");
    assert_eq!(head[0], "POST /v1/traces HTTP/1.1");
    assert!(head.iter().any(|line| line.eq_ignore_ascii_case("x-team: core team")), "{head:?}");
    let resource = &request_body.resource_spans[0];
    let service = resource.resource.as_ref().and_then(|resource| {
        resource.attributes.iter().find(|attribute| attribute.key == "service.name")
    });
    assert!(format!("{service:?}").contains("\"sandglass\""), "{service:?}");
    let spans = &resource.scope_spans[0].spans;
    let named = |name: &str| spans.iter().find(|span| span.name == name).expect("exported");
    let (killed, call, moved) =
        (named(names::DISPATCH), named(names::HOST_CALL), named(names::TRANSITION));
    assert_eq!(spans.len(), 3);
    assert!(spans.iter().all(|span| span.trace_id == run.trace_id.as_bytes()));

    assert_eq!(killed.span_id, run.span_id.as_bytes());
    assert_eq!(killed.parent_span_id, request.span_id.as_bytes());
    let status = killed.status.as_ref().expect("a status");
    assert_eq!(status.code(), StatusCode::Error);
    assert_eq!(status.message, "killed after 2 s in host_http_call");
    assert_eq!(texts(killed)[names::ERROR_TYPE], "handler_deadline_exceeded");
    assert_eq!(texts(killed)[names::DYING_SPAN], "host_http_call");
    assert_eq!(call.parent_span_id, run.span_id.as_bytes());
    assert_eq!(texts(call)[names::FUNCTION], "host_http_call");
    assert_eq!(moved.parent_span_id, run.span_id.as_bytes());
    assert_eq!(moved.links[0].span_id, run.span_id.as_bytes());
    assert_eq!(moved.links[0].trace_id, run.trace_id.as_bytes());
    assert_eq!(texts(moved)[names::ACTION], "HandlerTimedOut");
}

#[test]
fn a_ratio_exports_whole_traces_although_the_journal_marks_all_as_sampled() {
    let collector = Collector::listening();
    let otlp = exporting(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint),
        ("OTEL_TRACES_SAMPLER", "parentbased_traceidratio"),
        ("OTEL_TRACES_SAMPLER_ARG", "0.5"),
    ]);
    let tracer = otlp.tracer();
    for nth in 1..=100 {
        let mut random = [nth; 24];
        // The ratio looks at the last bytes of the trace id.
        random[8..16].copy_from_slice(&(u64::from(nth) << 57 | 1).to_be_bytes());
        let root = TraceContext::root(random);
        let run = root.of_dispatch(DispatchId::from_bytes([nth; 16]), 1);
        tracer.start(&start(names::TRANSITION, root)).end();
        tracer.start(&SpanStart { parent: Some(root), ..start(names::DISPATCH, run) }).end();
    }
    assert_eq!(lost(otlp), 0);
    let (_, request) = collector.requests.recv_timeout(TIMEOUT).expect("one request");
    let mut spans_by_trace: BTreeMap<&[u8], usize> = BTreeMap::new();
    for span in &request.resource_spans[0].scope_spans[0].spans {
        *spans_by_trace.entry(&span.trace_id).or_default() += 1;
    }
    assert!((20..80).contains(&spans_by_trace.len()), "{} of 100 traces", spans_by_trace.len());
    assert!(spans_by_trace.values().all(|spans| *spans == 2), "whole traces only");
}

#[test]
fn a_dead_collector_delays_no_handler() {
    // It takes connections (the backlog does) and never answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let endpoint = format!("http://{}", silent.local_addr().expect("it is bound"));
    let exporter = Exporter::new(Prefix::default());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "16"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4"),
    ];
    let otlp = counted(&variables, &exporter.metrics());
    let tracer = otlp.tracer();
    let (done, finished) = mpsc::sync_channel(1);
    thread::spawn(move || {
        for nth in 1..=10_000 {
            let run = TraceContext::root([7; 24]).of_dispatch(DispatchId::from_bytes([9; 16]), nth);
            tracer.start(&start(names::DISPATCH, run)).end();
        }
        done.send(()).expect("the test waits");
    });
    // The exporter itself gives up on a request after 10 s, so a span that waited
    // for one would be later than this.
    finished.recv_timeout(Duration::from_secs(5)).expect("10,000 spans without waiting");
    // All but those that wait, and those on their way.
    let scrape = exporter.render();
    let dropped = "temper_trace_spans_dropped_total{reason=\"queue_full\"} ";
    let dropped = scrape.lines().find_map(|line| line.strip_prefix(dropped)).expect("counted");
    let dropped: u64 = dropped.parse().expect("a number");
    assert!((9_976..=9_984).contains(&dropped), "{dropped}");
    let stopped = otlp.shutdown(Duration::from_millis(50));
    assert!(stopped.error.is_some(), "not all could be exported");
    assert!(stopped.lost >= dropped, "{stopped:?}");
}

/// Exports one span and stops at once.
fn export_one(variables: &[(&str, &str)], metrics: &Metrics, timeout: Duration) -> ShutdownReport {
    let otlp = counted(variables, metrics);
    let run = TraceContext::root([7; 24]).of_dispatch(DispatchId::from_bytes([9; 16]), 1);
    otlp.tracer().start(&start(names::DISPATCH, run)).end();
    otlp.shutdown(timeout)
}

#[test]
fn a_redirect_is_not_followed_with_spans_or_headers() {
    for status in ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"] {
        let elsewhere = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        elsewhere.set_nonblocking(true).expect("a listener can be asked without waiting");
        let location = elsewhere.local_addr().expect("it is bound");
        let head = format!("{status}\r\nlocation: http://{location}/v1/traces");
        let collector = Collector::answering(head);
        let exporter = Exporter::new(Prefix::default());
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=sesame"),
        ];
        let stopped = export_one(&variables, &exporter.metrics(), TIMEOUT);
        let (sent, _) = collector.requests.recv_timeout(TIMEOUT).expect("one request");
        assert!(sent.iter().any(|line| line == "x-api-key: sesame"), "{sent:?}");
        // A connection that was made before the exporter stopped would wait here.
        let followed = elsewhere.accept().expect_err("no connection");
        assert_eq!(followed.kind(), std::io::ErrorKind::WouldBlock, "{status}");
        assert_eq!(stopped.lost, 1, "{status}: {stopped:?}");
        let refusal = stopped.refusal.expect("a reason");
        let began =
            format!("the collector at {}: it responded with {}", collector.endpoint, &status[..3]);
        assert!(refusal.starts_with(&began), "{refusal}");
        assert!(refusal.ends_with("redirects are not followed"), "{refusal}");
        let counted = "temper_trace_spans_dropped_total{reason=\"not_taken\"} 1";
        assert!(exporter.render().lines().any(|line| line == counted), "{}", exporter.render());
    }
}

#[test]
fn a_span_that_is_being_sent_at_the_timeout_counts_as_lost() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let endpoint = format!("http://{}", silent.local_addr().expect("it is bound"));
    let variables = [("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint.as_str())];
    let stopped = export_one(&variables, &Metrics::disabled(), Duration::from_millis(200));
    assert_eq!(stopped.lost, 1, "{stopped:?}");
    let error = stopped.error.expect("time was up").to_string();
    let expected = format!("the collector at {endpoint} had not accepted them after 200ms");
    assert!(error.ends_with(&expected), "{error}");
}

#[test]
fn errors_name_the_collector_and_why_it_cannot_be_reached() {
    let refusal_of = |endpoint: &str| {
        let variables = [
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            // Attempts are repeated for so long.
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "300"),
        ];
        let stopped = export_one(&variables, &Metrics::disabled(), TIMEOUT);
        assert_eq!(stopped.lost, 1, "{stopped:?}");
        stopped.refusal.expect("a reason")
    };
    let refused = refusal_of("http://127.0.0.1:1");
    assert_eq!(refused, "the collector at http://127.0.0.1:1: it refused the connection");

    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let endpoint = format!("http://{}", silent.local_addr().expect("it is bound"));
    let late = refusal_of(&endpoint);
    assert_eq!(late, format!("the collector at {endpoint}: it did not respond in time"));

    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let endpoint = format!("https://{}", plain.local_addr().expect("it is bound"));
    thread::spawn(move || {
        for stream in plain.incoming() {
            // The exporter may be gone by now.
            let _ = stream.and_then(|mut stream| {
                let _ = stream.read(&mut [0; 1024])?;
                stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            });
        }
    });
    let tls = refusal_of(&endpoint);
    assert!(tls.starts_with(&format!("the collector at {endpoint}: TLS: ")), "{tls}");
}

#[test]
fn a_flood_of_host_calls_leaves_capacity_for_handlers_and_failures() {
    let collector = Collector::listening();
    let exporter = Exporter::new(Prefix::default());
    let variables = [
        ("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint.as_str()),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "64"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "64"),
        // Nothing leaves the queue before the end.
        ("OTEL_BSP_SCHEDULE_DELAY", "86400000"),
    ];
    let otlp = counted(&variables, &exporter.metrics());
    let tracer = otlp.tracer();
    let run = TraceContext::root([7; 24]).of_dispatch(DispatchId::from_bytes([9; 16]), 1);
    let dispatch = tracer.start(&start(names::DISPATCH, run));
    let call = || dispatch.child(names::HOST_CALL, Kind::Internal, &[]);
    for _ in 0..1_000 {
        drop(call());
    }
    for _ in 0..100 {
        call().error(names::UNFINISHED, "the run ended inside this call");
    }
    dispatch.end();
    // 48 calls, 8 that failed, the run.
    assert_eq!(lost(otlp), 1_000 - 48 + 100 - 8);
    let (_, request) = collector.requests.recv_timeout(TIMEOUT).expect("one request");
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    let count = |holds: &dyn Fn(&Span) -> bool| spans.iter().filter(|span| holds(span)).count();
    assert_eq!(count(&|span| span.name == names::DISPATCH), 1);
    assert_eq!(count(&|span| texts(span).contains_key(names::ERROR_TYPE)), 8);
    assert_eq!(spans.len(), 57);
}

#[test]
fn texts_are_truncated_to_the_configured_length() {
    let collector = Collector::listening();
    let otlp = exporting(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint),
        ("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "4"),
        ("OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT", "1"),
    ]);
    let run = TraceContext::root([7; 24]).of_dispatch(DispatchId::from_bytes([9; 16]), 1);
    let span = otlp.tracer().start(&SpanStart {
        attributes: &[(names::ENTITY_ID, "äöüßx".into()), (names::ACTION, "äöüß".into())],
        ..start(names::DISPATCH, run)
    });
    span.event("happened", &[(names::RUNNING, "a long text".into()), (names::ACTION, "b".into())]);
    span.end();
    assert_eq!(lost(otlp), 0);
    let (_, request) = collector.requests.recv_timeout(TIMEOUT).expect("one request");
    let span = &request.resource_spans[0].scope_spans[0].spans[0];
    assert_eq!(texts(span)[names::ENTITY_ID], "äöüß");
    assert_eq!(texts(span)[names::ACTION], "äöüß");
    let event = &span.events[0];
    assert_eq!((event.attributes.len(), event.dropped_attributes_count), (1, 1));
    let value = event.attributes[0].value.as_ref().and_then(|value| value.value.clone());
    assert_eq!(value, Some(Value::StringValue("a lo".to_owned())));
}

#[test]
fn an_https_collector_can_be_named() {
    let otlp = exporting(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://127.0.0.1:1")]);
    assert_eq!(lost(otlp), 0);
}

#[test]
fn an_invalid_variable_is_an_error_that_names_it() {
    let variable = |name: &str| match name {
        "OTEL_EXPORTER_OTLP_ENDPOINT" => Some("http://localhost:4317".to_owned()),
        "OTEL_EXPORTER_OTLP_PROTOCOL" => Some("grpc".to_owned()),
        _ => None,
    };
    let error = otlp::from_variables(variable, &Metrics::disabled());
    let error = error.expect_err("only HTTP is spoken").to_string();
    assert!(error.starts_with("OTEL_EXPORTER_OTLP_PROTOCOL: `grpc`"), "{error}");
}
