//! Runs that work for others, over hosts that stop and hosts that are killed.

use std::fs;

use serde_json::{Value, json};

use crate::binary::until;
use crate::host::{Host, Setup};
use crate::log::Log;

/// Those of the runs in the journal that aren't `parent`.
fn others(setup: &Setup, parent: &str) -> Vec<String> {
    let records = setup.journal();
    let created = records.iter().filter(|record| record["event"]["type"] == "created");
    let runs = created.filter_map(|record| record["entity"].as_str()?.strip_prefix("OpenwopRun/"));
    runs.filter(|run| *run != parent).map(str::to_owned).collect()
}

/// A parent whose child waits for some seconds, and the child; both are under way.
fn family(seconds: u64) -> (Host, [String; 2]) {
    let plan = json!([{ "kind": "next-worker", "nextWorkerIds": ["child"] }]);
    let parent = json!([
        { "id": "boss", "typeId": "core.orchestrator.supervisor", "config": { "plan": plan } },
        { "id": "dispatch", "typeId": "core.dispatch" },
    ]);
    let delay = json!({ "delayMs": { "type": "static", "value": seconds * 1_000 } });
    let child = json!([{ "id": "wait", "typeId": "core.delay", "inputs": delay }]);
    let host = Setup::new()
        .workflow("parent", &parent, &[("boss", "dispatch"), ("dispatch", "boss")])
        .workflow("child", &child, &[])
        .start();
    let parent = host.run("parent").id;
    host.again(&parent).until_started("dispatch", 1);
    let mut found = Vec::new();
    until(|| {
        found = others(host.setup(), &parent);
        !found.is_empty()
    });
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
    host.again(child).finished().outputs();
    log
}

#[test]
fn a_host_that_stops_leaves_a_child_and_who_waits_for_it_to_the_next_one() {
    let (host, family) = family(6);
    let host = host.stop().start();
    let log = has_ended(&host, &family);
    let failed =
        |event: &&Value| event["type"].as_str().is_some_and(|kind| kind.contains("failed"));
    assert_eq!(log.events.iter().find(failed), None);
}

#[test]
fn a_child_goes_on_as_it_began_whatever_has_become_of_its_workflow() {
    let (host, family) = family(6);
    let setup = host.kill();
    fs::remove_file(setup.folder.path("workflows/child.json")).expect("it was there");
    let host = setup.start();
    has_ended(&host, &family);
}
