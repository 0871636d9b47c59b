//! Unit tests of handlers with a simulated host.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use sandglass_guest::log::Level;
use sandglass_guest::{
    Completion, Context, Failure, Value, ask, deadline, handler, http, json, log, metrics,
    progress, scratch, secrets, signal, spans, testing, timer,
};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Order {
    items: Vec<Item>,
}

#[derive(Deserialize)]
struct Item {
    cents: u32,
}

#[derive(Debug, Serialize, PartialEq)]
struct Total {
    cents: u32,
}

#[handler(action = "Finish")]
fn total(order: Order, context: &Context) -> Result<Total, Failure> {
    log::info!("{} items of {}", order.items.len(), context.entity_id());
    Ok(Total { cents: order.items.iter().map(|item| item.cents).sum() })
}

mod other_signatures {
    use super::*;

    #[handler]
    fn nothing() -> Result<(), Failure> {
        Ok(())
    }

    // These names must not clash with those of the expansion.
    #[handler]
    fn handler(context: &Context, input: Value) -> Result<Completion, std::num::ParseIntError> {
        input.to_string().parse::<u32>()?;
        Ok(Completion::action(context.action()))
    }

    #[handler]
    async fn asynchronous(context: &Context) -> Result<Value, Failure> {
        let url = context.required_config("url")?;
        let get = || http::Request::get(url).into_future();
        let (first, second) = futures_util::future::try_join(get(), get()).await?;
        timer::sleep(Duration::from_secs(3600)).await;
        let asked = ask::Request::new("Tool", "1", "Use").await.is_err();
        Ok(json!({ "statuses": [first.status(), second.status()], "asked": asked }))
    }

    #[test]
    fn an_asynchronous_handler_is_tested_like_any_other() {
        let host = testing::Host::new().http(|_| Ok(http::Response::new(204, "")));
        let context = testing::context().with_config("url", "https://a.example");
        let (result, _) = host.run_async(async || asynchronous(&context).await);
        assert_eq!(result, Ok(json!({ "statuses": [204, 204], "asked": true })));
    }

    #[test]
    #[should_panic(expected = "waits for something that is no host function")]
    fn a_handler_that_waits_for_something_else_panics() {
        testing::Host::new().run_async(async || std::future::pending::<()>().await);
    }

    #[test]
    fn a_handler_takes_any_of_its_arguments_and_stays_a_function() {
        assert!(nothing().is_ok());
        let context = testing::context();
        let (action, _) =
            handler(&context, json!(7)).expect("a number").into_parts().expect("no params");
        assert_eq!(action.as_deref(), Some("Begin"));
        assert!(handler(&context, json!("x")).is_err());
    }
}

#[test]
fn a_handler_is_called_as_a_function() {
    let order = testing::context()
        .with_params(json!({ "items": [{ "cents": 5 }, { "cents": 7 }] }))
        .params()
        .expect("an order");
    let (result, telemetry) = testing::Host::new().run(|| total(order, &testing::context()));
    assert_eq!(result, Ok(Total { cents: 12 }));
    assert_eq!(telemetry.lines.len(), 1);
    assert_eq!(
        (telemetry.lines[0].level, &*telemetry.lines[0].text),
        (Level::Info, "2 items of 1")
    );
}

#[test]
fn an_invalid_input_names_the_field() {
    let cases = [
        (json!({ "items": [{ "cents": 1 }, { "cents": -1 }] }), "items[1].cents", "expected u32"),
        (json!({ "items": [{}] }), "items[0]", "missing field `cents`"),
        (json!({}), ".", "missing field `items`"),
        (json!([]), ".", "invalid length 0"),
    ];
    for (params, field, why) in cases {
        let context = testing::context().with_params(&params);
        let Err(failure) = context.params::<Order>() else { panic!("{params} is not an order") };
        assert_eq!((failure.category(), failure.code()), (Some("input"), Some("invalid")));
        let details = failure.details_json().expect("details");
        let details: Value = serde_json::from_str(details).expect("JSON");
        assert_eq!(details["field"], field, "{failure}");
        assert!(failure.to_string().contains(why), "{failure}");
        assert!(!failure.to_string().contains("column"), "{failure}");
    }
}

