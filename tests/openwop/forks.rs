//! Forks of runs: branches go their own way, replays come to the same again.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::client::Ask;
use crate::host::{ECHO, GREETER, Host, SAMPLES, Setup, shared};
use crate::log::{Log, between};

/// The events as they are, but for what differs between a run and its fork.
fn told(log: &Log) -> Vec<(Value, Value, Value)> {
    let of =
        |event: &Value| (event["type"].clone(), event["nodeId"].clone(), event["payload"].clone());
    log.events.iter().map(of).collect()
}

/// When the events were recorded.
fn times(log: &Log) -> Vec<Value> {
    log.events.iter().map(|event| event["timestamp"].clone()).collect()
}

/// That a replay came to all that its source did, and to nothing else.
#[track_caller]
fn is_same(replay: &Log, source: &Log) {
    assert_eq!(told(replay), told(source));
}

#[test]
fn a_branch_from_each_event_of_a_run_has_the_same_outputs() {
    let host = shared();
    let body = json!({ "workflowId": "linear", "inputs": { "a": 20, "b": 3 } });
    let run = host.run_with(&body);
    let source = run.finished();
    // The last node returns its inputs, which are those of the run and its own.
    assert_eq!(*source.outputs(), json!({ "first": 23, "second": 33, "a": 20, "b": 3 }));
    for from in 0..source.events.len() {
        let fork = host.fork(&run.id, &json!({ "mode": "branch", "fromSeq": from }));
        let log = fork.finished();
        assert_eq!(log.outputs(), source.outputs(), "from {from}: {log:#?}");
        let (branch, whole) = (told(&log), told(&source));
        assert_eq!(branch[..from], whole[..from], "from {from}");
        assert_eq!(times(&log)[..from], times(&source)[..from], "from {from}");
        assert_eq!(log.nodes("node.completed"), source.nodes("node.completed"), "from {from}");
        let seen = fork.snapshot();
        assert_eq!(seen["forkedFrom"]["runId"], run.id, "{seen}");
        assert_eq!(seen["status"], "completed", "{seen}");
    }
    assert_eq!(run.finished().events, source.events, "the source stays as it is");
}

#[test]
fn a_branch_merges_its_options_over_those_of_its_source() {
    let host = shared();
    let body = json!({
        "workflowId": "conformance-cap-breach", "tags": ["mine"], "metadata": { "of": "me" },
        "configurable": { "recursionLimit": 3, "model": "some" },
    });
    let run = host.run_with(&body);
    run.finished().breach("node-executions");
    // What its source's bound refused runs in a branch that has another one.
    let overlay = json!({ "configurable": { "recursionLimit": 6 }, "tags": ["other"] });
    let fork = |from: usize, overlay: &Value| {
        let body = json!({ "mode": "branch", "fromSeq": from, "runOptionsOverlay": overlay });
        host.fork(&run.id, &body)
    };
    for from in 0..=7 {
        let branch = fork(from, &overlay);
        let log = branch.finished();
        assert!(log.of("cap.breached").is_empty(), "the breach is its source's: {log:#?}");
        assert_eq!(log.nodes("node.completed"), ["n1", "n2", "n3", "n4", "n5", "n6"], "{log:#?}");
        let seen = branch.snapshot();
        let options = (&seen["tags"], &seen["metadata"], &seen["configurable"]);
        let expected = (
            &json!(["other"]),
            &json!({ "of": "me" }),
            &json!({ "recursionLimit": 6, "model": "some" }),
        );
        assert_eq!(options, expected);
        // The first event is the source's, unless the branch copies none.
        let started = &log.events[0]["payload"];
        let tags = if from == 0 { json!(["other"]) } else { json!(["mine"]) };
        assert_eq!(started["tags"], tags, "from {from}: {started}");
        assert!(started.get("forkedFrom").is_none(), "{started}");
        assert_eq!(seen["forkedFrom"]["runId"], run.id, "{seen}");
    }
    // What it doesn't say is as the source has it.
    let log = fork(0, &json!({ "tags": [] })).finished();
    assert_eq!(log.breach("node-executions")["limit"], 3, "{log:#?}");
    // From where its source breached the bound that it has, too, the branch has the source's end.
    is_same(&fork(7, &json!({})).finished(), &run.finished());
    // The breach is inherited from behind it, whatever the bounds of the branch are.
    is_same(&fork(8, &overlay).finished(), &run.finished());
    assert_eq!(fork(8, &overlay).snapshot()["forkedFrom"]["fromSeq"], 8);
    // A lower bound than what was executed before stays impossible.
    let low = json!({ "configurable": { "recursionLimit": 1 } });
    let body = json!({ "mode": "branch", "fromSeq": 5, "runOptionsOverlay": low });
    host.post(&format!("/v1/runs/{}:fork", run.id), &body).fails(400, "validation_error");
    // What was executed before counts.
    let log = fork(5, &json!({ "configurable": { "recursionLimit": 4 } })).finished();
    let breach = log.breach("node-executions");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(4), &json!(5)));
    assert_eq!(log.nodes("node.started"), ["n1", "n2", "n3", "n4"]);
}

