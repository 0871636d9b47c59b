//! The kit as a library, with real guests.

use std::time::Duration;

use sandglass_host::{HostCall, HostFunction, Manifest, OnDenied};
use sandglass_model::{Object, OutcomeKind, WallTime};
use sandglass_testkit::{Answer, Case, CaseResult, Error, Expected, Guest, Kit, Reply};
use serde_json::json;

const A_QUARTER: Duration = Duration::from_secs(900);

/// A guest of the core ABI, from its imports and its body.
fn guest(imports: &str, body: &str) -> String {
    format!(
        r#"(module {imports}
        (memory (export "memory") 2)
        (data (i32.const 0) "GEThttps://example.com/")
        (data (i32.const 64) "key")
        (data (i32.const 128) "{{\"entity\":\"Order/7\",\"action\":\"Ship\"}}")
        (data (i32.const 192) "{{\"entity\":\"Order/7\",\"name\":\"Ready\",\"payload\":[1]}}")
        (data (i32.const 256) "{{\"success\":true}}")
        (data (i32.const 320) "{{\"done\":1}}")
        (func (export "run") (param i32 i32) (result i32) {body} i32.const 0))"#
    )
}

const HTTP: &str = r#"(import "env" "host_http_call"
    (func $call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))"#;
const CALL: &str = "(call $call (i32.const 0) (i32.const 3) (i32.const 3) (i32.const 20)
    (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 1024))";
const RESULT: &str = r#"(import "env" "host_set_result" (func $set (param i32 i32)))"#;
const SUCCEED: &str = "(call $set (i32.const 256) (i32.const 16))";
const SECRET: &str = r#"(import "env" "host_get_secret"
    (func $secret (param i32 i32 i32 i32) (result i32)))"#;
const SIGNAL: &str = r#"(import "env" "host_signal" (func $signal (param i32 i32) (result i32)))"#;
const ASK: &str = r#"(import "env" "host_ask" (func $ask (param i32 i32 i32 i32) (result i32)))"#;

fn fetches() -> String {
    guest(&format!("{HTTP}{RESULT}"), &format!("(drop {CALL}) {SUCCEED}"))
}

fn manifest() -> Manifest {
    Manifest::named("guest").allow_hosts(["example.com".parse().expect("a host")])
}

fn load(kit: &Kit, guest: &str) -> Guest {
    kit.load(guest.as_bytes(), manifest()).expect("it is whole")
}

fn run(source: &str, case: &Case) -> CaseResult {
    let mut kit = Kit::new().expect("a host");
    let guest = load(&kit, source);
    kit.run(&guest, case).expect("it runs")
}

fn differences(result: &CaseResult) -> Vec<String> {
    result.differences.iter().map(ToString::to_string).collect()
}

#[test]
fn a_slow_server_is_slow_in_virtual_time() {
    let case = Case {
        deadline: A_QUARTER,
        answers: vec![
            Answer::http("GET", "https://example.com/")
                .response(200, "hello")
                .after(Duration::from_secs(200)),
        ],
        expected: Expected {
            calls: Some(vec!["host_http_call".into(), "host_set_result".into()]),
            requests: Some(vec!["GET https://example.com/".into()]),
            result: Some(json!({ "success": true })),
            at_least: Some(Duration::from_secs(200)),
            at_most: Some(Duration::from_secs(201)),
            ..Expected::default()
        },
        ..Case::default()
    };
    let result = run(&fetches(), &case);
    assert_eq!(differences(&result), [""; 0]);
    assert!(result.passed() && result.took < Duration::from_secs(100), "{:?}", result.took);
}

