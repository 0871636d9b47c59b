//! Bounds on what a guest can make the host do: no long work that nothing interrupts, and no memory
//! without a grant.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sandglass_host::{Context, Dispatch, DispatchDeadline, Host, Manifest, Outcome, Settings};
use sandglass_model::{
    CallOutcome, Clock, FailureKind, GuestLimits, Monotonic, RejectionKind, RunReport, TrapKind,
    WallTime,
};
use serde_json::json;

/// Longer than anything here takes on a busy machine.
const LONG_MS: u64 = 60_000;

async fn run(guest: &str, manifest: Manifest) -> RunReport {
    let settings = Settings { max_runs: 4, max_asking: 0, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let guest = host.load(guest.as_bytes(), manifest).expect("a guest");
    let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(Duration::from_millis(LONG_MS)));
    host.run(&guest, dispatch).await.expect("it ran")
}

/// A core module that exits with what `call` of WASI's `function` returns.
fn exits_with(function: &str, params: usize, call: &str) -> String {
    let params = "i32 ".repeat(params);
    format!(
        r#"(module
            (import "wasi_snapshot_preview1" "{function}"
                (func $f (param {params}) (result i32)))
            (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))
            (memory (export "memory") 8)
            (func (export "run") (param i32 i32) (result i32)
                (call $exit (call $f {call})) i32.const 0))"#
    )
}

async fn exit_code(guest: &str) -> String {
    let report = run(guest, Manifest::named("guest")).await;
    let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(trap.kind, TrapKind::Exit, "{trap:?}");
    trap.message.clone()
}

#[tokio::test]
async fn lists_for_wasi_are_refused_above_their_bound() {
    const INVAL: &str = "guest exited with code 28";
    for (function, params, call) in [
        ("fd_write", 4, "(i32.const 1) (i32.const 1024) (i32.const COUNT) (i32.const 8)"),
        ("fd_read", 4, "(i32.const 0) (i32.const 1024) (i32.const COUNT) (i32.const 8)"),
    ] {
        let with = |count| exits_with(function, params, &call.replace("COUNT", count));
        assert_eq!(exit_code(&with("1025")).await, INVAL, "{function}");
        assert_eq!(exit_code(&with("1024")).await, "guest exited with code 0", "{function}");
    }
    // Subscriptions of zeros: timers that have expired.
    let poll = |count| {
        let call =
            format!("(i32.const 65536) (i32.const 300000) (i32.const {count}) (i32.const 8)");
        exits_with("poll_oneoff", 4, &call)
    };
    assert_eq!(exit_code(&poll("4097")).await, INVAL);
    assert_eq!(exit_code(&poll("-1")).await, INVAL);
    assert_eq!(exit_code(&poll("4096")).await, "guest exited with code 0");
}

/// Returns a mebibyte with half a million numbers.
const MANY_NUMBERS: &str = r#"(module
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 17)
    (data (i32.const 0) "{\"success\":true,\"params\":{\"a\":[1")
    (data (i32.const 1000040) "]}}")
    (func (export "run") (param i32 i32) (result i32) (local $at i32)
        (local.set $at (i32.const 32))
        (loop $more
            (i32.store16 (local.get $at) (i32.const 0x312c))
            (local.set $at (i32.add (local.get $at) (i32.const 2)))
            (br_if $more (i32.lt_u (local.get $at) (i32.const 1000040))))
        (call $set (i32.const 0) (i32.const 1000043)) i32.const 0))"#;

#[tokio::test]
async fn a_result_with_too_many_values_is_too_large() {
    let report = run(MANY_NUMBERS, Manifest::named("guest")).await;
    let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(failure.kind, FailureKind::ResultTooLarge, "{failure:?}");
    assert!(failure.message.contains("65536 values"), "{failure:?}");
}

/// The beginning of a component in text.
const TYPES: &str = include_str!("component_types.wat");

/// A component with `parts` before its own module and `body` in its handler, which may call `$f` of its
/// first import.
fn component(parts: &str, imported: &str, with: &str, body: &str) -> String {
    format!(
        r#"(component
  {TYPES}
  (core module $libc
    (memory (export "memory") 512)
    (func (export "realloc") (param i32 i32 i32 i32) (result i32) (i32.const 4096)))
  (core instance $libc (instantiate $libc))
  {parts}
  (core module $main
    (import "libc" "memory" (memory 1))
    {imported}
    (func (export "handle") (param i32) (result i32)
      {body}
      i32.const 8))
  (core instance $main (instantiate $main (with "libc" (instance $libc)) {with}))
  (func $handle (param "context" $dispatch-context)
    (result (result $completion (error $failure)))
    (canon lift (core func $main "handle")
      (memory (core memory $libc "memory"))
      (realloc (core func $libc "realloc"))))
  (export "handle" (func $handle)))"#
    )
}