#[test]
fn a_branch_from_behind_a_breach_inherits_it_as_it_was_observed() {
    let host = shared();
    let duration = json!({ "runTimeoutMs": 1_000 });
    for (workflow, bounds, kind) in [
        ("conformance-run-duration-breach", duration, "run-duration"),
        ("loop-endless", json!({ "maxLoopIterations": 2 }), "loop-iterations"),
        ("misbehaving-grower", json!({}), "wasm-memory"),
        ("misbehaving-fuel-burner", json!({}), "wasm-fuel"),
    ] {
        let source = host.bounded(workflow, &bounds).finished();
        let breach = source.place("cap.breached");
        for from in breach + 1..source.events.len() {
            let forked = host.fork(&source.run, &json!({ "mode": "branch", "fromSeq": from }));
            assert_eq!(forked.snapshot()["forkedFrom"]["fromSeq"], from, "{kind}");
            let log = forked.finished();
            assert_eq!(told(&log)[..from], told(&source)[..from], "{kind} from {from}");
            assert_eq!(times(&log)[..from], times(&source)[..from], "{kind} from {from}");
            assert_eq!(log.breach(kind), source.breach(kind), "{kind} from {from}");
            assert_eq!(log.types(), source.types(), "{kind} from {from}");
            assert_eq!(log.last()["payload"]["error"], source.last()["payload"]["error"]);
        }
    }
}

#[test]
fn an_impossible_fork_is_refused() {
    let host = shared();
    let run = host.run("conformance-noop");
    let end = run.finished().events.len();
    let path = format!("/v1/runs/{}:fork", run.id);
    for wrong in [
        json!({ "mode": "branch", "fromSeq": -1 }),
        json!({ "mode": "branch", "fromSeq": 0.5 }),
        json!({ "mode": "branch", "fromSeq": "0" }),
        json!({ "mode": "merge", "fromSeq": 0 }),
        json!({ "fromSeq": 0 }),
        json!({ "mode": "replay", "fromSeq": 0, "runOptionsOverlay": {} }),
        json!({ "mode": "replay", "runOptionsOverlay": { "tags": ["x"] } }),
        json!({ "mode": "branch", "fromSeq": 0, "runOptionsOverlay": { "configurable": { "runTimeoutMs": 0 } } }),
        json!({ "mode": "branch", "fromSeq": 0, "runOptionsOverlay": { "workflowId": "x" } }),
        json!({ "mode": "branch", "fromSeq": 0, "more": 1 }),
        json!({ "mode": "branch" }),
    ] {
        host.post(&path, &wrong).fails(400, "validation_error");
    }
    for mode in ["branch", "replay"] {
        for past in [json!(end), json!(end + 1), json!(u64::MAX), json!(1e300)] {
            let body = json!({ "mode": mode, "fromSeq": past });
            let refused = host.post(&path, &body);
            assert_eq!(refused.fails(422, "fork_past_end")["lastSequence"], end - 1);
        }
        for unknown in ["run-00000000000000000000000000000000", "nothing", "run-", ""] {
            let body = json!({ "mode": mode, "fromSeq": 0 });
            host.post(&format!("/v1/runs/{unknown}:fork"), &body).fails(404, "not_found");
        }
    }
    let waiting = host.run("approval");
    waiting.until_waiting();
    let body = json!({ "mode": "replay", "fromSeq": 0 });
    host.post(&format!("/v1/runs/{}:fork", waiting.id), &body).fails(409, "run_active");
}

