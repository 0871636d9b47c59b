//! The guarantees of a dispatch, whatever its guest does and whatever stops it.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Error, Host, Integration, Manifest, Outcome, Settings,
    Signal, StopHandle,
};
use sandglass_model::{
    BusyScope, CancelledBy, Cause, Clock, DeadlineOwner, FailureKind, GuestLimits, RunReport,
    SystemClock,
};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use tokio::task::JoinHandle;

use crate::signals::Received;

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func $spin (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// Waits for an hour in a poll.
const SLEEPS: &str = r#"(module
    (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

const FINISHES: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true,\"action\":\"Finish\"}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 34)) i32.const 0))"#;

fn host(settings: Settings) -> Host {
    Host::builder().settings(settings).build().expect("a host")
}

fn small() -> Settings {
    Settings { max_runs: 8, ..Settings::default() }
}

fn load(host: &Host, guest: &str) -> Integration {
    host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest")
}

fn dispatch(budget_ms: u64) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)))
}

/// Longer than anything here takes on a busy machine.
const LONG_MS: u64 = 60_000;

#[tokio::test]
async fn a_kill_touches_no_neighbour_on_the_same_module_and_thread() {
    let host = host(Settings { guest_threads: 1, ..small() });
    let (spins, sleeps) = (load(&host, SPINS), load(&host, SLEEPS));
    let finishes = load(&host, FINISHES);
    let (first, second, waiting, healthy) = tokio::join!(
        host.run(&spins, dispatch(50)),
        host.run(&spins, dispatch(150)),
        host.run(&sleeps, dispatch(100)),
        host.run(&finishes, dispatch(LONG_MS)),
    );
    for (report, budget) in [(first, 50), (second, 150), (waiting, 100)] {
        let report = report.expect("it ran");
        let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(exceeded.budget_ms, budget, "each has its own deadline");
        assert!(exceeded.elapsed_ms > budget);
    }
    assert!(matches!(healthy.expect("it ran").outcome, Outcome::Completed(_)));
}

#[tokio::test]
async fn spinners_never_hold_the_embedders_runtime() {
    let host = host(small());
    let spins = load(&host, SPINS);
    let mut spinning: Vec<_> = Vec::new();
    for _ in 0..4 {
        let (host, spins) = (host.clone(), spins.clone());
        spinning.push(tokio::spawn(async move { host.run(&spins, dispatch(400)).await }));
    }
    // This test's runtime has one thread. If a guest were on it, nothing else would happen before its
    // deadline.
    let mut turns = 0;
    while !spinning.iter().all(JoinHandle::is_finished) {
        tokio::task::yield_now().await;
        turns += 1;
    }
    assert!(turns > 100, "the embedder's thread got {turns} turns");
}

#[tokio::test]
async fn a_cancel_ends_a_guest_that_spins_and_one_that_waits() {
    let host = host(small());
    let cases =
        [(REPORTS_AND_SPINS, "guest"), (REPORTS_AND_SLEEPS, "wasi_snapshot_preview1.poll_oneoff")];
    for (guest, span) in cases {
        let integration = load(&host, guest);
        let received = Received::new();
        let dispatch = dispatch(LONG_MS).signals(Arc::clone(&received) as _);
        let stop = dispatch.stop_handle();
        let running = host.run(&integration, dispatch);
        let (report, cause) = tokio::join!(running, async {
            received.wait().await;
            stop.stop(Cause::Cancel, "not needed any more")
        });
        assert_eq!(cause, Cause::Cancel);
        let report = report.expect("it ran");
        let Outcome::Cancelled(cancellation) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(cancellation.by, CancelledBy::Operator);
        assert_eq!(cancellation.reason, "not needed any more");
        // It may be stopped as it leaves a call that reported, or before the next one.
        let dying_span = report.dying_span.as_deref().expect("a cut run has one");
        let reporting = ["host_set_status", "host_emit_progress", "guest"];
        assert!(dying_span == span || reporting.contains(&dying_span), "it died in {dying_span}");
        assert_eq!(stop.stop(Cause::Shutdown, ""), Cause::Cancel, "the first cause holds");
    }
}

/// Reports that it has begun, and polls whether it should stop.
const STOPS_GRACEFULLY: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_should_stop" (func $should_stop (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true,\"action\":\"Finish\"}")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 8) (i32.const 1)))
        (loop $again (br_if $again (i32.eqz (call $should_stop))))
        (call $set (i32.const 8) (i32.const 34)) i32.const 0))"#;

