//! The embedder's own host functions, as core modules call them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::inspection::Provider;
use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay, Replayed};
use sandglass_host::{
    BuildError, Context, Dispatch, DispatchDeadline, Host, HostCall, HostError, HostFunction,
    HostValue, Integration, Json, Manifest, Outcome, RecordingLimits, Settings, Signal, ValueType,
};
use sandglass_model::{DispatchId, Recording, RejectionKind, RunReport, TraceContext};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use serde::{Deserialize, Serialize};

use crate::signals::Received;

const INTERFACE: &str = "acme:crm/contacts";

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A guest that calls `name` with a text, and sets the result or the error as its status.
fn calling(name: &str, text: &str) -> String {
    let (data, length) = (text.replace('"', "\\\""), text.len());
    format!(
        r#"(module
        (import "{INTERFACE}" "{name}" (func $call (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "{data}")
        (func (export "run") (param i32 i32) (result i32) (local $n i32)
            (local.set $n (call $call
                (i32.const 64) (i32.const {length}) (i32.const 4096) (i32.const 1024)))
            (if (i32.lt_s (local.get $n) (i32.const 0))
                (then (local.set $n (call $error (i32.const 4096) (i32.const 1024)))))
            (drop (call $status (i32.const 4096) (local.get $n)))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#
    )
}

fn with(functions: impl IntoIterator<Item = HostFunction>) -> Result<Host, BuildError> {
    with_blocking(functions, 4).map(|(host, _)| host)
}

fn with_blocking(
    functions: impl IntoIterator<Item = HostFunction>,
    max_blocking_calls: u32,
) -> Result<(Host, Exporter), BuildError> {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::disabled() };
    let settings = Settings { max_runs: 8, max_blocking_calls, ..Settings::default() };
    let mut builder = Host::builder().settings(settings).telemetry(telemetry);
    for function in functions {
        builder = builder.function(function);
    }
    Ok((builder.build()?, exporter))
}

fn load(host: &Host, guest: &str, granted: &str) -> Integration {
    host.load(guest.as_bytes(), granting(granted)).expect("a guest")
}

fn granting(name: &str) -> Manifest {
    Manifest::named("crm").functions([format!("{INTERFACE}.{name}")])
}

fn dispatch(budget: Duration) -> Dispatch {
    let context = Context { tenant: "acme".to_owned(), ..Context::default() };
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget))
}

/// The status of a guest that calls `name` with `text`.
async fn status_of(host: &Host, name: &str, text: &str) -> String {
    let received = Received::new();
    let dispatch = dispatch(LONG).signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&load(host, &calling(name, text), name), dispatch).await;
    assert!(matches!(outcome, Ok(Outcome::Completed(_))), "{outcome:?}");
    received.status()
}

async fn killed(host: &Host, name: &str) -> RunReport {
    let integration = load(host, &calling(name, "x"), name);
    let report = host.run(&integration, dispatch(Duration::from_millis(100))).await;
    let report = report.expect("it ran");
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    report
}

#[derive(Debug, Deserialize, Serialize)]
struct Contact {
    name: String,
    age: u8,
}

async fn older(_: HostCall, contact: Json<Contact>) -> Result<Json<Contact>, HostError> {
    let Json(contact) = contact;
    let age = contact.age.checked_add(1).ok_or_else(|| HostError::new("nobody is that old"))?;
    Ok(Json(Contact { age, ..contact }))
}