#[test]
fn a_replay_of_each_breach_has_the_observed_values_even_after_a_restart() {
    let packs = [
        SAMPLES,
        GREETER,
        "vendor.sandglass.misbehaving.grower",
        "vendor.sandglass.misbehaving.spinner",
        "vendor.sandglass.misbehaving.fuel-burner",
    ];
    let host = Setup::new().packs(&packs).start();
    let breaches = [
        ("conformance-run-duration-breach", json!({ "runTimeoutMs": 3_000 }), "run-duration"),
        ("conformance-cap-breach", json!({ "recursionLimit": 3 }), "node-executions"),
        ("loop-endless", json!({ "maxLoopIterations": 2 }), "loop-iterations"),
        ("misbehaving-grower", json!({}), "wasm-memory"),
        ("misbehaving-spinner", json!({}), "wasm-execution-time"),
        ("misbehaving-fuel-burner", json!({}), "wasm-fuel"),
    ];
    let sources = breaches.map(|(workflow, bounds, kind)| {
        let log = host.bounded(workflow, &bounds).finished();
        log.breach(kind);
        (log, kind)
    });
    let check = |host: &Host| {
        for (source, kind) in &sources {
            let replay = host.replay(&source.run);
            let log = replay.finished();
            is_same(&log, source);
            assert_eq!(log.breach(kind), source.breach(kind));
            if *kind == "run-duration" {
                // It takes none of the time that it tells of.
                assert!(between(&log.events[0], log.last()).as_millis() < 3_000, "{log:#?}");
            }
            let seen = replay.snapshot();
            assert_eq!(seen["error"], host.again(&source.run).snapshot()["error"], "{seen}");
        }
    };
    check(&host);
    // Other bounds of the host change nothing: they are the source's.
    let setup = host.kill();
    let tight = [
        "--max-node-executions",
        "1",
        "--max-loop-iterations",
        "1",
        "--max-run-duration",
        "1s",
        "--pack-fuel",
        "1000000000",
    ];
    check(&setup.arguments(&tight).start());
}

#[test]
fn a_replay_has_the_time_the_randomness_and_the_effects_of_its_source() {
    let host = shared();
    for workflow in ["replay", "replay-effects", "loop", "linear", "diamond-one-fails"] {
        let source = host.run(workflow).finished();
        source.outputs();
        let log = host.replay(&source.run).finished();
        is_same(&log, &source);
        assert!(log.of("replay.diverged").is_empty(), "{log:#?}");
    }
    let [first, second] = [(); 2].map(|()| host.run("replay").finished());
    let random = |log: &Log| log.outputs_of("before")["random"].clone();
    assert_ne!(random(&first), random(&second), "runs of their own differ");
    // From any event on it is the same.
    for from in [1, 5, first.events.len() - 1] {
        let body = json!({ "mode": "replay", "fromSeq": from });
        assert_eq!(told(&host.fork(&first.run, &body).finished()), told(&first));
    }
    // An effect is made again in a branch that comes to it, and never in a replay.
    let source = host.run("replay-effects").finished();
    assert_eq!(source.outputs_of("second")["count"], 2);
    let random = |log: &Log, node: &str| log.outputs_of(node)["random"].clone();
    let replay = host.replay(&source.run).finished();
    let at = source.of("node.started")[1]["sequence"].clone();
    let branch = host.fork(&source.run, &json!({ "mode": "branch", "fromSeq": at })).finished();
    assert_eq!(random(&replay, "second"), random(&source, "second"));
    assert_eq!(random(&branch, "first"), random(&source, "first"));
    assert_ne!(random(&branch, "second"), random(&source, "second"));
    assert_eq!(branch.outputs_of("second")["count"], 2);
}

