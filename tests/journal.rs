//! `sandglass log` and `sandglass replay` on journals that a real play has written,
//! whole and damaged.

mod binary;

use std::fs;
use std::path::PathBuf;

use binary::{Folder, sandglass, with_nobody_reading};

const STEPS: &str = r#"
[[step]]
send = "SwitchOn"
entity = "Lamp/kitchen"

[[step]]
send = "Break"
entity = "Lamp/hall"

[[step]]
expect_transition = "SwitchOff"
entity = "Lamp/kitchen"
"#;

/// A journal of two lamps.
fn played() -> (Folder, PathBuf) {
    let folder = Folder::with_lamp(STEPS);
    let journal = folder.path("play.journal");
    sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]).exits(0);
    (folder, journal)
}

fn sql(journal: &PathBuf, statements: &str) {
    let connection = rusqlite::Connection::open(journal).expect("a SQLite file");
    connection.execute_batch(statements).expect("valid SQL");
}

#[test]
fn a_play_replays_without_divergences() {
    let (_folder, journal) = played();
    let said = sandglass(&[&"replay", &journal]).exits(0);
    assert_eq!(said.out, "0 dispatches, 0 timeouts, 0 divergences\n");
    let json = &sandglass(&[&"replay", &journal, &"--json"]).exits(0).json_lines()[0];
    assert_eq!((&json["divergence_count"], &json["entities"]), (&0.into(), &2.into()));
}

#[test]
fn a_record_that_was_changed_is_a_divergence() {
    let (_folder, journal) = played();
    sql(&journal, "UPDATE records SET body = replace(body, 'SwitchOn', 'SwitchUp')");
    let said = sandglass(&[&"replay", &journal]).exits(3).says("checksum");
    let last = said.out.lines().last().unwrap_or_default();
    assert!(last.starts_with("0 dispatches, 0 timeouts, ") && !last.contains(" 0 div"), "{last}");
    for command in ["log", "replay"] {
        with_nobody_reading(&[&command, &journal]).exits(3);
        with_nobody_reading(&[&command, &journal, &"--json"]).exits(3);
    }
}

#[test]
fn a_record_that_is_gone_is_a_divergence() {
    let (_folder, journal) = played();
    sql(&journal, "DELETE FROM records WHERE position = (SELECT max(position) FROM records)");
    sandglass(&[&"replay", &journal]).exits(3).says("damaged record").says("1 divergences");
    sandglass(&[&"log", &journal]).exits(3).says("damaged: it is missing");
}

#[test]
fn the_log_tells_each_record_in_a_line() {
    let (_folder, journal) = played();
    sandglass(&[&"log", &journal])
        .exits(0)
        .says("Lamp/kitchen @1")
        .says("SwitchOn")
        .says("Off -> On")
        .says("On had no action for 1.0 s")
        .says("Lamp/hall @1");
    let one = sandglass(&[&"log", &journal, &"--entity", &"Lamp/hall", &"--json"]).exits(0);
    let kinds: Vec<_> = one.json_lines().iter().map(|one| one["event"]["type"].clone()).collect();
    assert_eq!(kinds, ["created", "transition"]);
    sandglass(&[&"log", &journal, &"--entity", &"hall"]).exits(2).says("TYPE/ID");
}

#[test]
fn the_log_goes_on_behind_damage() {
    let (_folder, journal) = played();
    sql(&journal, "UPDATE records SET at_ms = at_ms + 1 WHERE position = 3");
    sandglass(&[&"log", &journal]).exits(3).says("damaged").says("Break");
    let json = sandglass(&[&"log", &journal, &"--json"]).exits(3).json_lines();
    assert!(json[2]["damaged"].is_string() && json[3]["event"].is_object(), "{json:?}");
}

#[test]
fn what_is_no_journal_of_ours_is_refused() {
    let (folder, journal) = played();
    let text = folder.write("notes.txt", "not a journal\n");
    let noise: Vec<u8> =
        (0..9_000_u32).map(|n| n.wrapping_mul(0x9e37_79b9).to_be_bytes()[1]).collect();
    let noise = folder.write("noise", noise);
    let empty = folder.write("empty", "");
    let absent = folder.path("absent");
    for command in ["log", "replay"] {
        for path in [&text, &noise, &empty, &absent, &folder.path(".")] {
            sandglass(&[&command, path]).exits(2).says("error: ").says("is no journal");
        }
    }
    sql(&journal, "PRAGMA user_version = 9");
    for command in ["log", "replay"] {
        sandglass(&[&command, &journal]).exits(2).says("format 9");
    }
    sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", &text])
        .exits(2)
        .says("is no journal");
    assert_eq!(fs::read(&text).expect("there"), b"not a journal\n");
}

#[test]
fn a_journal_that_is_cut_off_never_passes_as_whole() {
    let (folder, journal) = played();
    let whole = fs::read(&journal).expect("there");
    let pages = whole.len() / 4096;
    assert!(pages > 3, "{pages} pages");
    for kept in (0..pages - 1).map(|page| page * 4096 + 100) {
        let cut = folder.write("cut.journal", &whole[..kept]);
        for command in ["log", "replay"] {
            let said = sandglass(&[&command, &cut]);
            assert!(matches!(said.code, Some(2 | 3)), "cut at {kept}: {said:?}");
            assert!(!said.err.contains("panicked"), "{said:?}");
        }
    }
}
