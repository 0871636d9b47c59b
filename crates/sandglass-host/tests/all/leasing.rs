//! Host calls that wait for the lease of their host: which do, when they begin, and how they end if
//! they never begin.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{
    Answer, Answered, Ask, AskError, Asks, Context, Destination, Dispatch, DispatchDeadline, Doing,
    EntitySignal, Host, HostCall, HostError, HostFunction, HostValue, Integration, Lease, Manifest,
    Outcome, RecordingLimits, Settings, SignalError, StopHandle, ValueType,
};
use sandglass_model::{
    CallOutcome, CallPlace, CancelledBy, Cause, Clock, EndPoint, Monotonic, Object, Recording,
    RunReport, Sequence, WallTime,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use tokio::task::JoinHandle;

use crate::server::{Script, Server};
use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// Gets `integration_config.url`, and returns the status and body, or the error.
const SLOW_HTTP: &[u8] = include_bytes!("../../../../guest-fixtures/built/slow_http.wasm");
/// Does what `integration_config.does` names.
const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");

const INTERFACE: &str = "acme:crm/contacts";

/// A host with a lease, and what it reports.
struct Leased {
    host: Host,
    lease: Lease,
    exporter: Exporter,
}

impl Leased {
    fn new(lease: Lease, functions: impl IntoIterator<Item = HostFunction>) -> Self {
        let exporter = Exporter::new(Prefix::default());
        let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
        let settings = Settings { max_runs: 4, ..Settings::default() };
        let builder = Host::builder().settings(settings).telemetry(telemetry).lease(lease.clone());
        let builder = functions.into_iter().fold(builder, |builder, one| builder.function(one));
        Self { host: builder.build().expect("a host"), lease, exporter }
    }

    fn expired() -> Self {
        Self::new(Lease::expired(), [])
    }

    fn load(&self, guest: &[u8], manifest: Manifest) -> Integration {
        self.host.load(guest, manifest).expect("a guest")
    }

    fn start(&self, guest: &Integration, dispatch: Dispatch) -> (Running, StopHandle) {
        let (host, guest, stop) = (self.host.clone(), guest.clone(), dispatch.stop_handle());
        let running =
            tokio::spawn(async move { host.run(&guest, dispatch).await.expect("it ran") });
        (Running(running), stop)
    }

    /// Waits until the only handler does this.
    async fn until_it_does(&self, expected: &str) {
        let reached = async {
            loop {
                let live = self.host.live_runs(10);
                if live.runs.iter().any(|run| run.doing.as_str() == expected) {
                    return live.runs;
                }
                tokio::task::yield_now().await;
            }
        };
        let runs = within(reached).await;
        assert_eq!(runs[0].doing, Doing::Parked(expected.to_owned()));
        assert_eq!(self.lease.parked(), 1);
        assert!(runs[0].active.is_some(), "a call that waits is activity");
    }

    /// Extends the lease beyond the test.
    fn extend(&self) {
        self.lease.extend(self.lease.now().after(LONG));
    }
}

struct Running(JoinHandle<RunReport>);

impl Running {
    async fn report(self) -> RunReport {
        within(self.0).await.expect("no panic")
    }
}

#[allow(clippy::disallowed_methods, reason = "a test that hangs fails")]
async fn within<T>(wait: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONG, wait).await.expect("in time")
}

fn dispatch(budget: Duration) -> Dispatch {
    dispatch_with(budget, &[])
}

fn dispatch_with(budget: Duration, config: &[(&str, &str)]) -> Dispatch {
    let config = config.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let context = Context { config: config.collect(), ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget))
        .recorded(RecordingLimits::default())
}

/// May reach `server`.
fn reaching(server: &Server) -> Manifest {
    let destination: Destination = server.address.to_string().parse().expect("a host");
    Manifest::named("guest").allow_hosts([destination])
}

async fn server() -> Server {
    Server::start(Script { status: 200, body: "fine".to_owned(), ..Script::default() }).await
}

/// How many calls of `function` waited, and for how long together, in microseconds.
fn parked(report: &RunReport, function: &str) -> (u64, u64) {
    let calls = report.host_calls.by_function.iter().find(|calls| calls.name == function);
    let calls = calls.unwrap_or_else(|| panic!("no {function} in {report:?}"));
    (calls.parked.count, calls.parked.total_us)
}

