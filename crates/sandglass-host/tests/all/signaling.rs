//! Signals to other entities: what the receiver gets, which errors the guest gets, and how a call
//! ends that waits too long.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::{
    Answer, Answered, Ask, AskError, Asks, CallLimits, Context, Dispatch, DispatchDeadline,
    EntitySignal, FixedSecrets, Host, Integration, Manifest, Outcome, Secret, SignalError,
};
use sandglass_model::Object;
use serde_json::json;

use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

const READY: &str = r#"{"entity":"Ledger/7","name":"Ready","payload":{"cents":5}}"#;

/// A component built with the SDK, and the same as a core module and as an asynchronous component.
const SDK: [&[u8]; 3] = [
    include_bytes!("../../../../guest-fixtures/built/sdk_core.wasm"),
    include_bytes!("../../../../guest-fixtures/built/sdk_wasip2.wasm"),
    include_bytes!("../../../../guest-fixtures/built/sdk_async.wasm"),
];

/// A guest that sends `request` as a signal, and sets `sent` or the error as its status.
fn sending(request: &str) -> String {
    let data = request.replace('"', "\\\"");
    format!(
        r#"(module
        (import "env" "host_signal" (func $signal (param i32 i32) (result i32)))
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 4)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 32) "sent")
        (data (i32.const 8192) "{data}")
        (func (export "run") (param i32 i32) (result i32)
            (if (i32.eqz (call $signal (i32.const 8192) (i32.const {length})))
                (then (drop (call $status (i32.const 32) (i32.const 4))))
                (else (drop (call $status (i32.const 4096)
                    (call $error (i32.const 4096) (i32.const 4096))))))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#,
        length = request.len()
    )
}

/// What happens to signals.
#[derive(Clone, Debug)]
enum Then {
    Recorded,
    Fails(SignalError),
    Never,
    Panics,
}

/// Receives signals, and has no actions.
#[derive(Debug)]
struct Ledgers {
    then: Then,
    received: Mutex<Vec<EntitySignal>>,
}

impl Ledgers {
    fn which(then: Then) -> Arc<Self> {
        Arc::new(Self { then, received: Mutex::default() })
    }

    fn received(&self) -> Vec<EntitySignal> {
        self.received.lock().expect("no panic").clone()
    }
}

impl Asks for Ledgers {
    fn knows(&self, _: &str, _: &str) -> bool {
        false
    }

    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>> {
        panic!("nobody asks: {ask:?}")
    }

    fn signal(&self, signal: EntitySignal) -> Answer<'static, Result<(), SignalError>> {
        self.received.lock().expect("no panic").push(signal);
        match self.then.clone() {
            Then::Recorded => Box::pin(async { Ok(()) }),
            Then::Fails(error) => Box::pin(async { Err(error) }),
            Then::Never => Box::pin(std::future::pending()),
            Then::Panics => panic!("on its way"),
        }
    }
}

fn manifest() -> Manifest {
    Manifest::named("sends").signal_targets(["Ledger.Ready", "Stock.*"].map(target))
}

fn target(text: &str) -> sandglass_host::AskTarget {
    text.parse().expect("a target")
}

fn load(host: &Host, request: &str, manifest: Manifest) -> Integration {
    host.load(sending(request).as_bytes(), manifest).expect("a guest")
}

fn dispatch(budget: Duration) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
}

/// The status of a guest that sends `request`.
async fn status_of(host: &Host, request: &str, ledgers: Option<&Arc<Ledgers>>) -> String {
    let received = Received::new();
    let mut dispatch = dispatch(LONG).signals(Arc::clone(&received) as _);
    if let Some(ledgers) = ledgers {
        dispatch = dispatch.asks(Arc::clone(ledgers) as _);
    }
    let guest = load(host, request, manifest());
    let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    received.status()
}

