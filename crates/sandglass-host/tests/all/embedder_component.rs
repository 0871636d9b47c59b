//! Host functions of the embedder's own, as a component's handler meets them.

use std::time::Duration;

use sandglass_host::{
    Context, Dispatch, DispatchDeadline, Host, HostCall, HostError, HostFunction, Json, Manifest,
    Settings,
};
use sandglass_model::{Outcome, Rejection, RejectionKind, RunReport};
use serde::Serialize;

/// Calls `find` with an address, and returns the result as its params, or the error as
/// its failure.
const FINDS: &str = concat!(
    "(component\n",
    include_str!("component_types.wat"),
    r#"  (import "acme:crm/contacts@1.0.0" (instance $contacts
    (export "find" (func (param "email" string) (result (result string (error string)))))))
  (core module $libc
    (memory (export "memory") 1)
    (global $top (mut i32) (i32.const 4096))
    (func (export "realloc") (param i32 i32 i32 i32) (result i32)
      (global.get $top)
      (global.set $top (i32.and
        (i32.add (i32.add (global.get $top) (local.get 3)) (i32.const 7)) (i32.const -8)))))
  (core instance $libc (instantiate $libc))
  (core func $find (canon lower (func $contacts "find")
    (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))
  (core module $main
    (import "libc" "memory" (memory 1))
    (import "contacts" "find" (func $find (param i32 i32 i32)))
    (data (i32.const 64) "ada@example.com")
    (func (export "handle") (param i32) (result i32)
      (call $find (i32.const 64) (i32.const 15) (i32.const 128))
      (i32.store8 (i32.const 256) (i32.load8_u (i32.const 128)))
      (if (i32.load8_u (i32.const 128))
        (then
          (i32.store (i32.const 264) (i32.load (i32.const 132)))
          (i32.store (i32.const 268) (i32.load (i32.const 136))))
        (else
          (i32.store (i32.const 272) (i32.load (i32.const 132)))
          (i32.store (i32.const 276) (i32.load (i32.const 136)))))
      i32.const 256))
  (core instance $main (instantiate $main
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
