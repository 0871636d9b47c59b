//! New versions of modules: taken by what starts next, kept over a restart.

use serde_json::json;

use crate::client::Answer;
use crate::operations::{until_ended, waiting};
use crate::world::{FINISHES, Make, WAITS, World};

const WASM: (&str, &str) = ("content-type", "application/wasm");

fn put(world: &World, text: &str) -> Answer {
    let binary = wat::parse_str(text).expect("it is text");
    world.ask("PUT", "/v1/modules/waits", &[WASM], &binary)
}

#[test]
fn a_module_in_text_form_is_refused() {
    let world = World::new();
    let refused = world.ask("PUT", "/v1/modules/waits", &[WASM], FINISHES.as_bytes());
    let refused = refused.refuses(422, "module_refused");
    assert_eq!(refused["rejection"], "invalid_module", "{refused}");
    assert!(refused["message"].as_str().is_some_and(|why| why.contains("must be binary")));
}

#[test]
fn new_dispatches_use_a_new_version_and_those_in_flight_keep_theirs() {
    let world = World::new();
    let old = waiting(&world, "old");
    let hash = put(&world, FINISHES).is(200).json()["hash"].clone();
    world.post("/v1/entities/Session/new", "").is(201);
    let new = "/v1/entities/Session/new/actions/Wait?wait=settled&timeout=60s";
    let taken = world.post(new, "").is(200).json();
    assert_eq!(taken["waited"]["entity"]["state"], "Done");
    let at = |dispatch: &str| format!("/v1/dispatches/{dispatch}");
    let new = taken["dispatches"][0].as_str().expect("a dispatch");
    assert_eq!(world.get(&at(new)).is(200).json()["module_hash"], hash);
    let flying = world.get(&at(&old)).is(200).json();
    assert_eq!(flying["status"], "in_flight");
    assert_ne!(flying["module_hash"], hash);
    world.post(&format!("{}/cancel", at(&old)), "").is(202);
    assert_eq!(until_ended(&world, &at(&old))["ended"]["outcome"]["outcome"], "cancelled");
    // An invalid module replaces nothing.
    let refused = put(&world, "(module)").refuses(422, "module_refused");
    assert_eq!(refused["rejection"], "missing_export", "{refused}");
    let listed = world.get("/v1/modules").is(200).json();
    assert_eq!(listed["modules"][1]["hash"], hash);
}

#[test]
fn an_uploaded_version_survives_a_restart() {
    let folder = tempfile::tempdir().expect("a folder");
    let make = || Make { modules: Some(folder.path().join("modules")), ..Make::default() };
    let first = put(&World::of(make()), FINISHES).is(200).json();
    assert_eq!(first["source"], "put");
    let world = World::of(make());
    assert_eq!(world.get("/v1/modules").is(200).json()["modules"][1], first);
    world.post("/v1/entities/Session/1", "").is(201);
    let target = "/v1/entities/Session/1/actions/Wait?wait=settled&timeout=60s";
    let taken = world.post(target, "").is(200).json();
    assert_eq!(taken["waited"]["entity"]["state"], json!("Done"));
    assert_eq!(put(&world, WAITS).is(200).json()["by"], "local");
}