#[tokio::test]
async fn a_graceful_stop_lets_a_handler_end_by_itself_and_a_queued_one_never_starts() {
    let host = host(Settings { max_runs: 1, ..small() });
    let graceful = load(&host, STOPS_GRACEFULLY);
    let received = Received::new();
    let dispatched = dispatch(LONG_MS).signals(Arc::clone(&received) as _);
    let queued = dispatch(LONG_MS);
    let (stop, stop_queued) = (dispatched.stop_handle(), queued.stop_handle());
    let (ran, waited, ()) = tokio::join!(
        host.run(&graceful, dispatched),
        async {
            received.wait().await;
            host.run(&graceful, queued).await
        },
        async {
            received.wait().await;
            stop_queued.request_stop();
            stop.request_stop();
        }
    );
    let ran = ran.expect("it ran");
    assert!(matches!(ran.outcome, Outcome::Completed(_)), "{ran:?}");
    let waited = waited.expect("a report");
    let Outcome::Cancelled(cancellation) = &waited.outcome else { panic!("{waited:?}") };
    assert_eq!((cancellation.by, waited.started_at), (CancelledBy::RunStopped, None));
}

/// Reports that it has begun, and spins.
const REPORTS_AND_SPINS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_emit_progress" (func $progress (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "begun{\"done\":1}")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 8) (i32.const 5)))
        (drop (call $progress (i32.const 13) (i32.const 10)))
        (loop (br 0)) i32.const 0))"#;

/// Reports that it has begun, and sleeps.
const REPORTS_AND_SLEEPS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 256) "begun")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 256) (i32.const 5)))
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

#[tokio::test]
async fn dropping_the_caller_stops_the_handler_and_frees_its_slot() {
    let host = host(Settings { max_runs: 1, ..small() });
    let received = Received::new();
    let reports = load(&host, REPORTS_AND_SPINS);
    let dispatched = dispatch(LONG_MS).signals(Arc::clone(&received) as _);
    tokio::select! {
        report = host.run(&reports, dispatched) => panic!("{report:?}"),
        () = received.wait() => {}
    }
    // The only slot is free again, long before the budget of the first has passed.
    let finishes = load(&host, FINISHES);
    let patient = dispatch(LONG_MS).schedule_to_start(Duration::from_millis(LONG_MS / 2));
    let outcome = host.dispatch(&finishes, patient).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

#[tokio::test]
async fn signals_reach_the_receiver_of_the_dispatch() {
    let host = host(small());
    let received = Received::new();
    let dispatched = dispatch(500).signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&load(&host, REPORTS_AND_SPINS), dispatched).await.expect("it ran");
    assert!(matches!(outcome, Outcome::TimedOut(_)));
    assert_eq!(
        received.all(),
        [Signal::Status("begun".to_owned()), Signal::Progress(serde_json::json!({"done": 1}))]
    );
}

#[tokio::test]
async fn the_deadline_of_a_parent_applies_if_it_is_earlier() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let host = Host::builder().settings(small()).clock(Arc::clone(&clock)).build().expect("a host");
    let parent = clock.now().after(Duration::from_millis(80));
    let deadline = DispatchDeadline::after(Duration::from_millis(LONG_MS)).within(parent);
    let report =
        host.run(&load(&host, SPINS), dispatch(1).deadline(deadline)).await.expect("it ran");
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.owner, DeadlineOwner::Parent);
    assert_eq!(report.cause, Cause::ParentDeadline);
    assert!(exceeded.budget_ms <= 80 && exceeded.elapsed_ms > exceeded.budget_ms);
}

#[tokio::test]
async fn an_expired_parent_deadline_ends_the_handler_before_the_guest_begins() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let host = Host::builder().settings(small()).clock(Arc::clone(&clock)).build().expect("a host");
    let deadline = DispatchDeadline::after(Duration::from_millis(LONG_MS)).within(clock.now());
    let report =
        host.run(&load(&host, FINISHES), dispatch(1).deadline(deadline)).await.expect("it ran");
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!((exceeded.host_calls, &*exceeded.dying_span), (0, "instantiate"));
}

/// A handler that occupies a slot until it is stopped.
async fn held(host: &Host) -> (StopHandle, JoinHandle<Result<RunReport, Error>>) {
    let received = Received::new();
    let holder = dispatch(LONG_MS).signals(Arc::clone(&received) as _);
    let stop = holder.stop_handle();
    let reports = load(host, REPORTS_AND_SPINS);
    let host = host.clone();
    let holding = tokio::spawn(async move { host.run(&reports, holder).await });
    received.wait().await;
    (stop, holding)
}