#[test]
fn answers_of_people_and_clients_are_replayed_without_a_new_request() {
    let host = shared();
    let run = host.run("approval");
    run.until_waiting();
    run.answer("ask", &json!({ "action": "reject" })).expect(200);
    let source = run.finished();
    is_same(&host.replay(&run.id).finished(), &source);
    let cancelled = host.run("approval");
    cancelled.until_waiting();
    cancelled.cancel(&json!({ "reason": "later" })).expect(200);
    let source = cancelled.finished();
    let replay = host.replay(&cancelled.id);
    is_same(&replay.finished(), &source);
    assert_eq!(replay.snapshot()["status"], "cancelled");
    // That it was stopped is its source's: a branch from there waits on.
    for from in source.place("node.cancelled")..source.events.len() {
        let branch = host.fork(&cancelled.id, &json!({ "mode": "branch", "fromSeq": from }));
        branch.until_waiting();
        branch.answer("ask", &json!({ "action": "accept" })).expect(200);
        let log = branch.finished();
        assert_eq!(log.nodes("node.completed"), ["ask", "accepted"], "from {from}: {log:#?}");
        assert!(log.of("node.cancelled").is_empty(), "from {from}: {log:#?}");
    }
    let source = run.finished();
    let answered = source.place("interrupt.resolved");
    for from in 0..source.events.len() {
        let branch = host.fork(&run.id, &json!({ "mode": "branch", "fromSeq": from }));
        // The answer and what goes on with it are one: from before that, it waits for its own.
        let branch_taken = if from <= answered + 1 {
            branch.until_waiting();
            branch.answer("ask", &json!({ "action": "accept" })).expect(200);
            "accepted"
        } else {
            "rejected"
        };
        let log = branch.finished();
        assert_eq!(log.nodes("node.completed"), ["ask", branch_taken], "from {from}: {log:#?}");
    }
}

#[test]
fn a_branch_after_an_answer_has_the_turns_of_its_source() {
    let host = shared();
    let run = host.bounded("loop-ask-user", &json!({ "maxLoopIterations": 2 }));
    run.until_waiting();
    run.answer("supervisor", &json!("worker b, please")).expect(200);
    let source = run.finished();
    assert_eq!(source.breach("loop-iterations")["observed"], 3);
    // Behind the answer the second turn goes on, and is the second of the branch.
    let resumed = source.place("node.resumed");
    let body = json!({ "mode": "branch", "fromSeq": resumed + 1 });
    let log = host.fork(&run.id, &body).finished();
    assert_eq!(log.turns(), source.turns(), "{log:#?}");
    let breach = log.breach("loop-iterations");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(2), &json!(3)));
    // Before it no turn is left, unless there may be more of them.
    let path = format!("/v1/runs/{}:fork", run.id);
    let body = json!({ "mode": "branch", "fromSeq": resumed });
    host.post(&path, &body).fails(400, "validation_error");
    let overlay = json!({ "configurable": { "maxLoopIterations": 3 } });
    let body = json!({ "mode": "branch", "fromSeq": resumed, "runOptionsOverlay": overlay });
    let branch = host.fork(&run.id, &body);
    branch.until_waiting();
    branch.answer("supervisor", &json!("worker b, please")).expect(200);
    let log = branch.finished();
    assert_eq!(log.turns()[..2], source.turns(), "{log:#?}");
    let breach = log.breach("loop-iterations");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(3), &json!(4)));
}

