//! `sandglass check`, as people and scripts see it.

mod binary;

use binary::{Folder, LAMP, fixture, repository, sandglass, with_nobody_reading};

#[test]
fn the_spec_of_the_incident_passes() {
    let spec = fixture("incident/session.ioa.toml");
    sandglass(&[&"check", &spec]).exits(0).says("session.ioa.toml: ok");
}

#[test]
fn the_documented_example_passes_with_the_warning_that_it_has_no_limits() {
    let page = std::fs::read_to_string(repository("docs/spec-files.md")).expect("there");
    let example = page.split_once("\n```toml\n").and_then(|(_, rest)| rest.split_once("\n```\n"));
    let (example, _) = example.expect("the page has an example");
    let folder = Folder::new();
    let spec = folder.write("order.ioa.toml", example);
    let said = sandglass(&[&"check", &"--json", &spec]).exits(0);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    let [one] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&one["severity"], &one["line"]), (&"warning".into(), &2.into()));
    assert!(
        one["message"].as_str().is_some_and(|text| text.contains("without `[limits]`")),
        "{one}"
    );
    let limited = folder.write("limited.ioa.toml", format!("{example}\n[limits]\n"));
    let said = sandglass(&[&"check", &"--json", &limited]).exits(0);
    assert_eq!(said.out.trim(), "[]");
}

#[test]
fn a_spec_with_handlers_and_without_limits_causes_one_warning_of_what_that_leaves_out() {
    let folder = Folder::new();
    for path in [fixture("incident/session.ioa.toml"), fixture("incident")] {
        sandglass(&[&"check", &path]).exits(0).says("ok, 1 warning").says("without `[limits]`");
        let said = sandglass(&[&"check", &"--json", &path]).exits(0);
        let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
        let [one] = &found[..] else { panic!("{found:?}") };
        let message = one["message"].as_str().expect("a text");
        for part in ["no session", "no `run_timeout` or other stop limit", "after 600 s"] {
            assert!(message.contains(part), "no `{part}` in {message}");
        }
        assert_eq!(one["severity"], "warning");
    }
    // Its states have timers, and nothing that could be silent.
    let lamp = folder.write("lamp.ioa.toml", LAMP);
    assert!(!sandglass(&[&"check", &lamp]).exits(0).out.contains("limits"));
}

const WRONG: &str = r#"
[automaton]
name = "Lamp"
states = ["Off", "On"]
initial = "Of"
strict = true
allow_indefinite_states = ["Off", "On"]

[[action]]
name = "SwitchOn"
form = ["Off"]
from = ["Off"]
to = "Onn"
"#;

#[test]
fn shows_all_errors_at_once_with_their_lines_and_hints() {
    let folder = Folder::new();
    let spec = folder.write("lamp.ioa.toml", WRONG);
    sandglass(&[&"check", &spec])
        .exits(1)
        .says("lamp.ioa.toml:5:")
        .says("lamp.ioa.toml:11:1")
        .says("lamp.ioa.toml:13:")
        .says("did you mean `from`?")
        .says("did you mean `Off`?")
        .says("form = [\"Off\"]");
}

/// A spec of another runtime, as its users have it.
const MOVED: &str = r#"
[automaton]
name = "Agent"
states = ["Created", "Thinking", "Completed", "Failed"]
initial = "Created"

[[action]]
name = "Start"
from = ["Created"]
to = "Thinking"
effect = "trigger call_model"

[[action]]
name = "Complete"
from = ["Thinking"]
to = "Completed"

[[action]]
name = "Fail"
from = ["Created", "Thinking"]
to = "Failed"

[[integration]]
name = "call_model"
trigger = "call_model"
type = "wasm"
module = "model_caller"

[[integration]]
name = "announce"
trigger = "Complete"

[[webhook]]
name = "callback"

[admission]
max_concurrent = 4
"#;

#[test]
fn a_folder_of_specs_of_another_runtime_passes_without_modules_and_manifests() {
    let folder = Folder::new();
    folder.write("agent.ioa.toml", MOVED);
    sandglass(&[&"check", &folder.path("")])
        .exits(0)
        .says("it takes `Fail`")
        .says("there is no module `model_caller`")
        .says("integration `announce` is a webhook")
        .says("`webhook` in the file, `admission` in the file");
    let said = sandglass(&[&"check", &"--json", &folder.path("")]).exits(0);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    assert!(found.iter().all(|one| one["severity"] == "warning"), "{found:?}");
    let lines: Vec<_> = found.iter().map(|one| one["line"].as_u64()).collect();
    assert!(lines.is_sorted(), "{lines:?}");
}