#[test]
fn a_context_has_configuration_and_state() {
    let context = testing::context()
        .with_config("url", "https://a.example")
        .with_state(json!({ "status": "Busy", "fields": { "count": 7, "none": null } }))
        .with_attempt(2);
    assert_eq!(context.config("url"), Some("https://a.example"));
    assert_eq!(context.required_config("url"), Ok("https://a.example"));
    let missing = context.required_config("token").expect_err("there is none");
    assert_eq!(
        missing.to_string(),
        "config: missing: the integration's configuration has no `token`"
    );
    assert_eq!(context.field("count"), Ok(Some(7)));
    assert_eq!(context.field::<Option<u8>>("none"), Ok(Some(None)));
    assert_eq!(context.field::<u8>("missing"), Ok(None));
    assert_eq!(context.field::<u8>("status"), Ok(None), "the fields are one level down");
    assert!(context.field::<String>("count").is_err());
    let bare = testing::context().with_state(json!({ "status": "Busy" }));
    assert_eq!(bare.field("status"), Ok(Some("Busy".to_owned())));
    assert_eq!(testing::context().with_state(7).field::<u8>("x"), Ok(None));
    let whole = context.to_json().expect("there is no host to fail");
    assert_eq!(
        (&whole["attempt"], &whole["integration_config"]["url"]),
        (&json!(2), &json!("https://a.example"))
    );
}

#[test]
fn an_empty_host_grants_nothing_and_its_errors_name_the_method_that_does() {
    assert!(secrets::get("x").expect_err("none").to_string().contains("Host::secret"));
    assert!(scratch::get("x").expect_err("none").to_string().contains("Host::with_scratch"));
    let refused = http::Request::get("http://a.example").send().expect_err("no answer is set");
    assert_eq!(refused.kind(), http::ErrorKind::NotAllowed);
    let refused = ask::Request::new("Tool", "1", "Use").send().expect_err("no answer is set");
    assert_eq!(refused.kind(), ask::ErrorKind::NotAllowed);
    let refused = signal::Notice::new("Tool", "1", "used").send().expect_err("no answer is set");
    assert_eq!(refused.kind(), signal::ErrorKind::NotAllowed);
    assert!(refused.to_string().contains("Host::signals"), "{refused}");
    assert!(!deadline::should_stop());
    assert!(deadline::remaining() > Duration::ZERO);
}

#[test]
fn a_simulated_host_serves_calls_and_collects_telemetry() {
    let asked = Rc::new(Cell::new(0));
    let count = Rc::clone(&asked);
    let host = testing::Host::new()
        .secret("token", "t0k")
        .with_scratch()
        .remaining(Duration::from_secs(3))
        .now_ms(7)
        .stop_after(2)
        .http(|request| {
            let length = request.body_bytes().len();
            Ok(http::Response::new(200, format!("{} {length}", request.method())))
        })
        .asks(move |request| {
            count.set(count.get() + 1);
            let (who, what) = request.target();
            Ok(ask::Answer::of(4, "Done", json!({ "said": format!("{who} {what}") })))
        });
    let ((), telemetry) = host.run(|| {
        assert_eq!(secrets::get("token").as_deref(), Ok("t0k"));
        scratch::set("a", "1").expect("granted");
        assert_eq!(scratch::get("a"), Ok(Some(b"1".to_vec())));
        assert_eq!((scratch::delete("a"), scratch::delete("a")), (Ok(true), Ok(false)));
        assert!(scratch::set("", "1").is_err());
        assert_eq!(deadline::remaining(), Duration::from_secs(3));
        assert_eq!(sandglass_guest::clock::now_ms(), 7);
        let stops: Vec<bool> = (0..4).map(|_| deadline::should_stop()).collect();
        assert_eq!(stops, [false, false, true, true]);
        let response = http::Request::post("http://a.example").json([1, 2]).send().expect("200");
        assert_eq!(response.text(), Ok("POST 5"));
        let answer = ask::Request::new("Tool", "1", "Use").send().expect("an answer");
        assert_eq!((answer.sequence, &*answer.state), (4, "Done"));
        assert_eq!(answer.fields::<Value>().expect("any")["said"], "Tool/1 Use");
        assert!(answer.fields::<Vec<u8>>().is_err());
        log::fields(Level::Warn, "slow", json!({ "ms": 1 })).expect("an object");
        log::wide_event(json!({ "operation": "grep" })).expect("an object");
        progress::emit(json!({ "done": 1 })).expect("JSON");
        progress::status("at work");
        metrics::counter("calls", 1.0, &[]).expect("a number");
        spans::start("span").expect("a name").end();
    });
    assert_eq!(asked.get(), 1);
    assert_eq!(telemetry.lines[0].fields, Some(json!({ "ms": 1 })));
    assert_eq!(telemetry.wide_events, [json!({ "operation": "grep" })]);
    assert_eq!(telemetry.progress, [json!({ "done": 1 })]);
    assert_eq!(telemetry.statuses, ["at work"]);
    assert_eq!(telemetry.metrics, [("calls".to_owned(), 1.0)]);
    assert!(secrets::get("token").is_err(), "a handler outside of `run` has an empty host");
}