#[tokio::test]
async fn a_signal_reaches_the_receiver_with_its_payload() {
    let host = Host::builder().build().expect("a host");
    let ledgers = Ledgers::which(Then::Recorded);
    assert_eq!(status_of(&host, READY, Some(&ledgers)).await, "sent");
    let any = r#"{"entity":"Stock/1","name":"Anything at all"}"#;
    assert_eq!(status_of(&host, any, Some(&ledgers)).await, "sent");
    let of = |entity: &str, name: &str, payload| EntitySignal {
        target: entity.parse().expect("valid"),
        name: name.to_owned(),
        payload,
    };
    let expected = [
        of("Ledger/7", "Ready", json!({ "cents": 5 })),
        of("Stock/1", "Anything at all", json!(null)),
    ];
    assert_eq!(ledgers.received(), expected);
}

#[tokio::test]
async fn each_failure_of_a_signal_is_an_error_that_begins_with_its_kind() {
    let host = Host::builder().build().expect("a host");
    let by_the_receiver = [
        (SignalError::UnknownTarget("no such ledger".to_owned()), "signal_unknown_target: no such"),
        (SignalError::Refused("it is over".to_owned()), "signal_refused: it is over"),
        (SignalError::Unavailable("closed".to_owned()), "signal_unavailable: closed"),
    ];
    for (error, begins) in by_the_receiver {
        let status = status_of(&host, READY, Some(&Ledgers::which(Then::Fails(error)))).await;
        assert!(status.starts_with(begins), "{status}");
    }
    let deep = format!(
        r#"{{"entity":"Stock/1","name":"A","payload":{}{}}}"#,
        "[".repeat(64),
        "]".repeat(64)
    );
    let long = format!(r#"{{"entity":"Stock/1","name":"A","payload":"{}"}}"#, "x".repeat(70_000));
    let many = format!(r#"{{"entity":"Stock/1","name":"A","payload":[{}1]}}"#, "1,".repeat(2_000));
    let by_the_host = [
        ("", "signal_invalid: "),
        ("[]", "signal_invalid: "),
        (r#"{"entity":"Ledger","name":"Ready"}"#, "signal_invalid: "),
        (r#"{"entity":"Ledger/7"}"#, "signal_invalid: "),
        (r#"{"entity":"Ledger/7","name":"Ready","action":"Charge"}"#, "signal_invalid: "),
        (&deep, "signal_invalid: "),
        (&long, "signal_invalid: "),
        (&many, "signal_invalid: "),
        (
            r#"{"entity":"Ledger/7","name":"Late"}"#,
            "signal_not_allowed: `Ledger.Late` is not among",
        ),
        (r#"{"entity":"Order/7","name":"Ready"}"#, "signal_not_allowed: `Order.Ready`"),
    ];
    for (request, begins) in by_the_host {
        let ledgers = Ledgers::which(Then::Recorded);
        let status = status_of(&host, request, Some(&ledgers)).await;
        assert!(status.starts_with(begins), "{status}");
        assert_eq!(ledgers.received(), []);
    }
    let without = status_of(&host, READY, None).await;
    assert!(without.starts_with("signal_unavailable: "), "{without}");
    let broken = status_of(&host, READY, Some(&Ledgers::which(Then::Panics))).await;
    assert!(broken.starts_with("signal_unavailable: the signal failed inside"), "{broken}");
}

#[tokio::test]
async fn a_handler_that_waits_for_a_signal_is_killed_in_it_by_the_name_of_its_grant() {
    let host = Host::builder().build().expect("a host");
    let any = r#"{"entity":"Stock/1","name":"chosen by the guest"}"#;
    for (request, name) in [(READY, "signal:Ledger.Ready"), (any, "signal:Stock.*")] {
        let dispatch = dispatch(Duration::from_millis(80)).asks(Ledgers::which(Then::Never) as _);
        let report = host.run(&load(&host, request, manifest()), dispatch).await.expect("it ran");
        assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
        assert_eq!(report.dying_span.as_deref(), Some(name));
        let names: Vec<_> =
            report.host_calls.by_function.iter().map(|calls| &*calls.name).collect();
        assert_eq!(names, [name]);
    }
}

#[tokio::test]
async fn a_signal_ends_at_its_call_limit_and_at_the_soft_deadline() {
    let host = Host::builder().build().expect("a host");
    let limits = CallLimits {
        all: None,
        of: [("signal:Ledger.Ready".to_owned(), Duration::from_millis(50))].into(),
    };
    let soft = manifest().soft_deadline(LONG - Duration::from_millis(200));
    for (manifest, limits, begins) in [
        (manifest(), limits, "signal_timed_out: TIMEOUT after "),
        (soft, CallLimits::default(), "signal_cut_short: the soft deadline"),
    ] {
        let received = Received::new();
        let dispatch = dispatch(LONG)
            .asks(Ledgers::which(Then::Never) as _)
            .call_limits(limits)
            .signals(Arc::clone(&received) as _);
        let guest = load(&host, READY, manifest);
        let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        assert!(received.status().starts_with(begins), "{}", received.status());
    }
}

#[tokio::test]
async fn a_payload_contains_no_secret_that_the_guest_has_read() {
    let host = Host::builder().build().expect("a host");
    let source =
        sending(r#"{"entity":"Ledger/7","name":"Ready","payload":"the key is hunter-22"}"#)
            .replace(
                "(memory",
                r#"(import "env" "host_get_secret"
                (func $secret (param i32 i32 i32 i32) (result i32)))
            (data (i32.const 48) "KEY")
            (memory"#,
            )
            .replace(
                "(param i32 i32) (result i32)\n            (if",
                "(param i32 i32) (result i32)
            (drop (call $secret
                (i32.const 48) (i32.const 3) (i32.const 4096) (i32.const 64)))
            (if",
            );
    let secrets = FixedSecrets::from_iter([("KEY".to_owned(), Secret::new("hunter-22"))]);
    let manifest = manifest().secrets(Arc::new(secrets));
    let guest = host.load(source.as_bytes(), manifest).expect("a guest");
    let ledgers = Ledgers::which(Then::Recorded);
    let dispatch = dispatch(LONG).asks(Arc::clone(&ledgers) as _);
    let report = host.run(&guest, dispatch).await.expect("it ran");
    assert!(report.host_calls.by_function.iter().any(|calls| calls.name == "host_get_secret"));
    let received = ledgers.received();
    let [signal] = received.as_slice() else { panic!("{received:?}") };
    let text = signal.payload.as_str().expect("a text");
    assert!(text.starts_with("the key is ") && !text.contains("hunter-22"), "{text}");
}

/// A core module gets the kind of an error as the beginning of a text, a component as a variant. With
/// the SDK, both are the same.
#[tokio::test]
async fn a_guest_of_the_sdk_sends_a_signal_and_distinguishes_each_error() {
    let why = || "so".to_owned();
    let errors = [
        (SignalError::Invalid(why()), "signal: invalid"),
        (SignalError::NotAllowed(why()), "signal: not_allowed"),
        (SignalError::UnknownTarget(why()), "signal: unknown_target"),
        (SignalError::Refused(why()), "signal: refused"),
        (SignalError::TimedOut(why()), "signal: timed_out"),
        (SignalError::CutShort(why()), "signal: cut_short"),
        (SignalError::Unavailable(why()), "signal: unavailable"),
    ];
    let host = Host::builder().build().expect("a host");
    for guest in SDK {
        let manifest = Manifest::named("sends").signal_targets([target("Tool.used")]);
        let guest = host.load(guest, manifest).expect("a guest");
        let run = async |ledgers: &Arc<Ledgers>| {
            let params = Object::from([("does".to_owned(), json!("signal"))]);
            let context = Context { params, ..Context::default() };
            let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
                .deadline(DispatchDeadline::after(LONG))
                .asks(Arc::clone(ledgers) as _);
            host.run(&guest, dispatch).await.expect("it ran").outcome
        };
        let ledgers = Ledgers::which(Then::Recorded);
        let outcome = run(&ledgers).await;
        assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
        let received = ledgers.received();
        let [signal] = received.as_slice() else { panic!("{received:?}") };
        assert_eq!((signal.target.to_string(), &*signal.name), ("Tool/1".to_owned(), "used"));
        assert_eq!(signal.payload, json!({ "n": 1 }));
        for (error, begins) in &errors {
            let outcome = run(&Ledgers::which(Then::Fails(error.clone()))).await;
            let Outcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
            assert!(failure.message.starts_with(begins), "{failure:?}");
        }
    }
}
