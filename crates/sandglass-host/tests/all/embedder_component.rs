//! Host functions of the embedder's own, as a component's handler meets them.

use std::sync::Arc;
use std::time::Duration;

use sandglass_host::replay::{RecordedEnd, RecordedRun, Replay};
use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, HostCall, HostError, HostFunction, Json, Manifest,
    RecordingLimits, Settings,
};
use sandglass_model::{Outcome, Recording, Rejection, RejectionKind, RunReport};
use serde::Serialize;
use tokio::sync::Barrier;

/// The memory of a component.
macro_rules! libc {
    () => {
        r#"
  (core module $libc
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $top)
      (global.set $top (i32.and
        (i32.add (i32.add (global.get $top) (local.get 3)) (i32.const 7)) (i32.const -8)))))
  (core instance $libc (instantiate $libc))"#
    };
}

/// The end of `handle`: passes the result of `find`, which is at 128, on as its own.
macro_rules! passes_on {
    () => {
        r#"
      (i32.store8 (i32.const 256) (i32.load8_u (i32.const 128)))
      (if (i32.load8_u (i32.const 128))
        (then
          (i32.store (i32.const 264) (i32.load (i32.const 132)))
          (i32.store (i32.const 268) (i32.load (i32.const 136))))
        (else
          (i32.store (i32.const 272) (i32.load (i32.const 132)))
          (i32.store (i32.const 276) (i32.load (i32.const 136)))))
      i32.const 256))"#
    };
}

/// Calls `find` with an address, and returns the result as its params, or the error as
/// its failure.
const FINDS: &str = concat!(
    "(component\n",
    include_str!("component_types.wat"),
    r#"  (import "acme:crm/contacts@1.0.0" (instance $contacts
    (export "find" (func (param "email" string) (result (result string (error string)))))))
"#,
    libc!(),
    r#"  (core func $find (canon lower (func $contacts "find")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "contacts" "find" (func $find (param i32 i32 i32)))
    (data (i32.const 64) "ada@example.com")
    (func (export "handle") (param i32) (result i32)
      (call $find (i32.const 64) (i32.const 15) (i32.const 128))
"#,
    passes_on!(),
    r#"  (core instance $main (instantiate $main
    (with "libc" (instance $libc))
    (with "contacts" (instance (export "find" (func $find))))))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $main "handle")
      (memory (core memory $libc "memory"))
      (realloc (core func $libc "realloc"))))
  (export "handle" (func $handle)))"#
);

const INTERFACE: &str = "acme:crm/contacts@1.0.0";
const NAME: &str = "acme:crm/contacts.find";

#[derive(Serialize)]
struct Contact {
    name: String,
}

async fn find(call: HostCall, email: String) -> Result<Json<Contact>, HostError> {
    let name = email.split('@').next().filter(|_| call.tenant() == "acme");
    let name = name.ok_or_else(|| HostError::new("another tenant's"))?.to_owned();
    Ok(Json(Contact { name }))
}

fn host(function: HostFunction) -> Host {
    let settings = Settings { max_runs: 4, max_asking: 0, ..Settings::default() };
    Host::builder().settings(settings).function(function).build().expect("a host")
}

fn host_with_find() -> Host {
    host(HostFunction::asynchronous(INTERFACE, "find", find))
}

fn load(host: &Host, manifest: Manifest) -> Result<sandglass_host::Integration, Rejection> {
    host.load(FINDS.as_bytes(), manifest)
}

async fn run(host: &Host, tenant: &str, budget: Duration) -> RunReport {
    let guest = load(host, Manifest::named("crm").functions([NAME.to_owned()])).expect("a guest");
    let context = Context { tenant: tenant.to_owned(), ..Context::default() };
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget));
    host.run(&guest, dispatch).await.expect("it ran")
}

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn a_component_calls_a_function_and_gets_its_result_or_its_error() {
    let host = host(HostFunction::asynchronous(INTERFACE, "find", find));
    let report = run(&host, "acme", LONG).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.params.get("name"), Some(&"ada".into()));
    assert_eq!(report.host_calls.by_function[0].name, NAME, "without a version");

    let report = run(&host, "other", LONG).await;
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert!(failure.message.contains("another tenant's"), "{failure:?}");
}

#[tokio::test]
async fn a_component_that_waits_in_a_function_is_killed_in_it_by_name() {
    let hangs = |_: HostCall, _: String| std::future::pending::<Result<String, HostError>>();
    let host = host(HostFunction::asynchronous(INTERFACE, "find", hangs));
    let report = run(&host, "acme", Duration::from_millis(100)).await;
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    assert_eq!(report.dying_span.as_deref(), Some(NAME));
}

#[tokio::test]
async fn a_panic_is_an_error_that_the_component_reads() {
    fn panics(_: HostCall, _: String) -> Result<String, HostError> {
        panic!("out of cheese")
    }
    let host = host(HostFunction::blocking(INTERFACE, "find", LONG, panics));
    let report = run(&host, "acme", LONG).await;
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert!(failure.message.contains("failed inside the host"), "{failure:?}");
}

#[test]
fn a_component_without_the_grant_or_with_other_types_is_rejected() {
    let of_another_type = |_: HostCall, _: i32| Ok(());
    let another = host(HostFunction::instant(INTERFACE, "find", of_another_type));
    let granted = || Manifest::named("crm").functions([NAME.to_owned()]);
    let rejection = load(&another, granted()).expect_err("its types differ");
    assert_eq!(rejection.kind, RejectionKind::WrongSignature, "{rejection}");

    let host = host(HostFunction::asynchronous(INTERFACE, "find", find));
    let rejection = load(&host, Manifest::default()).expect_err("it may not");
    assert_eq!(rejection.kind, RejectionKind::MissingGrant, "{rejection}");
    load(&host, granted()).expect("the same component with its grant");
}

