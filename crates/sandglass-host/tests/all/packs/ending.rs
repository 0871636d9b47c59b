//! The endings of invocations that do not complete.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use sandglass_host::{Context, Dispatch, Host, Manifest, Outcome, Settings};
use sandglass_model::{Cause, FailureKind, GuestLimits, LimitKind, RejectionKind, TrapKind};
use serde_json::json;

use super::kit::{LONG, Pack, SHORT, World, call, dispatch, host, limits, load, run, run_within};

/// A pack that returns `text`.
fn answering(text: &str) -> Pack {
    // After its other texts.
    let mut pack = Pack::invoking(&format!("(i32.const 32768) (i32.const {})", text.len()));
    pack.more = format!("(data (i32.const 32768) \"{}\")", text.replace('"', "\\22"));
    pack
}

/// A world with a channel of the name at 32.
fn holding_one() -> Arc<World> {
    let mut world = World::default();
    world.channels.get_mut().expect("no panic before").insert("test.one".to_owned(), json!(1));
    Arc::new(world)
}

#[tokio::test]
async fn a_failed_response_is_a_failure_with_its_code() {
    let response = r#"{"outcome":"failed","error":{"code":"upstream","message":"it is down"}}"#;
    for pack in [answering(response), answering(response).packed()] {
        let report = run(&pack, &Arc::default()).await;
        let Outcome::Failed(failure) = report.outcome else { panic!("{report:?}") };
        assert_eq!(failure.kind, FailureKind::TypedFailure);
        assert_eq!(failure.message, "upstream: it is down");
        let error = json!({"code": "upstream", "message": "it is down"});
        assert_eq!(failure.result, Some(json!({"outcome": "failed", "error": error})));
    }
}

#[tokio::test]
async fn an_invalid_response_is_a_failure_of_its_own_kind() {
    let large = Pack::invoking("(i32.const 0) (i32.const 1001)");
    for (pack, kind) in [
        (answering("{"), FailureKind::InvalidJson),
        (answering("[]"), FailureKind::InvalidShape),
        (Pack::invoking("(i32.const 512) (i32.const 3)").with_text(""), FailureKind::InvalidJson),
        (Pack::invoking("(i32.const 0) (i32.const 0)"), FailureKind::AbsentResult),
        (Pack::invoking("(i32.const 131071) (i32.const 2)"), FailureKind::ResultOutOfBounds),
        (Pack::invoking("(i32.const -1) (i32.const -1)"), FailureKind::ResultOutOfBounds),
        (Pack::invoking("(i32.const -1) (i32.const -1)").packed(), FailureKind::ResultOutOfBounds),
        (large, FailureKind::ResultTooLarge),
        (
            Pack::invoking(
                "(i32.store8 (i32.const 512) (i32.const 255)) (i32.const 512) (i32.const 1)",
            ),
            FailureKind::InvalidUtf8,
        ),
        (
            Pack::invoking("(call $interrupt (i32.const 256) (i32.const 1)) unreachable")
                .with_text("7"),
            FailureKind::InvalidShape,
        ),
        (
            Pack::invoking("(call $interrupt (i32.const -1) (i32.const 1)) unreachable"),
            FailureKind::ResultOutOfBounds,
        ),
    ] {
        let limits = GuestLimits { response_bytes: 1000, ..limits() };
        let report = run_within(&pack, &Arc::default(), limits, LONG).await;
        let Outcome::Failed(failure) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(failure.kind, kind, "{failure:?}");
    }
}

#[tokio::test]
async fn refused_memory_is_reported_as_the_limit_however_the_pack_gives_up() {
    let grow = "(if (i32.eq (memory.grow (i32.const 100)) (i32.const -1)) (then unreachable))";
    let in_invoke = Pack::invoking(&format!("{grow} (i32.const 0) (i32.const 0)"));
    let alloc = "(drop (memory.grow (i32.const 100))) (i32.const 0)";
    let in_alloc = Pack { alloc, ..Pack::default() };
    let more = "(if (result i32) (global.get $asked) (then
        (drop (memory.grow (i32.const 100))) (i32.const 0))
        (else (global.set $asked (i32.const 1)) (i32.const 16384)))";
    let mut in_import =
        Pack::invoking("(call $now) drop (call $channel_read (i32.const 32) (i32.const 8))");
    in_import.alloc = more;
    in_import.more = "(global $asked (mut i32) (i32.const 0))".to_owned();
    let world = holding_one();
    for pack in [in_invoke, in_alloc, in_import] {
        let report = run(&pack, &world).await;
        let Outcome::Limit(breach) = &report.outcome else { panic!("{report:?}") };
        assert_eq!((breach.kind, breach.limit), (LimitKind::WasmMemory, 1 << 20));
        assert!(breach.observed > breach.limit, "{breach:?}");
        assert_eq!(report.cause, Cause::Trap);
    }
}

