//! The request of a node, and the functions that it can call.

use std::sync::Arc;

use sandglass_host::{LogLevel, Outcome};
use sandglass_model::{CallOutcome, RunReport};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::kit::{Pack, World, run};

fn output(report: &RunReport) -> &Value {
    match &report.outcome {
        Outcome::Completed(completion) => {
            assert_eq!(completion.result["outcome"], "completed", "{report:?}");
            &completion.result["output"]
        }
        other => panic!("{other:?}"),
    }
}

fn both(pack: &Pack) -> [Pack; 2] {
    [pack.clone(), pack.clone().packed()]
}

#[tokio::test]
async fn a_node_gets_its_index_and_request_and_responds_in_either_form() {
    for pack in both(&Pack::default()) {
        let report = run(&pack, &Arc::default()).await;
        assert_eq!(output(&report), &json!({"abiVersion": 1, "inputs": {"a": [1, null]}}));
        let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
        assert_eq!(completion.action, None);
        assert!(completion.params.is_empty());
    }
    let index =
        "(call $begin) (call $say_number (i64.extend_i32_u (local.get $index))) (call $end)";
    for pack in both(&Pack::invoking(index)) {
        assert_eq!(output(&run(&pack, &Arc::default()).await), &json!(1));
    }
}

#[tokio::test]
async fn channels_and_variables_are_read_in_either_form() {
    for (function, place) in [("channel_read", 0), ("variable_get", 1)] {
        let given = format!(
            "(call ${function} (i32.const 256) (i32.const 2)) (local.set $len) (local.set $ptr)
             (call $completed (local.get $ptr) (local.get $len))"
        );
        for pack in both(&Pack::invoking(&given).with_text("é")) {
            let mut world = World::default();
            let held = if place == 0 { &mut world.channels } else { &mut world.variables };
            held.get_mut().expect("no panic before").insert("é".to_owned(), json!({"n": [1, "ü"]}));
            let report = run(&pack, &Arc::new(world)).await;
            assert_eq!(output(&report), &json!({"n": [1, "ü"]}), "{function}");
            assert_eq!(report.host_calls.by_function[0].name, format!("openwop_{function}"));
        }
        let none = format!(
            "(call ${function} (i32.const 256) (i32.const 2)) (local.set $len) (local.set $ptr)
             (call $begin)
             (call $say_number (i64.extend_i32_u (i32.or (local.get $ptr) (local.get $len))))
             (call $end)"
        );
        for pack in both(&Pack::invoking(&none).with_text("é")) {
            assert_eq!(output(&run(&pack, &Arc::default()).await), &json!(0), "(0, 0)");
        }
        // A name outside of the memory, one that is not UTF-8, and one that is too long.
        for place in [
            "(i32.const -1) (i32.const 2)",
            "(i32.const 257) (i32.const 1)",
            "(i32.const 0) (i32.const 1025)",
        ] {
            let pack = none.replace("(i32.const 256) (i32.const 2)", place);
            let report = run(&Pack::invoking(&pack).with_text("é"), &Arc::default()).await;
            assert_eq!(output(&report), &json!(0), "{place}");
            assert_eq!(report.story.calls[0].outcome, CallOutcome::Failed, "{place}");
        }
    }
}

#[tokio::test]
async fn writes_return_a_status() {
    let written = |function: &str, name: &str, value: &str| {
        let call = format!(
            "(call $begin) (call $say_number (i64.extend_i32_u
             (call ${function} {name} {value}))) (call $end)"
        );
        Pack::invoking(&call).with_text(r#"acd{"n":1}{"#)
    };
    let (a, c, d) = (
        "(i32.const 256) (i32.const 1)",
        "(i32.const 257) (i32.const 1)",
        "(i32.const 258) (i32.const 1)",
    );
    let json = "(i32.const 259) (i32.const 7)";
    for (function, name, value, status) in [
        ("channel_write", a, json, 0),
        ("channel_write", d, json, 1),
        ("channel_write", c, "(i32.const 266) (i32.const 1)", 10),
        ("channel_write", c, "(i32.const 0) (i32.const 0)", 10),
        ("channel_write", "(i32.const -1) (i32.const 1)", json, 10),
        ("channel_write", c, "(i32.const 131071) (i32.const 2)", 10),
        ("variable_set", a, json, 0),
        ("variable_set", c, json, 11),
        // Its memory has 2 MiB, and a value may have 1 MiB.
        ("variable_set", a, "(i32.const 259) (i32.const 1048577)", 20),
    ] {
        let mut world = World::default();
        world.variables.get_mut().expect("no panic before").insert("a".to_owned(), Value::Null);
        let world = Arc::new(world);
        let mut pack = written(function, name, value);
        let mut limits = super::kit::limits();
        if status == 20 {
            pack.memory = "32";
            limits.memory_bytes = 2 << 20;
        }
        let report = super::kit::run_within(&pack, &world, limits, super::kit::LONG).await;
        assert_eq!(output(&report), &json!(status), "{function} {name} {value}");
        let outcome = if status == 0 { CallOutcome::Ok } else { CallOutcome::Failed };
        assert_eq!(report.story.calls[0].outcome, outcome, "{function} {name} {value}");
        let held = match function {
            "channel_write" => world.channels.lock(),
            _ => world.variables.lock(),
        };
        let held = held.expect("no panic before").get("a").cloned();
        assert_eq!(held == Some(json!({"n": 1})), status == 0, "{held:?}");
    }
}

