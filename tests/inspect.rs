//! `sandglass inspect`: what a guest is, and what it may do under a manifest.

mod binary;

use binary::{Folder, fixture, sandglass};
use serde_json::Value;

fn json(guest: &str, code: i32) -> Value {
    let said = sandglass(&[&"inspect", &fixture(guest), &"--json"]).exits(code);
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error} in {said:?}"))
}

#[test]
fn a_guest_is_described_with_the_grants_of_its_manifest() {
    let told = json("incident/run_tools.wasm", 0);
    let guest = &told["guest"];
    assert_eq!((&guest["abi"], &guest["contract"]), (&"core".into(), &"core ABI 1".into()));
    assert_eq!(guest["debug"]["function_names"], true);
    let made = guest["producers"].as_array().expect("a list");
    assert!(made.iter().any(|one| one["field"] == "language" && one["name"] == "Rust"), "{made:?}");
    assert_eq!(told["permissions"]["granted"]["hosts"][0], "127.0.0.1");
    assert_eq!(told["rejection"], Value::Null);
    let waits: Vec<&Value> = guest["imports"]
        .as_array()
        .expect("a list")
        .iter()
        .filter(|import| import["waits"] == true)
        .map(|import| &import["host_function"])
        .collect();
    assert_eq!(waits, ["host_http_call"]);
    let path = fixture("incident/run_tools.wasm");
    let bytes = std::fs::metadata(&path).expect("it is there").len();
    assert_eq!(guest["size"]["total"], bytes);
    sandglass(&[&"inspect", &path])
        .exits(0)
        .says("http     host_http_call, can wait, granted by `hosts`")
        .says("language: Rust")
        .says("this host runs it");
}

#[test]
fn a_component_is_described_with_its_interfaces() {
    let told = json("built/component.wasm", 0);
    let guest = &told["guest"];
    assert_eq!(guest["abi"], "component");
    assert_eq!(guest["contract"], "sandglass:integration@0.1.1");
    assert!(guest["modules"].as_u64() > Some(1), "{guest}");
    let handle = &guest["exports"][0];
    assert_eq!((&handle["name"], &handle["is_used"]), (&"handle".into(), &true.into()));
    assert_eq!(handle["expected_signature"], Value::Null, "{handle}");
    let wasi = guest["wasi"].as_array().expect("a list");
    assert!(wasi.iter().any(|one| {
        one["interface"].as_str().is_some_and(|name| name.starts_with("wasi:io/poll@"))
    }));
    sandglass(&[&"inspect", &fixture("built/component.wasm")])
        .exits(0)
        .says("sandglass:integration/http.send, can wait, needs `hosts`");
}

#[test]
fn everything_that_does_not_fit_is_reported_at_once() {
    let folder = Folder::new();
    let guest = folder.write(
        "bad.wat",
        r#"(module
            (import "env" "host_logg" (func (param i32 i32 i32 i32)))
            (import "env" "host_get_time" (func (param i64)))
            (memory (export "memory") 1)
            (func (export "runn") (param i32 i32) (result i32) i32.const 0))"#,
    );
    sandglass(&[&"inspect", &guest])
        .exits(1)
        .says("MISSING  run  (i32, i32) -> (i32); it exports `runn`")
        .says("UNKNOWN  env.host_logg  (i32, i32, i32, i32) -> (); did you mean `env.host_log`?")
        .says("WRONG    host_get_time  (i64) -> (); this host has (i32, i32) -> (i32)")
        .says("rejected (missing_export)")
        .says("sandglass explain missing_export");
}

#[test]
fn what_is_built_in_and_what_an_embedder_must_provide_is_stated() {
    let folder = Folder::new();
    let guest = folder.write(
        "existing.wat",
        r#"(module
            (import "env" "host_temper_data_call" (func (param i32 i32) (result i64)))
            (import "env" "host_http_stream_read" (func (param i32 i32 i32) (result i32)))
            (import "env" "host_log" (func (param i32 i32 i32 i32)))
            (memory (export "memory") 1)
            (func (export "run") (param i32 i32) (result i32) i32.const 0))"#,
    );
    sandglass(&[&"inspect", &guest])
        .exits(1)
        .says("2 built in, 1 that an embedder must provide")
        .says(
            "UNKNOWN  env.host_temper_data_call  (i32, i32) -> (i64); an embedder must provide it",
        )
        .says("http     host_http_stream_read, can wait, needs `hosts`")
        .says("rejected (missing_import)");
    let json = sandglass(&[&"inspect", &guest, &"--json"]).exits(1).out;
    let json: Value = serde_json::from_str(&json).expect("JSON");
    let imports = json["guest"]["imports"].as_array().expect("a list");
    let providers: Vec<&Value> = imports.iter().map(|import| &import["provider"]).collect();
    assert_eq!(providers, ["missing", "built_in", "built_in"]);
}

