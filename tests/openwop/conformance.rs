//! The protocol's own definitions end as it says.

use serde_json::{Value, json};

use crate::host::{Setup, shared};
use crate::log::{at, time};

#[test]
fn noop_completes_with_one_event_per_step() {
    let host = shared();
    let run = host.run("conformance-noop");
    let log = run.finished();
    assert_eq!(log.types(), ["run.started", "node.started", "node.completed", "run.completed"]);
    assert_eq!(log.events[0]["payload"]["workflowId"], "conformance-noop");
    assert_eq!(log.events[1]["payload"]["typeId"], "core.noop");
    let seen = run.snapshot();
    let of = (&seen["runId"], &seen["workflowId"], &seen["status"]);
    assert_eq!(of, (&json!(run.id), &json!("conformance-noop"), &json!("completed")));
    assert!(seen["eventLogSchemaVersion"].as_u64() >= Some(2), "{seen}");
    assert!(time(&seen["startedAt"]) <= time(&seen["completedAt"]), "{seen}");
    assert!(seen.get("error").is_none(), "{seen}");
}

#[test]
fn identity_echoes_its_input() {
    let payload = json!({ "text": "zwölf \u{1f980} \"\\\n", "list": [1, 2.5, null, { "a": [] }] });
    let host = shared();
    let inputs = json!({ "payload": payload });
    let body = json!({ "workflowId": "conformance-identity", "inputs": inputs });
    let run = host.run_with(&body);
    let log = run.finished();
    assert_eq!(log.outputs()["payload"], payload);
    assert_eq!(log.outputs_of("echo")["payload"], payload);
    assert_eq!(run.snapshot()["variables"]["payload"], payload);
    let missing = host.post("/v1/runs", &json!({ "workflowId": "conformance-identity" }));
    assert!(missing.fails(400, "validation_error")["problems"].is_array());
}

#[test]
fn nodes_run_in_the_order_of_their_edges() {
    let host = shared();
    let log = host.run("conformance-multi-node").finished();
    let happened: Vec<(&str, &str)> = log
        .events
        .iter()
        .filter_map(|event| Some((event["type"].as_str()?, event["nodeId"].as_str()?)))
        .collect();
    let expected =
        ["a", "b", "c"].map(|node| [("node.started", node), ("node.completed", node)]).concat();
    assert_eq!(happened, expected);
    assert_eq!(log.last()["type"], "run.completed");
}

#[test]
fn a_delay_is_seen_running_before_it_completes() {
    let host = shared();
    let body = json!({ "workflowId": "conformance-delay", "inputs": { "delayMs": 4_000 } });
    let run = host.run_with(&body);
    run.until_started("wait", 1);
    let seen = run.snapshot();
    assert_eq!(seen["status"], "running", "{seen}");
    assert!(seen.get("completedAt").is_none(), "{seen}");
    let log = run.finished();
    assert_eq!(log.last()["type"], "run.completed");
    let waited = at(log.only("node.completed")).duration_since(at(log.only("node.started")));
    assert!(waited.expect("in order").as_millis() >= 4_000, "{log:#?}");
    assert_eq!(run.snapshot()["status"], "completed");
}

#[test]
fn a_failure_has_its_code_in_the_node_the_run_and_the_snapshot() {
    let host = shared();
    let run = host.run("conformance-failure");
    let log = run.finished();
    let failed = log.only("node.failed");
    assert_eq!(failed["payload"]["error"]["code"], "conformance_test_failure");
    log.error("conformance_test_failure");
    let seen = run.snapshot();
    assert_eq!(seen["status"], "failed");
    assert_eq!(seen["error"]["code"], "conformance_test_failure");
    assert!(log.of("cap.breached").is_empty());
}

