//! Asks of other entities: what the handler gets, and which permits its waiting frees.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use sandglass_host::{
    Answer, Answered, Ask, AskError, Asks, CallLimits, Context, Dispatch, DispatchDeadline, Host,
    Integration, Manifest, Outcome, Settings,
};
use sandglass_model::{
    AskUntil, Busy, BusyScope, Cause, Clock, DispatchId, Object, Sequence, SystemClock,
    TraceContext,
};
use serde_json::json;
use tokio::sync::Notify;

use crate::signals::Received;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// A guest that asks once, and sets the answer or the error as its status.
fn asking(request: &str) -> String {
    let data = request.replace('"', "\\\"");
    format!(
        r#"(module
        (import "env" "host_ask" (func $ask (param i32 i32 i32 i32) (result i32)))
        (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
        (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{{\"success\":true}}")
        (data (i32.const 64) "{data}")
        (func (export "run") (param i32 i32) (result i32) (local $n i32)
            (local.set $n (call $ask
                (i32.const 64) (i32.const {length}) (i32.const 4096) (i32.const 4096)))
            (if (i32.lt_s (local.get $n) (i32.const 0))
                (then (local.set $n (call $error (i32.const 4096) (i32.const 4096)))))
            (drop (call $status (i32.const 4096) (local.get $n)))
            (call $set (i32.const 8) (i32.const 16))
            i32.const 0))"#,
        length = request.len()
    )
}

/// Asks `Tool/1` for `Use`, and returns the state and sequence of the answer.
const COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/component.wasm");

/// As `COMPONENT`, with the SDK.
const SDK_CORE: &[u8] = include_bytes!("../../../../guest-fixtures/built/sdk_core.wasm");
const SDK_COMPONENT: &[u8] = include_bytes!("../../../../guest-fixtures/built/sdk_wasip2.wasm");
const SDK_ASYNC: &[u8] = include_bytes!("../../../../guest-fixtures/built/sdk_async.wasm");

const CHARGE: &str = r#"{"entity":"Payment/7","action":"Charge","params":{"cents":5}}"#;

/// What happens to asks.
#[derive(Debug)]
enum Then {
    Answers,
    Fails(AskError),
    Never,
    Panics,
    /// Dispatches a handler of the target on the same host.
    Dispatches(Host, Integration),
}

/// Has payments that can be charged, and tools that can be used.
#[derive(Debug)]
struct Payments {
    then: Then,
    asked: Mutex<Vec<Ask>>,
    begun: Notify,
}

impl Payments {
    fn which(then: Then) -> Arc<Self> {
        Arc::new(Self { then, asked: Mutex::default(), begun: Notify::new() })
    }
}

impl Asks for Payments {
    fn knows(&self, entity_type: &str, action: &str) -> bool {
        matches!((entity_type, action), ("Payment", "Charge") | ("Tool", "Use"))
    }

    fn ask(&self, ask: Ask) -> Answer<'static, Result<Answered, AskError>> {
        let target = ask.target.clone();
        self.asked.lock().expect("no panic").push(ask);
        self.begun.notify_one();
        let answered = || Answered {
            sequence: Sequence(3),
            state: "Charged".to_owned(),
            fields: Object::from([("cents".to_owned(), json!(5))]),
        };
        match &self.then {
            Then::Answers => Box::pin(async move { Ok(answered()) }),
            Then::Fails(error) => {
                let error = error.clone();
                Box::pin(async move { Err(error) })
            }
            Then::Never => Box::pin(std::future::pending()),
            Then::Panics => panic!("on its way"),
            Then::Dispatches(host, integration) => {
                let (host, integration) = (host.clone(), integration.clone());
                Box::pin(async move {
                    let dispatch = Dispatch::new(target, "Charge", Context::default());
                    let ended = host.dispatch(&integration, dispatch).await;
                    match ended.expect("the asking handler freed its permit") {
                        Outcome::Completed(_) => Ok(answered()),
                        other => Err(AskError::Refused(format!("{other:?}"))),
                    }
                })
            }
        }
    }
}

fn host(max_runs: u32, max_asking: u32) -> Host {
    let settings = Settings { max_runs, max_asking, ..Settings::default() };
    Host::builder().settings(settings).build().expect("a host")
}

fn load(host: &Host, request: &str) -> Integration {
    let manifest = Manifest::named("asks").ask_targets(["Payment.*".parse().expect("a target")]);
    host.load(asking(request).as_bytes(), manifest).expect("a guest")
}

fn dispatch(budget: Duration) -> Dispatch {
    Dispatch::new("Session/1".parse().expect("valid"), "Begin", Context::default())
        .deadline(DispatchDeadline::after(budget))
}

/// The status of a guest that asks for `request`.
async fn status_of(host: &Host, request: &str, asks: Option<Arc<Payments>>) -> String {
    let received = Received::new();
    let mut dispatch = dispatch(LONG).signals(Arc::clone(&received) as _);
    if let Some(asks) = asks {
        dispatch = dispatch.asks(asks);
    }
    let outcome = host.dispatch(&load(host, request), dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    received.status()
}

#[tokio::test]
async fn an_ask_reaches_its_target_and_the_answer_reaches_the_guest() {
    let payments = Payments::which(Then::Answers);
    let answer = status_of(&host(2, 1), CHARGE, Some(Arc::clone(&payments))).await;
    assert_eq!(answer, r#"{"sequence":3,"state":"Charged","fields":{"cents":5}}"#);
    let asked = payments.asked.lock().expect("no panic");
    let [ask] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!((ask.target.to_string(), &*ask.action), ("Payment/7".to_owned(), "Charge"));
    assert_eq!(ask.params, Object::from([("cents".to_owned(), json!(5))]));
    assert_eq!(ask.until, AskUntil::Transition);
}

#[tokio::test]
async fn an_ask_has_the_trace_and_the_deadline_of_its_handler() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let settings = Settings { max_runs: 2, max_asking: 1, ..Settings::default() };
    let host = Host::builder().settings(settings).clock(Arc::clone(&clock)).build();
    let host = host.expect("a host");
    let payments = Payments::which(Then::Answers);
    let span = TraceContext::root([9; 24]);
    let before = clock.now();
    let dispatch = dispatch(LONG)
        .identity(DispatchId::from_bytes([1; 16]), span)
        .asks(Arc::clone(&payments) as Arc<dyn Asks>);
    host.dispatch(&load(&host, CHARGE), dispatch).await.expect("it ran");
    let asked = payments.asked.lock().expect("no panic");
    let [ask] = asked.as_slice() else { panic!("{asked:?}") };
    assert_eq!(ask.trace.trace_id, span.trace_id);
    assert!(ask.not_after > before && ask.not_after <= clock.now().after(LONG));
}

#[tokio::test]
async fn each_failure_of_an_ask_is_an_error_that_begins_with_its_kind() {
    let host = host(2, 1);
    let busy = Busy { scope: BusyScope::Tenant, limit: 4, retry_after_ms: 70 };
    let by_payments = [
        (AskError::Cycle, "ask_cycle: "),
        (AskError::TooDeep(8), "ask_too_deep: "),
        (AskError::Refused("it is charged already".to_owned()), "ask_refused: it is"),
        (AskError::Busy(busy), "ask_busy: the tenant is busy"),
        (AskError::TimedOut("late".to_owned()), "ask_timed_out: late"),
        (AskError::Unavailable("closed".to_owned()), "ask_unavailable: closed"),
    ];
    for (error, begins) in by_payments {
        let status = status_of(&host, CHARGE, Some(Payments::which(Then::Fails(error)))).await;
        assert!(status.starts_with(begins), "{status}");
    }
    let by_the_host = [
        ("", "ask_invalid: "),
        (r#"["Payment/7","Charge"]"#, "ask_invalid: "),
        (r#"{"entity":"Payment","action":"Charge"}"#, "ask_invalid: "),
        (r#"{"entity":"Payment/7","action":"Charge","when":1}"#, "ask_invalid: "),
        (r#"{"entity":"Payment/7","action":"Charge","until":"dawn"}"#, "ask_invalid: "),
        (r#"{"entity":"Order/7","action":"Charge"}"#, "ask_not_allowed: `Order.Charge`"),
        (r#"{"entity":"Payment/7","action":"Eat"}"#, "ask_unknown_target: "),
    ];
    for (request, begins) in by_the_host {
        let payments = Payments::which(Then::Answers);
        let status = status_of(&host, request, Some(Arc::clone(&payments))).await;
        assert!(status.starts_with(begins), "{status}");
        assert!(payments.asked.lock().expect("no panic").is_empty());
    }
    let without = status_of(&host, CHARGE, None).await;
    assert!(without.starts_with("ask_unavailable: "), "{without}");
    let broken = status_of(&host, CHARGE, Some(Payments::which(Then::Panics))).await;
    assert!(broken.starts_with("ask_unavailable: the ask failed inside"), "{broken}");
    // Its permits were freed.
    let after = status_of(&host, CHARGE, Some(Payments::which(Then::Answers))).await;
    assert!(after.contains("Charged"), "{after}");
}

#[tokio::test]
async fn a_handler_that_waits_in_an_ask_is_killed_in_it_by_name() {
    let host = host(2, 1);
    let asks = Payments::which(Then::Never);
    let dispatch = dispatch(Duration::from_millis(80)).asks(asks);
    let report = host.run(&load(&host, CHARGE), dispatch).await.expect("it ran");
    assert!(matches!(report.outcome, Outcome::TimedOut(_)), "{report:?}");
    assert_eq!(report.dying_span.as_deref(), Some("ask:Payment.Charge"));
    let names: Vec<_> = report.host_calls.by_function.iter().map(|calls| &*calls.name).collect();
    assert_eq!(names, ["ask:Payment.Charge"]);
}

#[tokio::test]
async fn an_ask_that_waits_is_cut_by_the_soft_deadline() {
    let host = host(1, 1);
    let manifest = Manifest::named("asks")
        .ask_targets(["Payment.*".parse().expect("a target")])
        .soft_deadline(LONG - Duration::from_millis(200));
    let guest = host.load(asking(CHARGE).as_bytes(), manifest).expect("a guest");
    let received = Received::new();
    let dispatch =
        dispatch(LONG).asks(Payments::which(Then::Never)).signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    assert!(
        received.status().starts_with("ask_cut_short: the soft deadline"),
        "{}",
        received.status()
    );
}

#[tokio::test]
async fn an_ask_that_waits_is_cut_by_a_request_to_stop() {
    let host = host(1, 1);
    let manifest = Manifest::named("asks").ask_targets(["Payment.*".parse().expect("a target")]);
    let guest = host.load(asking(CHARGE).as_bytes(), manifest).expect("a guest");
    let received = Received::new();
    let payments = Payments::which(Then::Never);
    let dispatch = dispatch(LONG)
        .asks(Arc::clone(&payments) as Arc<dyn Asks>)
        .signals(Arc::clone(&received) as _);
    let stop = dispatch.stop_handle();
    let (outcome, ()) = tokio::join!(host.dispatch(&guest, dispatch), async {
        payments.begun.notified().await;
        stop.request_stop();
    });
    let outcome = outcome.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    assert!(
        received.status().starts_with("ask_cut_short: the run should stop"),
        "{}",
        received.status()
    );
}

#[tokio::test]
async fn an_ask_ends_at_the_call_limit_of_its_dispatch() {
    let host = host(1, 1);
    let manifest = Manifest::named("asks").ask_targets(["Payment.*".parse().expect("a target")]);
    let guest = host.load(asking(CHARGE).as_bytes(), manifest).expect("a guest");
    let received = Received::new();
    let of = [("ask:Payment.Charge".to_owned(), Duration::from_millis(50))].into();
    let dispatch = dispatch(LONG)
        .asks(Payments::which(Then::Never))
        .call_limits(CallLimits { all: None, of })
        .signals(Arc::clone(&received) as _);
    let outcome = host.dispatch(&guest, dispatch).await.expect("it ran");
    assert!(matches!(outcome, Outcome::Completed(_)), "{outcome:?}");
    assert!(received.status().starts_with("ask_timed_out"), "{}", received.status());
}

#[tokio::test]
async fn a_component_asks_and_uses_the_answer_or_the_error() {
    let host = host(1, 1);
    let manifest = Manifest::named("asks").ask_targets(["Tool.Use".parse().expect("a target")]);
    let guest = host.load(COMPONENT, manifest).expect("a guest");
    let run = async |asks: Arc<Payments>| {
        let config = [("does".to_owned(), "ask".to_owned())].into();
        let context = Context { config, ..Context::default() };
        let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
            .deadline(DispatchDeadline::after(LONG))
            .asks(asks);
        let report = host.run(&guest, dispatch).await.expect("it ran");
        let Outcome::Completed(completion) = report.outcome else { panic!("{report:?}") };
        assert_eq!(report.host_calls.by_function[0].name, "ask:Tool.Use");
        completion.params
    };
    let payments = Payments::which(Then::Answers);
    let answer = run(Arc::clone(&payments)).await;
    assert_eq!((&answer["state"], &answer["sequence"]), (&json!("Charged"), &json!(3)));
    {
        let asked = payments.asked.lock().expect("no panic");
        let [ask] = asked.as_slice() else { panic!("{asked:?}") };
        assert_eq!((ask.target.to_string(), &*ask.action), ("Tool/1".to_owned(), "Use"));
        assert_eq!(ask.params, Object::from([("n".to_owned(), json!(1))]));
        assert_eq!(ask.until, AskUntil::Settled);
    }
    let error = run(Payments::which(Then::Fails(AskError::Cycle))).await;
    assert_eq!(error["error"], json!("ErrorKind::Cycle"));
}

/// A core module gets the kind of an error as the beginning of a text, a component as a variant. With
/// the SDK, both are the same.
#[tokio::test]
async fn a_guest_of_the_sdk_asks_and_distinguishes_each_error() {
    let busy = Busy { scope: BusyScope::Host, limit: 2, retry_after_ms: 70 };
    let errors = [
        (AskError::Invalid("so".to_owned()), "ask: invalid"),
        (AskError::NotAllowed("so".to_owned()), "ask: not_allowed"),
        (AskError::UnknownTarget("so".to_owned()), "ask: unknown_target"),
        (AskError::Cycle, "ask: cycle"),
        (AskError::TooDeep(8), "ask: too_deep"),
        (AskError::Refused("so".to_owned()), "ask: refused"),
        (AskError::Busy(busy), "ask: busy"),
        (AskError::TimedOut("late".to_owned()), "ask: timed_out"),
        (AskError::CutShort("so".to_owned()), "ask: cut_short"),
        (AskError::Unavailable("so".to_owned()), "ask: unavailable"),
    ];
    let host = host(1, 1);
    for guest in [SDK_CORE, SDK_COMPONENT, SDK_ASYNC] {
        let manifest = Manifest::named("asks").ask_targets(["Tool.Use".parse().expect("a target")]);
        let guest = host.load(guest, manifest).expect("a guest");
        let run = async |asks: Arc<Payments>| {
            let params = Object::from([("does".to_owned(), json!("ask"))]);
            let context = Context { params, ..Context::default() };
            let dispatch = Dispatch::new("Session/1".parse().expect("valid"), "Begin", context)
                .deadline(DispatchDeadline::after(LONG))
                .asks(asks);
            host.run(&guest, dispatch).await.expect("it ran").outcome
        };
        let payments = Payments::which(Then::Answers);
        let outcome = run(Arc::clone(&payments)).await;
        let Outcome::Completed(completion) = outcome else { panic!("{outcome:?}") };
        let answer = json!(completion.params);
        let expected = json!({ "state": "Charged", "sequence": 3, "fields": { "cents": 5 } });
        assert_eq!(answer, expected);
        {
            let asked = payments.asked.lock().expect("no panic");
            let [ask] = asked.as_slice() else { panic!("{asked:?}") };
            assert_eq!((ask.target.to_string(), &*ask.action), ("Tool/1".to_owned(), "Use"));
            assert_eq!(ask.params, Object::from([("n".to_owned(), json!(1))]));
            assert_eq!(ask.until, AskUntil::Settled);
        }
        for (error, message) in &errors {
            let outcome = run(Payments::which(Then::Fails(error.clone()))).await;
            let Outcome::Failed(failure) = outcome else { panic!("{outcome:?}") };
            assert!(failure.message.starts_with(&format!("{message}: ")), "{}", failure.message);
        }
    }
}

#[tokio::test]
async fn stopping_a_handler_in_an_ask_frees_its_permits() {
    let host = host(1, 1);
    let integration = load(&host, CHARGE);
    for _ in 0..3 {
        let asks = Payments::which(Then::Never);
        let dispatch = dispatch(LONG).asks(Arc::clone(&asks) as Arc<dyn Asks>);
        let stop = dispatch.stop_handle();
        let (report, _) = tokio::join!(host.run(&integration, dispatch), async {
            asks.begun.notified().await;
            stop.stop(Cause::Cancel, "")
        });
        let report = report.expect("it ran");
        assert!(matches!(report.outcome, Outcome::Cancelled(_)), "{report:?}");
    }
    // The only permits to start and to wait in an ask are free again.
    status_of(&host, CHARGE, Some(Payments::which(Then::Answers))).await;
}

#[tokio::test]
async fn a_handler_that_waits_leaves_the_only_place_to_the_one_that_it_asks() {
    let host = host(1, 1);
    let finishes = r#"(module
        (import "env" "host_set_result" (func $set (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 8) "{\"success\":true}")
        (func (export "run") (param i32 i32) (result i32)
            (call $set (i32.const 8) (i32.const 16)) i32.const 0))"#;
    let asked = host.load(finishes.as_bytes(), Manifest::named("asked")).expect("a guest");
    let payments = Payments::which(Then::Dispatches(host.clone(), asked));
    let answer = status_of(&host, CHARGE, Some(payments)).await;
    assert!(answer.contains("Charged"), "{answer}");
}

#[tokio::test]
async fn an_ask_is_refused_if_too_many_handlers_wait_in_asks() {
    let status = status_of(&host(2, 0), CHARGE, Some(Payments::which(Then::Answers))).await;
    assert!(status.starts_with("ask_busy: "), "{status}");
}