#[test]
fn a_named_manifest_is_used() {
    let folder = Folder::new();
    let manifest = folder.write(
        "tight.integration.toml",
        "name = \"tools\"\nmodule = \"run_tools.wasm\"\nabi = \"core\"\n\
         [limits]\nmemory = \"1MiB\"\n[grants]\nscratch = \"1KiB\"\n",
    );
    let guest = fixture("incident/run_tools.wasm");
    sandglass(&[&"inspect", &guest, &"--manifest", &manifest])
        .exits(1)
        .says("not granted `hosts` for host_http_call")
        .says("`scratch`: 1024 bytes")
        .says("rejected (needs_too_much)");
    let broken = folder.write("broken.integration.toml", "name = 1\n");
    sandglass(&[&"inspect", &guest, &"--manifest", &broken]).exits(2).says("broken.integration");
}

#[test]
fn wasi_file_imports_are_described_as_denied() {
    let told = json("wat/opens_files.wat", 0);
    let refused = told["guest"]["wasi"][0]["refused"].as_array().expect("a list");
    assert!(refused.contains(&"path_open".into()), "{refused:?}");
}

#[test]
fn a_file_that_is_not_webassembly_is_refused_with_its_code() {
    let folder = Folder::new();
    let script = folder.write("tool.wasm", "#!/bin/sh\n\u{1b}[2J");
    let said = sandglass(&[&"inspect", &script]).exits(2).says("sandglass explain invalid_module");
    assert!(said.out.is_empty() && !said.err.contains('\u{1b}'), "{said:?}");
    let cut = std::fs::read(fixture("built/echo.wasm")).expect("there");
    let cut = folder.write("cut.wasm", &cut[..cut.len() / 2]);
    sandglass(&[&"inspect", &cut]).exits(2).says("invalid_module");
    sandglass(&[&"inspect", &folder.path("absent.wasm")]).exits(2).says("can't read");
}

/// A pack of OpenWOP nodes, of which there are none.
const PACK: &str = r#"(module
    (import "openwop" "openwop_channel_read" (func (param i32 i32) (result i64)))
    (import "openwop" "openwop_log" (func (param i32 i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 16) "empty")
    (func (export "openwop_abi_version") (result i32) (i32.const 1))
    (func (export "openwop_pack_name") (result i32 i32) (i32.const 16) (i32.const 5))
    (func (export "openwop_node_count") (result i32) (i32.const 0))
    (func (export "openwop_node_id_at") (param i32) (result i64) (i64.const 0))
    (func (export "openwop_alloc") (param i32) (result i32) (i32.const 1024))
    (func (export "openwop_free") (param i32 i32))
    (func (export "openwop_node_invoke") (param i32 i32 i32) (result i64) (i64.const 0)))"#;

#[test]
fn a_node_pack_is_described_as_one_and_does_not_run_as_a_handler() {
    let folder = Folder::new();
    folder.write("pack.wat", PACK);
    let pack = folder.path("pack.wat");
    sandglass(&[&"inspect", &pack])
        .exits(0)
        .says("an OpenWOP node pack (OpenWOP node pack ABI 1), as text")
        .says("known only when it runs")
        .says("channels openwop_channel_read")
        .says("used     openwop_node_invoke  (i32, i32, i32) -> (i64)");
    let told = sandglass(&[&"inspect", &pack, &"--json"]).exits(0).out;
    let told: Value = serde_json::from_str(&told).expect("JSON");
    assert_eq!(told["guest"]["abi"], "openwop");
    sandglass(&[&"run", &pack]).exits(125).says("invalid_dispatch").says("an OpenWOP node pack");
}
