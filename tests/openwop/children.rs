//! Runs that work for others, over hosts that stop and hosts that are killed.

use std::fs;
use std::time::Duration;

use serde_json::{Value, json};

use crate::binary::{sandglass, until};
use crate::host::{Host, SAMPLES, Setup};
use crate::log::{Log, Run, at, now};

/// Those of the runs in the journal that aren't `parent`.
fn others(setup: &Setup, parent: &str) -> Vec<String> {
    let records = setup.journal();
    let created = records.iter().filter(|record| record["event"]["type"] == "created");
    let runs = created.filter_map(|record| record["entity"].as_str()?.strip_prefix("OpenwopRun/"));
    runs.filter(|run| *run != parent).map(str::to_owned).collect()
}

/// With a workflow that sends for these workers, one after the other.
fn parent_of(setup: Setup, workers: &[&str], config: &Value) -> Setup {
    let plan = json!([{ "kind": "next-worker", "nextWorkerIds": workers }]);
    let nodes = json!([
        { "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": plan } },
        { "id": "dispatch", "typeId": "core.dispatch", "config": config },
    ]);
    setup.workflow("parent", &nodes, &[("boss", "dispatch"), ("dispatch", "boss")])
}

/// The children of `parent` that have begun, once the last of `workers` has.
#[track_caller]
fn children(parent: &Run<'_>, workers: &[&str]) -> Vec<String> {
    let last = workers.last().expect("there are some");
    let began = |event: &Value| event["payload"]["phase"] == "dispatch.succeeded";
    let told = parent.until(|event| began(event) && event["payload"]["workerId"] == *last);
    let ids = told.iter().filter(|event| began(event));
    ids.filter_map(|event| event["payload"]["childRunId"].as_str()).map(str::to_owned).collect()
}

/// A parent whose child waits for some seconds, and the child; both are under way.
fn family(seconds: u64) -> (Host, [String; 2]) {
    let delay = json!({ "delayMs": { "type": "static", "value": seconds * 1_000 } });
    let child = json!([{ "id": "wait", "typeId": "core.delay", "inputs": delay }]);
    let setup = Setup::new().workflow("child", &child, &[]);
    let host = parent_of(setup, &["child"], &json!({})).start();
    let parent = host.run("parent").id;
    let found = children(&host.again(&parent), &["child"]);
    let [child] = &found[..] else { panic!("one child: {found:?}") };
    host.again(child).until_started("wait", 1);
    let family = [parent, child.clone()];
    (host, family)
}

/// That the parent has ended with its only child.
#[track_caller]
fn has_ended(host: &Host, [parent, child]: &[String; 2]) -> Log {
    let log = host.again(parent).finished();
    log.outputs();
    let dispatched = &log.only("node.dispatched")["payload"];
    assert_eq!(
        (&dispatched["childRunId"], &dispatched["childStatus"]),
        (&json!(child), &json!("completed"))
    );
    assert_eq!(others(host.setup(), parent), [child.as_str()]);
    let chain = log.of("core.workflowChain.event");
    let phases: Vec<_> = chain.iter().map(|event| event["payload"]["phase"].clone()).collect();
    let once = ["dispatch.began", "dispatch.succeeded", "child.completed", "output.harvested"];
    assert_eq!(phases, once, "each is told once: {log:#?}");
    host.again(child).finished().outputs();
    log
}

#[test]
fn a_stopping_host_leaves_a_child_and_its_waiting_parent_to_the_next_host() {
    let (host, family) = family(6);
    let host = host.stop().start();
    let log = has_ended(&host, &family);
    let failed =
        |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.contains("failed"));
    assert_eq!(log.events.iter().find(failed), None);
}

#[test]
fn a_child_continues_with_its_definition_even_if_the_workflow_changed() {
    let (host, family) = family(6);
    let setup = host.kill();
    fs::remove_file(setup.folder.path("workflows/child.json")).expect("it was there");
    let host = setup.start();
    has_ended(&host, &family);
}