#[test]
fn a_replay_of_an_orchestrator_without_its_input_fails_as_it_did() {
    let missing = json!({ "type": "connection", "nodeId": "first", "outputKey": "nothing" });
    let nodes = json!([
        { "id": "first", "typeId": "core.noop" },
        { "id": "boss", "typeId": "core.orchestrator.supervisor", "inputs": { "x": missing } },
    ]);
    let host = Setup::new().workflow("lacking", &nodes, &[("first", "boss")]).start();
    let source = host.run("lacking").finished();
    source.error("input_missing");
    is_same(&host.replay(&source.run).finished(), &source);
}

#[test]
fn a_fork_can_be_forked() {
    let host = shared();
    let source = host.run("replay").finished();
    let replay = host.replay(&source.run).finished();
    let again = host.replay(&replay.run).finished();
    is_same(&again, &replay);
    let at = source.place("channel.written");
    let body = json!({ "mode": "branch", "fromSeq": at });
    let branch = host.fork(&again.run, &body).finished();
    assert_eq!(told(&branch)[..at], told(&source)[..at]);
    assert_eq!(times(&branch)[..at], times(&again)[..at]);
    branch.outputs();
    let of_branch = host.replay(&branch.run).finished();
    is_same(&of_branch, &branch);
    assert!(of_branch.of("replay.diverged").is_empty(), "{of_branch:#?}");
    let next = host.fork(&branch.run, &json!({ "mode": "branch", "fromSeq": 1 })).finished();
    next.outputs();
}

#[test]
fn a_replay_of_a_run_that_lost_its_host_has_the_same_result() {
    let names: Vec<String> = (0..60).map(|number| format!("n{number}")).collect();
    let nodes: Vec<Value> =
        names.iter().map(|name| json!({ "id": name, "typeId": "core.noop" })).collect();
    let edges: Vec<(&str, &str)> =
        names.windows(2).map(|two| (two[0].as_str(), two[1].as_str())).collect();
    let turns = vec![json!({ "kind": "next-worker", "nextWorkerIds": ["idle"] }); 30];
    let boss = json!([
        { "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": turns } },
        { "id": "dispatch", "typeId": "core.dispatch" },
        { "id": "idle", "typeId": "core.noop" },
    ]);
    let back = [("boss", "dispatch"), ("dispatch", "idle"), ("dispatch", "boss")];
    let setup =
        Setup::new().workflow("chain", &json!(nodes), &edges).workflow("turns", &boss, &back);
    let host = setup.start();
    let chains = [(); 4].map(|()| host.run("chain").id);
    let loops = [(); 4].map(|()| host.run("turns").id);
    host.again(&chains[0]).until_started("n5", 1);
    host.again(&loops[0]).until_started("boss", 4);
    let host = host.kill().start();
    let mut lost = 0;
    for run in chains.iter().chain(&loops) {
        let source = host.again(run).finished();
        source.outputs();
        lost += source.of("node.retried").len();
        let log = host.replay(run).finished();
        is_same(&log, &source);
    }
    assert!(lost > 0, "none was under way as the host was killed");
}

/// Makes the module of a pack another one that does the same: with a section for notes.
fn annotate(setup: &Setup, pack: &str) {
    let module: PathBuf = setup.folder.path(&format!("packs/{pack}/module.wasm"));
    let mut bytes = fs::read(&module).expect("it is there");
    // A custom section of five bytes, whose name has four.
    bytes.extend([0, 5, 4]);
    bytes.extend(b"note");
    fs::write(&module, bytes).expect("written");
}

