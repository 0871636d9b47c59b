//! Bounds of runs: asked for, cut to what the host allows, kept over suspensions and restarts.

use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::{sandglass, until};
use crate::client::Ask;
use crate::host::{GREETER, Host, SAMPLES, Setup, shared};
use crate::log::{at, now};

const KEYS: [&str; 3] = ["runTimeoutMs", "maxLoopIterations", "recursionLimit"];

/// More than any host allows.
fn most() -> Value {
    json!({ "runTimeoutMs": 9_000_000_000_000_000_u64, "maxLoopIterations": 1e300, "recursionLimit": u64::MAX })
}

/// An orchestrator with this plan, whose workers are nodes of these.
fn loop_of(setup: Setup, id: &str, turns: &[&str], workers: &Value) -> Setup {
    let decision = |worker: &&str| json!({ "kind": "next-worker", "nextWorkerIds": [worker] });
    let plan: Vec<Value> = turns.iter().map(decision).collect();
    let mut nodes = vec![
        json!({
            "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": plan },
        }),
        json!({ "id": "dispatch", "typeId": "core.dispatch" }),
    ];
    let mut edges = vec![("boss", "dispatch"), ("dispatch", "boss")];
    for worker in workers.as_array().expect("a list") {
        nodes.push(worker.clone());
        edges.push(("dispatch", worker["id"].as_str().expect("an id")));
    }
    setup.workflow(id, &json!(nodes), &edges)
}

/// A loop of so many turns, the last of which ends it, without any guest.
fn idle_loop(setup: Setup, id: &str, turns: usize) -> Setup {
    let worker = json!([{ "id": "idle", "typeId": "core.noop" }]);
    loop_of(setup, id, &vec!["idle"; turns - 1], &worker)
}

#[track_caller]
fn limit_of(host: &Host, workflow: &str, configurable: &Value, kind: &str) -> (u64, u64) {
    let log = host.bounded(workflow, configurable).finished();
    let breach = log.breach(kind);
    let number = |key: &str| breach[key].as_u64().expect("a number");
    (number("limit"), number("observed"))
}

#[test]
fn a_bound_above_a_ceiling_is_cut_to_it_and_a_lower_one_holds() {
    let ceilings =
        ["--max-run-duration", "1s", "--max-loop-iterations", "3", "--max-node-executions", "5"];
    let setup = Setup::new().arguments(&ceilings);
    let host = idle_loop(setup, "turns", 9).start();
    let limits = host.get("/.well-known/openwop").expect(200)["limits"].clone();
    assert_eq!(limits["maxRunDurationMs"], 1_000);
    assert_eq!(
        (&limits["maxLoopIterations"], &limits["maxNodeExecutions"]),
        (&json!(3), &json!(5))
    );
    for (asked, limit) in [(most(), 5), (json!({}), 5), (json!({ "recursionLimit": 2 }), 2)] {
        let found = limit_of(&host, "conformance-cap-breach", &asked, "node-executions");
        assert_eq!(found, (limit, limit + 1), "{asked}");
    }
    for (asked, limit) in
        [(most(), 1_000), (json!({}), 1_000), (json!({ "runTimeoutMs": 300 }), 300)]
    {
        let found = limit_of(&host, "conformance-run-duration-breach", &asked, "run-duration");
        assert_eq!(found.0, limit, "{asked}");
    }
    let found = limit_of(&host, "turns", &json!({ "maxLoopIterations": 1 }), "loop-iterations");
    assert_eq!(found, (1, 2));
}

#[test]
fn turns_are_cut_to_the_hosts_ceiling() {
    let setup = Setup::new().arguments(&["--max-loop-iterations", "3"]);
    let host = idle_loop(setup, "turns", 9).start();
    for (asked, limit) in [(most(), 3), (json!({}), 3), (json!({ "maxLoopIterations": 1 }), 1)] {
        let found = limit_of(&host, "turns", &asked, "loop-iterations");
        assert_eq!(found, (limit, limit + 1), "{asked}");
    }
}