#[test]
fn a_strict_check_refuses_what_others_only_warn_of() {
    let folder = Folder::new();
    let lenient = folder.write("agent.ioa.toml", MOVED);
    let declared = MOVED.replace("initial", "strict = true\ninitial");
    let declared = folder.write("strict.ioa.toml", declared);
    for said in [sandglass(&[&"check", &"--strict", &lenient]), sandglass(&[&"check", &declared])] {
        said.exits(1)
            .says("state `Thinking` may last forever")
            .says("unknown key `webhook` in the file")
            .says("integration `call_model` has no `on_failure`")
            .says("integration `announce` has no `module`");
    }
}

#[test]
fn json_output_has_the_same_findings() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    let said = sandglass(&[&"check", &"--json", &good, &bad]).exits(1);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    assert!(found.len() >= 3, "{found:?}");
    for one in &found {
        assert_eq!(one["severity"], "error");
        assert!(one["file"].as_str().is_some_and(|file| file.ends_with("bad.toml")), "{one}");
        assert!(one["line"].is_u64() && one["column"].is_u64() && one["message"].is_string());
    }
    let none = sandglass(&[&"check", &"--json", &good]).exits(0);
    assert_eq!(none.out.trim(), "[]");
}

#[test]
fn the_exit_code_is_the_same_if_standard_output_is_closed() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    with_nobody_reading(&[&"check", &good]).exits(0);
    with_nobody_reading(&[&"check", &good, &bad]).exits(1);
    with_nobody_reading(&[&"check", &"--json", &bad]).exits(1);
}

#[test]
fn an_unreadable_file_does_not_hide_findings_in_others() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    let absent = folder.path("absent.toml");
    sandglass(&[&"check", &absent, &good]).exits(2).says("absent.toml").says("good.toml: ok");
    let said = sandglass(&[&"check", &"--json", &absent, &bad]).exits(2).says("absent.toml");
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    assert!(found.len() >= 3, "{found:?}");
    let said = sandglass(&[&"check", &"--json", &absent]).exits(2);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    let [one] = &found[..] else { panic!("{found:?}") };
    assert!(one["file"].as_str().is_some_and(|file| file.ends_with("absent.toml")), "{one}");
    assert!(one["message"].as_str().is_some_and(|text| text.contains("can't read")), "{one}");
    assert_eq!(
        (&one["severity"], &one["line"], &one["column"]),
        (&"error".into(), &1.into(), &1.into())
    );
}

#[test]
fn a_secret_in_a_configuration_that_no_manifest_grants_is_a_warning() {
    let folder = Folder::new();
    let guest = std::fs::read(fixture("wat/echo.wat")).expect("there");
    folder.write("asker.wat", &guest);
    folder.write("plain.wat", &guest);
    let manifest = |grants: &str| {
        let manifest = "name = \"asker\"\nmodule = \"asker.wat\"\nabi = \"core\"\n[grants]\n";
        folder.write("asker.integration.toml", format!("{manifest}{grants}"));
    };
    let integration = |name: &str, module: &str, config: &str| {
        format!(
            "[[integration]]\nname = \"{name}\"\nmodule = \"{module}\"\ndeadline = \"1s\"\n\
             on_failure = \"Off\"\non_timeout = \"Off\"\nconfig = {{ {config} }}\n"
        )
    };
    let spec = format!(
        "[automaton]\nname = \"Lamp\"\nstates = [\"Off\", \"On\"]\ninitial = \"Off\"\n\
         allow_indefinite_states = [\"Off\", \"On\"]\n[limits]\n\
         [[action]]\nname = \"On\"\nfrom = [\"Off\"]\nto = \"On\"\n\
         effect = [\"trigger asks\", \"trigger plain\"]\n\
         [[action]]\nname = \"Off\"\nfrom = [\"On\"]\nto = \"Off\"\n{}{}",
        integration("asks", "asker", "a = \"{secret:ONE} {secret:TWO}\", b = \"{field:x}\""),
        integration("plain", "plain", "c = \"x{secret:THREE}\""),
    );
    folder.write("lamp.ioa.toml", spec);
    manifest("secrets = [\"ONE\"]\n");
    let said = sandglass(&[&"check", &"--json", &folder.path("")]).exits(0);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    let messages: Vec<&str> = found.iter().filter_map(|one| one["message"].as_str()).collect();
    assert_eq!(
        messages,
        [
            "integration `asks` needs secrets that no manifest grants to `asker`: `TWO`",
            "integration `plain` needs secrets that no manifest grants to `plain`: `THREE`",
        ]
    );
    assert!(found.iter().all(|one| one["severity"] == "warning"), "{found:?}");
    manifest("secrets = [\"ONE\", \"TWO\"]\n");
    let said = sandglass(&[&"check", &folder.path("")]).exits(0);
    assert!(!said.out.contains("`TWO`") && said.out.contains("`THREE`"), "{said:?}");
}