#[test]
fn a_reply_that_never_comes_is_a_kill_in_the_waiting_call() {
    let never = |reply: Answer, imports: &str, body: &str, span: &str| {
        let case = Case {
            deadline: Duration::from_secs(60),
            answers: vec![reply],
            expected: Expected {
                outcome: OutcomeKind::TimedOut,
                dying_span: Some(span.to_owned()),
                at_least: Some(Duration::from_secs(60)),
                ..Expected::default()
            },
            ..Case::default()
        };
        let mut kit = Kit::new().expect("a host");
        let target = |text: &str| text.parse().expect("a target");
        let manifest =
            manifest().ask_targets([target("Order.Ship")]).signal_targets([target("Order.Ready")]);
        let guest = kit.load(guest(imports, body).as_bytes(), manifest).expect("it is whole");
        let result = kit.run(&guest, &case).expect("it runs");
        assert_eq!(differences(&result), [""; 0], "{span}");
    };
    let http = Answer::http("GET", "https://example.com/").never();
    never(http, HTTP, &format!("(drop {CALL})"), "host_http_call");
    let secret = Answer {
        to: sandglass_testkit::Call::Secret { name: "key".to_owned() },
        after: Duration::ZERO,
        reply: Reply::Never,
        times: Some(1),
    };
    let get = "(drop (call $secret (i32.const 64) (i32.const 3) (i32.const 1024) (i32.const 99)))";
    never(secret, SECRET, get, "host_get_secret");
    let ask = Answer::ask("Order", "Ship").never();
    let asks = "(drop (call $ask (i32.const 128) (i32.const 36) (i32.const 1024) (i32.const 999)))";
    never(ask, ASK, asks, "ask:Order.Ship");
    let signal = Answer::signal("Order", "Ready").never();
    let signals = "(drop (call $signal (i32.const 192) (i32.const 49)))";
    never(signal, SIGNAL, signals, "signal:Order.Ready");
}

#[test]
fn unscripted_calls_and_unused_answers_are_differences() {
    let case = Case {
        answers: vec![
            Answer::http("POST", "https://example.com/"),
            Answer::http("GET", "https://example.com/other").times(None),
        ],
        ..Case::default()
    };
    let result = run(&fetches(), &case);
    assert_eq!(
        differences(&result),
        [
            "answers: expected \"an answer to GET https://example.com/\", found null",
            "answers: expected \"1 call(s): POST https://example.com/\", found \"0 call(s)\"",
        ]
    );
}

#[test]
fn answers_are_used_in_order_and_as_often_as_scripted() {
    let twice = format!("(drop {CALL}) (drop {CALL}) (drop {CALL}) {SUCCEED}");
    let source = guest(&format!("{HTTP}{RESULT}"), &twice);
    let answer =
        |seconds| Answer::http("GET", "https://example.com/*").after(Duration::from_secs(seconds));
    let takes = |answers: Vec<Answer>, seconds: u64| {
        let expected = Expected {
            at_least: Some(Duration::from_secs(seconds)),
            at_most: Some(Duration::from_secs(seconds + 1)),
            ..Expected::default()
        };
        let result = run(&source, &Case { answers, expected, ..Case::default() });
        assert_eq!(differences(&result), [""; 0]);
    };
    takes(vec![answer(10).times(Some(2)), answer(50)], 70);
    takes(vec![answer(1), answer(5).times(None)], 11);
}

#[test]
fn a_host_that_is_not_granted_is_refused_before_any_answer() {
    let mut kit = Kit::new().expect("a host");
    let manifest = Manifest::named("guest").on_denied(OnDenied::Report);
    let guest = kit.load(fetches().as_bytes(), manifest).expect("it is whole");
    let answers = vec![Answer::http("GET", "https://example.com/").times(None)];
    let denied = "GET https://example.com/ (not granted)".to_owned();
    let expected = Expected { requests: Some(vec![denied]), ..Expected::default() };
    let case = Case { answers: answers.clone(), expected, ..Case::default() };
    let result = kit.run(&guest, &case).expect("it runs");
    assert_eq!(differences(&result), [""; 0]);
    // It is nothing that passes without a word.
    let result = kit.run(&guest, &Case { answers, ..Case::default() }).expect("it runs");
    assert_eq!(
        differences(&result),
        ["requests: expected \"granted hosts only\", found \"GET https://example.com/\""]
    );
}

#[test]
fn a_guest_that_computes_forever_is_killed_at_its_virtual_deadline() {
    let case = Case {
        deadline: Duration::from_secs(12 * 3600),
        expected: Expected {
            outcome: OutcomeKind::TimedOut,
            dying_span: Some("guest".to_owned()),
            at_least: Some(Duration::from_secs(12 * 3600)),
            ..Expected::default()
        },
        ..Case::default()
    };
    let result = run(&guest("", "(loop (br 0))"), &case);
    assert_eq!(differences(&result), [""; 0]);
}

