//! Runs that wait for people.

use std::thread;

use serde_json::{Value, json};

use crate::host::{Host, SAMPLES, Setup, shared};
use crate::log::{Log, Run, between};

#[track_caller]
fn asked<'a>(host: &'a Host, workflow: &str) -> Run<'a> {
    let run = host.run(workflow);
    assert_eq!(run.until_waiting()["kind"], "approval");
    let seen = run.snapshot();
    assert_eq!(seen["status"], "waiting-approval", "{seen}");
    assert_eq!(
        (&seen["currentNodeId"], &seen["interrupt"]["nodeId"]),
        (&json!("ask"), &json!("ask"))
    );
    run
}

/// That the answer led to this branch, and to that alone.
#[track_caller]
fn led_to(log: &Log, branch: &str) {
    let ran = log.nodes("node.completed");
    assert_eq!(ran, ["ask", branch], "{log:#?}");
    assert_eq!(log.nodes("node.started"), ["ask", branch], "it was suspended, and begun once");
    assert_eq!(log.of("interrupt.requested").len(), 1);
    assert!(log.place("interrupt.resolved") < log.place("node.resumed"));
    assert!(log.place("node.resumed") < log.place("node.completed"));
    log.outputs();
}

#[test]
fn an_answer_decides_how_the_run_continues() {
    let host = shared();
    for workflow in ["approval", "approval-by-response"] {
        for (action, branch) in [("accept", "accepted"), ("reject", "rejected")] {
            let run = asked(&host, workflow);
            let answer = json!({ "action": action, "note": "as agreed" });
            let resolved = run.answer("ask", &answer).expect(200);
            assert_eq!((&resolved["runId"], &resolved["nodeId"]), (&json!(run.id), &json!("ask")));
            let log = run.finished();
            led_to(&log, branch);
            assert_eq!(log.outputs_of("ask")["decision"], answer, "{log:#?}");
            let event = log.only("interrupt.resolved");
            assert_eq!(event["payload"]["resumeValue"], answer, "{log:#?}");
        }
    }
}

#[test]
fn an_invalid_answer_is_refused_and_the_run_keeps_waiting() {
    let host = shared();
    let run = asked(&host, "approval");
    for wrong in [json!({ "action": "maybe" }), json!({}), json!(null), json!("accept"), json!([])]
    {
        let refused = run.answer("ask", &wrong);
        assert_eq!(refused.fails(400, "validation_error")["actions"], json!(["accept", "reject"]));
    }
    let path = format!("/v1/runs/{}/interrupts/ask", run.id);
    for body in [json!({}), json!({ "action": "accept" })] {
        host.post(&path, &body).fails(400, "validation_error");
    }
    let accept = json!({ "action": "accept" });
    run.answer("nobody", &accept).fails(404, "not_found");
    run.answer("accepted", &accept).fails(409, "interrupt_already_resolved");
    assert_eq!(run.snapshot()["status"], "waiting-approval");
    run.answer("ask", &accept).expect(200);
    led_to(&run.finished(), "accepted");
}

#[test]
fn one_of_several_concurrent_answers_is_accepted() {
    let host = shared();
    let run = asked(&host, "approval");
    let answers: Vec<(u16, &str)> = thread::scope(|scope| {
        let people: Vec<_> = ["accept", "reject"]
            .repeat(5)
            .into_iter()
            .map(|action| {
                let run = &run;
                scope.spawn(move || {
                    let reply = run.answer("ask", &json!({ "action": action }));
                    if reply.status != 200 {
                        reply.fails(409, "interrupt_already_resolved");
                    }
                    (reply.status, action)
                })
            })
            .collect();
        people.into_iter().map(|person| person.join().expect("it answered")).collect()
    });
    let taken: Vec<&str> =
        answers.iter().filter(|(status, _)| *status == 200).map(|(_, action)| *action).collect();
    let [taken] = taken[..] else { panic!("not one was taken: {answers:?}") };
    let log = run.finished();
    led_to(&log, if taken == "accept" { "accepted" } else { "rejected" });
    run.answer("ask", &json!({ "action": "accept" })).fails(409, "interrupt_already_resolved");
    assert_eq!(run.finished().events.len(), log.events.len());
}