#[test]
fn a_file_that_is_named_twice_is_checked_once() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    let again =
        folder.path("../").join(folder.path("").file_name().expect("a name")).join("bad.toml");
    let twice = sandglass(&[&"check", &bad, &good, &bad, &again]).exits(1);
    assert_eq!(twice.out, sandglass(&[&"check", &bad, &good]).exits(1).out);
}

#[test]
fn a_module_by_itself_is_checked_as_one() {
    let folder = Folder::new();
    let good = folder.write("good.wat", std::fs::read(fixture("wat/echo.wat")).expect("there"));
    let bad =
        folder.write("bad.wat", std::fs::read(fixture("wat/missing_import.wat")).expect("there"));
    sandglass(&[&"check", &good]).exits(0).says("good.wat: ok\n");
    sandglass(&[&"check", &bad]).exits(1).says("module imports `env.");
    let said = sandglass(&[&"check", &"--json", &bad]).exits(1);
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    assert!(found[0]["file"].as_str().is_some_and(|file| file.ends_with("bad.wat")), "{found:?}");
    // The manifest beside it is about it, so it is wrong in both.
    let manifest = "name = \"good\"\nmodule = \"good.wat\"\nabi = \"component\"\n";
    folder.write("integration.toml", manifest);
    sandglass(&[&"check", &good]).exits(1).says("integration.toml:3:1");
}

#[test]
fn a_path_that_is_not_a_file_is_reported_without_waiting() {
    let folder = Folder::new();
    let pipe = folder.path("pipe.wasm");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    sandglass(&[&"check", &pipe]).exits(2).says("is no file but a pipe");
    sandglass(&[&"check", &"/dev/zero"]).exits(2).says("is no file but a pipe");
}

#[test]
fn a_finding_far_into_a_line_is_shown_with_its_surroundings() {
    let folder = Folder::new();
    let spec = folder.write("long.toml", format!("x=\"{}\" y", "a".repeat(70_000)));
    let said = sandglass(&[&"check", &spec]).exits(1).says("long.toml:1:70006: ").says("aaa\" y");
    assert!(said.out.len() < 2_000, "{}", said.out);
}

#[test]
fn warnings_pass() {
    let folder = Folder::new();
    let spec = std::fs::read_to_string(fixture("incident/session.ioa.toml")).expect("there");
    let without_deadline: String = spec
        .lines()
        .filter(|line| !line.starts_with("deadline"))
        .map(|l| l.to_owned() + "\n")
        .collect();
    let path = folder.write("session.ioa.toml", without_deadline);
    sandglass(&[&"check", &path]).exits(0).says("ok, 2 warnings").says("120");
}

#[test]
fn unreadable_files_and_invalid_files_are_distinguished() {
    let folder = Folder::new();
    sandglass(&[&"check", &folder.path("absent.toml")]).exits(2).says("absent.toml");
    sandglass(&[&"check"]).exits(2).says("Usage");
    sandglass(&[&"chek"]).exits(2).says("check");
    sandglass(&[&"check", &"--help"]).exits(0).says("Examples:");
}

#[test]
fn no_bytes_cause_a_panic_or_control_the_terminal() {
    let folder = Folder::new();
    let hostile: [&[u8]; 6] = [
        b"",
        b"\x1b[31mred\x1b]0;title\x07",
        &[0xff, 0xfe, 0x00],
        b"[automaton]\nname = \"\x1b[2J\"",
        "[[\u{9b}31m".as_bytes(),
        &[b'['; 100_000],
    ];
    for bytes in hostile {
        let spec = folder.write("hostile.ioa.toml", bytes);
        let said = sandglass(&[&"check", &spec]).exits(1);
        let foreign = |c: char| c.is_control() && c != '\n';
        assert!(!said.out.contains(foreign), "{:?}", said.out);
    }
}
