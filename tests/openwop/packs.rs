//! Nodes of packs: their bounds, how they break, and packs that are refused.

use serde_json::{Value, json};

use crate::host::{ECHO, GREETER, Host, Setup, shared};
use crate::log::{at, time};

const MISBEHAVING: &str = "vendor.sandglass.misbehaving";

/// The breach of a run of the one node of a misbehaving pack: its limit.
#[track_caller]
fn breach_of(host: &Host, workflow: &str, kind: &str, code: &str) -> u64 {
    let run = host.run(workflow);
    let log = run.finished();
    let breach = log.breach(kind);
    assert_eq!(breach["nodeId"], "bad", "{log:#?}");
    assert_eq!(log.nodes("node.started"), ["bad"], "{log:#?}");
    let error = log.error(code);
    assert_eq!(log.only("node.failed")["payload"]["error"], *error, "{log:#?}");
    for error in [error, &run.snapshot()["error"]] {
        let details = &error["details"];
        assert_eq!(details["dyingSpan"], "guest", "{log:#?}");
        assert_eq!(details["kind"], kind, "{log:#?}");
        assert_eq!(details["nodeId"], "bad", "{log:#?}");
        let numbers = (&details["limit"], &details["observed"]);
        assert_eq!(numbers, (&breach["limit"], &breach["observed"]), "{log:#?}");
    }
    breach["limit"].as_u64().expect("a number")
}

#[track_caller]
fn limits(host: &Host) -> [u64; 3] {
    [
        breach_of(host, "misbehaving-grower", "wasm-memory", "wasm_memory_exceeded"),
        breach_of(host, "misbehaving-spinner", "wasm-execution-time", "wasm_execution_timeout"),
        breach_of(host, "misbehaving-fuel-burner", "wasm-fuel", "wasm_fuel_exhausted"),
    ]
}

#[test]
fn a_node_has_the_limits_that_its_pack_requests_below_the_hosts_ceilings() {
    assert_eq!(limits(&shared()), [4 << 20, 200, 1_000_000]);
}

#[test]
fn the_hosts_ceilings_cap_what_packs_request() {
    let packs = ["grower", "spinner", "fuel-burner"].map(|name| format!("{MISBEHAVING}.{name}"));
    let ceilings = ["--pack-memory-mib", "2", "--pack-execution", "120ms", "--pack-fuel", "500000"];
    let packs = packs.each_ref().map(String::as_str);
    let host = Setup::new().packs(&packs).arguments(&ceilings).start();
    let wasm = host.get("/.well-known/openwop").expect(200)["nodePackRuntimes"]["wasm"].clone();
    assert_eq!((&wasm["maxMemoryBytes"], &wasm["maxExecutionMs"]), (&json!(2 << 20), &json!(120)));
    let found = [
        breach_of(&host, "misbehaving-grower", "wasm-memory", "wasm_memory_exceeded"),
        breach_of(&host, "misbehaving-fuel-burner", "wasm-fuel", "wasm_fuel_exhausted"),
    ];
    assert_eq!(found, [2 << 20, 500_000]);
    // Of time and fuel the one that is used up first ends it.
    let log = host.run("misbehaving-spinner").finished();
    assert_eq!(log.only("cap.breached")["payload"]["nodeId"], "bad");
    let kind = log.only("cap.breached")["payload"]["kind"].as_str().expect("a text");
    assert!(["wasm-fuel", "wasm-execution-time"].contains(&kind), "{log:#?}");
}

#[test]
fn a_ceiling_on_time_applies_to_packs_that_request_more_or_nothing() {
    let spinner = format!("{MISBEHAVING}.spinner");
    let setup = Setup::new().packs(&[&spinner, crate::host::SAMPLES]);
    let host = setup.arguments(&["--pack-execution", "120ms"]).start();
    let code = "wasm_execution_timeout";
    assert_eq!(breach_of(&host, "misbehaving-spinner", "wasm-execution-time", code), 120);
    let log = host.run("spin").finished();
    let breach = log.breach("wasm-execution-time");
    assert_eq!((&breach["limit"], &breach["nodeId"]), (&json!(120), &json!("spin")));
    log.error(code);
}

#[test]
fn a_run_ends_during_a_node_that_never_ends() {
    let host = shared();
    let log = host.bounded("spin", &json!({ "runTimeoutMs": 500 })).finished();
    assert_eq!(log.breach("run-duration")["limit"], 500);
    log.error("run_timeout");
    let run = host.run("spin");
    run.until_started("spin", 1);
    run.cancel(&json!({})).expect(200);
    let log = run.finished();
    assert_eq!(log.last()["type"], "run.cancelled");
    assert_eq!(log.nodes("node.started"), ["spin"]);
}

#[test]
fn a_node_that_traps_fails_its_run_without_a_breach() {
    let host = shared();
    for (workflow, code) in [
        ("misbehaving-trapper", "wasm_trap"),
        ("misbehaving-liar", "result_out_of_bounds"),
        ("misbehaving-no-json", "invalid_json"),
        ("misbehaving-no-outcome", "invalid_shape"),
        ("misbehaving-wild-alloc", "wasm_trap"),
    ] {
        let log = host.run(workflow).finished();
        assert!(log.of("cap.breached").is_empty(), "{log:#?}");
        assert_eq!(log.nodes("node.started"), ["bad"], "{log:#?}");
        let error = &log.only("node.failed")["payload"]["error"];
        assert_eq!(error["code"], code, "{log:#?}");
        log.error(code);
        if workflow == "misbehaving-trapper" {
            let line = &log.only("log.appended")["payload"];
            let told = (&line["message"], &line["nodeId"]);
            assert_eq!(told, (&json!("about to trap"), &json!("bad")), "{log:#?}");
            assert!(log.place("log.appended") < log.place("node.failed"), "{log:#?}");
            let replay = host.replay(&log.run).finished();
            assert_eq!(replay.types(), log.types(), "{replay:#?}");
        }
    }
}

