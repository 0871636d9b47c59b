//! `sandglass check`, as people and scripts see it.

mod binary;

use binary::{Folder, LAMP, fixture, repository, sandglass, with_nobody_reading};

#[test]
fn passes_the_spec_of_the_incident() {
    let spec = fixture("incident/session.ioa.toml");
    sandglass(&[&"check", &spec]).exits(0).says("session.ioa.toml: ok");
}

#[test]
fn passes_the_example_of_the_documentation_without_a_word() {
    let page = std::fs::read_to_string(repository("docs/spec-files.md")).expect("there");
    let example = page.split_once("\n```toml\n").and_then(|(_, rest)| rest.split_once("\n```\n"));
    let (example, _) = example.expect("the page has an example");
    let folder = Folder::new();
    let spec = folder.write("order.ioa.toml", example);
    let said = sandglass(&[&"check", &"--json", &spec]).exits(0);
    assert_eq!(said.out.trim(), "[]");
}

const WRONG: &str = r#"
[automaton]
name = "Lamp"
states = ["Off", "On"]
initial = "Of"
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
        .says("lamp.ioa.toml:10:1")
        .says("lamp.ioa.toml:12:")
        .says("did you mean `from`?")
        .says("did you mean `Off`?")
        .says("form = [\"Off\"]");
}

#[test]
fn scripts_get_the_same_as_json() {
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
fn the_exit_code_is_the_same_where_nobody_reads_the_findings() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    with_nobody_reading(&[&"check", &good]).exits(0);
    with_nobody_reading(&[&"check", &good, &bad]).exits(1);
    with_nobody_reading(&[&"check", &"--json", &bad]).exits(1);
}

#[test]
fn a_file_that_can_not_be_read_hides_nothing_of_the_others() {
    let folder = Folder::new();
    let (good, bad) = (folder.write("good.toml", LAMP), folder.write("bad.toml", WRONG));
    let absent = folder.path("absent.toml");
    sandglass(&[&"check", &absent, &good]).exits(2).says("absent.toml").says("good.toml: ok");
    let said = sandglass(&[&"check", &"--json", &absent, &bad]).exits(2).says("absent.toml");
    let found: Vec<serde_json::Value> = serde_json::from_str(&said.out).expect("one array");
    assert!(found.len() >= 3, "{found:?}");
    assert_eq!(sandglass(&[&"check", &"--json", &absent]).exits(2).out.trim(), "[]");
}

#[test]
fn a_place_far_out_in_a_line_is_shown_with_what_is_around_it() {
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
    sandglass(&[&"check", &path]).exits(0).says("ok, 1 warning").says("120");
}

#[test]
fn what_can_not_be_read_or_meant_is_told_apart() {
    let folder = Folder::new();
    sandglass(&[&"check", &folder.path("absent.toml")]).exits(2).says("absent.toml");
    sandglass(&[&"check"]).exits(2).says("Usage");
    sandglass(&[&"chek"]).exits(2).says("check");
    sandglass(&[&"check", &"--help"]).exits(0).says("Examples:");
}

#[test]
fn no_bytes_make_it_panic_or_drive_the_terminal() {
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