#[tokio::test]
async fn an_invalid_pointer_from_the_allocator_is_a_trap() {
    let world = holding_one();
    let reads = "(call $channel_read (i32.const 32) (i32.const 8))";
    let second = "(if (result i32) (global.get $asked) (then (i32.const 131072))
        (else (global.set $asked (i32.const 1)) (i32.const 16384)))";
    let asked = "(global $asked (mut i32) (i32.const 0))".to_owned();
    let in_import = Pack { alloc: second, more: asked, ..Pack::invoking(reads) };
    for (pack, said) in [
        (Pack { alloc: "(i32.const 0)", ..Pack::default() }, "it answered 0"),
        (Pack { alloc: "(i32.const -8)", ..Pack::default() }, "answered 4294967288 for 40 bytes"),
        (Pack { alloc: "(i32.const 131072)", ..Pack::default() }, "outside the guest's memory"),
        (in_import, "answered 131072 for 1 bytes"),
    ] {
        let report = run(&pack, &world).await;
        let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(trap.kind, TrapKind::MemoryOutOfBounds, "{trap:?}");
        assert!(trap.message.contains(said), "{trap:?}");
        assert_eq!(report.dying_span.as_deref(), Some("guest"));
    }
}

#[tokio::test]
async fn invalid_arguments_are_a_trap_in_the_call() {
    for (call, said) in [
        ("(call $random (i32.const 131071) (i32.const 2))", "lies outside"),
        ("(call $random (i32.const 0) (i32.const 65537))", "too many for one call"),
    ] {
        let pack = Pack::invoking(&format!("{call} (i32.const 0) (i32.const 0)"));
        let report = run(&pack, &Arc::default()).await;
        let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(trap.kind, TrapKind::BadHostCall);
        assert!(trap.message.contains(said), "{trap:?}");
        assert_eq!(report.dying_span.as_deref(), Some("openwop_random"));
    }
}

#[tokio::test]
async fn an_allocator_that_needs_itself_is_stopped() {
    let world = holding_one();
    let reads = "(call $channel_read (i32.const 32) (i32.const 8))";
    let alloc = "(if (global.get $asked) (then
            (call $channel_read (i32.const 32) (i32.const 8)) drop drop))
        (global.set $asked (i32.const 1)) (i32.const 16384)";
    let more = "(global $asked (mut i32) (i32.const 0))".to_owned();
    let pack = Pack { alloc, more, ..Pack::invoking(reads) };
    let report = run(&pack, &world).await;
    let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(trap.kind, TrapKind::BadHostCall);
    assert!(trap.message.contains("`openwop_alloc` calls what needs `openwop_alloc`"), "{trap:?}");
    assert_eq!(report.host_calls.count, 2);
}

#[tokio::test]
async fn a_pack_is_killed_wherever_it_spins() {
    let world = holding_one();
    let spin = "(loop (br 0)) unreachable";
    let second = "(if (global.get $asked) (then (loop (br 0))))
        (global.set $asked (i32.const 1)) (i32.const 16384)";
    let more = "(global $asked (mut i32) (i32.const 0))".to_owned();
    let reads = Pack::invoking("(call $channel_read (i32.const 32) (i32.const 8))");
    for (pack, span, calls) in [
        (Pack::invoking(spin), "guest", 0),
        (Pack { alloc: spin, ..Pack::default() }, "guest", 0),
        (Pack { free: spin, ..Pack::default() }, "guest", 0),
        (Pack { alloc: second, more, ..reads }, "guest", 1),
        (
            Pack { more: "(func $spin (loop (br 0))) (start $spin)".to_owned(), ..Pack::default() },
            "instantiate",
            0,
        ),
        (
            Pack {
                more: "(func (export \"_initialize\") (loop (br 0)))".to_owned(),
                ..Pack::default()
            },
            "instantiate",
            0,
        ),
    ] {
        let report = run_within(&pack, &world, limits(), SHORT).await;
        let Outcome::TimedOut(exceeded) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(exceeded.dying_span, span);
        assert_eq!(report.host_calls.count, calls);
        assert!(!exceeded.backtrace.is_empty(), "{exceeded:?}");
    }
}

