//! `integration.toml`, as `check`, `run` and `play` obey it.

mod binary;

use binary::{Folder, fixture, repository, sandglass, with_variable};

/// Asks for its secret, calls a host, and answers whether each was given.
const ASKS: &str = r#"(module
    (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
    (import "env" "host_http_call"
        (func $http (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "host_last_error" (func $error (param i32 i32) (result i32)))
    (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
    (import "env" "host_set_result" (func $answer (param i32 i32)))
    (memory (export "memory") 1 4)
    (data (i32.const 0) "KEY")
    (data (i32.const 16) "GEThttp://nowhere.invalid/[]info")
    (data (i32.const 64) "{\"action\":\"A\",\"params\":{},\"success\":true}")
    (data (i32.const 128) "{\"success\":false,\"error\":\"no secret\"}")
    (func (export "run") (param i32 i32) (result i32)
        (if (i32.lt_s (call $secret (i32.const 0) (i32.const 3) (i32.const 512) (i32.const 64)) (i32.const 0))
            (then (call $answer (i32.const 128) (i32.const 37)))
            (else (call $answer (i32.const 64) (i32.const 41))))
        (drop (call $http (i32.const 16) (i32.const 3) (i32.const 19) (i32.const 23)
            (i32.const 42) (i32.const 2) (i32.const 0) (i32.const 0) (i32.const 1024) (i32.const 64)))
        (call $log (i32.const 44) (i32.const 4) (i32.const 2048)
            (call $error (i32.const 2048) (i32.const 512)))
        i32.const 0))"#;

const MANIFEST: &str = r#"
name = "asks"
module = "asks.wat"
abi = "core"

[grants]
secrets = ["KEY"]
"#;

const SPEC: &str = r#"
[automaton]
name = "Order"
states = ["Open", "Paying", "Done", "Failed"]
initial = "Open"
terminal = ["Done", "Failed"]
allow_indefinite_states = ["Open", "Paying"]

[[action]]
name = "Pay"
from = ["Open"]
to = "Paying"
effect = "trigger asks"

[[action]]
name = "End"
from = ["Paying"]
to = "Done"

[[action]]
name = "Fail"
from = ["Paying"]
to = "Failed"

[[integration]]
name = "asks"
module = "asks"
deadline = "30s"
on_success = "End"
on_failure = "Fail"
on_timeout = "Fail"
"#;

const SCENARIO: &str = r#"
[[step]]
send = "Pay"
entity = "Order/1"

[[step]]
expect_state = "Done"
entity = "Order/1"
within = "30s"
"#;

fn integration(manifest: &str) -> Folder {
    let folder = Folder::new();
    folder.write("asks.wat", ASKS);
    folder.write("integration.toml", manifest);
    folder
}

#[test]
fn a_manifest_is_checked_with_its_module() {
    let folder = integration(MANIFEST);
    sandglass(&[&"check", &folder.path("integration.toml")]).exits(0).says("integration.toml: ok");

    let timed = MANIFEST
        .replace("[grants]", "[limits.host_call_timeouts]\nhost_htp_call = \"1s\"\n[grants]");
    let folder = integration(&timed);
    sandglass(&[&"check", &folder.path("integration.toml")])
        .exits(0)
        .says("integration.toml:7:1")
        .says("did you mean `host_http_call`?");
}

#[test]
fn the_documented_manifest_passes() {
    let page = std::fs::read_to_string(repository("docs/manifest.md")).expect("there");
    let example = page.split_once("\n```toml\n").and_then(|(_, rest)| rest.split_once("\n```\n"));
    let (example, _) = example.expect("the page has an example");
    let folder = Folder::new();
    let manifest = folder.write("integration.toml", example);
    folder.write("run_tools.wasm", std::fs::read(fixture("built/run_tools.wasm")).expect("there"));
    sandglass(&[&"check", &manifest]).exits(0).says("integration.toml: ok\n");
}

#[test]
fn modules_that_contradict_their_manifest_are_reported_at_its_line() {
    let line = |more: &str| format!("{MANIFEST}{more}");
    let hash = "0".repeat(64);
    for (manifest, place, says) in [
        (MANIFEST.replace("\"core\"", "\"component\""), "4:1", "module is a core module, and"),
        (format!("sha256 = \"{hash}\"{MANIFEST}"), "1:1", "its manifest names 0000"),
        (line("[limits]\nmodule_size = \"1kB\""), "3:10", "larger than the 1000 bytes"),
        (line("[limits]\nmemory = 65536\n[limits.x]"), "10:", "unknown key `x`"),
        (MANIFEST.replace("asks.wat", "absent.wat"), "3:10", "can't read"),
        (line("[limits]\ntable_elements = 0\nmemory = 1000"), "3:10", "and it may have 1000"),
    ] {
        let folder = integration(&manifest);
        let path = folder.path("integration.toml");
        let said = sandglass(&[&"check", &"--json", &path]).exits(1);
        let found: serde_json::Value = serde_json::from_str(&said.out).expect("one array");
        let at = format!("{}:{}", found[0]["line"], found[0]["column"]);
        assert!(at.starts_with(place), "{at} is not {place}: {found}");
        let message = found[0]["message"].as_str().expect("a message");
        assert!(message.contains(says), "no `{says}` in {message}");
    }
    let folder = Folder::new();
    let import = ASKS.replacen("(module", "(module (import \"acme\" \"charge\" (func))", 1);
    folder.write("asks.wat", import);
    folder.write("integration.toml", MANIFEST);
    let path = folder.path("integration.toml");
    sandglass(&[&"check", &path]).exits(1).says("integration.toml:3:10").says("acme.charge");
}

#[test]
fn a_folder_is_checked_with_its_modules_and_manifests() {
    let folder = integration(MANIFEST);
    folder.write("order.ioa.toml", SPEC);
    sandglass(&[&"check", &folder.path("")]).exits(0).says(": ok");

    folder.write("integration.toml", MANIFEST.replace("\"asks\"", "\"ask\""));
    // The file of the module's name stands beside it, too; with nothing granted.
    sandglass(&[&"check", &folder.path("")]).exits(0).says("no spec of the folder has");

    folder.write("order.ioa.toml", SPEC.replace("module = \"asks\"", "module = \"axe\""));
    sandglass(&[&"check", &folder.path("")]).exits(0).says("there is no module `axe`");
    sandglass(&[&"check", &"--strict", &folder.path("")])
        .exits(1)
        .says("order.ioa.toml:27:10")
        .says("there is no module `axe`");

    folder.write("axe.wat", "(module)");
    sandglass(&[&"check", &folder.path("")])
        .exits(1)
        .says("order.ioa.toml:27:10")
        .says("nothing is granted to it");

    let soft =
        MANIFEST.replace("\"asks\"", "\"axe\"").replace("abi", "soft_deadline = \"1m\"\nabi");
    folder.write("integration.toml", soft);
    sandglass(&[&"check", &folder.path("")]).exits(0).says("4:1").says("warned at their start");
    sandglass(&[&"check", &fixture("incident")]).exits(0).says("incident: ok");
}

#[test]
fn a_folder_of_integrations_is_checked_and_an_empty_folder_is_reported() {
    let folder = integration(MANIFEST);
    sandglass(&[&"check", &folder.path("")]).exits(0).says(": ok");
    folder.write("integration.toml", MANIFEST.replace("abi", "soft = 1\nabi"));
    sandglass(&[&"check", &folder.path("")]).exits(1).says("unknown key `soft`");
    let empty = Folder::new();
    sandglass(&[&"check", &empty.path("")]).exits(2).says("neither a spec nor a manifest");
}

#[test]
fn a_module_that_is_not_a_file_is_reported_without_waiting() {
    let folder = Folder::new();
    folder.write("integration.toml", MANIFEST);
    std::fs::create_dir(folder.path("asks.wat")).expect("a folder of its name");
    let path = folder.path("integration.toml");
    sandglass(&[&"check", &path]).exits(1).says("is no file");
}

#[test]
fn a_timeout_of_a_wasi_call_is_reported_as_without_effect() {
    let timed = "\n[limits.host_call_timeouts]\n\"wasi:io/poll.poll\" = \"1s\"\n";
    let folder = integration(&format!("{MANIFEST}{timed}"));
    sandglass(&[&"check", &folder.path("")]).exits(0).says("is a function of WASI");
}

#[test]
fn run_takes_the_manifest_beside_the_guest() {
    let folder = integration(MANIFEST);
    let guest = folder.path("asks.wat");
    sandglass(&[&"run", &guest])
        .exits(125)
        .says("the secret `KEY`, which has no value")
        .says("SANDGLASS_SECRET_KEY");
    with_variable("SANDGLASS_SECRET_KEY", "hunter22", &[&"run", &guest])
        .exits(0)
        .says("`nowhere.invalid` is not allowed");
    // What the manifest doesn't name, no variable gives.
    let none = integration(&MANIFEST.replace("\"KEY\"", ""));
    let guest = none.path("asks.wat");
    with_variable("SANDGLASS_SECRET_KEY", "hunter22", &[&"run", &guest]).exits(1).says("no secret");
}

#[test]
fn flags_add_to_the_manifest_or_take_its_place() {
    let folder = integration(&format!("{MANIFEST}[limits]\nmemory = 65536\n"));
    let guest = folder.path("asks.wat");
    let secret = ("TEST_KEY", "hunter22");
    let with = |more: &[&str]| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"run", &guest];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<std::ffi::OsStr>));
        with_variable(secret.0, secret.1, &arguments)
    };
    let flag = ["--secret", "KEY=TEST_KEY"];
    with(&flag).exits(125).says("and it may have 65536");
    let memory = [&flag[..], &["--memory", "1MiB"]].concat();
    with(&memory).exits(0).says("`nowhere.invalid` is not allowed");
    let host = [&memory[..], &["--allow-host", "nowhere.invalid"]].concat();
    let said = with(&host).exits(0);
    assert!(!said.err.contains("is not allowed"), "{}", said.err);
}