#[tokio::test]
async fn a_handler_that_cannot_start_in_time_is_rejected_and_reported() {
    let host = host(Settings { max_runs: 1, ..small() });
    let spins = load(&host, SPINS);
    let (stop, holding) = held(&host).await;
    let impatient = dispatch(LONG_MS).schedule_to_start(Duration::from_millis(20));
    let report = host.run(&spins, impatient).await.expect("it was refused, and that is a report");
    assert!(matches!(report.outcome, Outcome::Rejected(_)), "{report:?}");
    assert!(report.started_at.is_none() && report.time_split_us.queue >= 20_000);
    stop.stop(Cause::Cancel, "");
    holding.await.expect("no panic").expect("it ran");
}

#[tokio::test]
async fn a_handler_whose_parent_deadline_passes_in_the_queue_is_timed_out() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let settings = Settings { max_runs: 1, ..small() };
    let host =
        Host::builder().settings(settings).clock(Arc::clone(&clock)).build().expect("a host");
    let spins = load(&host, SPINS);
    let (stop, holding) = held(&host).await;
    let parent = clock.now().after(Duration::from_millis(20));
    let deadline = DispatchDeadline::after(Duration::from_millis(LONG_MS)).within(parent);
    let report = host.run(&spins, dispatch(1).deadline(deadline)).await.expect("a report");
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!((exceeded.owner, report.cause), (DeadlineOwner::Parent, Cause::ParentDeadline));
    assert!(exceeded.budget_ms <= 20 && exceeded.elapsed_ms > exceeded.budget_ms, "{exceeded:?}");
    assert_eq!((exceeded.host_calls, &*exceeded.dying_span), (0, "instantiate"));
    assert!(report.started_at.is_none() && report.deadline.owner == DeadlineOwner::Parent);
    stop.stop(Cause::Cancel, "");
    holding.await.expect("no panic").expect("it ran");
}

#[tokio::test]
async fn more_dispatches_than_may_wait_are_refused() {
    let host = host(Settings { max_runs: 1, max_queued: 1, ..small() });
    let spins = load(&host, SPINS);
    let [one, two, three] = [dispatch(LONG_MS), dispatch(LONG_MS), dispatch(LONG_MS)];
    let stops = [one.stop_handle(), two.stop_handle()];
    let (one, two, busy) = tokio::join!(host.run(&spins, one), host.run(&spins, two), async {
        let busy = host.run(&spins, three).await;
        for stop in stops {
            stop.stop(Cause::Cancel, "");
        }
        busy
    });
    assert!(
        matches!(busy, Err(Error::Busy(busy)) if (busy.scope, busy.limit) == (BusyScope::Host, 2)),
        "{busy:?}"
    );
    assert!(one.is_ok() && two.is_ok());
}

#[tokio::test]
async fn a_shutdown_stops_running_handlers_and_refuses_new_dispatches() {
    let host = host(small());
    let received = Received::new();
    let reports = load(&host, REPORTS_AND_SPINS);
    let dispatched = dispatch(LONG_MS).signals(Arc::clone(&received) as _);
    let running = tokio::spawn({
        let (host, reports) = (host.clone(), reports.clone());
        async move { host.run(&reports, dispatched).await }
    });
    received.wait().await;
    host.shutdown().await;
    let report = running.await.expect("no panic").expect("it ran");
    let Outcome::Cancelled(cancellation) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(cancellation.by, CancelledBy::Shutdown);
    assert!(matches!(host.run(&reports, dispatch(1)).await, Err(Error::ShuttingDown)));
}

/// Answers success, having filled memory for longer than its budget.
const RETURNS_LATE: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 4000)
    (data (i32.const 8) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (call $set (i32.const 8) (i32.const 16))
        ;; One bulk instruction isn't interrupted, and some of them outlast the budget.
        (memory.fill (i32.const 4096) (i32.const 1) (i32.const 250000000))
        (memory.fill (i32.const 4096) (i32.const 2) (i32.const 250000000))
        (memory.fill (i32.const 4096) (i32.const 3) (i32.const 250000000))
        (memory.fill (i32.const 4096) (i32.const 4) (i32.const 250000000))
        i32.const 0))"#;

