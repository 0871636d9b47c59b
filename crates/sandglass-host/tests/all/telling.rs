//! What guests tell traces and metrics, and what they keep from run to run, through
//! the host's public face.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings, Streams,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::trace::{Captured, names};
use sandglass_telemetry::{Prefix, Telemetry, Tracer};

const SUCCESS: &str = r#"{\"success\":true}"#;

fn host() -> (Host, Captured, Exporter) {
    let (tracer, captured) = Tracer::capturing();
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer };
    let settings = Settings { max_runs: 4, ..Settings::default() };
    let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
    (host, captured, exporter)
}

fn dispatch(tenant: &str) -> Dispatch {
    let context = Context { tenant: tenant.to_owned(), ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_secs(20)))
}

fn load(host: &Host, imports: &str, body: &str, manifest: Manifest) -> Integration {
    let module = format!(
        r#"(module
             (import "env" "host_set_result" (func $set_result (param i32 i32)))
             {imports}
             (memory (export "memory") 1)
             (data (i32.const 16) "{SUCCESS}")
             (data (i32.const 64) "{{\"name\":\"own\",\"operation\":\"op\"}}")
             (data (i32.const 128) "k")
             (data (i32.const 144) "in")
             (data (i32.const 160) "out")
             (func (export "run") (param i32 i32) (result i32)
               {body}
               (call $set_result (i32.const 16) (i32.const 16))
               i32.const 0))"#
    );
    host.load(module.as_bytes(), manifest).expect("it is valid")
}

#[tokio::test]
async fn a_guests_span_is_in_its_dispatchs_trace_and_ends_with_the_run() {
    let (host, captured, _exporter) = host();
    let guest = load(
        &host,
        r#"(import "env" "host_start_span" (func $start (param i32 i32) (result i64)))
           (import "env" "host_emit_wide_event" (func $event (param i32 i32) (result i32)))"#,
        "(drop (call $start (i32.const 64) (i32.const 31)))
         (drop (call $event (i32.const 64) (i32.const 31)))",
        Manifest::default(),
    );
    let report = host.run(&guest, dispatch("a")).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let spans = captured.spans();
    let own = spans.iter().find(|span| span.name == "own").expect("it was ended");
    assert_eq!((own.trace_id, own.parent), (report.trace.trace_id, Some(report.trace.span_id)));
    assert_eq!(own.attributes[names::ERROR_TYPE], names::UNFINISHED);
    let dispatch = spans.iter().find(|span| span.name == names::DISPATCH).expect("it has ended");
    assert_eq!(dispatch.events[0].name, "op");
}

#[tokio::test]
async fn what_one_tenant_caches_no_other_tenant_reads() {
    let (host, _captured, _exporter) = host();
    let cache = |name: &str, import: &str| {
        format!(r#"(import "env" "{name}" (func ${import} (param i32 i32 i32 i32) (result i32)))"#)
    };
    let imports = cache("host_cache_to_stream", "to") + &cache("host_cache_from_stream", "from");
    let guest = load(
        &host,
        &imports,
        "(drop (call $to (i32.const 128) (i32.const 1) (i32.const 160) (i32.const 3)))
         (drop (call $from (i32.const 128) (i32.const 1) (i32.const 144) (i32.const 2)))",
        Manifest::default(),
    );
    let mut found = Vec::new();
    for (tenant, given) in [("a", "of a"), ("b", "of b"), ("a", "of a, later")] {
        let streams = Streams::new();
        streams.put("in", given);
        let dispatch = dispatch(tenant).streams(streams.clone());
        host.run(&guest, dispatch).await.expect("it ran");
        found.push(streams.take("out").map(|bytes| bytes.to_vec()));
    }
    assert_eq!(found, [None, None, Some(b"of a".to_vec())]);
}

#[tokio::test]
async fn a_soft_deadline_is_in_the_trace_and_counted() {
    let (host, captured, exporter) = host();
    let guest = load(
        &host,
        r#"(import "env" "host_should_stop" (func $should_stop (result i32)))"#,
        "(loop $again (br_if $again (i32.eqz (call $should_stop))))",
        Manifest::default().soft_deadline(Duration::from_millis(19_900)),
    );
    let report = host.run(&guest, dispatch("a")).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let spans = captured.spans();
    let dispatch = spans.iter().find(|span| span.name == names::DISPATCH).expect("it has ended");
    let told = &dispatch.events[0];
    assert_eq!(told.name, names::SOFT_DEADLINE_PASSED);
    assert_eq!(told.attributes[names::SOFT_BEFORE_MS], "19900");
    let counted = r#"temper_handler_soft_deadlines_total{entity_type="Session",action="Begin"} 1"#;
    assert!(exporter.render().contains(counted));
}