#[test]
fn a_simulated_host_serves_signals() {
    let sent = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&sent);
    let host = testing::Host::new().signals(move |notice| {
        let (entity, name) = notice.target();
        seen.borrow_mut().push(format!("{entity} {name} {}", notice.payload_json()));
        match name {
            "paid" => Ok(()),
            _ => Err(signal::Error::of(signal::ErrorKind::UnknownTarget, "there is none")),
        }
    });
    let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
    let ((), _) = host.run(|| {
        assert_eq!(signal::Notice::new("Order", "7", "paid").send(), Ok(()));
        let paid = signal::Notice::new("Order", "7", "paid").payload(json!({ "cents": 5 }));
        assert_eq!(paid.send(), Ok(()));
        let error = signal::Notice::new("Order", "8", "lost").send().expect_err("unknown");
        assert_eq!(error.kind(), signal::ErrorKind::UnknownTarget);
        let error = signal::Notice::new("Order", "7", "paid").payload(unwritable).send();
        assert_eq!(error.expect_err("no JSON").kind(), signal::ErrorKind::InvalidRequest);
    });
    let expected = ["Order/7 paid null", r#"Order/7 paid {"cents":5}"#, "Order/8 lost null"];
    assert_eq!(*sent.borrow(), expected, "what cannot be written is not sent");
}

#[test]
fn invalid_telemetry_is_refused_before_it_is_sent() {
    let ((), telemetry) = testing::Host::new().run(|| {
        assert!(log::fields(Level::Info, "x", 7).is_err());
        assert!(log::wide_event([1]).is_err());
        assert!(metrics::gauge("x", f64::NAN, &[]).is_err());
        assert!(spans::start_with("x", "no object").is_err());
        assert!(spans::start(" ").is_err());
        let span = spans::start("x").expect("a name");
        assert!(span.set([1]).is_err());
        assert!(span.event("", ()).is_err());
        let ask = ask::Request::new("Tool", "1", "Use").params([1]).send();
        assert_eq!(ask.expect_err("a list").kind(), ask::ErrorKind::InvalidRequest);
    });
    assert_eq!(telemetry, testing::Telemetry::default());
}