#[test]
fn unusable_packs_are_skipped_and_named_and_the_others_serve() {
    let setup = Setup::new().packs(&[ECHO, GREETER]);
    let refused = [
        "vendor.openwop.misbehaving.abi-bomb",
        "vendor.sandglass.misbehaving.doubled-node",
        "vendor.sandglass.misbehaving.slow-describer",
        "vendor.sandglass.misbehaving.wasi",
        "vendor.sandglass.misbehaving.wrong-name",
        "vendor.sandglass.misbehaving.wrong-nodes",
    ];
    refused.iter().for_each(|name| setup.pack(&format!("packs/{name}"), name));
    let bad = [
        "entry-outside",
        "manifest-is-no-json",
        "no-exports",
        "no-manifest",
        "no-module",
        "no-wasm",
    ];
    bad.iter().for_each(|name| setup.pack(&format!("bad-packs/{name}"), name));
    let host = setup.start();
    let found = host.get("/.well-known/openwop").expect(200);
    assert_eq!(found["nodePackRuntimes"]["wasm"]["loadedPacks"], json!([GREETER, ECHO]));
    assert_eq!(found["capabilities"]["nodePackRuntimes"], found["nodePackRuntimes"]);
    let log = host.run("conformance-wasm-pack-roundtrip").finished();
    assert_eq!(log.outputs()["greeting"], "Hello, world!");
    let said = host.stop().said();
    for name in refused.iter().chain(&bad) {
        let line = said.lines().find(|line| line.contains("left out") && line.contains(name));
        assert!(line.is_some(), "`{name}` isn't named in {said}");
    }
    assert!(said.contains("unsupported_abi_version"), "{said}");
    for name in [ECHO, GREETER] {
        assert!(!said.contains(&format!("{name}/pack.json")), "`{name}` was left out: {said}");
    }
}

#[test]
fn a_node_of_a_pack_receives_the_inputs_of_its_run_below_its_own() {
    let own = json!({ "port": { "type": "static", "value": "of the node" } });
    let nodes = json!([{
        "id": "echo", "typeId": "vendor.sandglass.wat-echo.echo", "inputs": own,
        "config": { "setting": "of the node" },
    }]);
    let host = Setup::new().packs(&[ECHO]).workflow("overlaid", &nodes, &[]).start();
    let inputs = json!({
        "port": "of the run", "setting": "of the run", "other": [1, null], "resumeValue": "early",
    });
    let log = host.run_with(&json!({ "workflowId": "overlaid", "inputs": inputs })).finished();
    // Only an interrupt's answer is a node's `resumeValue`.
    let expected = json!({ "port": "of the node", "setting": "of the node", "other": [1, null] });
    assert_eq!(*log.outputs(), expected);
    let replay = host.replay(&log.run).finished();
    assert!(replay.of("replay.diverged").is_empty(), "{replay:#?}");
}

#[test]
fn a_pack_with_another_category_is_loaded_with_a_warning() {
    let setup = Setup::new().packs(&[ECHO]).variable("SANDGLASS_LOG", "warn");
    let file = setup.folder.path(&format!("packs/{ECHO}/pack.json"));
    let text = std::fs::read_to_string(&file).expect("it is there");
    let mut manifest: Value = serde_json::from_str(&text).expect("JSON");
    manifest["nodes"][0]["category"] = json!("examples");
    std::fs::write(&file, manifest.to_string()).expect("written");
    let host = setup.start();
    let found = host.get("/.well-known/openwop").expect(200);
    assert_eq!(found["nodePackRuntimes"]["wasm"]["loadedPacks"], json!([ECHO]));
    let said = host.stop().said();
    assert!(said.contains("examples") && said.contains("no such category"), "{said}");
}

#[test]
fn a_node_reads_and_writes_only_its_declared_fields() {
    let host = shared();
    let log = host.run("channels").finished();
    log.outputs();
    assert!(!log.of("channel.written").is_empty(), "{log:#?}");
    for event in log.of("channel.written") {
        let payload = &event["payload"];
        assert!(payload["reducer"].as_str().is_some_and(|name| !name.is_empty()), "{payload}");
        // It is written while the node executes, and recorded at its end.
        let written_at = time(&payload["writtenAt"]);
        assert!(written_at >= at(&log.events[0]) && written_at <= at(event), "{log:#?}");
    }
    let copies: Vec<Value> = host.replay(&log.run).finished().events;
    for (copy, event) in copies.iter().zip(&log.events) {
        let is_write = event["type"] == "channel.written";
        assert!(!is_write || copy["payload"] == event["payload"], "{copy}");
    }
    let log = host.run("log").finished();
    let lines: Vec<&Value> =
        log.of("log.appended").iter().map(|event| &event["payload"]["level"]).collect();
    assert_eq!(lines, ["debug", "debug", "info", "warn", "error"]);
    let body = json!({ "workflowId": "wat-variable", "inputs": { "name": "by two results" } });
    assert!(host.run_with(&body).finished().outputs().to_string().contains("by two results"));
    let body = json!({ "workflowId": "sensitive", "inputs": { "token": "hush-4711" } });
    let run = host.run_with(&body);
    let log = run.finished();
    for seen in [json!(log.events), run.snapshot()] {
        assert!(!seen.to_string().contains("hush"), "{seen}");
    }
}