#[test]
fn the_fourth_node_is_refused_where_three_may_run() {
    let host = shared();
    let run = host.bounded("conformance-cap-breach", &json!({ "recursionLimit": 3 }));
    let log = run.finished();
    let breach = log.breach("node-executions");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(3), &json!(4)));
    assert_eq!(breach["nodeId"], "n4");
    assert_eq!(log.nodes("node.started"), ["n1", "n2", "n3"]);
    assert_eq!(log.nodes("node.completed"), ["n1", "n2", "n3"]);
    assert_eq!(log.error("recursion_limit_exceeded")["details"]["nodeId"], "n4");
    assert_eq!(run.snapshot()["error"]["code"], "recursion_limit_exceeded");
    let free = host.run("conformance-cap-breach").finished();
    assert_eq!(free.nodes("node.completed"), ["n1", "n2", "n3", "n4", "n5", "n6"]);
    assert!(free.of("cap.breached").is_empty());
    free.outputs();
}

#[test]
fn a_run_that_takes_too_long_is_ended_hard() {
    let host = shared();
    let bounds = json!({ "runTimeoutMs": 1_000 });
    let run = host.bounded("conformance-run-duration-breach", &bounds);
    let log = run.finished();
    let breach = log.breach("run-duration");
    assert_eq!(breach["limit"], 1_000);
    let error = log.error("run_timeout");
    assert_eq!(error["details"]["elapsedMs"], breach["observed"]);
    assert_eq!(log.nodes("node.started"), ["wait"]);
    assert!(log.of("node.completed").is_empty());
    let seen = run.snapshot();
    assert_eq!(seen["error"]["code"], "run_timeout");
    assert_eq!(seen["error"]["details"]["elapsedMs"], breach["observed"]);
    assert_ne!(seen["nodeStates"]["wait"]["status"], "running", "{seen}");
}

#[test]
fn a_cancelled_run_ends_within_five_seconds() {
    let host = shared();
    let run = host.run("conformance-cancellable");
    run.until_started("wait", 1);
    let before = run.snapshot();
    let cancelled = run.cancel(&json!({ "reason": "nobody needs it" })).expect(200);
    assert_eq!(cancelled["runId"], run.id);
    let status = cancelled["status"].as_str().expect("a text");
    assert!(["cancelling", "cancelled"].contains(&status), "{cancelled}");
    // What the protocol promises, and far from the node's own thirty.
    let told = run.poll(i64::MAX, "5").expect(200);
    assert_eq!(told["isComplete"], true, "{before} {told}");
    let log = run.finished();
    assert_eq!(log.only("run.cancelled")["payload"]["reason"], "nobody needs it");
    assert!(log.of("node.completed").is_empty());
    assert_eq!(run.snapshot()["status"], "cancelled");
    // Once more is no error, and changes nothing.
    assert_eq!(run.cancel(&json!({})).expect(200)["status"], "cancelled");
    assert_eq!(run.finished().events.len(), log.events.len());
}

#[test]
fn a_completed_run_cannot_be_cancelled() {
    let host = shared();
    let run = host.run("conformance-noop");
    run.finished();
    let ended = run.cancel(&json!({})).expect(200);
    assert_eq!(ended["status"], run.snapshot()["status"], "{ended}");
    assert_eq!(run.snapshot()["status"], "completed");
}

#[test]
fn a_node_without_a_provider_fails_its_run_with_a_clear_code() {
    let host = shared();
    for workflow in [
        "conformance-capability-missing",
        "conformance-wasm-pack-abi-mismatch",
        "misbehaving-not-loaded",
    ] {
        let log = host.run(workflow).finished();
        log.error("capability_not_provided");
        assert!(log.of("node.completed").is_empty(), "{log:#?}");
    }
}