#[test]
fn a_bound_that_is_not_a_positive_integer_is_refused_and_nothing_starts() {
    let host = Setup::new().start();
    let wrong = [json!(0), json!(-1), json!(1.5), json!("5"), json!(null), json!([]), json!(true)];
    for key in KEYS {
        for wrong in &wrong {
            let body = json!({ "workflowId": "conformance-noop", "configurable": { key: wrong } });
            let refused = host.post("/v1/runs", &body);
            let details = refused.fails(400, "validation_error");
            assert_eq!(details["path"], format!("/configurable/{key}"), "{wrong}");
            let once = Ask::new("POST /v1/runs").header("idempotency-key", "the-only-one");
            host.ask(&once.json(&body)).fails(400, "validation_error");
        }
    }
    for wrong in [json!([]), json!("x"), json!(5), json!(null)] {
        let body = json!({ "workflowId": "conformance-noop", "configurable": wrong });
        host.post("/v1/runs", &body).fails(400, "validation_error");
    }
    // The key is still free: nothing was kept of what was refused.
    let once = Ask::new("POST /v1/runs").header("idempotency-key", "the-only-one");
    let made = host.ask(&once.json(&json!({ "workflowId": "conformance-noop" })));
    assert_eq!(made.header("openwop-idempotent-replay"), None);
    let made = made.expect(201);
    host.again(made["runId"].as_str().expect("an id")).finished();
    let records = host.stop().journal();
    let created = |record: &&Value| {
        let entity = record["entity"].as_str().unwrap_or_default();
        entity.starts_with("OpenwopRun/") && record["event"]["type"] == "created"
    };
    let runs: Vec<&Value> = records.iter().filter(created).collect();
    assert_eq!(runs.len(), 1, "{runs:#?}");
}

#[test]
fn a_turn_after_the_last_one_is_refused() {
    let host = shared();
    for limit in [1, 3] {
        let run = host.bounded("loop-endless", &json!({ "maxLoopIterations": limit }));
        let log = run.finished();
        assert_eq!(log.turns().len(), limit, "{log:#?}");
        let breach = log.breach("loop-iterations");
        assert_eq!((&breach["limit"], &breach["observed"]), (&json!(limit), &json!(limit + 1)));
        let error = log.error("loop_limit_exceeded");
        assert_eq!(error["details"]["iteration"], limit + 1);
        assert_eq!(error["details"]["nodeId"], "supervisor");
        let begun = log.nodes("node.started");
        assert_eq!(begun.iter().filter(|node| **node == "supervisor").count(), limit);
    }
}

#[test]
fn turns_of_children_are_their_own() {
    let setup = idle_loop(Setup::new(), "child", 5);
    let host = loop_of(setup, "parent", &["child", "child"], &json!([])).start();
    let run = host.bounded("parent", &json!({ "maxLoopIterations": 3 }));
    let log = run.finished();
    log.outputs();
    assert_eq!(log.turns().len(), 3, "{log:#?}");
    let children = log.of("node.dispatched");
    assert_eq!(children.len(), 2, "{log:#?}");
    for child in children {
        assert_eq!(child["payload"]["childStatus"], "completed", "{log:#?}");
        let child = host.again(child["payload"]["childRunId"].as_str().expect("an id"));
        let of_child = child.finished();
        assert_eq!(of_child.turns().len(), 5, "{of_child:#?}");
        // What the last turn, which ends it, has not come to again.
        let idle = child.snapshot()["nodeStates"]["idle"].clone();
        assert_eq!((&idle["status"], &idle["executions"]), (&json!("completed"), &json!(4)));
        assert_eq!(child.snapshot()["parentRunId"], run.id);
    }
    let log = host.bounded("parent", &json!({ "maxLoopIterations": 2 })).finished();
    assert_eq!(log.breach("loop-iterations")["observed"], 3);
}