/// Calls `find` twice, and waits for both calls at the same time. Returns the result of the first.
const FINDS_TWICE: &str = concat!(
    "(component\n",
    include_str!("component_types.wat"),
    r#"  (import "acme:crm/contacts@1.0.0" (instance $contacts
    (export "find" (func async (param "email" string) (result (result string (error string)))))))
"#,
    libc!(),
    r#"  (core func $find (canon lower (func $contacts "find") async
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core func $new (canon waitable-set.new))
  (core func $join (canon waitable.join))
  (core func $wait (canon waitable-set.wait (memory (core memory $libc "memory"))))
  (core func $drop (canon subtask.drop))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "contacts" "find" (func $find (param i32 i32 i32) (result i32)))
    (import "canon" "new" (func $new (result i32)))
    (import "canon" "join" (func $join (param i32 i32)))
    (import "canon" "wait" (func $wait (param i32 i32) (result i32)))
    (import "canon" "drop" (func $drop (param i32)))
    (data (i32.const 64) "ada@example.com")
    (func (export "handle") (param i32) (result i32) (local $set i32) (local $left i32)
      (local $call i32) (local $nth i32)
      (local.set $set (call $new))
      (loop $begin
        (local.set $call (call $find (i32.const 64) (i32.const 15)
          (i32.add (i32.const 128) (i32.mul (local.get $nth) (i32.const 32)))))
        ;; 2: it has returned.
        (if (i32.ne (i32.and (local.get $call) (i32.const 15)) (i32.const 2))
          (then
            (local.set $left (i32.add (local.get $left) (i32.const 1)))
            (call $join (i32.shr_u (local.get $call) (i32.const 4)) (local.get $set))))
        (local.set $nth (i32.add (local.get $nth) (i32.const 1)))
        (br_if $begin (i32.lt_u (local.get $nth) (i32.const 2))))
      (loop $end
        (if (local.get $left)
          (then
            (drop (call $wait (local.get $set) (i32.const 32)))
            (if (i32.eq (i32.load (i32.const 36)) (i32.const 2))
              (then
                (call $drop (i32.load (i32.const 32)))
                (local.set $left (i32.sub (local.get $left) (i32.const 1)))))
            (br $end))))
"#,
    passes_on!(),
    r#"  (core instance $main (instantiate $main
    (with "libc" (instance $libc))
    (with "contacts" (instance (export "find" (func $find))))
    (with "canon" (instance (export "new" (func $new)) (export "join" (func $join))
      (export "wait" (func $wait)) (export "drop" (func $drop))))))
  (func $handle async (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $main "handle")
      (memory (core memory $libc "memory"))
      (realloc (core func $libc "realloc"))))
  (export "handle" (func $handle)))"#
);

async fn run_twice(host: &Host, budget: Duration) -> RunReport {
    let manifest = Manifest::named("crm").functions([NAME.to_owned()]);
    let guest = host.load(FINDS_TWICE.as_bytes(), manifest).expect("a guest");
    let context = Context { tenant: "acme".to_owned(), ..Context::default() };
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
        .deadline(DispatchDeadline::after(budget))
        .recorded(RecordingLimits::default());
    let report = host.run(&guest, dispatch).await.expect("it ran");
    let Some(Recording::Whole(recording)) = &report.recording else { panic!("{report:?}") };
    let run = RecordedRun::read(Arc::clone(recording)).expect("a recording");
    let again = host.load_for_replay(FINDS_TWICE.as_bytes(), &run).expect("the guest");
    let end = RecordedEnd::from(&report);
    let replayed = host.replay(&again, Replay::new(&run, &end)).await.expect("replayed");
    assert_eq!(replayed.divergence, None, "{report:?}");
    report
}

#[tokio::test]
async fn calls_of_an_asynchronous_component_are_in_flight_at_the_same_time() {
    let both = Arc::new(Barrier::new(2));
    let finds = move |call: HostCall, email: String| {
        let both = Arc::clone(&both);
        async move {
            both.wait().await;
            find(call, email).await
        }
    };
    let host = host(HostFunction::asynchronous(INTERFACE, "find", finds));
    let report = run_twice(&host, LONG).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.params.get("name"), Some(&"ada".into()));
    assert_eq!((&*report.host_calls.by_function[0].name, report.host_calls.count), (NAME, 2));
    // The same function serves a component that imports it as one that returns its result.
    let single = run(&host_with_find(), "acme", LONG).await;
    assert!(matches!(single.outcome, Outcome::Completed(_)), "{single:?}");
}

#[tokio::test]
async fn an_asynchronous_component_gets_errors_and_is_killed_in_the_oldest_call() {
    fn panics(_: HostCall, _: String) -> Result<String, HostError> {
        panic!("out of cheese")
    }
    let report =
        run_twice(&host(HostFunction::blocking(INTERFACE, "find", LONG, panics)), LONG).await;
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert!(failure.message.contains("failed inside the host"), "{failure:?}");

    let instant = HostFunction::instant(INTERFACE, "find", |_: HostCall, email: String| {
        Ok(format!("{{\"name\":\"{email}\"}}"))
    });
    let report = run_twice(&host(instant), LONG).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");

    let hangs = |_: HostCall, _: String| std::future::pending::<Result<String, HostError>>();
    let hangs = HostFunction::asynchronous(INTERFACE, "find", hangs);
    let report = run_twice(&host(hangs), Duration::from_millis(100)).await;
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    assert_eq!(report.dying_span.as_deref(), Some(NAME));
    assert_eq!(report.story.calls.len(), 2, "both are unfinished: {report:?}");
}