#[test]
fn a_dispatch_loop_counts_turns_and_ends_when_its_orchestrator_terminates() {
    let host = shared();
    let run = host.run("conformance-dispatch-loop");
    let log = run.finished();
    let turns = log.turns();
    assert!(turns.len() >= 2, "{log:#?}");
    let (last, before) = turns.split_last().expect("some");
    assert_eq!(last["kind"], "terminate");
    assert!(before.iter().all(|turn| turn["kind"] == "next-worker"), "{log:#?}");
    log.outputs();
    let mut agents: Vec<&Value> = log
        .of("runOrchestrator.decided")
        .iter()
        .map(|event| &event["payload"]["agentId"])
        .collect();
    agents.dedup();
    let [agent] = agents[..] else { panic!("not one agent: {agents:?}") };
    assert_eq!(&run.snapshot()["runOrchestrator"]["agentId"], agent);
}

#[test]
fn a_pack_greets_the_named_person() {
    let host = shared();
    let body =
        json!({ "workflowId": "conformance-wasm-pack-roundtrip", "inputs": { "name": "Ada" } });
    assert_eq!(host.run_with(&body).finished().outputs()["greeting"], "Hello, Ada!");
    let log = host.run("conformance-wasm-pack-roundtrip").finished();
    assert_eq!(log.outputs()["greeting"], "Hello, world!");
}

#[test]
fn a_pack_that_takes_too_much_memory_breaches_its_bound() {
    let host = shared();
    let log = host.run("conformance-wasm-pack-memory-cap-breach").finished();
    let breach = log.breach("wasm-memory");
    // 1,024 pages, as its pack says.
    assert_eq!((&breach["limit"], &breach["nodeId"]), (&json!(64 << 20), &json!("bomb")));
    log.error("wasm_memory_exceeded");
}

/// The nodes that are executed and those that are skipped, as the descriptions say.
#[test]
fn the_samples_run_the_nodes_that_their_descriptions_name() {
    let host = shared();
    for (workflow, run, skipped) in [
        (
            "conditions",
            &["source", "is-three", "is-late", "is-coded", "is-small"][..],
            &["is-not-three", "is-large"][..],
        ),
        ("diamond", &["start", "left", "right", "join", "clean"], &["handler"]),
        (
            "diamond-one-fails",
            &["start", "left", "any-success", "all-complete", "handler"],
            &["all-success", "none-failed"],
        ),
        ("failure-handled", &["handler"], &["after"]),
        ("loop", &["supervisor", "dispatch", "worker-a", "worker-b"], &[]),
    ] {
        let log = host.run(workflow).finished();
        log.outputs();
        let mut completed = log.nodes("node.completed");
        completed.sort_unstable();
        completed.dedup();
        let mut expected = run.to_vec();
        expected.sort_unstable();
        assert_eq!(completed, expected, "{workflow}: {log:#?}");
        let told = log.nodes("node.skipped");
        assert!(skipped.iter().all(|node| told.contains(node)), "{workflow}: {log:#?}");
    }
    let log = host.run("failure-unhandled").finished();
    let error = log.error("sample_failure");
    assert_eq!(error["message"], "as given");
    assert_eq!(error["details"]["attempted"], true);
    for workflow in ["loop-bad-decision", "loop-unknown-worker"] {
        let log = host.run(workflow).finished();
        assert!(log.turns().len() <= 2, "{log:#?}");
    }
    host.run("loop-bad-decision").finished().error("invalid_decision");
}

#[test]
fn a_disabled_node_is_skipped_and_reported_once() {
    let nodes = json!([
        { "id": "off", "typeId": "core.noop", "disabled": true },
        { "id": "on", "typeId": "core.noop" },
        { "id": "behind", "typeId": "core.noop" },
    ]);
    let edges = [("off", "behind"), ("on", "behind")];
    let host = Setup::new().workflow("one-off", &nodes, &edges).start();
    let log = host.run("one-off").finished();
    assert_eq!(log.nodes("node.skipped").iter().filter(|node| **node == "off").count(), 1);
    let again = host.replay(&log.run).finished();
    assert_eq!(again.types(), log.types());
    let from = json!({ "mode": "branch", "fromSeq": log.place("node.completed") });
    let branch = host.fork(&log.run, &from).finished();
    assert_eq!(branch.types(), log.types());
}