#[test]
fn an_answer_is_not_a_turn_and_counting_continues_after_it() {
    let host = shared();
    for (limit, is_over) in [(2, false), (4, true)] {
        let run = host.bounded("loop-ask-user", &json!({ "maxLoopIterations": limit }));
        assert_eq!(run.until_waiting()["kind"], "clarification");
        assert_eq!(run.snapshot()["status"], "waiting-input");
        run.answer("supervisor", &json!("worker b, please")).expect(200);
        let log = run.finished();
        assert_eq!(log.turns().len(), limit, "{log:#?}");
        if is_over {
            log.outputs();
        } else {
            assert_eq!(log.breach("loop-iterations")["observed"], 3);
        }
    }
}

#[test]
fn counts_outlive_a_host_that_is_killed() {
    let wait = json!({
        "id": "wait", "typeId": "core.delay",
        "inputs": { "delayMs": { "type": "static", "value": 3_000 } },
    });
    let setup = loop_of(Setup::new(), "turns", &["wait"; 9], &json!([wait]));
    let host = setup.packs(&[SAMPLES, GREETER]).start();
    let turning = host.bounded("turns", &json!({ "maxLoopIterations": 3 })).id;
    let counting = host.bounded("turns", &json!({ "recursionLimit": 8 })).id;
    let asking = host.bounded("loop-ask-user", &json!({ "maxLoopIterations": 2 })).id;
    host.again(&asking).until_waiting();
    host.again(&turning).until_started("wait", 2);
    host.again(&counting).until_started("wait", 2);
    let host = host.kill().start();
    let log = host.again(&turning).finished();
    assert_eq!(log.turns().len(), 3, "{log:#?}");
    let breach = log.breach("loop-iterations");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(3), &json!(4)));
    // What the host lost is begun again, and is the same node.
    assert_eq!(log.nodes("node.retried"), ["wait"], "{log:#?}");
    let log = host.again(&counting).finished();
    assert_eq!(log.nodes("node.started").len(), 8, "{log:#?}");
    assert_eq!(log.breach("node-executions")["observed"], 9);
    let asking = host.again(&asking);
    asking.answer("supervisor", &json!("go on")).expect(200);
    let log = asking.finished();
    assert_eq!(log.turns().len(), 2, "{log:#?}");
    assert_eq!(log.breach("loop-iterations")["observed"], 3);
}

#[test]
fn a_run_that_waits_for_a_person_ends_on_time() {
    let host = shared();
    let run = host.bounded("approval", &json!({ "runTimeoutMs": 1_000 }));
    run.until_waiting();
    let log = run.finished();
    assert_eq!(log.breach("run-duration")["limit"], 1_000);
    log.error("run_timeout");
    assert!(log.of("interrupt.resolved").is_empty());
    run.answer("ask", &json!({ "action": "accept" })).fails(409, "interrupt_already_resolved");
    assert_eq!(run.snapshot()["status"], "failed");
}

#[test]
fn time_passes_while_the_host_is_down() {
    const LIMIT: Duration = Duration::from_secs(6);
    let host = Setup::new().packs(&[SAMPLES]).start();
    let bounds = json!({ "runTimeoutMs": 6_000 });
    let runs = ["approval", "conformance-run-duration-breach"];
    let runs = runs.map(|workflow| host.bounded(workflow, &bounds).id);
    host.again(&runs[0]).until_waiting();
    let begun = host.again(&runs[1]).until(|event| event["type"] == "node.started");
    let setup = host.kill();
    let back_at = at(&begun[0]) + LIMIT + Duration::from_secs(2);
    until(|| {
        sandglass(&[&"--version"]).exits(0);
        now() > back_at
    });
    let host = setup.start();
    for run in runs {
        let log = host.again(&run).finished();
        let breach = log.breach("run-duration");
        assert_eq!(breach["limit"], 6_000);
        let observed = Duration::from_millis(breach["observed"].as_u64().expect("a number"));
        let away = back_at.duration_since(at(&log.events[0])).expect("it had begun");
        assert!(observed >= away, "{away:?} and more: {log:#?}");
        log.error("run_timeout");
    }
}