#[tokio::test]
async fn a_late_success_is_a_timeout() {
    let host = host(small());
    let limits = GuestLimits { memory_bytes: 256 << 20, ..GuestLimits::default() };
    let manifest = Manifest::named("guest").limits(limits);
    let late = host.load(RETURNS_LATE.as_bytes(), manifest).expect("a guest");
    let report = host.run(&late, dispatch(30)).await.expect("it ran");
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "guest");
    assert!(report.result().is_none());
}

#[tokio::test]
async fn a_killed_handler_leaves_no_store_behind() {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
    let host = Host::builder()
        .settings(Settings { max_runs: 2, ..small() })
        .telemetry(telemetry)
        .build()
        .expect("a host");
    let (spins, sleeps) = (load(&host, SPINS), load(&host, SLEEPS));
    // Two places, and many times as many kills: each must give its place back.
    for _ in 0..20 {
        let (one, two) =
            tokio::join!(host.run(&spins, dispatch(5)), host.run(&sleeps, dispatch(5)));
        for report in [one, two] {
            assert!(matches!(report.expect("it ran").outcome, Outcome::TimedOut(_)));
        }
    }
    host.shutdown().await;
    let scrape = exporter.render();
    for gauge in ["temper_wasm_live_stores", "temper_wasm_live_dispatches"] {
        let value = scrape.lines().find_map(|line| line.strip_prefix(gauge)).map(str::trim);
        assert_eq!(value, Some("0"), "{gauge} in\n{scrape}");
    }
    let counted: f64 = scrape
        .lines()
        .filter(|line| line.starts_with("temper_handler_deadline_exceeded_total{"))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum();
    assert!((counted - 40.0).abs() < f64::EPSILON, "{scrape}");
}

#[tokio::test]
async fn the_callers_future_is_small_enough_to_be_spawned() {
    let host = host(small());
    let finishes = load(&host, FINISHES);
    let run = host.run(&finishes, dispatch(LONG_MS));
    assert!(size_of_val(&run) < 4096, "{} bytes", size_of_val(&run));
    run.await.expect("it ran");
}

#[tokio::test]
async fn a_module_is_compiled_once_whatever_it_is_granted() {
    let host = host(small());
    let one = load(&host, FINISHES);
    let limits = GuestLimits { response_bytes: 4, ..GuestLimits::default() };
    let other = host
        .load(FINISHES.as_bytes(), Manifest::named("other").limits(limits))
        .expect("the same module");
    assert_eq!(one.module(), other.module());
    let report = host.run(&other, dispatch(LONG_MS)).await.expect("it ran");
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(failure.kind, FailureKind::ResultTooLarge, "the second grants hold for it");
}

#[test]
fn a_module_is_kept_while_it_is_used_and_later_while_there_is_room() {
    for (module_cache_bytes, compiled) in [(0, 3), (64 << 20, 2)] {
        let exporter = Exporter::new(Prefix::default());
        let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::default() };
        let settings = Settings { module_cache_bytes, ..small() };
        let host = Host::builder().settings(settings).telemetry(telemetry).build();
        let host = host.expect("a host");
        let one = load(&host, FINISHES);
        drop(load(&host, SPINS));
        drop(load(&host, FINISHES));
        drop((one, load(&host, SPINS)));
        let expected = format!("temper_wasm_module_compile_seconds_count {compiled}");
        let scraped = exporter.render();
        assert!(scraped.contains(&expected), "no `{expected}` in {scraped}");
    }
}

#[test]
fn a_module_that_is_too_large_is_rejected_before_it_is_read() {
    let host = host(small());
    let limits = GuestLimits { module_bytes: 16, ..GuestLimits::default() };
    let rejection = host
        .load(FINISHES.as_bytes(), Manifest::named("large").limits(limits))
        .expect_err("it is larger than 16 bytes");
    assert_eq!(rejection.kind.as_str(), "module_too_large");
}

#[test]
fn any_bytes_are_a_module_or_a_rejection() {
    let host = host(small());
    let guest = wat_bytes();
    for end in 0..guest.len() {
        let Err(rejection) = host.load(&guest[..end], Manifest::default()) else {
            panic!("{end} bytes of {} are no module", guest.len());
        };
        assert!(!rejection.message.is_empty());
    }
    for at in 0..guest.len() {
        let mut broken = guest.clone();
        broken[at] ^= 0x55;
        // Either is fine; a panic is not.
        drop(host.load(&broken, Manifest::default()));
    }
}

fn wat_bytes() -> Vec<u8> {
    std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/all/smallest.wasm")).expect("kept")
}