#[test]
fn an_error_of_the_outside_becomes_a_typed_failure() {
    let send = |kind| {
        let host = testing::Host::new().http(move |_| Err(http::Error::of(kind, "so it is")));
        let (answer, _) = host.run(|| http::Request::get("http://a.example").send());
        Failure::from(answer.expect_err("it fails"))
    };
    let timed_out = send(http::ErrorKind::TimedOut);
    assert_eq!(timed_out, Failure::typed("http", "timed_out").retryable().because("so it is"));
    let denied = send(http::ErrorKind::NotAllowed);
    assert_eq!(denied, Failure::typed("http", "not_allowed").permanent().because("so it is"));
    let busy = Failure::from(ask::Error::of(ask::ErrorKind::Busy, "no room"));
    assert_eq!(busy, Failure::typed("ask", "busy").retryable().because("no room"));
    let signal = |kind| Failure::from(signal::Error::of(kind, "so it is"));
    for (kind, code) in [
        (signal::ErrorKind::TimedOut, "timed_out"),
        (signal::ErrorKind::CutShort, "cut_short"),
        (signal::ErrorKind::Unavailable, "unavailable"),
    ] {
        let expected = Failure::typed("signal", code).retryable().because("so it is");
        assert_eq!(signal(kind), expected);
    }
    for (kind, code) in [
        (signal::ErrorKind::InvalidRequest, "invalid"),
        (signal::ErrorKind::NotAllowed, "not_allowed"),
        (signal::ErrorKind::UnknownTarget, "unknown_target"),
    ] {
        let expected = Failure::typed("signal", code).permanent().because("so it is");
        assert_eq!(signal(kind), expected);
    }
    let refused = Failure::typed("signal", "refused").because("so it is");
    assert_eq!(signal(signal::ErrorKind::Refused), refused);
}

#[test]
fn a_status_is_an_error_where_it_is_asked_for() {
    assert!(http::Response::new(204, "").error_for_status().is_ok());
    for (status, retryable) in [(404, false), (429, true), (500, true), (501, false), (503, true)] {
        let error = http::Response::new(status, "").error_for_status().expect_err("no success");
        assert_eq!(error.kind(), http::ErrorKind::Status(status));
        let expected = Failure::typed("http", "status")
            .details(json!({ "status": status }))
            .because(format!("the server answered {status}"));
        let expected = if retryable { expected.retryable() } else { expected };
        assert_eq!(Failure::from(error), expected);
    }
}

#[test]
fn a_response_is_read_as_text_or_json() {
    let response = http::Response::new(200, r#"{"n":"x"}"#).with_header("Content-Type", "json");
    assert_eq!(response.header("content-type"), Some("json"));
    assert_eq!(response.json::<Value>(), Ok(json!({ "n": "x" })));
    let error = response.json::<std::collections::BTreeMap<String, u8>>().expect_err("a text");
    assert!(error.to_string().contains("`n`"), "{error}");
    assert!(http::Response::new(200, b"\xff".to_vec()).text().is_err());
}

#[test]
fn a_batch_keeps_the_order_and_has_a_bound() {
    let host = testing::Host::new().http(|request| Ok(http::Response::new(200, request.url())));
    let unwritable = std::collections::BTreeMap::from([((1, 2), 3)]);
    let (answers, _) = host.run(|| {
        let none = http::batch([]).expect("nothing to send");
        assert!(none.is_empty());
        let request = || http::Request::get("http://a.example");
        assert!(http::batch((0..65).map(|_| request())).is_err());
        assert_eq!(http::batch((0..64).map(|_| request())).expect("64").len(), 64);
        http::batch([
            http::Request::get("http://a.example/1"),
            http::Request::post("http://a.example/2").json(unwritable),
            http::Request::get("http://a.example/3").response_max_bytes(3),
            http::Request::get("http://a.example/4"),
        ])
    });
    let kinds: Vec<_> = answers
        .expect("four")
        .into_iter()
        .map(|answer| answer.map(http::Response::into_body).map_err(|error| error.kind()))
        .collect();
    assert_eq!(
        kinds,
        [
            Ok(b"http://a.example/1".to_vec()),
            Err(http::ErrorKind::InvalidRequest),
            Err(http::ErrorKind::TooLarge),
            Ok(b"http://a.example/4".to_vec()),
        ]
    );
}

#[test]
fn a_panic_leaves_the_next_test_a_host_of_its_own() {
    let host = testing::Host::new().secret("token", "t0k");
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        host.run(|| panic!("as wanted"));
    }));
    assert!(panicked.is_err());
    assert!(secrets::get("token").is_err());
}