#[test]
fn a_guest_sees_the_values_of_its_case() {
    // It answers with its context.
    let source = guest(
        &format!("{RESULT}{}", r#"(import "env" "host_get_time_millis" (func $now (result i64)))"#),
        // On a busy machine, a slice of computing may have passed until it looks.
        "(if (i64.gt_u (i64.sub (call $now) (i64.const 86400000)) (i64.const 1000)) (then unreachable))
         (call $set (local.get 0) (local.get 1))",
    );
    let input: Object = [("text".to_owned(), json!("hi"))].into_iter().collect();
    let case = Case {
        action: "Say".to_owned(),
        input,
        entity: "Parrot/polly".parse().expect("a name"),
        state: json!({ "fields": { "age": 3 } }),
        config: [("tone".to_owned(), "loud".to_owned())].into(),
        tenant: "acme".to_owned(),
        agent_id: Some("ann".to_owned()),
        attempt: 3,
        now: WallTime::from_millis(86_400_000),
        expected: Expected { outcome: OutcomeKind::Failed, ..Expected::default() },
        ..Case::default()
    };
    let result = run(&source, &case);
    assert_eq!(differences(&result), [""; 0]);
    let found = result.actual.result.expect("what it answered");
    for (field, value) in [
        ("trigger_action", json!("Say")),
        ("trigger_params", json!({ "text": "hi" })),
        ("entity_id", json!("polly")),
        ("entity_state", json!({ "fields": { "age": 3 } })),
        ("integration_config", json!({ "tone": "loud" })),
        ("tenant", json!("acme")),
        ("agent_id", json!("ann")),
        ("attempt", json!(3)),
    ] {
        assert_eq!(found[field], value, "{field}");
    }
}

#[test]
fn progress_and_status_are_observed() {
    let source = guest(
        &format!(
            "{RESULT}{}",
            r#"(import "env" "host_emit_progress" (func $tell (param i32 i32) (result i32)))
               (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))"#
        ),
        &format!(
            "(drop (call $tell (i32.const 320) (i32.const 10)))
             (drop (call $status (i32.const 64) (i32.const 3))) {SUCCEED}"
        ),
    );
    let expected = Expected {
        progress: Some(vec![json!({ "done": 1 })]),
        status: Some("key".to_owned()),
        ..Expected::default()
    };
    let result = run(&source, &Case { expected, ..Case::default() });
    assert_eq!(differences(&result), [""; 0]);
    let wrong = Expected { progress: Some(Vec::new()), ..Expected::default() };
    let result = run(&source, &Case { expected: wrong, ..Case::default() });
    assert_eq!(
        differences(&result),
        ["progress:\n- []\n+ [\n+   {\n+     \"done\": 1\n+   }\n+ ]"]
    );
}

#[test]
fn scripted_functions_of_an_embedder_are_called() {
    let double =
        HostFunction::instant(
            "acme:math/sums",
            "double",
            |_: HostCall, number: u32| Ok(number * 2),
        );
    let mut kit = Kit::builder().function(double).build().expect("a host");
    let source = guest(
        &format!(
            "{RESULT}{}",
            r#"(import "acme:math/sums" "double" (func $double (param i32 i32 i32) (result i32)))"#
        ),
        &format!(
            "(drop (call $double (i32.const 21) (i32.const 1024) (i32.const 4)))
             (if (i32.ne (i32.load (i32.const 1024)) (i32.const 42)) (then unreachable)) {SUCCEED}"
        ),
    );
    let manifest = manifest().functions(["acme:math/sums.double".to_owned()]);
    let guest = kit.load(source.as_bytes(), manifest).expect("it is whole");
    let calls = Some(vec!["acme:math/sums.double".to_owned(), "host_set_result".to_owned()]);
    let case = Case { expected: Expected { calls, ..Expected::default() }, ..Case::default() };
    let result = kit.run(&guest, &case).expect("it runs");
    assert_eq!(differences(&result), [""; 0]);
}

#[test]
fn a_rejected_module_is_an_error() {
    let kit = Kit::new().expect("a host");
    let refused = kit.load(b"(module)", manifest()).expect_err("it exports nothing");
    assert!(matches!(&refused, Error::Rejected(_)), "{refused}");
    assert!(
        refused.to_string().contains("`memory`") || refused.to_string().contains("`run`"),
        "{refused}"
    );
}

#[tokio::test]
async fn it_can_be_used_inside_a_runtime() {
    let answers = vec![Answer::http("GET", "https://example.com/").after(A_QUARTER / 9)];
    let result = run(&fetches(), &Case { answers, ..Case::default() });
    assert_eq!(differences(&result), [""; 0]);
}

