//! Handlers on the caller's task: the same guarantees as on the host's threads, except for the caller's
//! thread.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context as Polling, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Error, Host, HostCall, HostError, HostFunction,
    Integration, Manifest, Outcome, Settings, Signal, Signals,
};
use sandglass_model::{CancelledBy, Cause, RunReport};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// Waits in a poll for as many nanoseconds as its data states, and returns a success.
fn sleeps(nanos: u64) -> String {
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "poll_oneoff"
            (func $poll (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 512) "{{\"success\":true}}")
        (func (export "run") (param i32 i32) (result i32)
            (i32.store (i32.const 16) (i32.const 1))
            (i64.store (i32.const 24) (i64.const {nanos}))
            (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
            (call $set (i32.const 512) (i32.const 16))
            i32.const 0))"#
    )
}

const AN_HOUR_NS: u64 = 3_600_000_000_000;

/// Longer than anything here takes on a busy machine.
const LONG_MS: u64 = 60_000;

fn host(max_runs: u32) -> (Host, Exporter) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
    let settings = Settings { max_runs, max_asking: 0, ..Settings::default() };
    let host = Host::builder().settings(settings).telemetry(telemetry).build().expect("a host");
    (host, exporter)
}

fn load(host: &Host, guest: &str) -> Integration {
    host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest")
}

fn dispatch(budget_ms: u64) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(budget_ms)))
}

fn timed_out_in(report: &RunReport, span: &str) {
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, span);
    assert!(exceeded.elapsed_ms > exceeded.budget_ms, "{exceeded:?}");
}

fn gauge(exporter: &Exporter, name: &str) -> String {
    let scrape = exporter.render();
    let value = scrape.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.unwrap_or("absent").to_owned()
}

#[tokio::test]
async fn a_spinner_is_killed_and_yields_the_callers_thread_meanwhile() {
    let (host, _) = host(2);
    let spins = load(&host, SPINS);
    let mut running = pin!(host.run_in_place(&spins, dispatch(200)));
    let mut turns = 0;
    let report = loop {
        tokio::select! {
            biased;
            report = &mut running => break report.expect("it ran"),
            () = tokio::task::yield_now() => turns += 1,
        }
    };
    timed_out_in(&report, "guest");
    assert!(!report.backtrace.is_empty());
    assert!(turns > 5, "this task got {turns} turns");
}

/// Polls `future` on this thread, without an async runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Polling::from_waker(&waker)) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn any_executor_may_poll_it() {
    let (host, _) = host(1);
    let report = block_on(host.run_in_place(&load(&host, &sleeps(AN_HOUR_NS)), dispatch(50)));
    timed_out_in(&report.expect("it ran"), "wasi_snapshot_preview1.poll_oneoff");
    let report = block_on(host.run_in_place(&load(&host, SPINS), dispatch(50)));
    timed_out_in(&report.expect("it ran"), "guest");
    let report = block_on(host.run_in_place(&load(&host, &sleeps(1_000_000)), dispatch(LONG_MS)));
    let report = report.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    assert_eq!(report.host_calls.count, 2);
}

#[test]
fn a_handler_waits_for_its_start_no_longer_than_allowed() {
    let (host, _) = host(1);
    let sleeps = load(&host, &sleeps(AN_HOUR_NS));
    let holder = dispatch(LONG_MS);
    let stop = holder.stop_handle();
    let impatient = dispatch(LONG_MS).schedule_to_start(Duration::from_millis(20));
    let (held, refused) = block_on(async {
        tokio::join!(host.run_in_place(&sleeps, holder), async {
            let refused = host.run_in_place(&sleeps, impatient).await;
            stop.stop(Cause::Cancel, "");
            refused
        })
    });
    let refused = refused.expect("it was refused, and that is a report");
    assert!(matches!(refused.outcome, Outcome::Rejected(_)), "{refused:?}");
    assert_eq!(held.expect("it ran").cause, Cause::Cancel);
}

