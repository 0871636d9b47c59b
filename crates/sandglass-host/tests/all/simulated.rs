//! Simulated time: a wait of an hour takes no real time, and is measured as an hour.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::{
    Answer, Context, Dispatch, DispatchDeadline, Host, HostCall, HostError, HostFunction, HttpCall,
    HttpClient, HttpError, Integration, Manifest, Outcome, Response, Settings,
};
use sandglass_model::{Clock, Monotonic, RunReport, WallTime};

const AN_HOUR: Duration = Duration::from_secs(3600);

const SPINS: &str = r#"(module (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;

/// Waits for as many nanoseconds as its data states, reads the clock before and after, and traps if the
/// difference is not that.
fn sleeps(nanos: u64) -> String {
    format!(
        r#"(module
        (import "wasi_snapshot_preview1" "poll_oneoff"
            (func $poll (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "clock_time_get"
            (func $clock (param i32 i64 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 512) "{{\"success\":true}}")
        (func $passed (param $clock i32) (result i64)
            (drop (call $clock (local.get $clock) (i64.const 0) (i32.const 256)))
            (i64.load (i32.const 256)))
        (func (export "run") (param i32 i32) (result i32)
            (local $wall i64) (local $steady i64)
            (local.set $wall (call $passed (i32.const 0)))
            (local.set $steady (call $passed (i32.const 1)))
            (i32.store (i32.const 16) (i32.const 1))
            (i64.store (i32.const 24) (i64.const {nanos}))
            (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
            (if (i64.lt_u (i64.sub (call $passed (i32.const 0)) (local.get $wall))
                    (i64.const {nanos})) (then unreachable))
            (if (i64.lt_u (i64.sub (call $passed (i32.const 1)) (local.get $steady))
                    (i64.const {nanos})) (then unreachable))
            (call $set (i32.const 512) (i32.const 16))
            i32.const 0))"#
    )
}

/// Tokio's clock.
#[derive(Debug)]
struct Tokios(tokio::time::Instant);

impl Tokios {
    fn shared() -> Arc<dyn Clock> {
        #[expect(clippy::disallowed_methods, reason = "this is simulated time")]
        Arc::new(Self(tokio::time::Instant::now()))
    }
}

#[expect(clippy::disallowed_methods, reason = "this is simulated time")]
impl Clock for Tokios {
    fn now(&self) -> Monotonic {
        Monotonic::from_nanos(1).after(self.0.elapsed())
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(1_700_000_000_000).after(self.0.elapsed())
    }
}

fn builder() -> sandglass_host::Builder {
    let settings = Settings { max_runs: 4, ..Settings::default() };
    Host::builder().settings(settings).simulated_clock(Tokios::shared())
}

fn load(host: &Host, guest: &str) -> Integration {
    host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest")
}

async fn run(host: &Host, guest: &str, budget: Duration) -> RunReport {
    let integration = load(host, guest);
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget));
    host.run(&integration, dispatch).await.expect("it ran")
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_sleep_takes_no_real_time_and_is_measured_as_an_hour() {
    let host = builder().build().expect("a host");
    let report = run(&host, &sleeps(3_600_000_000_000), 2 * AN_HOUR).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    // Tokio's timers are exact to the millisecond.
    assert!((3_600_000..3_600_100).contains(&report.deadline.elapsed_ms), "{report:?}");
    assert!(report.time_split_us.host >= 3_600_000_000, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_hang_is_killed_at_its_deadline_and_reported() {
    let host = builder().build().expect("a host");
    let report = run(&host, &sleeps(7_200_000_000_000), AN_HOUR).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "wasi_snapshot_preview1.poll_oneoff");
    assert!((3_600_000..3_600_100).contains(&exceeded.elapsed_ms), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_computes_takes_time_and_is_killed_in_its_code() {
    let host = builder().build().expect("a host");
    let report = run(&host, SPINS, Duration::from_millis(20)).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "guest");
}

#[tokio::test(start_paused = true)]
async fn a_guest_that_computes_for_too_long_is_killed_at_its_deadline() {
    let host = builder().simulated_compute_max(Duration::from_millis(20)).build().expect("a host");
    let report = run(&host, SPINS, AN_HOUR).await;
    let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(exceeded.dying_span, "guest");
    assert!((3_600_000..3_600_100).contains(&exceeded.elapsed_ms), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_a_wait_and_time_stands_still() {
    let host = builder().build().expect("a host");
    let integration = load(&host, &sleeps(3_600_000_000_000));
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(2 * AN_HOUR));
    let stop = dispatch.stop_handle();
    let began = host.clock().now();
    let stopping = async {
        // It waits by now, because the second future is polled when the first is pending.
        stop.stop(sandglass_model::Cause::Cancel, "enough");
    };
    let (report, ()) = tokio::join!(biased; host.run(&integration, dispatch), stopping);
    let report = report.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Cancelled(_)), "{report:?}");
    assert!(host.clock().now().since(began) < Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn an_embedders_function_that_never_returns_is_cut_at_the_call_limit() {
    let never = |_: HostCall, _: String| std::future::pending::<Result<String, HostError>>();
    let never = HostFunction::asynchronous("acme:tools/run", "waits", never);
    let host = builder().function(never).build().expect("a host");
    let guest = r#"(module
        (import "acme:tools/run" "waits" (func $waits (param i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "\"x\"")
        (func (export "run") (param i32 i32) (result i32)
            (call $waits (i32.const 8) (i32.const 3) (i32.const 64) (i32.const 64))))"#;
    let manifest = Manifest::named("guest").functions(["acme:tools/run.waits".to_owned()]);
    let integration = host.load(guest.as_bytes(), manifest).expect("a guest");
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(AN_HOUR));
    let began = host.clock().now();
    drop(host.run(&integration, dispatch).await.expect("it ran"));
    let took = host.clock().now().since(began);
    // The limit of a call is 300 s.
    assert!((300_000..300_100).contains(&took.as_millis()), "{took:?}");
}

/// Responds after half an hour, and only to allowed requests.
#[derive(Debug)]
struct Slow;

impl HttpClient for Slow {
    fn send<'a>(&'a self, call: HttpCall<'a>) -> Answer<'a, Result<Response, HttpError>> {
        let HttpCall { request, destinations, .. } = call;
        Box::pin(async move {
            destinations.allow(&request)?;
            #[expect(clippy::disallowed_methods, reason = "this is simulated time")]
            tokio::time::sleep(AN_HOUR / 2).await;
            let body = format!("{} {}", request.method(), request.url()).into_bytes();
            Ok(Response { status: 200, body, ..Response::default() })
        })
    }
}

#[tokio::test(start_paused = true)]
async fn an_embedders_client_responds_in_simulated_time_to_allowed_requests() {
    const SLOW_HTTP: &[u8] = include_bytes!("../../../../guest-fixtures/built/slow_http.wasm");
    let host = builder().http_client(Arc::new(Slow)).build().expect("a host");
    for (allowed, expected) in [("slow.example", true), ("other.example", false)] {
        let manifest = Manifest::named("slow")
            .allow_hosts([allowed.parse().expect("a host")])
            .host_call_timeouts([("host_http_call".to_owned(), AN_HOUR)]);
        let integration = host.load(SLOW_HTTP, manifest).expect("a guest");
        let config = [("url".to_owned(), "http://slow.example/x".to_owned())].into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(2 * AN_HOUR));
        let report = host.run(&integration, dispatch).await.expect("it ran");
        let Outcome::Completed(completion) = &report.outcome else {
            assert!(!expected, "{report:?}");
            continue;
        };
        assert!(expected, "{report:?}");
        assert_eq!(completion.params["body"], "GET http://slow.example/x");
        assert!(report.deadline.elapsed_ms >= 1_800_000, "{report:?}");
    }
}