#[test]
fn a_secret_without_a_value_is_a_difference_and_an_answered_one_is_read_twice() {
    let get = "(call $secret (i32.const 64) (i32.const 3) (i32.const 1024) (i32.const 99))";
    let source =
        guest(&format!("{SECRET}{RESULT}"), &format!("(drop {get}) (drop {get}) {SUCCEED}"));
    let result = run(&source, &Case::default());
    let missing = "answers: expected \"an answer to secret key\", found null";
    assert_eq!(differences(&result), [missing, missing]);
    let to = sandglass_testkit::Call::Secret { name: "key".to_owned() };
    let reply = Reply::Secret(Some("value".to_owned()));
    let answers = vec![Answer { to, after: Duration::from_secs(3), reply, times: None }];
    let expected = Expected { at_least: Some(Duration::from_secs(6)), ..Expected::default() };
    let result = run(&source, &Case { answers, expected, ..Case::default() });
    assert_eq!(differences(&result), [""; 0]);
}

#[test]
fn asks_are_observed_and_fail_as_scripted() {
    let does = "(call $set (i32.const 1024)
        (call $ask (i32.const 128) (i32.const 36) (i32.const 1024) (i32.const 999)))
        (drop (call $error (i32.const 1024) (i32.const 999)))";
    let error = r#"(import "env" "host_last_error" (func $error (param i32 i32) (result i32)))"#;
    let mut kit = Kit::new().expect("a host");
    let manifest = manifest().ask_targets(["Order.Ship".parse().expect("a target")]);
    let source = guest(&format!("{ASK}{RESULT}{error}"), does);
    let guest = kit.load(source.as_bytes(), manifest).expect("it is whole");
    for (said, first) in [("ask_unavailable: later", "host_set_result"), ("no", "host_set_result")]
    {
        let asks = vec![json!({ "ask": "Order/7.Ship", "params": {} })];
        let case = Case {
            answers: vec![Answer::ask("Order", "Ship").error(said)],
            expected: Expected {
                outcome: OutcomeKind::Failed,
                asks: Some(asks),
                calls: Some(vec!["ask:Order.Ship".into(), first.into(), "host_last_error".into()]),
                ..Expected::default()
            },
            ..Case::default()
        };
        let result = kit.run(&guest, &case).expect("it runs");
        assert_eq!(differences(&result), [""; 0]);
    }
}

#[test]
fn signals_are_recorded_unless_an_answer_says_otherwise() {
    let does = "(if (i32.lt_s (call $signal (i32.const 192) (i32.const 49)) (i32.const 0))
        (then (call $set (i32.const 1024)
            (call $error (i32.const 1024) (i32.const 999)))))";
    let error = r#"(import "env" "host_last_error" (func $error (param i32 i32) (result i32)))"#;
    let mut kit = Kit::new().expect("a host");
    let manifest = manifest().signal_targets(["Order.Ready".parse().expect("a target")]);
    let source = guest(&format!("{SIGNAL}{RESULT}{error}"), &format!("{does} {SUCCEED}"));
    let recorded = kit.load(source.as_bytes(), manifest.clone()).expect("it is whole");
    let source = guest(&format!("{SIGNAL}{RESULT}{error}"), does);
    let failing = kit.load(source.as_bytes(), manifest).expect("it is whole");
    let signals = Some(vec![json!({ "signal": "Order/7.Ready", "payload": [1] })]);
    let sent = Case {
        expected: Expected { signals: signals.clone(), ..Expected::default() },
        ..Case::default()
    };
    let result = kit.run(&recorded, &sent).expect("it runs");
    assert_eq!(differences(&result), [""; 0]);
    let refused = Case {
        answers: vec![Answer::signal("Order/7", "Ready").error("signal_unavailable: later")],
        expected: Expected { outcome: OutcomeKind::Failed, signals, ..Expected::default() },
        ..Case::default()
    };
    let result = kit.run(&failing, &refused).expect("it runs");
    assert_eq!(differences(&result), [""; 0]);
    let other = Case {
        expected: Expected { signals: Some(Vec::new()), ..Expected::default() },
        ..Case::default()
    };
    let result = kit.run(&recorded, &other).expect("it runs");
    assert_eq!(differences(&result).len(), 1);
}
