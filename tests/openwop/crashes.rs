//! Hosts that are killed in the middle of runs.

use serde_json::{Value, json};

use crate::host::{Host, SAMPLES, Setup};

/// Starts a run of one of the workflows for this, with a delay, and waits until it is there.
#[track_caller]
fn waiting(host: &Host, workflow: &str, delay_ms: u64) -> String {
    let body = json!({ "workflowId": workflow, "inputs": { "delayMs": delay_ms } });
    let run = host.run_with(&body);
    run.until_started("wait", 1);
    run.id
}

#[test]
fn runs_continue_or_fail_as_their_definitions_state() {
    let host = Setup::new().packs(&[SAMPLES]).start();
    // As long as any machine needs for all of this, and no longer where that is waited for.
    let start = |workflow: &str, delay_ms| [(); 3].map(|()| waiting(&host, workflow, delay_ms));
    let (fail, rerun) = (start("crash-fail", 600_000), start("crash-rerun", 10_000));
    let (over, asking) = (host.run("conformance-noop").finished(), host.run("approval").id);
    host.again(&asking).until_waiting();
    let host = host.kill().start();
    for run in &rerun {
        let log = host.again(run).finished();
        assert_eq!(log.nodes("node.completed"), ["before", "wait", "after"], "{log:#?}");
        assert_eq!(log.nodes("node.started"), ["before", "wait", "after"], "{log:#?}");
        let retried = log.only("node.retried");
        assert_eq!(
            (&retried["nodeId"], &retried["payload"]["attempt"]),
            (&json!("wait"), &json!(1))
        );
        // Each effect was made once, before it or after it.
        let counts = ["before", "after"].map(|node| log.outputs_of(node)["count"].clone());
        assert_eq!(counts, [1, 2], "{log:#?}");
        assert_eq!(host.again(run).snapshot()["variables"]["effects"], 2);
    }
    for run in &fail {
        let log = host.again(run).finished();
        log.error("run_interrupted");
        assert_eq!(log.nodes("node.failed"), ["wait"], "{log:#?}");
        assert_eq!(log.nodes("node.started"), ["before", "wait"], "{log:#?}");
        assert_eq!(host.again(run).snapshot()["status"], "failed");
    }
    assert_eq!(host.again(&over.run).finished().events, over.events);
    assert_eq!(host.again(&asking).snapshot()["status"], "waiting-approval");
}

#[test]
fn a_run_outlives_several_hosts() {
    let mut host = Setup::new().packs(&[SAMPLES]).start();
    let run = waiting(&host, "crash-rerun", 20_000);
    for kills in 1..=3_usize {
        host = host.kill().start();
        let again = host.again(&run);
        let events = again.until(|event| event["payload"]["attempt"] == kills);
        let retried = |event: &&Value| event["type"] == "node.retried";
        assert_eq!(events.iter().filter(retried).count(), kills, "{events:#?}");
    }
    let log = host.again(&run).finished();
    assert_eq!(log.outputs_of("after")["count"], 2, "{log:#?}");
    // It waits no longer than once, however often it was begun.
    let waited = crate::log::between(log.of("node.started")[1], log.of("node.completed")[1]);
    assert!(waited.as_millis() >= 20_000, "{log:#?}");
}

#[test]
fn a_host_that_stops_gracefully_leaves_its_runs_to_the_next_one() {
    let host = Setup::new().packs(&[SAMPLES]).start();
    let run = waiting(&host, "crash-rerun", 8_000);
    let spinning = host.run("spin");
    spinning.until_started("spin", 1);
    let spinning = spinning.id.clone();
    let stream = host.stream(&run, "", None);
    let host = host.stop().start();
    // Whoever reads is let go, and goes on with the next one.
    let told = stream.filter(|frame| matches!(frame, crate::client::Frame::Event { .. })).count();
    let log = host.again(&run).finished();
    assert!(told < log.events.len(), "{log:#?}");
    assert_eq!(log.nodes("node.completed"), ["before", "wait", "after"], "{log:#?}");
    assert_eq!(log.outputs_of("after")["count"], 2, "{log:#?}");
    let spinning = host.again(&spinning);
    spinning.until(|event| event["type"] == "node.retried");
    spinning.cancel(&json!({})).expect(200);
    assert_eq!(spinning.finished().last()["type"], "run.cancelled");
}

#[test]
fn an_effect_that_a_stopping_host_never_started_is_left_to_the_next_host() {
    let host = Setup::new().packs(&[SAMPLES]).start();
    // They end while the host waits for what runs, and effects are next.
    let runs = [(); 3].map(|()| waiting(&host, "crash-rerun", 1_500));
    let host = host.stop().start();
    for run in &runs {
        let log = host.again(run).finished();
        assert_eq!(log.outputs_of("after")["count"], 2, "{log:#?}");
        assert_eq!(log.nodes("node.started"), ["before", "wait", "after"], "{log:#?}");
    }
}

#[test]
fn an_effect_in_progress_is_not_repeated() {
    let setup = Setup::new().packs(&[SAMPLES]);
    // The node that never ends says that it has effects, and nobody says what a crash means.
    let path = setup.folder.path(&format!("packs/{SAMPLES}/pack.json"));
    let text = std::fs::read_to_string(&path).expect("it is there");
    let mut manifest: Value = serde_json::from_str(&text).expect("JSON");
    let nodes = manifest["nodes"].as_array_mut().expect("a list");
    let spin = nodes.iter_mut().find(|node| node["typeId"] == "vendor.sandglass.samples.spin");
    spin.expect("it is one of them")["role"] = json!("side-effect");
    std::fs::write(&path, manifest.to_string()).expect("written");
    let host = setup.start();
    let run = host.run("spin");
    run.until_started("spin", 1);
    let run = run.id.clone();
    let host = host.kill().start();
    let source = host.again(&run).finished();
    source.error("run_interrupted");
    assert_eq!(source.nodes("node.failed"), ["spin"], "{source:#?}");
    assert!(source.of("node.retried").is_empty(), "{source:#?}");
    // A replay of that needs no other host to die.
    let replay = host.replay(&run).finished();
    assert_eq!(replay.types(), source.types());
    replay.error("run_interrupted");
}