#[test]
fn a_child_whose_parent_ends_while_the_host_is_down_ends_when_it_is_back() {
    let delay = json!({ "delayMs": { "type": "static", "value": 600_000 } });
    let child = json!([{ "id": "wait", "typeId": "core.delay", "inputs": delay }]);
    let setup = Setup::new().workflow("child", &child, &[]);
    let host = parent_of(setup, &["child"], &json!({})).start();
    let run = host.bounded("parent", &json!({ "runTimeoutMs": 4_000 }));
    let child = children(&run, &["child"]).remove(0);
    let parent = run.id.clone();
    let begun = at(&host.again(&child).until(|event| event["type"] == "node.started")[0]);
    let setup = host.kill();
    until(|| {
        sandglass(&[&"--version"]).exits(0);
        now() > begun + Duration::from_secs(5)
    });
    let host = setup.start();
    host.again(&parent).finished().error("run_timeout");
    let log = host.again(&child).finished();
    let last = log.last();
    assert_eq!(
        (&last["type"], &last["payload"]["reason"]),
        (&json!("run.cancelled"), &json!("parent-cancelled"))
    );
    assert_eq!(log.nodes("node.cancelled"), ["wait"], "{log:#?}");
}

#[test]
fn a_branch_from_within_a_dispatch_has_children_of_its_own() {
    let (host, family) = family(3);
    let host = host.kill().start();
    let source = has_ended(&host, &family);
    for from in source.place("node.retried")..=source.place("node.dispatched") {
        let branch = host.fork(&source.run, &json!({ "mode": "branch", "fromSeq": from }));
        let log = branch.finished();
        log.outputs();
        let child = log.only("node.dispatched")["payload"]["childRunId"].clone();
        assert_ne!(child, source.only("node.dispatched")["payload"]["childRunId"], "{log:#?}");
        let chain = log.of("core.workflowChain.event").into_iter();
        let own = chain.filter(|event| event["payload"]["childRunId"] == child).count();
        assert_eq!(own, 3, "its beginning, its end and what came of it: {log:#?}");
    }
}

#[test]
fn a_wait_for_a_person_in_a_child_is_found_in_the_log_of_its_parent() {
    let host = parent_of(Setup::new().packs(&[SAMPLES]), &["approval"], &json!({})).start();
    for ending in ["answered", "cancelled"] {
        let run = host.run("parent");
        let found = children(&run, &["approval"]);
        let child = host.again(&found[0]);
        child.until_waiting();
        assert_eq!(child.snapshot()["parentRunId"], run.id);
        if ending == "answered" {
            child.answer("ask", &json!({ "action": "accept" })).expect(200);
            run.finished().outputs();
            continue;
        }
        run.cancel(&json!({})).expect(200);
        let log = run.finished();
        assert_eq!(log.nodes("node.cancelled"), ["dispatch"], "{log:#?}");
        let log = child.finished();
        assert_eq!(log.last()["payload"]["reason"], "parent-cancelled", "{log:#?}");
        // It had no handler that could have been cancelled, and is told all the same.
        assert_eq!(log.nodes("node.cancelled"), ["ask"], "{log:#?}");
    }
}

#[test]
fn a_child_sees_outputs_of_earlier_children_even_if_the_host_is_lost_in_between() {
    let node =
        |kind: &str, inputs: Value| json!({ "id": "only", "typeId": kind, "inputs": inputs });
    let text = json!({ "said": { "type": "static", "value": "by the first" } });
    let delay = json!({ "delayMs": { "type": "static", "value": 6_000 } });
    let seen = json!({ "seen": { "type": "variable", "variableName": "word", "optional": true } });
    let setup = Setup::new()
        .workflow("first", &json!([node("core.identity", text)]), &[])
        .workflow("second", &json!([node("core.delay", delay)]), &[])
        .workflow("third", &json!([node("core.identity", seen)]), &[]);
    let config = json!({ "outputMapping": { "word": "said" } });
    let workers = ["first", "unknown", "second", "third"];
    let host = parent_of(setup, &workers, &config).start();
    let parent = host.run("parent").id;
    let begun = children(&host.again(&parent), &workers[..3]);
    host.again(&begun[1]).until_started("only", 1);
    let host = host.kill().start();
    let run = host.again(&parent);
    let log = run.finished();
    log.outputs();
    let began = children(&run, &["third"]);
    assert_eq!(began[..2], begun, "those are the same");
    let third = host.again(&began[2]).finished();
    assert_eq!(third.outputs()["seen"], "by the first", "{third:#?}");
    let chain: Vec<_> = log.of("core.workflowChain.event");
    let count =
        |phase: &str| chain.iter().filter(|event| event["payload"]["phase"] == phase).count();
    let phases = ["dispatch.began", "dispatch.succeeded", "dispatch.failed", "child.completed"];
    // Who could not be started is tried again when the host is back.
    assert_eq!(phases.map(count), [5, 3, 2, 3], "{log:#?}");
    assert_eq!(log.of("variable.changed").len(), 1, "{log:#?}");
    let replay = host.replay(&parent).finished();
    assert_eq!(replay.types(), log.types());
}