#[test]
fn run_refuses_a_manifest_that_is_wrong_or_about_another_module() {
    let folder = integration("nmae = 1");
    sandglass(&[&"run", &folder.path("asks.wat")])
        .exits(125)
        .says("integration.toml:1:1: unknown key `nmae`");
    let elsewhere = Folder::new();
    let manifest = elsewhere.write("m.toml", MANIFEST.replace("\"core\"", "\"component\""));
    elsewhere.write("asks.wat", ASKS);
    with_variable(
        "SANDGLASS_SECRET_KEY",
        "hunter22",
        &[&"run", &elsewhere.path("asks.wat"), &"--manifest", &manifest],
    )
    .exits(125)
    .says("its manifest says a component");
    // One that is about another module is none of its business.
    let other = integration(&MANIFEST.replace("asks.wat", "other.wat"));
    sandglass(&[&"run", &other.path("asks.wat")]).exits(1).says("no secret");
}

#[test]
fn play_takes_the_manifests_of_its_folder() {
    let folder = integration(MANIFEST);
    folder.write("order.ioa.toml", SPEC);
    folder.write("scenario.toml", SCENARIO);
    let scenario = folder.path("scenario.toml");
    sandglass(&[&"play", &scenario])
        .exits(2)
        .says("integration.toml:7:12")
        .says("SANDGLASS_SECRET_KEY");
    with_variable("SANDGLASS_SECRET_KEY", "hunter22", &[&"play", &scenario]).exits(0);
    folder.write("integration.toml", MANIFEST.replace("abi", "ami"));
    sandglass(&[&"play", &scenario]).exits(2).says("did you mean `abi`?");
}

#[test]
fn a_scenario_names_a_manifest_and_adds_to_it() {
    let folder = Folder::new();
    folder.write("elsewhere/asks.wat", ASKS);
    folder.write("elsewhere/tool.toml", MANIFEST);
    folder.write("order.ioa.toml", SPEC);
    let module = "[[module]]\nname = \"asks\"\nmanifest = \"elsewhere/tool.toml\"\nsecrets = { KEY = \"TEST_KEY\" }\n";
    let scenario = folder.write("scenario.toml", format!("{module}{SCENARIO}"));
    sandglass(&[&"play", &scenario]).exits(2).says("`TEST_KEY`");
    with_variable("TEST_KEY", "hunter22", &[&"play", &scenario]).exits(0);
    folder.write("scenario.toml", format!("{module}path = \"elsewhere/asks.wat\"\n{SCENARIO}"));
    sandglass(&[&"play", &scenario]).exits(2).says("not both");
}