#[test]
fn a_decision_of_low_confidence_is_held_until_it_is_ratified() {
    let next = |confidence: f64| json!({ "kind": "next-worker", "nextWorkerIds": ["idle"], "confidence": confidence });
    let boss = json!([
        {
            "id": "boss", "typeId": "core.orchestrator.supervisor",
            "config": { "plan": [next(0.7), next(0.6)], "agentId": "the-boss" },
        },
        { "id": "dispatch", "typeId": "core.dispatch" },
        { "id": "idle", "typeId": "core.noop" },
    ]);
    let edges = [("boss", "dispatch"), ("dispatch", "idle"), ("dispatch", "boss")];
    let asker = json!([{
        "id": "boss", "typeId": "core.orchestrator.supervisor",
        "config": { "decider": "vendor.sandglass.samples.ask", "key": "turn-1-decision" },
    }]);
    let setup = Setup::new().packs(&[SAMPLES]).workflow("reserved", &asker, &[]);
    let host = setup.workflow("unsure", &boss, &edges).start();
    // The answer to a decider's own question is not taken for a decision.
    host.run("reserved").finished().error("invalid_interrupt");
    // The first turn is sure enough; the second one is held, and counts as one.
    let run = host.bounded("unsure", &json!({ "maxLoopIterations": 3 }));
    let asked = run.until_waiting();
    assert_eq!(asked["kind"], "low-confidence");
    let expected = json!({
        "agentId": "the-boss", "threshold": 0.7, "observed": 0.6, "decision": next(0.6),
    });
    assert_eq!(asked["data"], expected);
    assert_eq!(run.snapshot()["status"], "waiting-approval");
    let so_far = run.poll(-1, "0").expect(200)["events"].clone();
    let of = |kind: &str| {
        let events = so_far.as_array().expect("a list").iter();
        events.filter(|event| event["type"] == kind).cloned().collect::<Vec<_>>()
    };
    assert_eq!(of("runOrchestrator.decided").len(), 1, "the decision is held: {so_far:#}");
    let suspended = &of("node.suspended")[0]["payload"];
    let reason = (&suspended["reason"], &suspended["agentId"]);
    assert_eq!(reason, (&json!("low-confidence"), &json!("the-boss")));
    for wrong in [json!("yes"), json!({}), json!({ "action": "accept" }), json!({ "kind": "rest" })]
    {
        assert_eq!(
            run.answer("boss", &wrong).fails(400, "validation_error")["path"],
            "/resumeValue"
        );
    }
    // It outlives its host, and what was held is decided as the person gives it.
    let id = run.id.clone();
    let host = host.kill().start();
    let run = host.again(&id);
    run.answer("boss", &next(0.6)).expect(200);
    let log = run.finished();
    log.outputs();
    let end = json!({ "kind": "terminate", "reason": "plan-finished" });
    assert_eq!(log.turns(), [&next(0.7), &next(0.6), &end], "{log:#?}");
    assert_eq!(log.nodes("node.completed").iter().filter(|node| **node == "idle").count(), 2);
    let replay = host.replay(&id).finished();
    assert_eq!(replay.types(), log.types(), "{replay:#?}");
    // A branch from behind the answer counts the held turn once, too.
    let body = json!({
        "mode": "branch", "fromSeq": log.place("node.resumed") + 1,
        "runOptionsOverlay": { "configurable": { "maxLoopIterations": 2 } },
    });
    let branch = host.fork(&id, &body).finished();
    assert_eq!(branch.turns(), log.turns()[..2], "{branch:#?}");
    let breach = branch.breach("loop-iterations");
    assert_eq!((&breach["limit"], &breach["observed"]), (&json!(2), &json!(3)));
    // Another decision may be given, also a question.
    let run = host.run("unsure");
    run.until_waiting();
    let question = json!({ "kind": "ask-user", "prompt": "which one?" });
    run.answer("boss", &question).expect(200);
    run.until(|event| {
        event["type"] == "interrupt.requested" && event["payload"]["kind"] == "clarification"
    });
    run.answer("boss", &json!("that one")).expect(200);
    let log = run.finished();
    assert_eq!(log.turns()[1], &question, "{log:#?}");
    let ends = log.of("node.completed").into_iter();
    let answers: Vec<&Value> =
        ends.filter_map(|end| end["payload"]["outputs"].get("answer")).collect();
    assert_eq!(answers, [&json!("that one")], "{log:#?}");
    // The run sets the threshold.
    let log = host.bounded("unsure", &json!({ "escalationThreshold": 0.5 })).finished();
    assert!(log.of("node.suspended").is_empty(), "{log:#?}");
    for wrong in [json!(-0.1), json!(1.1), json!("0.5"), json!(null)] {
        let bounds = json!({ "escalationThreshold": wrong });
        let body = json!({ "workflowId": "unsure", "configurable": bounds });
        host.post("/v1/runs", &body).fails(400, "validation_error");
    }
}