/// Asserts that a replay, which never waits, ends as the run did.
async fn assert_replays(leased: &Leased, guest: &[u8], report: &RunReport) {
    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let run = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let guest = leased.host.load_for_replay(guest, &run).expect("the guest");
    let end = RecordedEnd::from(report);
    let replayed = within(leased.host.replay(&guest, Replay::new(&run, &end))).await;
    let Replayed { divergence, .. } = replayed.expect("replayed");
    assert_eq!(divergence, None);
    assert_eq!(leased.lease.parked(), 0);
}

#[tokio::test]
async fn a_call_waits_for_the_lease_and_then_takes_effect_once() {
    let (leased, server) = (Leased::expired(), server().await);
    let guest = leased.load(SLOW_HTTP, reaching(&server));
    let (running, _) = leased.start(&guest, dispatch_with(LONG, &[("url", &server.url())]));
    leased.until_it_does("parked:host_http_call").await;
    let scrape = leased.exporter.render();
    assert!(scrape.contains("temper_host_calls_parked 1"), "{scrape}");
    assert_eq!(server.requests().len(), 0);
    leased.lease.extend(leased.lease.now());
    leased.until_it_does("parked:host_http_call").await;
    leased.extend();
    let report = running.report().await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(server.requests().len(), 1);
    let (count, waited_us) = parked(&report, "host_http_call");
    assert!(count == 1 && waited_us > 0, "{report:?}");
    assert!(report.time_split_us.host >= waited_us, "{report:?}");
    let http = report.story.calls.iter().find(|call| call.name == "host_http_call");
    assert_eq!(http.expect("it was called").outcome, CallOutcome::Ok);
    let scrape = leased.exporter.render();
    assert!(scrape.contains("temper_host_calls_parked 0"), "{scrape}");
    let sum = "temper_host_call_parked_seconds_count{function=\"host_http_call\"} 1";
    assert!(scrape.contains(sum), "{scrape}");
    leased.lease.expire();
    assert_replays(&leased, SLOW_HTTP, &report).await;
}

#[tokio::test]
async fn a_deadline_that_passes_while_a_call_waits_names_it_and_the_call_never_begins() {
    let (leased, server) = (Leased::expired(), server().await);
    let guest = leased.load(SLOW_HTTP, reaching(&server));
    let budget = Duration::from_millis(200);
    let (running, _) = leased.start(&guest, dispatch_with(budget, &[("url", &server.url())]));
    let report = running.report().await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "parked:host_http_call");
    assert_eq!((&exceeded.dying_call, report.cause), (&None, Cause::Deadline));
    let next = EndPoint { place: CallPlace::Before, call: report.host_calls.count + 1 };
    assert_eq!(report.ended_at, Some(next));
    let (count, waited_us) = parked(&report, "host_http_call");
    assert!(count == 1 && waited_us > 100_000, "{report:?}");
    assert!(report.time_split_us.host >= waited_us, "{report:?}");
    assert!(!exceeded.backtrace.is_empty(), "it shows where the guest was");
    leased.extend();
    assert_replays(&leased, SLOW_HTTP, &report).await;
    assert_eq!((server.requests().len(), leased.lease.parked()), (0, 0));
}

#[tokio::test]
async fn a_run_whose_entity_was_taken_over_ends_at_once_and_its_call_never_begins() {
    let (leased, server) = (Leased::expired(), server().await);
    let guest = leased.load(SLOW_HTTP, reaching(&server));
    let (running, stop) = leased.start(&guest, dispatch_with(LONG, &[("url", &server.url())]));
    leased.until_it_does("parked:host_http_call").await;
    assert_eq!(stop.stop(Cause::OwnershipLost, "host b has it"), Cause::OwnershipLost);
    let report = running.report().await;
    let Outcome::Cancelled(cancelled) = &report.outcome else { panic!("{report:?}") };
    assert_eq!((report.cause, cancelled.by), (Cause::OwnershipLost, CancelledBy::OwnershipLost));
    assert_eq!(report.dying_span.as_deref(), Some("parked:host_http_call"));
    leased.extend();
    assert_replays(&leased, SLOW_HTTP, &report).await;
    assert_eq!((server.requests().len(), leased.lease.parked()), (0, 0));
}