#[tokio::test]
async fn dropping_the_future_releases_everything_at_once() {
    let (host, exporter) = host(1);
    for guest in [SPINS.to_owned(), sleeps(AN_HOUR_NS)] {
        let guest = load(&host, &guest);
        for _ in 0..3 {
            let held = dispatch(LONG_MS);
            let stop = held.stop_handle();
            {
                let mut running = Box::pin(host.run_in_place(&guest, held));
                for _ in 0..3 {
                    let waker = Waker::noop();
                    assert!(running.as_mut().poll(&mut Polling::from_waker(waker)).is_pending());
                }
                assert_eq!(gauge(&exporter, "temper_wasm_live_stores"), "1");
            }
            // Nothing was polled since, so the drop did all of this.
            assert_eq!(gauge(&exporter, "temper_wasm_live_stores"), "0");
            assert_eq!(gauge(&exporter, "temper_wasm_pool_slots_in_use"), "0");
            assert_eq!(stop.stop(Cause::Cancel, ""), Cause::CallerGone);
        }
    }
    let cancelled = r#"outcome="cancelled"} 6"#;
    let scrape = exporter.render();
    assert!(scrape.lines().any(|line| line.ends_with(cancelled)), "{scrape}");
    let after = host.run_in_place(&load(&host, &sleeps(1)), dispatch(LONG_MS)).await;
    assert!(matches!(after.expect("it ran").outcome, Outcome::Completed(_)));
    // Its budget would be longer.
    host.shutdown().await;
}

#[tokio::test]
async fn handlers_that_run_in_place_at_the_same_time_have_deadlines_of_their_own() {
    let (host, exporter) = host(8);
    let (spins, sleeps) = (load(&host, SPINS), load(&host, &sleeps(2_000_000)));
    let spinning = (0..4).map(|_| host.run_in_place(&spins, dispatch(30)));
    let sleeping = (0..60).map(|_| host.run_in_place(&sleeps, dispatch(LONG_MS)));
    let (spinning, sleeping) = tokio::join!(
        futures_util::future::join_all(spinning),
        futures_util::future::join_all(sleeping)
    );
    for report in spinning {
        timed_out_in(&report.expect("it ran"), "guest");
    }
    for report in sleeping {
        assert!(matches!(report.expect("it ran").outcome, Outcome::Completed(_)));
    }
    assert_eq!(gauge(&exporter, "temper_wasm_live_stores"), "0");
}

#[tokio::test]
async fn a_shutdown_stops_what_runs_in_place() {
    let (host, _) = host(1);
    let spins = load(&host, SPINS);
    let (report, ()) = tokio::join!(host.run_in_place(&spins, dispatch(LONG_MS)), host.shutdown());
    let Ok(RunReport { outcome: Outcome::Cancelled(cancellation), .. }) = &report else {
        panic!("{report:?}")
    };
    assert_eq!(cancellation.by, CancelledBy::Shutdown);
    let refused = host.run_in_place(&spins, dispatch(1)).await;
    assert!(matches!(refused, Err(Error::ShuttingDown)), "{refused:?}");
}

/// Calls an embedder's function, and then sets its status.
const CALLS_AND_REPORTS: &str = r#"(module
    (import "acme:own/functions" "panics" (func $panics (param i32 i32) (result i32)))
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "here")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $panics (i32.const 4096) (i32.const 1024)))
        (drop (call $status (i32.const 8) (i32.const 4)))
        i32.const 0))"#;

async fn panics(_call: HostCall) -> Result<String, HostError> {
    panic!("in a function of the embedder's")
}

/// Panics at every signal.
#[derive(Debug)]
struct PanickingSignals;

impl Signals for PanickingSignals {
    fn signal(&self, signal: Signal) {
        panic!("got {signal:?}");
    }
}

#[tokio::test]
async fn a_panic_in_an_embedders_code_ends_only_its_call_or_handler() {
    let settings = Settings { max_runs: 1, max_asking: 0, ..Settings::default() };
    let function = HostFunction::asynchronous("acme:own/functions", "panics", panics);
    let host = Host::builder().settings(settings).function(function).build().expect("a host");
    let manifest = Manifest::named("own").functions(["acme:own/functions.panics".to_owned()]);
    let guest = host.load(CALLS_AND_REPORTS.as_bytes(), manifest).expect("a guest");
    // The call fails, and the guest continues, without a result.
    for in_place in [true, false] {
        let run = |dispatch: Dispatch| async {
            if in_place {
                host.run_in_place(&guest, dispatch).await
            } else {
                host.run(&guest, dispatch).await
            }
        };
        let report = run(dispatch(LONG_MS)).await.expect("it ran");
        assert!(matches!(report.outcome, Outcome::Failed(_)), "{report:?}");
        let lost = run(dispatch(LONG_MS).signals(Arc::new(PanickingSignals))).await;
        assert!(matches!(lost, Err(Error::Lost)), "{lost:?}");
        // The only slot is free again.
        run(dispatch(LONG_MS)).await.expect("it ran");
    }
}