#[test]
fn an_interrupt_without_an_answer_in_time_fails() {
    let host = shared();
    let run = host.run("approval-with-timeout");
    assert_eq!(run.until_waiting()["timeoutMs"], 500);
    let log = run.finished();
    log.error("interrupt_timeout");
    assert_eq!(log.nodes("node.failed"), ["ask"]);
    assert_eq!(log.nodes("node.started"), ["ask"]);
    run.answer("ask", &json!({ "action": "accept" })).fails(409, "interrupt_already_resolved");
}

#[test]
fn an_answer_comes_after_any_number_of_restarts() {
    let ask = json!([{
        "id": "ask", "typeId": "vendor.sandglass.samples.ask",
        "inputs": {
            "key": { "type": "static", "value": "approval-1" },
            "timeoutMs": { "type": "static", "value": 6_000 },
        },
    }]);
    let host = Setup::new().packs(&[SAMPLES]).workflow("soon", &ask, &[]).start();
    let runs = ["approval", "approval-by-response", "approval", "soon"]
        .map(|workflow| asked(&host, workflow).id);
    let host = host.kill().start();
    let accept = json!({ "action": "accept" });
    host.again(&runs[0]).answer("ask", &accept).expect(200);
    led_to(&host.again(&runs[0]).finished(), "accepted");
    // Its time goes on, too.
    let late = host.again(&runs[3]).finished();
    late.error("interrupt_timeout");
    let waited = between(late.only("interrupt.requested"), late.only("node.failed"));
    assert!(waited.as_millis() >= 6_000, "{late:#?}");
    let host = host.stop().start();
    for (run, action, branch) in
        [(&runs[1], "reject", "rejected"), (&runs[2], "accept", "accepted")]
    {
        let run = host.again(run);
        let seen: Value = run.snapshot();
        assert_eq!(seen["status"], "waiting-approval", "{seen}");
        run.answer("ask", &json!({ "action": action })).expect(200);
        led_to(&run.finished(), branch);
    }
    host.again(&runs[0]).answer("ask", &accept).fails(409, "interrupt_already_resolved");
}

#[test]
fn a_waiting_run_may_survive_more_hosts_than_a_working_run() {
    // A handler that its host loses is run again so often at most.
    const ATTEMPTS_MAX: u32 = sandglass_liveness::decide::RERUN_ATTEMPTS_MAX;
    let timeout = json!({ "key": { "type": "static", "value": "k" }, "timeoutMs": { "type": "static", "value": 3_600_000 } });
    let ask = json!([{ "id": "ask", "typeId": "vendor.sandglass.samples.ask", "inputs": timeout }]);
    let plan = json!([{ "kind": "next-worker", "nextWorkerIds": ["approval"] }]);
    let family = json!([
        { "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": plan } },
        { "id": "dispatch", "typeId": "core.dispatch" },
    ]);
    let setup = Setup::new().packs(&[SAMPLES]).workflow("long", &ask, &[]);
    let edges = [("boss", "dispatch"), ("dispatch", "boss")];
    let mut host = setup.workflow("family", &family, &edges).start();
    let asking = asked(&host, "long").id;
    let body = json!({ "workflowId": "conformance-delay", "inputs": { "delayMs": 3_600_000 } });
    let delayed = host.run_with(&body).id;
    host.again(&delayed).until_started("wait", 1);
    let parent = host.run("family").id;
    let began = |event: &Value| event["payload"]["phase"] == "dispatch.succeeded";
    let told = host.again(&parent).until(began);
    let child =
        told.iter().find(|event| began(event)).expect("it was found")["payload"]["childRunId"]
            .clone();
    let child = child.as_str().expect("an id").to_owned();
    host.again(&child).until_waiting();
    for _ in 0..=ATTEMPTS_MAX {
        host = host.kill().start();
    }
    for run in [&delayed, &parent] {
        assert_eq!(host.again(run).snapshot()["status"], "running");
    }
    let accept = json!({ "action": "accept" });
    host.again(&child).answer("ask", &accept).expect(200);
    let log = host.again(&parent).finished();
    log.outputs();
    assert_eq!(log.only("node.dispatched")["payload"]["childRunId"], child, "{log:#?}");
    assert_eq!(log.nodes("node.started"), ["boss", "dispatch", "boss"], "{log:#?}");
    host.again(&asking).answer("ask", &accept).expect(200);
    host.again(&asking).finished().outputs();
    host.again(&delayed).cancel(&json!({})).expect(200);
    let log = host.again(&delayed).finished();
    assert_eq!(log.last()["type"], "run.cancelled", "{log:#?}");
    assert!(log.of("node.failed").is_empty(), "{log:#?}");
}