/// Makes header fields of `entries` empty pairs.
fn makes_fields(entries: u32) -> String {
    component(
        r#"(import "wasi:http/types@0.2.0" (instance $http
             (export "fields" (type $fields (sub resource)))
             (type $error (variant
               (case "invalid-syntax") (case "forbidden") (case "immutable")))
             (export "header-error" (type $header-error (eq $error)))
             (export "[static]fields.from-list" (func
               (param "entries" (list (tuple string (list u8))))
               (result (result (own $fields) (error $header-error)))))))
           (core func $from-list (canon lower (func $http "[static]fields.from-list")
             (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
        r#"(import "http" "from-list" (func $f (param i32 i32 i32)))"#,
        r#"(with "http" (instance (export "from-list" (func $from-list))))"#,
        &format!("(call $f (i32.const 65536) (i32.const {entries}) (i32.const 512))"),
    )
}

#[tokio::test]
async fn the_arguments_of_a_components_call_are_bounded() {
    let report = run(&makes_fields(1_900_000), Manifest::named("guest")).await;
    let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(trap.kind, TrapKind::BadHostCall);
    assert!(trap.message.contains("too much data"), "{trap:?}");
    let report = run(&makes_fields(50_000), Manifest::named("guest")).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
}

#[test]
fn a_component_whose_memories_are_together_too_large_is_not_loaded() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |pages: u32| {
        let parts = format!("(core module $m (memory {pages})) (core instance (instantiate $m))");
        host.load(component(&parts, "", "", "").as_bytes(), Manifest::named("guest"))
    };
    let rejection = load(513).expect_err("64 MiB and a page");
    assert_eq!(rejection.kind, RejectionKind::NeedsTooMuch);
    assert!(rejection.message.contains("begins with 67174400 bytes"), "{rejection}");
    load(512).expect("64 MiB");

    // It does not matter whether it instantiates this module.
    let limits = GuestLimits { memory_bytes: 16 << 20, ..GuestLimits::default() };
    let guest = component("(core module $unused (memory 1))", "", "", "");
    let rejection = host.load(guest.as_bytes(), Manifest::named("guest").limits(limits));
    assert_eq!(rejection.expect_err("32 MiB").kind, RejectionKind::NeedsTooMuch);
}

#[test]
fn memories_count_as_often_as_they_are_instantiated() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |instances: usize| {
        let instances = "(core instance (instantiate $large))".repeat(instances);
        let parts = format!("(core module $large (memory 300)) {instances}");
        host.load(component(&parts, "", "", "").as_bytes(), Manifest::named("guest"))
    };
    for instances in [0, 1] {
        load(instances).expect("less than 1,024 pages");
    }
    let rejection = load(2).expect_err("512 and twice 300 pages");
    assert_eq!(rejection.kind, RejectionKind::NeedsTooMuch);
    assert!(rejection.message.contains("begins with 72876032 bytes"), "{rejection}");
}

#[test]
fn globals_and_tables_of_all_instances_count_against_the_memory_limit() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |module: &str, instances: usize| {
        let instances = "(core instance (instantiate $m))".repeat(instances);
        let parts = format!("(core module $m {module}) {instances}");
        let binary = wat::parse_str(component(&parts, "", "", "")).expect("it is text");
        host.load(&binary, Manifest::named("guest"))
    };
    let globals = "(global (mut i64) (i64.const 1))".repeat(10_000);
    for module in [globals.as_str(), "(table 20000 funcref)"] {
        load(module, 3).expect("less than a MiB");
        let rejection = load(module, 300).expect_err("more than 32 MiB beside its memory");
        assert_eq!(rejection.kind, RejectionKind::NeedsTooMuch, "{rejection}");
        assert!(rejection.message.contains("more for its tables, globals"), "{rejection}");
    }
}

/// A clock that advances by a millisecond whenever it is read.
#[derive(Debug, Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Monotonic {
        let reads = self.0.fetch_add(1, Ordering::Relaxed);
        Monotonic::from_nanos(1).after(Duration::from_millis(reads))
    }

    fn wall(&self) -> WallTime {
        WallTime::from_millis(1_700_000_000_000)
    }
}

