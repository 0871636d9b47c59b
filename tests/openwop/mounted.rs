//! The host inside the daemon: runs of workflows beside other entities, in one journal.

use serde_json::{Value, json};

use crate::binary::{LAMP, until};
use crate::client::Ask;
use crate::host::{GREETER, Host, SAMPLES, Setup};

/// In a daemon that has lamps, too.
fn mounted() -> Setup {
    let setup = Setup::new().packs(&[GREETER, SAMPLES]);
    setup.folder.write("specs/lamp.ioa.toml", LAMP);
    let specs = setup.folder.path("specs").into_os_string().into_string().expect("a text");
    setup.served_by(&["up", "--specs", &specs])
}

#[test]
fn runs_and_other_entities_share_a_daemon_and_survive_its_restart() {
    let host = mounted().start();
    let found = host.get("/.well-known/openwop").expect(200);
    assert_eq!(found["nodePackRuntimes"]["wasm"]["loadedPacks"], json!([GREETER, SAMPLES]));
    let log = host.run("conformance-wasm-pack-roundtrip").finished();
    assert_eq!(log.outputs()["greeting"], "Hello, world!");
    host.post("/v1/entities/Lamp/1", &json!({})).expect(201);
    let waiting = host.run("approval");
    waiting.until_waiting();
    let id = waiting.id.clone();
    let host = host.kill().start();
    host.get("/v1/entities/Lamp/1").expect(200);
    assert_eq!(host.again(&log.run).finished().events, log.events);
    let waiting = host.again(&id);
    waiting.answer("ask", &json!({ "action": "accept" })).expect(200);
    waiting.finished().outputs();
    // Specs are read anew, and those of runs stay.
    host.hang_up();
    until(|| host.get("/healthz").status == 200 && host.setup().said().contains("\nreloaded"));
    host.run("linear").finished();
    host.stop();
}

#[test]
fn the_daemon_shows_and_cancels_runs_and_refuses_their_internal_actions() {
    let host = mounted().start();
    let run = host.run("approval");
    run.until_waiting();
    let entity = format!("/v1/entities/OpenwopRun/{}", run.id);
    assert_eq!(host.get(&entity).expect(200)["id"], run.id);
    host.get(&format!("{entity}/history")).expect(200);
    let session = format!("/v1/sessions/OpenwopRun/{}", run.id);
    for target in [
        "/v1/entities/OpenwopRun/run-00000000000000000000000000000000".to_owned(),
        "/v1/entities/OpenwopReplay/replay-00000000000000000000000000000000".to_owned(),
        "/v1/entities/OpenwopWorkflow/forged".to_owned(),
        format!("{entity}/actions/Complete"),
        format!("{entity}/actions/Fail"),
        format!("{session}/resume"),
    ] {
        is_forbidden(&host, &target);
    }
    host.post(&format!("{session}/cancel"), &json!({ "reason": "enough" })).expect(202);
    let log = run.finished();
    assert_eq!(log.last()["type"], "run.cancelled", "{log:#?}");
    assert_eq!(log.last()["payload"]["reason"], "enough");
    host.stop();
}

#[test]
fn a_daemon_that_ends_leaves_its_runs_to_the_next_one_without_waiting() {
    let setup = mounted();
    let config = setup.folder.write("sandglass.toml", "grace = \"1h\"\n");
    let config = config.into_os_string().into_string().expect("a text");
    let setup = setup.arguments(&["--config", &config]);
    let host = setup.start();
    let body = json!({ "workflowId": "conformance-delay", "inputs": { "delayMs": 3_600_000 } });
    let run = host.run_with(&body);
    run.until_started("wait", 1);
    let id = run.id.clone();
    let host = host.stop().start();
    let run = host.again(&id);
    assert_eq!(run.snapshot()["status"], "running");
    run.cancel(&json!({})).expect(200);
    assert_eq!(run.finished().last()["type"], "run.cancelled");
}

#[track_caller]
fn is_forbidden(host: &Host, target: &str) {
    let refused = host.post(target, &json!({}));
    let code: &Value = &refused.body["error"]["code"];
    assert_eq!((refused.status, code), (403, &json!("forbidden")), "{target}: {refused:?}");
}

#[test]
fn unknown_routes_have_the_error_format_of_their_interface() {
    let host = mounted().start();
    let run = host.run("linear").finished().run;
    for (status, code, lines) in [
        (
            405,
            "method_not_allowed",
            ["DELETE /v1/runs", "PATCH /v1/openapi.json", "GET /v1/runs/RUN/cancel"],
        ),
        (404, "not_found", ["GET /v1/runs/RUN/nothing", "POST /v1/runs/", "GET /v1/runs/RUN/a/b"]),
    ] {
        for line in lines {
            host.ask(&Ask::new(&line.replace("RUN", &run))).fails(status, code);
        }
    }
    host.ask(&Ask::without_key("GET /v1/runs/x/nothing")).fails(401, "unauthenticated");
    let other = host.get("/v1/nothing");
    assert_eq!((other.status, &other.body["error"]["code"]), (404, &json!("unknown_path")));
}
