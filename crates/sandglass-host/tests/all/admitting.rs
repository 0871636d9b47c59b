//! Admission: which dispatches start if there are few slots, and how the others are refused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Error, Host, Integration, Manifest, Outcome, ReserveFor,
    Settings, Signal, Signals,
};
use sandglass_model::{BusyScope, Cause};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use tokio::sync::Notify;

/// Reports that it has begun, and ends.
const REPORTS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true}")
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 8) (i32.const 16)))
        (call $set (i32.const 8) (i32.const 16)) i32.const 0))"#;

/// Reports that it has begun, and spins.
const REPORTS_AND_SPINS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (drop (call $status (i32.const 8) (i32.const 1)))
        (loop (br 0)) i32.const 0))"#;

/// Notes the order in which handlers begin.
#[derive(Debug)]
struct Begun(&'static str, Arc<Mutex<Vec<&'static str>>>, Arc<Notify>);

impl Signals for Begun {
    fn signal(&self, _: Signal) {
        self.1.lock().expect("no panic").push(self.0);
        self.2.notify_one();
    }
}

fn host(settings: Settings) -> Host {
    Host::builder().settings(settings).build().expect("a host")
}

fn measured(settings: Settings) -> (Host, Exporter) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
    let builder = Host::builder().settings(settings).telemetry(telemetry);
    (builder.build().expect("a host"), exporter)
}

fn load(host: &Host, guest: &str, manifest: Manifest) -> Integration {
    host.load(guest.as_bytes(), manifest).expect("a guest")
}

fn dispatch(tenant: &str) -> Dispatch {
    let context = Context { tenant: tenant.to_owned(), ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(Duration::from_secs(60)))
}

#[tokio::test]
async fn the_single_dispatch_of_a_tenant_passes_by_the_flood_of_another() {
    let (host, exporter) =
        measured(Settings { max_runs: 1, guest_threads: 1, ..Settings::default() });
    let reports = load(&host, REPORTS, Manifest::named("reports"));
    let holds = load(&host, REPORTS_AND_SPINS, Manifest::named("holds"));
    let (order, signalled) = (Arc::default(), Arc::new(Notify::new()));
    let begun = |name| Arc::new(Begun(name, Arc::clone(&order), Arc::clone(&signalled)));

    let holder = dispatch("floods").signals(begun("holds"));
    let stop = holder.stop_handle();
    let mut running = tokio::task::JoinSet::new();
    let mut start = |integration: &Integration, dispatch: Dispatch| {
        let (host, integration) = (host.clone(), integration.clone());
        running.spawn(async move { host.dispatch(&integration, dispatch).await });
    };
    start(&holds, holder);
    signalled.notified().await;
    for _ in 0..20 {
        start(&reports, dispatch("floods").signals(begun("floods")));
    }
    start(&reports, dispatch("quiet").signals(begun("quiet")));
    while !exporter.render().contains("temper_handlers_queued 21") {
        tokio::task::yield_now().await;
    }
    stop.stop(Cause::Cancel, "");
    while running.join_next().await.is_some() {}
    let order = order.lock().expect("no panic");
    let place = order.iter().position(|name| *name == "quiet");
    assert_eq!(order.len(), 22);
    // In the order of arrival, it would be the last.
    assert!(place.is_some_and(|place| place < 3), "{order:?}");
}

#[tokio::test]
async fn an_integration_that_is_full_is_refused_and_others_are_not() {
    let host = host(Settings { max_runs: 4, ..Settings::default() });
    let narrow = Manifest::named("narrow").max_in_flight(1).max_queued(0);
    let narrow = load(&host, REPORTS_AND_SPINS, narrow);
    let wide = load(&host, REPORTS, Manifest::named("wide"));
    let signalled = Arc::new(Notify::new());
    let begun = Begun("", Arc::default(), Arc::clone(&signalled));
    let holder = dispatch("a").signals(Arc::new(begun));
    let stop = holder.stop_handle();
    let (_, ()) = tokio::join!(host.run(&narrow, holder), async {
        signalled.notified().await;
        let busy = host.dispatch(&narrow, dispatch("b")).await;
        let Err(Error::Busy(busy)) = busy else { panic!("{busy:?}") };
        assert_eq!((busy.scope, busy.limit), (BusyScope::Integration, 1));
        assert!(busy.retry_after_ms > 0);
        let other = host.dispatch(&wide, dispatch("b")).await.expect("it has room");
        assert!(matches!(other, Outcome::Completed(_)), "{other:?}");
        stop.stop(Cause::Cancel, "");
    });
    let after = host.reserve(ReserveFor::new(&Manifest::named("narrow").max_in_flight(1), "b"));
    drop(after.expect("its place is free again"));
}

#[tokio::test]
async fn a_reserved_slot_is_held_until_its_dispatch_ends_or_it_is_dropped() {
    let settings = Settings {
        max_runs: 8,
        max_queued_per_tenant: 0,
        max_runs_per_tenant: 1,
        ..Settings::default()
    };
    let (host, exporter) = measured(settings);
    let reports = load(&host, REPORTS, Manifest::named("reports"));
    let reserve = || host.reserve(ReserveFor::new(&Manifest::named("reports"), "a"));

    drop(reserve().expect("there is room"));
    let reservation = reserve().expect("the dropped one gave its place back");
    let busy = reserve().expect_err("the tenant has one place");
    assert_eq!((busy.scope, busy.limit), (BusyScope::Tenant, 1));
    let refused = host.dispatch(&reports, dispatch("a")).await;
    assert!(matches!(refused, Err(Error::Busy(_))), "{refused:?}");
    let ran = host.dispatch(&reports, dispatch("a").reserved(reservation)).await;
    assert!(matches!(ran, Ok(Outcome::Completed(_))), "{ran:?}");
    drop(reserve().expect("it has ended"));

    let page = exporter.render();
    for line in [
        r#"temper_handler_dispatches_refused_total{reason="tenant_queue_full"} 2"#,
        "temper_handlers_queued 0",
        "temper_wasm_pool_slots_in_use 0",
        "temper_wasm_pool_slots 208",
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }
}