/// The clock is read before each instance, because no guest code that could be interrupted is executed
/// there.
#[tokio::test(start_paused = true)]
async fn the_deadline_ends_a_run_between_two_of_its_instances() {
    let clock = Arc::new(Counting::default());
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).simulated_clock(clock).build().expect("a host");
    for module in ["(memory 0)", "(table 1 funcref)"] {
        for (instances, expected) in [(20, false), (600, true)] {
            let instances = "(core instance (instantiate $m))".repeat(instances);
            let parts = format!("(core module $m {module}) {instances}");
            let guest = component(&parts, "", "", "");
            let guest = host.load(guest.as_bytes(), Manifest::named("guest")).expect("a guest");
            let entity = "Session/1".parse().expect("valid");
            let dispatch = Dispatch::new(entity, "Begin", Context::default())
                .deadline(DispatchDeadline::after(Duration::from_millis(300)));
            let report = host.run(&guest, dispatch).await.expect("it ran");
            let timed_out = matches!(report.outcome, Outcome::TimedOut(_));
            assert_eq!(timed_out, expected, "{module}: {report:?}");
        }
    }
}

#[test]
fn a_manifest_cannot_grant_larger_tables_than_a_host_has() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let load = |table_elements| {
        let limits = GuestLimits { table_elements, ..GuestLimits::default() };
        host.load(MANY_NUMBERS.as_bytes(), Manifest::named("guest").limits(limits))
    };
    let rejection = load(100_001).expect_err("one too many");
    assert!(rejection.message.contains("at most 100000"), "{rejection}");
    load(100_000).expect("as many as there are");
}

/// Returns the entity's field `cart` as its params.
fn returns_a_field() -> String {
    component(
        r#"(import "sandglass:integration/context@0.1.0" (instance $context
             (export "read-field" (func (param "name" string) (result (option string))))))
           (core func $read-field (canon lower (func $context "read-field")
             (memory (core memory $libc "memory")) (realloc (core func $libc "realloc"))))"#,
        r#"(import "context" "read-field" (func $f (param i32 i32 i32)))
           (data (i32.const 64) "cart")"#,
        r#"(with "context" (instance (export "read-field" (func $read-field))))"#,
        "(call $f (i32.const 64) (i32.const 4) (i32.const 512))
         (i32.store (i32.const 24) (i32.load (i32.const 516)))
         (i32.store (i32.const 28) (i32.load (i32.const 520)))",
    )
}

#[tokio::test]
async fn a_component_reads_the_fields_that_a_core_module_reads() {
    let settings = Settings { max_runs: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let guest = host.load(returns_a_field().as_bytes(), Manifest::named("guest"));
    let guest = guest.expect("a guest");
    for entity_state in [json!({"cart": {"n": 1}}), json!({"fields": {"cart": {"n": 1}}})] {
        let context = Context { entity_state, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context);
        let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
        let Outcome::Completed(completion) = outcome else { panic!("{outcome:?}") };
        assert_eq!(completion.params.get("n"), Some(&json!(1)));
    }
}

#[test]
fn a_function_that_would_cost_the_compiler_too_much_is_refused_in_components_too() {
    let host = Host::builder().build().expect("a host");
    // Two bytes are its end and its list of locals.
    let module = |name: &str, bytes: usize| {
        format!(r#"(module {name} (func (export "f") {}))"#, "nop ".repeat(bytes - 2))
    };
    for bytes in [1 << 20, (1 << 20) + 1] {
        let component = format!("(component (core {})", &module("$m", bytes)[1..]);
        for guest in [module("", bytes), component] {
            let binary = wat::parse_str(guest).expect("it is text");
            let rejection = host
                .load(&binary, Manifest::named("large"))
                .expect_err("it has none of what a guest exports");
            let too_large = rejection.kind == RejectionKind::ModuleTooLarge;
            assert_eq!(too_large, bytes > 1 << 20, "{rejection:?}");
        }
    }
}

#[tokio::test]
async fn refused_calls_of_preview1_are_reported_as_failed() {
    let guest = r#"(module
        (import "wasi_snapshot_preview1" "random_get"
            (func $random_get (param i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "fd_read"
            (func $fd_read (param i32 i32 i32 i32) (result i32)))
        (import "wasi_snapshot_preview1" "sock_send"
            (func $sock_send (param i32 i32 i32 i32 i32) (result i32)))
        (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32)
            (drop (call $random_get (i32.const 0) (i32.const 8)))
            (drop (call $fd_read (i32.const 0) (i32.const 0) (i32.const 1025) (i32.const 0)))
            (drop (call $sock_send
                (i32.const 0) (i32.const 0) (i32.const 1025) (i32.const 0) (i32.const 0)))
            i32.const 0))"#;
    let report = run(guest, Manifest::named("asks")).await;
    let outcomes: Vec<_> = report.story.calls.iter().map(|call| call.outcome).collect();
    let (ok, failed) = (CallOutcome::Ok, CallOutcome::Failed);
    assert_eq!(outcomes, [ok, failed, failed], "{report:?}");
}
