//! The telemetry of handlers and their guests, and the cache between handler runs.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings, Streams,
};
use sandglass_model::Cause;
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::trace::{CapturedSpan, CapturedSpans, names};
use sandglass_telemetry::{Prefix, Telemetry, Tracer};

const SUCCESS: &str = r#"{\"success\":true}"#;

fn host() -> (Host, CapturedSpans, Exporter) {
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
async fn an_entry_in_the_cache_is_read_only_by_its_tenant() {
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

/// Sleeps for an hour in WASI, which no soft deadline ends.
const POLL: &str = r#"(import "wasi_snapshot_preview1" "poll_oneoff"
                        (func $poll (param i32 i32 i32 i32) (result i32)))"#;
const SLEEP: &str = "(i32.store8 (i32.const 264) (i32.const 0))
     (i32.store (i32.const 272) (i32.const 1))
     (i64.store (i32.const 280) (i64.const 3600000000000))
     (drop (call $poll (i32.const 256) (i32.const 512) (i32.const 1) (i32.const 1024)))";
const POLLING: &str = "wasi_snapshot_preview1.poll_oneoff";

const SHOULD_STOP: &str = r#"(import "env" "host_should_stop" (func $should_stop (result i32)))"#;

fn dispatch_span(captured: &CapturedSpans) -> CapturedSpan {
    let mut spans = captured.spans().into_iter();
    spans.find(|span| span.name == names::DISPATCH).expect("it has ended")
}

const COUNTED: &str =
    r#"temper_handler_soft_deadlines_total{entity_type="Session",action="Begin"} 1"#;

#[tokio::test]
async fn a_soft_deadline_is_in_the_trace_and_counted() {
    let (host, captured, exporter) = host();
    let guest = load(
        &host,
        SHOULD_STOP,
        "(loop $again (br_if $again (i32.eqz (call $should_stop))))",
        Manifest::default().soft_deadline(Duration::from_millis(19_900)),
    );
    let report = host.run(&guest, dispatch("a")).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let [event] = &dispatch_span(&captured).events[..] else { panic!("there is one event") };
    assert_eq!(event.name, names::SOFT_DEADLINE_PASSED);
    assert_eq!(event.attributes[names::SOFT_BEFORE_MS], "19900");
    assert_eq!(event.attributes[names::BUDGET_MS], "20000");
    assert!(exporter.render().contains(COUNTED));
}

#[tokio::test]
async fn a_soft_deadline_is_announced_while_the_handler_waits() {
    let (host, captured, exporter) = host();
    // After 300 ms: on a busy machine, an instance can take some ten milliseconds.
    let manifest = Manifest::default().soft_deadline(Duration::from_millis(599_700));
    let guest = load(&host, POLL, SLEEP, manifest);
    let dispatch = dispatch("a").deadline(DispatchDeadline::after(Duration::from_secs(600)));
    let stop = dispatch.stop_handle();
    let run = tokio::spawn({
        let host = host.clone();
        async move { host.run(&guest, dispatch).await }
    });
    // It sleeps until the test stops it, which happens only after this holds.
    while !exporter.render().contains(COUNTED) {
        tokio::task::yield_now().await;
    }
    stop.stop(Cause::Cancel, "seen enough");
    let report = run.await.expect("no panic").expect("it ran");
    assert!(matches!(report.outcome, Outcome::Cancelled(_)), "{report:?}");
    let [event] = &dispatch_span(&captured).events[..] else { panic!("there is one event") };
    assert_eq!(event.attributes[names::RUNNING], POLLING);
}

#[tokio::test]
async fn without_a_soft_deadline_a_handler_is_announced_when_most_of_its_budget_is_used() {
    for (imports, body, running) in
        [(POLL, SLEEP, POLLING), ("", "(loop $again (br $again))", "guest")]
    {
        let (host, captured, exporter) = host();
        let guest = load(&host, imports, body, Manifest::default());
        let budget = DispatchDeadline::after(Duration::from_millis(500));
        let report = host.run(&guest, dispatch("a").deadline(budget)).await.expect("it ran");
        assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
        let [event] = &dispatch_span(&captured).events[..] else { panic!("there is one event") };
        assert_eq!(event.name, names::SOFT_DEADLINE_PASSED);
        assert_eq!(event.attributes[names::RUNNING], running);
        assert_eq!(event.attributes[names::BUDGET_MS], "500");
        assert_eq!(event.attributes[names::SOFT_BEFORE_MS], "100");
        let elapsed: u64 = event.attributes[names::ELAPSED_MS].parse().expect("a number");
        assert!(elapsed >= 400, "not before its time: {elapsed}");
        assert!(exporter.render().contains(COUNTED));
    }
}

#[tokio::test]
async fn a_handler_that_ends_before_is_not_announced() {
    let (host, captured, exporter) = host();
    let guest = load(
        &host,
        SHOULD_STOP,
        "(if (call $should_stop) (then unreachable))",
        Manifest::default(),
    );
    let report = host.run(&guest, dispatch("a")).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(dispatch_span(&captured).events, []);
    assert!(!exporter.render().contains(COUNTED));
}

#[tokio::test]
async fn a_warning_longer_than_the_budget_is_announced_at_the_start() {
    let (host, captured, exporter) = host();
    let manifest = Manifest::default().soft_deadline(Duration::from_secs(600));
    let guest = load(&host, "", "", manifest);
    let report = host.run(&guest, dispatch("a")).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let [event] = &dispatch_span(&captured).events[..] else { panic!("there is one event") };
    assert_eq!(event.attributes[names::RUNNING], "instantiate");
    assert!(exporter.render().contains(COUNTED));
}

/// Calls the host 5,000 times, and then sleeps for an hour.
fn calls_and_sleeps(host: &Host) -> Integration {
    let calls = "(local $left i32)
         (local.set $left (i32.const 5000))
         (loop $again
           (drop (call $should_stop))
           (local.set $left (i32.sub (local.get $left) (i32.const 1)))
           (br_if $again (local.get $left)))";
    let imports = [SHOULD_STOP, POLL].concat();
    load(host, &imports, &[calls, SLEEP].concat(), Manifest::named("calls"))
}

#[tokio::test]
async fn the_call_in_which_a_dropped_handler_was_has_a_span() {
    let (host, captured, _exporter) = host();
    let guest = calls_and_sleeps(&host);
    let mut run = Box::pin(host.run_in_place(&guest, dispatch("a")));
    let is_asleep = || {
        let runs = host.live_runs(1).runs;
        runs.first().is_some_and(|run| run.doing.as_str() == POLLING)
    };
    while !is_asleep() {
        tokio::select! {
            biased;
            report = &mut run => panic!("{report:?}"),
            () = tokio::task::yield_now() => {}
        }
    }
    drop(run);
    let spans = captured.spans();
    let last = spans.iter().rfind(|span| span.name == names::HOST_CALL).expect("some");
    assert_eq!(last.attributes[names::FUNCTION], POLLING);
}

#[tokio::test]
async fn a_handler_with_many_calls_has_few_spans_and_the_span_of_its_last_call() {
    let (host, captured, exporter) = host();
    let guest = calls_and_sleeps(&host);
    let budget = DispatchDeadline::after(Duration::from_secs(2));
    let report = host.run(&guest, dispatch("a").deadline(budget)).await.expect("it ran");
    assert_eq!((report.host_calls.count, report.dying_span.as_deref()), (5001, Some(POLLING)));
    let spans = captured.spans();
    let calls: Vec<_> = spans.iter().filter(|span| span.name == names::HOST_CALL).collect();
    // A call that took long on a busy machine has a span, too.
    assert!((129..=257).contains(&calls.len()), "{}", calls.len());
    let last = calls.last().expect("there are some");
    assert_eq!(last.attributes[names::FUNCTION], POLLING);
    assert_eq!(last.attributes[names::ERROR_TYPE], names::UNFINISHED);
    assert_eq!(last.parent, Some(report.trace.span_id));
    let killed = dispatch_span(&captured);
    // OpenWOP's names of limits are for nodes of packs alone.
    assert!(!killed.attributes.contains_key(names::CAP_KIND), "{killed:?}");
    let unrecorded = killed.attributes[names::UNRECORDED].clone();
    assert_eq!(unrecorded, (5001 - calls.len()).to_string());
    let counted = "temper_handler_telemetry_dropped_total{integration=\"calls\",\
                   what=\"host_call_span\"}";
    assert!(exporter.render().contains(&format!("{counted} {unrecorded}")));
}
