//! Dispatches of the host: context, result, host calls, and other handlers in flight.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, Integration, Manifest, Outcome, Settings,
};
use sandglass_model::Object;

use crate::table::{Growth, repeat};

/// Handlers in flight at most.
const IN_FLIGHT_MAX: u32 = 10_000;

/// Calls a host function this often, and returns a result with this many bytes of text.
fn guest(calls: u64, text: u64) -> String {
    let (before, after) = (r#"{"success":true,"params":{"x":""#, r#""}}"#);
    let (text_at, after_at) = (8 + before.len() as u64, 8 + before.len() as u64 + text);
    let (length, pages) = (after_at - 8 + after.len() as u64, after_at / 65_536 + 2);
    let [before, after] = [before, after].map(|part| part.replace('"', "\\\""));
    format!(
        r#"(module
        (import "env" "host_set_result" (func $result (param i32 i32)))
        (import "env" "host_should_stop" (func $should_stop (result i32)))
        (memory (export "memory") {pages})
        (data (i32.const 8) "{before}")
        (data (i32.const {after_at}) "{after}")
        (func (export "run") (param i32 i32) (result i32) (local $left i64)
            (local.set $left (i64.const {calls}))
            (block $done (loop $again
                (br_if $done (i64.eqz (local.get $left)))
                (drop (call $should_stop))
                (local.set $left (i64.sub (local.get $left) (i64.const 1)))
                (br $again)))
            (memory.fill (i32.const {text_at}) (i32.const 120) (i32.const {text}))
            (call $result (i32.const 8) (i32.const {length}))
            (i32.const 0)))"#
    )
}

/// Waits for an hour in a poll of a clock.
const WAITS: &str = r#"(module
    (import "wasi_snapshot_preview1" "poll_oneoff"
        (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

fn dispatch(context: Context) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_secs(60)))
}

pub(crate) async fn run() {
    let max_runs = IN_FLIGHT_MAX + 1;
    let settings = Settings { max_runs, max_runs_per_tenant: max_runs, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |text: &str| host.load(text.as_bytes(), Manifest::named("growth")).expect("a guest");
    let small = load(&guest(0, 0));
    let mut growth = Growth::of("a dispatch, by bytes of its context");
    for bytes in [1_000, 10_000, 100_000, 1_000_000] {
        let params = Object::from([(
            "text".to_owned(),
            "x".repeat(usize::try_from(bytes).expect("small")).into(),
        )]);
        let context = Context { params, ..Context::default() };
        growth.add(bytes, cost(&host, &small, &context).await);
    }
    growth.print();
    let mut growth = Growth::of("a dispatch, by bytes of its result");
    for bytes in [1_000, 10_000, 100_000, 1_000_000] {
        let guest = load(&guest(0, bytes));
        growth.add(bytes, cost(&host, &guest, &Context::default()).await);
    }
    growth.print();
    let mut growth = Growth::of("a dispatch, by its host calls");
    for calls in [1_000, 10_000, 100_000, 1_000_000] {
        let guest = load(&guest(calls, 0));
        growth.add(calls, cost(&host, &guest, &Context::default()).await);
    }
    growth.print();
    let mut growth = Growth::of("a dispatch, by handlers in flight");
    let waits = load(WAITS);
    let mut waiting = tokio::task::JoinSet::new();
    for count in [10_usize, 100, 1_000, 10_000] {
        while waiting.len() < count {
            let (host, waits) = (host.clone(), waits.clone());
            waiting.spawn(async move { host.run(&waits, dispatch(Context::default())).await });
        }
        while host.live_runs(0).more < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        growth.add(count as u64, cost(&host, &small, &Context::default()).await);
    }
    growth.print();
    host.shutdown().await;
}

/// The median time of a dispatch in place.
async fn cost(host: &Host, integration: &Integration, context: &Context) -> Duration {
    repeat(|| async {
        let report = host.run_in_place(integration, dispatch(context.clone())).await;
        let outcome = report.expect("it ran").outcome;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    })
    .await
}