/// An allocator that executes this when it is called the second time, for the result of a call.
fn second_time(then: &'static str) -> Pack {
    Pack {
        alloc: then,
        more: "(global $asked (mut i32) (i32.const 0)) (tag $oops)
            (func $is_second (result i32)
                (global.get $asked) (global.set $asked (i32.const 1)))"
            .to_owned(),
        ..Pack::invoking("(call $channel_read (i32.const 32) (i32.const 8))")
    }
}

#[tokio::test]
async fn a_trap_of_the_allocator_is_a_trap_of_the_pack() {
    let pack = second_time("(if (call $is_second) (then unreachable)) (i32.const 16384)");
    let report = run(&pack, &holding_one()).await;
    let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(trap.kind, TrapKind::Unreachable);
    assert_eq!(report.dying_span.as_deref(), Some("guest"));
    assert!(!report.backtrace.is_empty());
}

#[tokio::test]
async fn an_exception_of_the_allocator_can_be_caught_and_the_pack_goes_on() {
    let mut pack = second_time(
        "(if (call $is_second) (then
            (if (i32.eqz (global.get $thrown)) (then
                (global.set $thrown (i32.const 1)) (throw $oops)))))
         (i32.const 16384)",
    );
    pack.more += "(global $thrown (mut i32) (i32.const 0))";
    pack.invoke = "
        (block $caught (try_table (catch $oops $caught)
            (call $channel_read (i32.const 32) (i32.const 8)) drop drop unreachable))
        (call $channel_read (i32.const 32) (i32.const 8)) (local.set $len) (local.set $ptr)
        (call $completed (local.get $ptr) (local.get $len))"
        .to_owned();
    let report = run(&pack, &holding_one()).await;
    let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
    assert_eq!(completion.result["output"], json!(1));
    assert_eq!(report.host_calls.count, 2);
}

#[tokio::test]
async fn dropping_the_caller_while_the_pack_allocates_leaves_nothing_behind() {
    let settings = Settings { max_runs: 1, max_on_demand: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).build().expect("a host");
    let spins = second_time("(if (call $is_second) (then (loop (br 0)))) (i32.const 16384)");
    let spins = load(&host, &spins.text());
    let world = holding_one();
    {
        let running = host.run_in_place(&spins, dispatch(call(&world), LONG));
        let asked = async {
            while !world.was_read.load(Ordering::Acquire) {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            report = running => panic!("{report:?}"),
            () = asked => {}
        }
    }
    let next = load(&host, &Pack::default().text());
    let report = host.run(&next, dispatch(call(&world), LONG)).await.expect("its place is free");
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
}

#[tokio::test]
async fn fuel_is_spent_in_invocations_as_in_handlers() {
    let spins = Pack::invoking("(loop (br 0)) unreachable");
    let limits = GuestLimits { fuel: Some(100_000), ..limits() };
    let report = run_within(&spins, &Arc::default(), limits, LONG).await;
    let Outcome::Limit(breach) = &report.outcome else { panic!("{report:?}") };
    assert_eq!((breach.kind, breach.limit), (LimitKind::WasmFuel, 100_000));
    let report = run_within(&Pack::default(), &Arc::default(), limits, LONG).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
}

#[tokio::test]
async fn a_start_function_cannot_call_the_host() {
    let pack = Pack {
        more: "(func $starts (drop (call $now))) (start $starts)".to_owned(),
        ..Pack::default()
    };
    let report = run(&pack, &Arc::default()).await;
    let Outcome::Trapped(trap) = &report.outcome else { panic!("{report:?}") };
    assert!(trap.message.contains("while it is instantiated"), "{trap:?}");
}

#[tokio::test]
async fn packs_and_handlers_are_not_interchangeable() {
    let host = host();
    let pack = load(&host, &Pack::default().text());
    let plain = Dispatch::new("Run/1".parse().expect("valid"), "Invoke", Context::default());
    let handler = br#"(module (memory (export "memory") 1)
        (func (export "run") (param i32 i32) (result i32) i32.const 0))"#;
    let handler = host.load(handler, Manifest::named("handler")).expect("a handler");
    let invoking = dispatch(call(&Arc::default()), LONG);
    for (guest, dispatch, said) in
        [(&pack, plain, "is an OpenWOP node pack"), (&handler, invoking, "it has no nodes")]
    {
        let outcome = host.dispatch(guest, dispatch).await.expect("it ran");
        let Outcome::Rejected(rejection) = outcome else { panic!("{outcome:?}") };
        assert_eq!(rejection.kind, RejectionKind::InvalidDispatch);
        assert!(rejection.message.contains(said), "{rejection:?}");
    }
}