#[tokio::test]
async fn a_resolved_interrupt_returns_its_value_in_either_form() {
    let resumed = "(call $interrupt (i32.const 256) (i32.const 11)) (local.set $len)
        (local.set $ptr) (call $completed (local.get $ptr) (local.get $len))";
    for pack in both(&Pack::invoking(resumed).with_text(r#"{"key":"k"}"#)) {
        let world = World { resumes_with: Some(json!({"ok": true})), ..World::default() };
        let world = Arc::new(world);
        assert_eq!(output(&run(&pack, &world).await), &json!({"ok": true}));
        let asked = world.interrupts.lock().expect("no panic before").clone();
        assert_eq!(asked, [json!({"key": "k"})]);
    }
}

#[tokio::test]
async fn an_unresolved_interrupt_suspends_the_node_as_a_suspended_response_does() {
    let by_import = "(call $interrupt (i32.const 256) (i32.const 11)) unreachable";
    let by_import = Pack::invoking(by_import).with_text(r#"{"key":"k"}"#);
    let by_answer = Pack::invoking("(i32.const 256) (i32.const 47)")
        .with_text(r#"{"outcome":"suspended","interrupt":{"key":"k"}}"#);
    let by_answer_too = by_answer.clone().packed();
    for pack in [by_import.clone(), by_import.packed(), by_answer, by_answer_too] {
        let report = run(&pack, &Arc::default()).await;
        let Outcome::Completed(completion) = &report.outcome else { panic!("{report:?}") };
        let suspended = json!({"outcome": "suspended", "interrupt": {"key": "k"}});
        assert_eq!(completion.result, suspended);
        assert_eq!(report.cause, sandglass_model::Cause::Returned);
    }
}

#[tokio::test]
async fn log_lines_go_to_the_workflow_with_their_levels() {
    let logs: String = (-1..=5)
        .map(|level| format!("(call $log (i32.const {level}) (i32.const 256) (i32.const 4))"))
        .collect();
    let outside = "(call $log (i32.const 2) (i32.const -1) (i32.const 4))";
    let pack = Pack::invoking(&format!(
        "{logs} {outside} (call $completed (local.get $ptr) (local.get $len))"
    ));
    let world = Arc::default();
    let report = run(&pack.with_text("a\\1bb\\0a"), &world).await;
    assert!(matches!(report.outcome, Outcome::Completed(_)), "{report:?}");
    let lines = world.lines.lock().expect("no panic before").clone();
    let levels: Vec<LogLevel> = lines.iter().map(|(level, _)| *level).collect();
    use LogLevel::{Debug, Error, Info, Trace, Warn};
    assert_eq!(levels, [Info, Trace, Debug, Info, Warn, Error, Info]);
    assert_eq!(lines[0].1, "a\\u{1b}b", "a terminal obeys nothing of it");
}

#[tokio::test]
async fn a_node_reads_the_same_time_until_it_ends() {
    let pack = Pack::invoking(
        "(call $begin) (call $say_byte (i32.const 91)) (call $say_number (call $now))
         (local.set $n (i32.const 1000000))
         (loop $on (br_if $on (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
         (call $say_byte (i32.const 44)) (call $say_number (call $now))
         (call $say_byte (i32.const 93)) (call $end)",
    );
    let report = run(&pack, &Arc::default()).await;
    let times = output(&report);
    assert_eq!(times[0], times[1]);
    let started = report.started_at.expect("it did").as_millis();
    let now = times[0].as_i64().expect("a time");
    assert!((started..started + 60_000).contains(&now), "{now}, {started}");
}

#[tokio::test]
async fn random_bytes_come_from_the_seed() {
    let pack = Pack::invoking(
        "(call $random (i32.const 512) (i32.const 5)) (call $random (i32.const 517) (i32.const 35))
         (call $begin) (call $say_hex (i32.const 512) (i32.const 40)) (call $end)",
    );
    let block =
        |n: u64| Sha256::new().chain_update([7; 32]).chain_update(n.to_le_bytes()).finalize();
    let stream: Vec<u8> = block(0).into_iter().chain(block(1)).take(40).collect();
    let hex: String = stream.iter().map(|byte| format!("{byte:02x}")).collect();
    for _ in 0..2 {
        assert_eq!(output(&run(&pack, &Arc::default()).await), &json!(hex));
    }
}