#[tokio::test]
async fn a_handler_that_is_dropped_while_it_waits_is_no_longer_counted() {
    let (leased, server) = (Leased::expired(), server().await);
    let guest = leased.load(SLOW_HTTP, reaching(&server));
    let (running, _) = leased.start(&guest, dispatch_with(LONG, &[("url", &server.url())]));
    leased.until_it_does("parked:host_http_call").await;
    running.0.abort();
    within(async {
        while leased.lease.parked() > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    leased.extend();
    assert!(leased.exporter.render().contains("temper_host_calls_parked 0"));
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn components_wait_in_each_way_to_send_a_request() {
    let cases = [
        ("get", "parked:sandglass:integration/http.send"),
        ("download", "parked:sandglass:integration/http.open"),
        ("wasi_get", "parked:wasi:http/outgoing-handler.handle"),
    ];
    for (does, place) in cases {
        let (leased, server) = (Leased::expired(), server().await);
        let guest = leased.load(COMPONENT, reaching(&server));
        let config = [("does", does), ("url", &server.url())];
        let (running, _) = leased.start(&guest, dispatch_with(LONG, &config));
        leased.until_it_does(place).await;
        assert_eq!(server.requests().len(), 0, "{does}");
        leased.extend();
        let report = running.report().await;
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{does}: {report:?}");
        assert_eq!(server.requests().len(), 1, "{does}");
        assert_eq!(parked(&report, place.strip_prefix("parked:").expect("it is")).0, 1, "{does}");
        assert_replays(&leased, COMPONENT, &report).await;

        leased.lease.expire();
        let (running, stop) = leased.start(&guest, dispatch_with(LONG, &config));
        leased.until_it_does(place).await;
        stop.request_stop();
        let report = running.report().await;
        assert!(matches!(report.outcome, Outcome::Failed(_)), "{does}: {report:?}");
        assert!(report.story.requests.is_empty(), "{does}: {report:?}");
        leased.extend();
        assert_replays(&leased, COMPONENT, &report).await;
        assert_eq!(server.requests().len(), 1, "{does}: a stopped call sends nothing");
    }
}

/// Uses what needs no lease: the clock, the log, scratch, randomness, WASI's poll and its output.
const STAYS_INSIDE: &str = r#"(module
    (import "env" "host_get_time_millis" (func $time (result i64)))
    (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
    (import "env" "host_scratch_set" (func $set (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_emit_progress" (func $progress (param i32 i32) (result i32)))
    (import "env" "host_set_result" (func $answer (param i32 i32)))
    (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write"
        (func $write (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 4)
    (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
    (data (i32.const 96) "info")
    (data (i32.const 128) "key")
    ;; One buffer with `key`, and a subscription to the clock, one millisecond from now.
    (data (i32.const 160) "\80\00\00\00\03\00\00\00")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $time))
        (call $log (i32.const 96) (i32.const 4) (i32.const 128) (i32.const 3))
        (drop (call $progress (i32.const 16) (i32.const 46)))
        (if (call $set (i32.const 128) (i32.const 3) (i32.const 128) (i32.const 3))
            (then unreachable))
        (if (call $random (i32.const 1024) (i32.const 200000)) (then unreachable))
        (if (call $write (i32.const 1) (i32.const 160) (i32.const 1) (i32.const 192))
            (then unreachable))
        (i32.store (i32.const 528) (i32.const 1))
        (i64.store (i32.const 536) (i64.const 1000000))
        (if (call $poll (i32.const 512) (i32.const 640) (i32.const 1) (i32.const 704))
            (then unreachable))
        (call $answer (i32.const 16) (i32.const 46))
        (i32.const 0)))"#;

/// Computes for some time slices, and calls the host in between.
const COMPUTES: &str = r#"(module
    (import "env" "host_should_stop" (func $stop (result i32)))
    (import "env" "host_set_result" (func $answer (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 16) "{\"action\":\"Finish\",\"success\":true,\"params\":{}}")
    (func (export "run") (param i32 i32) (result i32) (local $i i32)
        (loop $again
            (local.set $i (i32.add (local.get $i) (i32.const 1)))
            (if (i32.eqz (i32.rem_u (local.get $i) (i32.const 100000)))
                (then (drop (call $stop))))
            (br_if $again (i32.lt_u (local.get $i) (i32.const 20000000))))
        (call $answer (i32.const 16) (i32.const 46))
        (i32.const 0)))"#;

#[tokio::test]
async fn without_a_lease_guests_compute_and_call_what_reaches_nothing_outside() {
    let leased = Leased::expired();
    for guest in [STAYS_INSIDE, COMPUTES] {
        let guest = leased.load(guest.as_bytes(), Manifest::named("g").scratch_bytes(1000));
        let (running, _) = leased.start(&guest, dispatch(LONG));
        let report = running.report().await;
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
        let mut calls = report.host_calls.by_function.iter();
        assert!(calls.all(|calls| calls.parked.count == 0), "{report:?}");
    }
    for does in ["tell", "read_clocks", "draw_random_numbers", "nap", "print"] {
        let guest = leased.load(COMPONENT, Manifest::default());
        let (running, _) = leased.start(&guest, dispatch_with(LONG, &[("does", does)]));
        let report = running.report().await;
        assert_eq!(report.cause, Cause::Returned, "{does}: {report:?}");
    }
}

#[tokio::test]
async fn a_lease_without_an_end_changes_nothing() {
    let (leased, server) = (Leased::new(Lease::default(), []), server().await);
    let guest = leased.load(SLOW_HTTP, reaching(&server));
    let (running, _) = leased.start(&guest, dispatch_with(LONG, &[("url", &server.url())]));
    let report = running.report().await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(parked(&report, "host_http_call"), (0, 0));
    assert!(!leased.exporter.render().contains("host_call_parked_seconds_count{"));
}

/// A clock that a test sets, as if the process had been suspended.
#[derive(Debug, Default)]
struct SetClock(AtomicU64);

impl SetClock {
    fn skip(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).expect("it is short");
        self.0.fetch_add(nanos, Ordering::SeqCst);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(self.0.load(Ordering::SeqCst))
    }

    fn wall(&self) -> WallTime {
        WallTime::default()
    }
}

/// A guest that calls each of these functions in turn with a text, and sets the last result or error
/// as its status.
fn calling(names: &[&str]) -> String {
    let imports: String = BTreeSet::from_iter(names)
        .into_iter()
        .map(|name| {
            format!(
                "(import \"{INTERFACE}\" \"{name}\"
                    (func ${name} (param i32 i32 i32 i32) (result i32)))\n"
            )
        })
        .collect();
    let calls: String = names
        .iter()
        .map(|name| {
            format!(
                "(local.set $n (call ${name}
                    (i32.const 64) (i32.const 3) (i32.const 4096) (i32.const 1024)))\n"
            )
        })
        .collect();
    format!(
        r#"(module
        {imports}
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "ada")
        (func (export "run") (param i32 i32) (result i32) (local $n i32)
            {calls}
            (if (i32.lt_s (local.get $n) (i32.const 0))
                (then (local.set $n (call $error (i32.const 4096) (i32.const 1024)))))
            (drop (call $status (i32.const 4096) (local.get $n)))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

fn granting(names: &[&str]) -> Manifest {
    Manifest::named("crm").functions(names.iter().map(|name| format!("{INTERFACE}.{name}")))
}

/// The embedder's functions of each class, which count their calls, and `pause`, which suspends the
/// process for an hour of the lease's clock.
fn functions(calls: &Arc<AtomicUsize>, clock: &Arc<SetClock>) -> Vec<HostFunction> {
    let count = |name: &str| {
        let (name, calls) = (name.to_owned(), Arc::clone(calls));
        move || {
            calls.fetch_add(1, Ordering::SeqCst);
            Ok::<_, HostError>(name.clone())
        }
    };
    let (asynchronous, blocking, dynamic) = (count("async"), count("blocking"), count("dynamic"));
    let clock = Arc::clone(clock);
    vec![
        HostFunction::asynchronous(INTERFACE, "async", move |_: HostCall, _: String| {
            std::future::ready(asynchronous())
        }),
        HostFunction::blocking(INTERFACE, "blocking", LONG, move |_: HostCall, _: String| {
            blocking()
        }),
        HostFunction::dynamic(
            INTERFACE,
            "dynamic",
            vec![ValueType::Text],
            ValueType::Text,
            move |_, _| {
                let called = dynamic().map(HostValue::Text);
                Box::pin(std::future::ready(called))
            },
        ),
        HostFunction::instant(INTERFACE, "pause", move |_: HostCall, _: String| {
            clock.skip(Duration::from_secs(3600));
            Ok("paused".to_owned())
        }),
    ]
}

#[tokio::test]
async fn a_process_that_was_suspended_during_a_handler_begins_no_call_until_it_has_its_lease_again()
{
    for name in ["async", "blocking", "dynamic"] {
        let (calls, clock) = (Arc::default(), Arc::new(SetClock::default()));
        let lease = Lease::expired_on(Arc::clone(&clock) as _);
        let leased = Leased::new(lease, functions(&calls, &clock));
        leased.extend();
        // Valid when the handler begins and at its first call; suspended after that.
        let text = calling(&[name, "pause", name]);
        let guest = leased.load(text.as_bytes(), granting(&[name, "pause"]));
        let received = Received::new();
        let dispatch = dispatch(LONG).signals(Arc::clone(&received) as _);
        let (running, _) = leased.start(&guest, dispatch);
        let full_name = format!("{INTERFACE}.{name}");
        leased.until_it_does(&format!("parked:{full_name}")).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1, "the first call alone");
        leased.extend();
        let report = running.report().await;
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
        assert_eq!((received.status().as_str(), calls.load(Ordering::SeqCst)), (name, 2));
        assert_eq!(parked(&report, &full_name).0, 1);
        assert_replays(&leased, text.as_bytes(), &report).await;
        assert_eq!(calls.load(Ordering::SeqCst), 2, "a replay calls nothing");
    }
}

#[tokio::test]
async fn a_stop_request_or_the_soft_deadline_ends_a_call_that_waits_with_an_error_and_no_effect() {
    let calls = Arc::default();
    let clock = Arc::default();
    let leased = Leased::new(Lease::expired(), functions(&calls, &clock));
    let text = calling(&["async"]);
    let guest = leased.load(text.as_bytes(), granting(&["async"]));
    let full_name = format!("{INTERFACE}.async");
    let received = Received::new();
    let (running, stop) = leased.start(&guest, dispatch(LONG).signals(Arc::clone(&received) as _));
    leased.until_it_does(&format!("parked:{full_name}")).await;
    stop.request_stop();
    let report = running.report().await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert!(received.status().starts_with("the run should stop"), "{}", received.status());
    let call = report.story.calls.iter().find(|call| call.name == full_name).expect("it is there");
    assert_eq!(call.outcome, CallOutcome::CutShort);
    assert_replays(&leased, text.as_bytes(), &report).await;

    let manifest = granting(&["async"]).soft_deadline(LONG - Duration::from_secs(1));
    let guest = leased.load(text.as_bytes(), manifest);
    let received = Received::new();
    let (running, _) = leased.start(&guest, dispatch(LONG).signals(Arc::clone(&received) as _));
    let report = running.report().await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert!(received.status().starts_with("the soft deadline passed"), "{}", received.status());
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn the_time_limit_of_a_call_begins_when_the_call_does() {
    /// Far longer than the limit of the call.
    const WAIT: Duration = Duration::from_millis(100);
    let waited = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&waited);
    let slow = move |call: HostCall, _: String| {
        *seen.lock().expect("no panic") = Some(call.remaining());
        std::future::ready(Ok("slow".to_owned()))
    };
    let function = HostFunction::asynchronous(INTERFACE, "slow", slow);
    let never = HostFunction::asynchronous(INTERFACE, "never", |_: HostCall, _: String| {
        std::future::pending::<Result<String, HostError>>()
    });
    let leased = Leased::new(Lease::expired(), [function, never]);
    let full_name = format!("{INTERFACE}.slow");
    let limits = [(full_name.clone(), Duration::from_millis(1))];
    let manifest = granting(&["slow"]).host_call_timeouts(limits);
    let guest = leased.load(calling(&["slow"]).as_bytes(), manifest);
    let received = Received::new();
    let (running, _) = leased.start(&guest, dispatch(LONG).signals(Arc::clone(&received) as _));
    leased.until_it_does(&format!("parked:{full_name}")).await;
    let parked_at = leased.host.clock().now();
    while leased.host.clock().now().since(parked_at) < WAIT {
        tokio::task::yield_now().await;
    }
    leased.extend();
    let report = running.report().await;
    assert_eq!(received.status(), "slow", "{report:?}");
    assert!(received.timed_out_calls().is_empty() && report.overruns.is_empty(), "{report:?}");
    let remaining = waited.lock().expect("no panic").expect("it was called");
    assert!(remaining < LONG - WAIT, "the deadline goes on: {remaining:?}");

    // And it does end a call that has begun.
    leased.lease.expire();
    let full_name = format!("{INTERFACE}.never");
    let limits = [(full_name.clone(), Duration::from_millis(50))];
    let manifest = granting(&["never"]).host_call_timeouts(limits);
    let guest = leased.load(calling(&["never"]).as_bytes(), manifest);
    let received = Received::new();
    let (running, _) = leased.start(&guest, dispatch(LONG).signals(Arc::clone(&received) as _));
    leased.until_it_does(&format!("parked:{full_name}")).await;
    leased.extend();
    let report = running.report().await;
    assert!(received.status().contains("limit was 50 ms"), "{}", received.status());
    assert_eq!(report.overruns.len(), 1);
    assert!(report.overruns[0].observed_ms >= 50, "{report:?}");
}

/// Takes every ask and signal, and counts them.
#[derive(Debug, Default)]
struct Others {
    taken: AtomicUsize,
}

impl Asks for Others {
    fn knows(&self, _: &str, _: &str) -> bool {
        true
    }

    fn ask(&self, _: Ask) -> Answer<'static, Result<Answered, AskError>> {
        self.taken.fetch_add(1, Ordering::SeqCst);
        let (sequence, state) = (Sequence(1), "Charged".to_owned());
        let answered = Answered { sequence, state, fields: Object::new() };
        Box::pin(std::future::ready(Ok(answered)))
    }

    fn signal(&self, _: EntitySignal) -> Answer<'static, Result<(), SignalError>> {
        self.taken.fetch_add(1, Ordering::SeqCst);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// Calls `env.NAME` with a request, and traps if it fails.
fn requesting(name: &str, request: &str) -> String {
    let (data, length) = (request.replace('"', "\\\""), request.len());
    let (types, buffer) = match name {
        "host_ask" => ("i32 i32 i32 i32", "(i32.const 4096) (i32.const 4096)"),
        _ => ("i32 i32", ""),
    };
    format!(
        r#"(module
        (import "env" "{name}" (func $request (param {types}) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "{data}")
        (func (export "run") (param i32 i32) (result i32)
            (if (i32.lt_s (call $request (i32.const 64) (i32.const {length}) {buffer})
                    (i32.const 0))
                (then unreachable))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

#[tokio::test]
async fn asks_and_signals_wait_because_they_change_other_entities() {
    let requests = [
        ("host_ask", r#"{"entity":"Payment/7","action":"Charge"}"#),
        ("host_signal", r#"{"entity":"Payment/7","name":"Ready"}"#),
    ];
    for (name, request) in requests {
        let leased = Leased::expired();
        let target = || ["Payment.*".parse().expect("a target")];
        let manifest = Manifest::named("asks").ask_targets(target()).signal_targets(target());
        let guest = requesting(name, request);
        let integration = leased.load(guest.as_bytes(), manifest);
        let others = Arc::new(Others::default());
        let asking = || dispatch(LONG).asks(Arc::clone(&others) as _);
        let place = format!("parked:{name}");

        let (running, stop) = leased.start(&integration, asking());
        leased.until_it_does(&place).await;
        stop.stop(Cause::OwnershipLost, "");
        assert_eq!(running.report().await.cause, Cause::OwnershipLost);

        let (running, _) = leased.start(&integration, asking());
        leased.until_it_does(&place).await;
        assert_eq!(others.taken.load(Ordering::SeqCst), 0, "{name}");
        leased.extend();
        let report = running.report().await;
        assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
        assert_eq!(others.taken.load(Ordering::SeqCst), 1, "{name}");
        assert_eq!(parked(&report, name).0, 1);
        assert_replays(&leased, guest.as_bytes(), &report).await;
    }
}