#[test]
fn a_replay_repeats_pure_nodes_and_reports_a_changed_module() {
    let host = Setup::new().packs(&[SAMPLES, ECHO]).start();
    let pure = host.run("linear").finished();
    let effects = host.run("replay-effects").finished();
    let setup = host.stop();
    annotate(&setup, SAMPLES);
    let host = setup.start();
    let log = host.replay(&pure.run).finished();
    assert_eq!(log.outputs(), pure.outputs(), "it ends as it was recorded: {log:#?}");
    assert_eq!(log.nodes("replay.diverged"), ["first", "second"], "not of the other pack");
    for event in log.of("replay.diverged") {
        let payload = &event["payload"];
        assert_eq!(payload["sourceRunId"], pure.run, "{payload}");
        let at = payload["atSequence"].as_u64().expect("a number");
        let original = &pure.events[usize::try_from(at).expect("small")];
        assert_eq!(payload["originalEventId"], original["eventId"], "{payload}");
        assert_eq!(original["type"], "node.completed", "{payload}");
        let copy = log.events.iter().find(|one| one["eventId"] == payload["replayEventId"]);
        let copy = copy.expect("an event of the replay");
        let of = |event: &Value| (event["type"].clone(), event["nodeId"].clone());
        assert_eq!(of(copy), of(original), "{payload}");
        assert_eq!(copy["sequence"].as_u64().map(|at| at + 1), event["sequence"].as_u64());
    }
    // What isn't run again can't differ.
    let log = host.replay(&effects.run).finished();
    assert!(log.of("replay.diverged").is_empty(), "{log:#?}");
    is_same(&log, &effects);
    // With `fromSeq` behind it a node is taken over as it is.
    let body = json!({ "mode": "replay", "fromSeq": 3 });
    assert_eq!(host.fork(&pure.run, &body).finished().nodes("replay.diverged"), ["second"]);
    // Whether a node is pure that nobody provides, nobody knows.
    let unprovided = host.run("misbehaving-not-loaded").finished();
    let setup = host.stop();
    for pack in [SAMPLES, ECHO] {
        fs::remove_dir_all(setup.folder.path(&format!("packs/{pack}"))).expect("it was there");
    }
    let host = setup.start();
    for source in [&pure, &effects] {
        let log = host.replay(&source.run).finished();
        assert_eq!(log.outputs(), source.outputs(), "it ends as it was recorded: {log:#?}");
        assert_eq!(log.nodes("replay.diverged"), source.nodes("node.completed"), "{log:#?}");
        let kinds = log.of("replay.diverged").into_iter();
        assert!(
            kinds
                .map(|event| &event["payload"]["divergenceKind"])
                .all(|kind| kind == "type-mismatch")
        );
    }
    is_same(&host.replay(&unprovided.run).finished(), &unprovided);
}

#[test]
fn a_run_keeps_the_definition_that_it_began_with() {
    let setup = Setup::new().packs(&[SAMPLES]);
    let host = setup.start();
    let source = host.run("conformance-multi-node").finished();
    let waiting = host.run("approval").id;
    host.again(&waiting).until_waiting();
    let setup = host.kill();
    let noop = json!([{ "id": "only", "typeId": "core.noop" }]);
    let setup = setup.workflow("conformance-multi-node", &noop, &[]);
    fs::remove_file(setup.folder.path("workflows/approval.json")).expect("it was there");
    let host = setup.start();
    assert_eq!(host.run("conformance-multi-node").finished().nodes("node.completed"), ["only"]);
    let waiting = host.again(&waiting);
    waiting.answer("ask", &json!({ "action": "accept" })).expect(200);
    assert_eq!(waiting.finished().nodes("node.completed"), ["ask", "accepted"]);
    is_same(&host.replay(&source.run).finished(), &source);
    let branch = host.fork(&source.run, &json!({ "mode": "branch", "fromSeq": 3 })).finished();
    assert_eq!(branch.nodes("node.completed"), ["a", "b", "c"]);
    let gone = Ask::new("POST /v1/runs").json(&json!({ "workflowId": "approval" }));
    host.ask(&gone).fails(404, "workflow_not_found");
}