#[tokio::test]
async fn values_pass_in_both_directions_and_the_guest_reads_errors() {
    let host = with([HostFunction::asynchronous(INTERFACE, "older", older)]).expect("a host");
    let answer = status_of(&host, "older", r#"{"name":"Ada","age":36}"#).await;
    assert_eq!(answer, r#"{"name":"Ada","age":37}"#);
    assert_eq!(status_of(&host, "older", r#"{"name":"A","age":255}"#).await, "nobody is that old");
    let unread = status_of(&host, "older", "{}").await;
    assert!(unread.starts_with("argument 1 cannot be read: missing field `name`"), "{unread}");
}

#[tokio::test]
async fn a_function_gets_its_caller_and_the_remaining_time() {
    let about = |call: HostCall, _: String| -> Result<String, HostError> {
        assert!(call.remaining() > Duration::ZERO && call.remaining() <= LONG);
        Ok(format!("{} {} {} {}", call.entity(), call.tenant(), call.attempt(), call.dispatch()))
    };
    let host = with([HostFunction::instant(INTERFACE, "about", about)]).expect("a host");
    let received = Received::new();
    let id = DispatchId::from_bytes([7; 16]);
    let dispatch = dispatch(LONG)
        .attempt(3)
        .identity(id, TraceContext::root([1; 24]))
        .signals(Arc::clone(&received) as _);
    let integration = load(&host, &calling("about", ""), "about");
    host.dispatch(&integration, dispatch).await.expect("it ran");
    let expected = Signal::Status(format!("Session/1 acme 3 {id}"));
    assert_eq!(received.all(), [expected]);
}

/// Calls `all` with one argument of each of four types, and then `rest`; traps
/// unless each answers as it should.
const ALL_TYPES: &str = r#"(module
    (import "acme:crm/contacts" "mixed"
        (func $mixed (param i32 i64 f64 i32 i32 i32 i32) (result i32)))
    (import "acme:crm/contacts" "plain"
        (func $plain (param i32 i64 f32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true}")
    (data (i32.const 64) "\01\02\03")
    (func (export "run") (param i32 i32) (result i32)
        (if (i32.ne (i32.const 8) (call $mixed (i32.const -5) (i64.const -6) (f64.const 0.5)
                (i32.const 64) (i32.const 3) (i32.const 128) (i32.const 8)))
            (then unreachable))
        (if (i64.ne (i64.load (i32.const 128)) (i64.const -8)) (then unreachable))
        (if (i32.ne (i32.const -2) (call $mixed (i32.const -5) (i64.const -6) (f64.const 0.5)
                (i32.const 64) (i32.const 3) (i32.const 128) (i32.const 7)))
            (then unreachable))
        (if (call $plain (i32.const -1) (i64.const -1) (f32.const 1.5) (i32.const 2))
            (then unreachable))
        (call $set (i32.const 8) (i32.const 16))
        i32.const 0))"#;

#[tokio::test]
async fn values_of_every_type_pass_by_the_abi() {
    let mixed = |_: HostCall, one: i32, two: i64, half: f64, bytes: Vec<u8>| {
        assert_eq!((half, bytes), (0.5, vec![1, 2, 3]));
        Ok(i64::from(one) + two + 3)
    };
    let plain = |_: HostCall, one: u32, two: u64, half: f32, yes: bool| {
        assert_eq!((one, two, half, yes), (u32::MAX, u64::MAX, 1.5, true));
        Ok(())
    };
    let host = with([
        HostFunction::instant(INTERFACE, "mixed", mixed),
        HostFunction::blocking(INTERFACE, "plain", LONG, plain),
    ])
    .expect("a host");
    let granted = ["mixed", "plain"].map(|name| format!("{INTERFACE}.{name}"));
    let manifest = Manifest::named("types").functions(granted);
    let guest = host.load(ALL_TYPES.as_bytes(), manifest).expect("a guest");
    let outcome = host.dispatch(&guest, dispatch(LONG)).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
}

#[tokio::test]
async fn an_async_function_is_dropped_where_it_waits_at_the_deadline() {
    struct Dropped(Arc<Mutex<bool>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            *self.0.lock().expect("no panic") = true;
        }
    }
    let dropped = Arc::new(Mutex::new(false));
    let shared = Arc::clone(&dropped);
    let hangs = move |_: HostCall, _: String| {
        let held = Dropped(Arc::clone(&shared));
        async move {
            let _held = held;
            std::future::pending::<Result<String, HostError>>().await
        }
    };
    let host = with([HostFunction::asynchronous(INTERFACE, "hangs", hangs)]).expect("a host");
    let report = killed(&host, "hangs").await;
    assert_eq!(report.dying_span.as_deref(), Some("acme:crm/contacts.hangs"));
    assert!(*dropped.lock().expect("no panic"));
}

#[tokio::test]
async fn a_blocking_function_that_outlives_its_run_lingers_and_is_counted() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hangs = move |_: HostCall, _: String| -> Result<(), HostError> {
        // It ends when the test releases it.
        let _ = released.lock().expect("no panic").recv();
        Ok(())
    };
    let reads = |_: HostCall, _: String| -> Result<String, HostError> { Ok("read".to_owned()) };
    let functions = [
        HostFunction::blocking(INTERFACE, "hangs", LONG, hangs),
        HostFunction::blocking(INTERFACE, "reads", LONG, reads),
    ];
    let (host, exporter) = with_blocking(functions, 1).expect("a host");
    let gauge = |lingering: u32| {
        exporter.render().contains(&format!("temper_host_calls_lingering {lingering}\n"))
    };
    let hangs = calling("hangs", "x").replace("(param i32 i32 i32 i32)", "(param i32 i32)");
    let hangs = hangs
        .replace("(i32.const 4096) (i32.const 1024)))\n            (if", "))\n            (if");
    let integration = load(&host, &hangs, "hangs");
    let report = host.run(&integration, dispatch(Duration::from_millis(100))).await;
    let report = report.expect("the handler ends, although its call does not");
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    assert_eq!(report.dying_span.as_deref(), Some("acme:crm/contacts.hangs"));
    assert!(gauge(1), "{}", exporter.render());

    // The only thread is blocked, so one more call is refused, and its guest continues.
    let refused = status_of(&host, "reads", "x").await;
    assert_eq!(refused, "`acme:crm/contacts.reads` was not called: 1 blocking calls are under way");
    // Meanwhile, a guest that spins is killed as usual.
    let spins = r#"(module (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32) (loop (br 0)) i32.const 0))"#;
    let spins = host.load(spins.as_bytes(), Manifest::default()).expect("a guest");
    let spun = host.dispatch(&spins, dispatch(Duration::from_millis(50))).await;
    assert!(matches!(spun, Ok(Outcome::TimedOut(_))), "{spun:?}");

    release.send(()).expect("it listens");
    while !gauge(0) {
        tokio::task::yield_now().await;
    }
    while status_of(&host, "reads", "x").await != "read" {}
}

#[tokio::test]
async fn a_call_that_takes_longer_than_it_may_is_an_error_and_the_guest_goes_on() {
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Mutex::new(released);
    let hangs = move |_: HostCall, _: String| -> Result<String, HostError> {
        let _ = released.lock().expect("no panic").recv();
        Ok(String::new())
    };
    let waits = |_: HostCall, _: String| std::future::pending::<Result<String, HostError>>();
    let bound = Duration::from_millis(30);
    let host = with([
        HostFunction::blocking(INTERFACE, "hangs", bound, hangs),
        HostFunction::asynchronous(INTERFACE, "waits", waits),
    ])
    .expect("a host");
    let slow = status_of(&host, "hangs", "x").await;
    assert_eq!(slow, "`acme:crm/contacts.hangs` took longer than its limit of 30 ms");
    drop(release);

    let received = Received::new();
    let manifest = granting("waits")
        .host_call_timeouts([("acme:crm/contacts.waits".to_owned(), Duration::from_millis(20))]);
    let guest = host.load(calling("waits", "x").as_bytes(), manifest).expect("a guest");
    let dispatch = dispatch(LONG).signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    let timed_out = received.timed_out_calls();
    let [(name, limit, took)] = timed_out.as_slice() else { panic!("{timed_out:?}") };
    assert_eq!((name.as_str(), *limit), ("acme:crm/contacts.waits", Duration::from_millis(20)));
    assert!(took >= limit, "{took:?}");
    let received = received.all();
    let [Signal::Status(why)] = received.as_slice() else { panic!("{received:?}") };
    assert!(why.starts_with("TIMEOUT after 1s (wall-clock kill, process killed)"), "{why}");
    assert!(why.contains("The limit was 20 ms."), "{why}");
}

#[tokio::test]
async fn a_panic_in_a_function_of_any_class_is_an_error_and_the_host_goes_on() {
    fn panics(_: HostCall, _: String) -> Result<String, HostError> {
        panic!("out of cheese")
    }
    async fn panics_later(call: HostCall, text: String) -> Result<String, HostError> {
        tokio::task::yield_now().await;
        panics(call, text)
    }
    let host = with([
        HostFunction::instant(INTERFACE, "instant", panics),
        HostFunction::asynchronous(INTERFACE, "waiting", panics_later),
        HostFunction::blocking(INTERFACE, "blocking", LONG, panics),
    ])
    .expect("a host");
    for name in ["instant", "waiting", "blocking", "instant"] {
        let status = status_of(&host, name, "x").await;
        assert_eq!(status, format!("`acme:crm/contacts.{name}` failed inside the host"));
    }
}

#[tokio::test]
async fn a_module_that_imports_a_function_without_a_grant_is_rejected() {
    let host = with([HostFunction::asynchronous(INTERFACE, "older", older)]).expect("a host");
    let guest = calling("older", "x");
    let load = |guest: &str, manifest| host.load(guest.as_bytes(), manifest);
    let of_another_type = r#"(module
        (import "acme:crm/contacts" "older" (func (param i64 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;
    let cases = [
        (guest.clone(), Manifest::default(), RejectionKind::MissingGrant),
        (guest.clone(), granting("younger"), RejectionKind::MissingGrant),
        (of_another_type.to_owned(), granting("older"), RejectionKind::WrongSignature),
        (calling("oldr", "x"), granting("older"), RejectionKind::MissingImport),
    ];
    for (guest, manifest, kind) in cases {
        let rejection = load(&guest, manifest).expect_err("it may not");
        assert_eq!(rejection.kind, kind, "{rejection}");
        assert!(rejection.message.contains("acme:crm/contacts.old"), "{rejection}");
    }
    load(&guest, granting("older")).expect("the same module with its grant");
}

#[tokio::test]
async fn a_host_lists_its_functions_as_guests_import_them() {
    let tell = |_: HostCall, _: Vec<u8>, _: bool| Ok(());
    let host = with([
        HostFunction::asynchronous(INTERFACE, "older", older),
        HostFunction::instant("acme:crm/notes@1.2.0", "tell", tell),
    ])
    .expect("a host");
    let functions = host.functions();
    let [older, tell] = functions.as_slice() else { panic!("{functions:?}") };
    assert_eq!((&*older.interface, &*older.name), (INTERFACE, "older"));
    assert_eq!((&*older.params, older.returned), (&[ValueType::Text][..], ValueType::Text));
    assert_eq!(&*tell.interface, "acme:crm/notes@1.2.0");
    assert_eq!(tell.params, [ValueType::Bytes, ValueType::Bool]);
    assert_eq!(tell.returned, ValueType::None);
    assert_eq!(tell.full_name(), "acme:crm/notes.tell");
}

#[test]
fn a_name_that_is_taken_is_refused_when_the_host_is_built() {
    let twice = with([
        HostFunction::asynchronous(INTERFACE, "older", older),
        HostFunction::asynchronous(INTERFACE, "older", older),
    ]);
    let refusal = twice.expect_err("it is registered already").to_string();
    assert_eq!(
        refusal,
        "the host function `acme:crm/contacts.older` cannot be registered: it is registered already"
    );
}

#[tokio::test]
async fn a_function_with_dynamic_types_is_called_like_any_other() {
    let loud = HostFunction::dynamic(
        INTERFACE,
        "find",
        vec![ValueType::Text],
        ValueType::Text,
        |_, values| {
            Box::pin(async move {
                match values.as_slice() {
                    [HostValue::Text(text)] if text == "wrong" => Ok(HostValue::U32(7)),
                    [HostValue::Text(text)] => Ok(HostValue::Text(text.to_uppercase())),
                    other => Err(HostError::new(format_args!("{other:?}"))),
                }
            })
        },
    );
    let host = with([loud]).expect("a host");
    assert_eq!(status_of(&host, "find", "ann").await, "ANN");
    let failed = status_of(&host, "find", "wrong").await;
    assert!(failed.contains("it returned U32, and is declared with Text"), "{failed}");
}

/// Calls functions of `env` with the types that existing guests import, and traps unless each answers
/// as it should.
const CALLS_ENV: &str = r#"(module
    (import "env" "host_temper_data_call" (func $call (param i32 i32) (result i64)))
    (import "env" "host_temper_data_response_len" (func $len (param i32) (result i32)))
    (import "env" "host_temper_data_response_read"
        (func $read (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_temper_data_response_close" (func $close (param i32) (result i32)))
    (import "env" "observe" (func $observe (param f64)))
    (import "env" "ratio" (func $ratio (param i32) (result f32)))
    (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 8) "{\"success\":true}")
    (data (i32.const 64) "request")
    (func $is (param $found i32) (param $expected i32)
        (if (i32.ne (local.get $found) (local.get $expected)) (then unreachable)))
    (func $request (param $ptr i32) (param $len i32) (result i32)
        (i32.wrap_i64 (call $call (local.get $ptr) (local.get $len))))
    (func (export "run") (param i32 i32) (result i32)
        (call $is (call $request (i32.const 64) (i32.const 7)) (i32.const 9))
        (call $is (call $len (i32.const 9)) (i32.const 7))
        (call $is (call $read (i32.const 9) (i32.const 0) (i32.const 128) (i32.const 4))
            (i32.const 4))
        (call $is (call $read (i32.const 9) (i32.const 4) (i32.const 132) (i32.const 99))
            (i32.const 3))
        (drop (call $status (i32.const 128) (i32.const 7)))
        (call $is (call $read (i32.const 9) (i32.const 8) (i32.const 0) (i32.const 9))
            (i32.const -2))
        (call $is (call $close (i32.const 9)) (i32.const 0))
        (call $is (call $close (i32.const 8)) (i32.const -3))
        (drop (call $status (i32.const 128) (call $error (i32.const 128) (i32.const 999))))
        ;; An argument that cannot be read, and a function that fails without a code.
        (call $is (call $request (i32.const 65535) (i32.const 7)) (i32.const -1))
        (call $is (call $request (i32.const 64) (i32.const 0)) (i32.const -1))
        (call $observe (f64.const 0.5))
        (call $is (f32.eq (call $ratio (i32.const 4)) (f32.const 0.25)) (i32.const 1))
        (call $is (f32.ne (call $ratio (i32.const 0)) (call $ratio (i32.const 0))) (i32.const 1))
        (call $set (i32.const 8) (i32.const 16))
        i32.const 0))"#;

/// Functions of `env` that exist in the runtime for which the guests were written.
fn functions_of_env() -> Vec<HostFunction> {
    async fn call(_: HostCall, request: Vec<u8>) -> Result<i64, HostError> {
        assert!(request.is_empty() || request == b"request");
        if request.is_empty() { Err(HostError::new("nothing is requested")) } else { Ok(9) }
    }
    let len = |_: HostCall, _: i32| Ok(7);
    let read = |call: HostCall, _: i32, from: u32| -> Result<Vec<u8>, HostError> {
        let room = call.buffer_bytes().expect("a buffer") as usize;
        match b"respond".get(from as usize..) {
            Some(rest) => Ok(rest[..rest.len().min(room)].to_vec()),
            // As a result that is too long.
            None => Err(HostError::with_code(-2, "beyond the end")),
        }
    };
    let close = |call: HostCall, handle: i32| -> Result<i32, HostError> {
        assert_eq!(call.buffer_bytes(), None);
        if handle == 9 { Ok(0) } else { Err(HostError::with_code(-3, "not open")) }
    };
    let observe = |_: HostCall, value: f64| -> Result<(), HostError> {
        assert_eq!(value, 0.5);
        Ok(())
    };
    let ratio = |_: HostCall, of: i32| -> Result<f32, HostError> {
        if of == 4 { Ok(0.25) } else { Err(HostError::new("no ratio")) }
    };
    vec![
        HostFunction::asynchronous("env", "host_temper_data_call", call),
        HostFunction::instant("env", "host_temper_data_response_len", len),
        HostFunction::instant("env", "host_temper_data_response_read", read),
        HostFunction::blocking("env", "host_temper_data_response_close", LONG, close),
        HostFunction::instant("env", "observe", observe),
        HostFunction::instant("env", "ratio", ratio),
    ]
}

fn granting_env() -> Manifest {
    let data = ["call", "response_len", "response_read", "response_close"];
    let data = data.map(|name| format!("env.host_temper_data_{name}"));
    let other = ["observe", "ratio"].map(|name| format!("env.{name}"));
    Manifest::named("existing").functions(data.into_iter().chain(other))
}

#[tokio::test]
async fn functions_of_env_have_the_types_that_existing_guests_import() {
    let host = with(functions_of_env()).expect("a host");
    let guest = host.load(CALLS_ENV.as_bytes(), granting_env()).expect("a guest");
    let received = Received::new();
    let recorded =
        dispatch(LONG).recorded(RecordingLimits::default()).signals(Arc::clone(&received) as _);
    let report = host.run(&guest, recorded).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let statuses = ["respond", "not open"].map(|status| Signal::Status(status.to_owned()));
    assert_eq!(received.all(), statuses);
    let mut called = report.host_calls.by_function.iter();
    assert!(called.any(|one| &*one.name == "env.host_temper_data_call"), "{report:?}");

    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let recorded = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let again = host.load_for_replay(CALLS_ENV.as_bytes(), &recorded).expect("the guest");
    let end = RecordedEnd::from(&report);
    let replayed = host.replay(&again, Replay::new(&recorded, &end)).await.expect("replayed");
    let calls = report.host_calls.count;
    assert_eq!(replayed, Replayed { calls, divergence: None });
}

#[tokio::test]
async fn a_function_of_env_that_no_embedder_provides_or_no_manifest_grants_is_named() {
    let without = with([]).expect("a host");
    let missing = without.load(CALLS_ENV.as_bytes(), granting_env()).expect_err("missing");
    assert_eq!(missing.kind, RejectionKind::MissingImport);
    assert_eq!(
        missing.message,
        "module imports `env.host_temper_data_call`, which is neither built in (core ABI 1 and WASI \
         preview 1) nor provided by the embedder of this host; an embedder must provide it"
    );
    let provider = |host: &Host, name: &str| {
        let guest = host.inspect(CALLS_ENV.as_bytes()).expect("it is WebAssembly");
        guest.imports.iter().find(|import| import.name == name).expect("it is imported").provider
    };
    let data = "host_temper_data_call";
    assert_eq!(provider(&without, data), Provider::Missing);
    assert_eq!(provider(&without, "host_last_error"), Provider::BuiltIn);

    let host = with(functions_of_env()).expect("a host");
    assert_eq!(provider(&host, data), Provider::Embedder);
    assert_eq!(provider(&host, "host_last_error"), Provider::BuiltIn);
    let ungranted = host.load(CALLS_ENV.as_bytes(), Manifest::default()).expect_err("no grant");
    assert_eq!(ungranted.kind, RejectionKind::MissingGrant);
    assert!(ungranted.message.contains("`env.host_temper_data_call`"), "{ungranted}");
}

#[test]
fn a_function_that_is_built_in_cannot_be_replaced() {
    let log = HostFunction::instant("env", "host_log", |_: HostCall, _: String, _: String| Ok(()));
    let refusal = with([log]).expect_err("it is built in").to_string();
    assert_eq!(
        refusal,
        "the host function `env.host_log` cannot be registered: it is built in; choose another name"
    );
}
