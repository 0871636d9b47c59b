//! `sandglass log`, `replay` and `journal` on journals that a real play or daemon has
//! written, whole, damaged and in use.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

mod binary;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use sandglass_journal::{Batch, Expected, Journal as _, Settings, SqliteJournal};
use sandglass_model::{Event, RulesVersion, Sequence, SpecDigest, WallTime};

use binary::{
    Folder, LAMP, Running, fixture, played, repository, sandglass, until, with_nobody_reading,
};

fn sql(journal: &PathBuf, statements: &str) {
    let connection = rusqlite::Connection::open(journal).expect("a SQLite file");
    connection.execute_batch(statements).expect("valid SQL");
}

#[test]
fn a_played_journal_replays_without_divergences() {
    let (_folder, journal) = played();
    let said = sandglass(&[&"replay", &journal]).exits(0);
    assert_eq!(said.out, "0 dispatches, 0 timeouts, 0 divergences\n");
    let json = &sandglass(&[&"replay", &journal, &"--json"]).exits(0).json_lines()[0];
    assert_eq!((&json["divergence_count"], &json["entities"]), (&0.into(), &2.into()));
}

/// Journals that were written under each version of the rules, by simulated worlds in which much
/// falls at one instant. Version 1 was written before records stated a version.
#[test]
fn a_journal_of_each_version_of_the_rules_replays_without_divergences() {
    let kept = repository("tests/journals");
    for rules in RulesVersion::ALL {
        let prefix = format!("rules-{rules}-");
        let of_version = fs::read_dir(&kept).expect("it is there").filter_map(|file| {
            let name = file.expect("it can be read").file_name().into_string().expect("a text");
            name.starts_with(&prefix).then_some(name)
        });
        let names: Vec<String> = of_version.collect();
        assert!(!names.is_empty(), "{prefix}*.db is missing in tests/journals");
        for name in names {
            let folder = Folder::new();
            let journal = folder.path(&name);
            fs::copy(kept.join(&name), &journal).expect("it can be copied");
            let said = sandglass(&[&"replay", &journal, &"--json"]).exits(0);
            let json = &said.json_lines()[0];
            assert_eq!(json["divergence_count"], 0, "{name}: {json}");
            assert!(json["dispatches"].as_u64() > Some(0), "{name}: {json}");
        }
    }
}

#[test]
fn a_journal_of_later_rules_is_refused_with_both_versions() {
    let folder = Folder::new();
    let journal = folder.path("later.db");
    let rules = RulesVersion::CURRENT.to_string().parse::<u32>().expect("a number") + 1;
    let rules: RulesVersion = serde_json::from_value(rules.into()).expect("a version");
    let (automaton, source) = ("Lamp".to_owned(), LAMP.to_owned());
    let digest = SpecDigest::of(&source, rules);
    let event = Event::SpecRegistered { digest, automaton, source, rules };
    let events = vec![(Sequence::default(), event)];
    let batch = Batch::new(None, Expected::Any, WallTime::from_millis(0), events);
    let threads = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    threads.block_on(async {
        let opened = SqliteJournal::open(&journal, Settings::default()).expect("a new file");
        opened.journal.append(batch).await.expect("taken");
        opened.journal.close().await;
    });
    let said = format!("needs version {rules} of the rules");
    sandglass(&[&"replay", &journal]).exits(2).says(&said).says("knows versions 1 to");
    sandglass(&[&"status", &journal]).says(&said);
}

/// A journal with a run that ended well, one that was killed and one that had no module.
fn runs(folder: &Folder) -> PathBuf {
    let journal = folder.path("runs.db");
    let cases: [(&str, i32); 3] =
        [("wat/echo.wat", 0), ("wat/spins.wat", 124), ("wat/missing_import.wat", 125)];
    for (guest, code) in cases {
        let guest = fixture(guest);
        sandglass(&[&"run", &guest, &"--deadline", &"500ms", &"--journal", &journal]).exits(code);
    }
    journal
}

#[test]
fn recorded_executions_are_replayed_with_their_guests() {
    let folder = Folder::new();
    let journal = runs(&folder);
    let guests = fixture("wat");
    let said = sandglass(&[&"replay", &journal, &"--guests", &guests]).exits(0);
    assert_eq!(
        said.out,
        "3 dispatches, 1 timeout, 0 divergences\nguests: 2 replayed, 0 decision-only\n"
    );
    let said = sandglass(&[&"replay", &journal, &"--guests", &guests, &"--json"]).exits(0);
    let json = &said.json_lines()[0];
    assert_eq!((&json["guests"]["replayed"], &json["divergence_count"]), (&2.into(), &0.into()));

    let nowhere = folder.path("none");
    fs::create_dir(&nowhere).expect("a folder");
    sandglass(&[&"replay", &journal, &"--guests", &nowhere])
        .exits(0)
        .says("guests: 0 replayed, 2 decision-only\n")
        .says("there is no module ");
    sandglass(&[&"replay", &journal, &"--guests", &folder.path("absent")]).exits(2).says("absent");
}

#[test]
fn one_dispatch_is_replayed_and_traced() {
    let folder = Folder::new();
    let journal = runs(&folder);
    let said = sandglass(&[&"log", &journal, &"--json"]).exits(0);
    let records = said.json_lines();
    let first = records.iter().find(|record| record["event"]["type"] == "ended").expect("an end");
    let dispatch = first["event"]["dispatch"].as_str().expect("an id").to_owned();
    let guests = fixture("wat");
    let replay: Vec<&dyn AsRef<OsStr>> =
        vec![&"replay", &journal, &"--guests", &guests, &"--dispatch"];
    let with = |more: &[&'static str], dispatch: &str| {
        let dispatch = dispatch.to_owned();
        let mut arguments = replay.clone();
        arguments.push(&dispatch);
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<OsStr>));
        sandglass(&arguments)
    };
    let said = with(&["--trace"], &dispatch).exits(0).says("guests: 1 replayed");
    assert!(said.err.contains("     1  host_"), "{}", said.err);
    let said = with(&["--trace", "--until", "1"], &dispatch).exits(0);
    assert!(!said.err.contains("     2  host_"), "{}", said.err);
    with(&[], &"0".repeat(32)).exits(2).says("no dispatch");
    sandglass(&[&"replay", &journal, &"--trace"]).exits(2).says("--guests");
}

#[test]
fn a_recording_that_was_changed_is_a_divergence() {
    let folder = Folder::new();
    let journal = runs(&folder);
    sql(&journal, "UPDATE recordings SET body = zeroblob(length(body))");
    let guests = fixture("wat");
    sandglass(&[&"replay", &journal, &"--guests", &guests])
        .exits(3)
        .says("a recording that cannot be replayed")
        .says("3 dispatches, 1 timeout, 2 divergences");
    sql(&journal, "DELETE FROM recordings");
    sandglass(&[&"replay", &journal, &"--guests", &guests]).exits(3).says("it is missing");
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
fn a_missing_record_is_a_divergence() {
    let (_folder, journal) = played();
    sql(&journal, "DELETE FROM records WHERE position = (SELECT max(position) FROM records)");
    sandglass(&[&"replay", &journal]).exits(3).says("damaged record").says("1 divergence");
    sandglass(&[&"log", &journal]).exits(3).says("damaged: it is missing");
}

#[test]
fn the_log_prints_each_record_in_one_line() {
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
fn the_log_continues_after_damage() {
    let (_folder, journal) = played();
    sql(&journal, "UPDATE records SET at_ms = at_ms + 1 WHERE position = 3");
    sandglass(&[&"log", &journal]).exits(3).says("damaged").says("Break");
    let json = sandglass(&[&"log", &journal, &"--json"]).exits(3).json_lines();
    assert!(json[2]["damaged"].is_string() && json[3]["event"].is_object(), "{json:?}");
}

#[test]
fn the_log_continues_after_an_unreadable_part_of_the_file() {
    let (_folder, journal) = played();
    let whole = fs::read(&journal).expect("there");
    let all = logged(&journal);
    let mut lost = 0;
    for page in 1..whole.len() / 4096 {
        let mut bytes = whole.clone();
        bytes[page * 4096..page * 4096 + 2048].fill(0xff);
        fs::write(&journal, bytes).expect("written");
        let log = sandglass(&[&"log", &journal, &"--json"]);
        let export = sandglass(&[&"journal", &"export", &journal]);
        assert_eq!(log.code, export.code, "page {page}: {log:?} {export:?}");
        let records = log.out.lines().filter(|line| all.iter().any(|one| one == line)).count();
        match log.code {
            Some(0) => assert_eq!(records, all.len(), "page {page}: {log:?}"),
            Some(2) => {
                assert!(records == 0 && !log.err.is_empty(), "page {page}: {log:?}");
                assert!(!log.err.contains("saves the others"), "page {page}: {log:?}");
            }
            Some(3) => {
                lost += 1;
                assert!(log.out.contains("\"damaged\":"), "page {page}: {log:?}");
                assert!(log.err.contains("journal export"), "page {page}: {log:?}");
            }
            _ => panic!("page {page}: {log:?}"),
        }
    }
    assert!(lost > 0, "no page held anything");
}

#[test]
fn a_file_that_is_not_a_journal_is_refused() {
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
fn a_truncated_journal_never_passes_as_complete() {
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

/// What `sandglass log --json` says, line by line.
fn logged(journal: &Path) -> Vec<String> {
    let said = sandglass(&[&"log", &journal, &"--json"]).exits(0);
    said.out.lines().map(str::to_owned).collect()
}

/// Asks the daemon for one lamp after the other until it is dropped.
struct Load {
    ended: Arc<AtomicBool>,
    made: Option<JoinHandle<u32>>,
}

impl Load {
    fn on(address: String) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ended);
        let make = move |number: &u32| {
            let request = format!(
                "POST /v1/entities/Lamp/{number} HTTP/1.1\r\nhost: localhost\r\n\
                 connection: close\r\ncontent-length: 0\r\n\r\n"
            );
            let mut answer = String::new();
            let mut stream = TcpStream::connect(&address).expect("it listens");
            stream.write_all(request.as_bytes()).expect("it listens");
            stream.read_to_string(&mut answer).expect("an answer");
            assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
        };
        let made = std::thread::spawn(move || {
            let asked = (0..).take_while(|_| !until.load(Ordering::Relaxed)).inspect(make);
            u32::try_from(asked.count()).expect("not that many")
        });
        Self { ended, made: Some(made) }
    }

    fn end(mut self) -> u32 {
        self.ended.store(true, Ordering::Relaxed);
        self.made.take().expect("ended once").join().expect("each was answered")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

/// A daemon of the folder, and its address.
fn daemon(folder: &Folder, journal: &Path) -> (Running, String) {
    let specs = folder.path(".");
    let listen = "127.0.0.1:0";
    let mut up =
        Running::start(&[&"up", &"--specs", &specs, &"--listen", &listen, &"--journal", &journal]);
    let line = up.line_with("listening on http://");
    let address = line.trim().rsplit('/').next().expect("an address").to_owned();
    (up, address)
}

#[test]
fn a_backup_during_writes_is_one_consistent_state() {
    let folder = Folder::new();
    folder.write("lamp.ioa.toml", LAMP);
    let journal = folder.path("runs.db");
    let (up, address) = daemon(&folder, &journal);
    let load = Load::on(address);
    until(|| sandglass(&[&"log", &journal, &"--json"]).out.lines().count() > 20);
    let mut backups = Vec::new();
    for number in 0..4 {
        let to = folder.path(&format!("backup-{number}.db"));
        let before = logged(&journal).len() as u64;
        let said = sandglass(&[&"journal", &"backup", &journal, &to, &"--json"]).exits(0);
        let after = logged(&journal).len() as u64;
        assert_eq!(said.err, "", "progress is for terminals");
        let last = said.json_lines()[0]["last"].as_u64().expect("a position");
        assert!((before..=after).contains(&last), "{before} {last} {after}");
        backups.push((to, last));
    }
    assert!(load.end() > 20, "the daemon served meanwhile");
    up.signal("TERM");
    assert_eq!(up.ended().code(), Some(0));

    let all = logged(&journal);
    for (backup, last) in &backups {
        sandglass(&[&"replay", backup]).exits(0).says(" 0 divergences");
        let last = usize::try_from(*last).expect("not that many");
        assert_eq!(logged(backup), all[..last], "what the source said up to there");
    }
    let (first, last) = &backups[0];
    let (up, address) = daemon(&folder, first);
    let mut stream = TcpStream::connect(address).expect("it listens");
    let request = "POST /v1/entities/Lamp/after HTTP/1.1\r\nhost: localhost\r\n\
                   connection: close\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(request.as_bytes()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 201"), "it opens for writing: {answer}");
    up.signal("TERM");
    assert_eq!(up.ended().code(), Some(0));
    assert_eq!(logged(first).len() as u64, last + 1);
}

#[test]
fn a_backup_needs_a_new_path_in_an_existing_folder() {
    let (folder, journal) = played();
    let taken = folder.write("taken.db", "mine");
    sandglass(&[&"journal", &"backup", &journal, &taken]).exits(2).says("already");
    assert_eq!(fs::read(&taken).expect("there"), b"mine");
    sandglass(&[&"journal", &"backup", &journal, &journal]).exits(2).says("already");
    let nowhere = folder.path("no/such/backup.db");
    sandglass(&[&"journal", &"backup", &journal, &nowhere]).exits(2).says("No such file");
    for database in ["env:RUNS", "postgresql://ann:secret@h/d"] {
        let said = sandglass(&[&"journal", &"backup", &database, &nowhere]).exits(2);
        let said = said.says("pg_dump").says("journal copy");
        assert!(!said.err.contains("secret"), "{}", said.err);
    }
    let to = folder.path("backup.db");
    sandglass(&[&"journal", &"backup", &journal, &to]).exits(0).says("up to position");
    assert_eq!(logged(&to), logged(&journal));
}

/// The names in a folder.
fn names(folder: &Folder) -> BTreeSet<OsString> {
    let entries = fs::read_dir(folder.path(".")).expect("there");
    entries.map(|one| one.expect("readable").file_name()).collect()
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_target_disk_leaves_no_file() {
    let (folder, journal) = played();
    let before = names(&folder);
    let (backup, export) = (folder.path("backup.db"), folder.path("export.jsonl"));
    let backup: [&dyn AsRef<OsStr>; 4] = [&"journal", &"backup", &journal, &backup];
    let export: [&dyn AsRef<OsStr>; 5] = [&"journal", &"export", &journal, &"--to", &export];
    for arguments in [&backup[..], &export[..]] {
        // In blocks of 512 bytes.
        let said = Command::new("sh")
            .args(["-c", "ulimit -f 1; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_sandglass")])
            .args(arguments.iter().map(AsRef::as_ref))
            .output()
            .expect("sh is there");
        let err = String::from_utf8_lossy(&said.stderr);
        assert_eq!(said.status.code(), Some(2), "{err}");
        assert!(err.starts_with("error: ") && err.lines().count() == 1, "{err}");
        assert_eq!(names(&folder), before, "{err}");
    }
}

#[test]
fn an_export_has_a_header_and_all_records() {
    let (folder, journal) = played();
    let export = sandglass(&[&"journal", &"export", &journal]).exits(0);
    let (header, lines) = export.out.split_once('\n').expect("a header");
    let header: serde_json::Value = serde_json::from_str(header).expect("JSON");
    let expected = r#"{"format":"sandglass-journal","type":"header","version":1}"#;
    assert_eq!(header.to_string(), expected);
    let all = logged(&journal);
    assert_eq!(lines.lines().collect::<Vec<_>>(), all);

    let later = sandglass(&[&"journal", &"export", &journal, &"--from", &"3"]).exits(0);
    assert_eq!(later.out.lines().skip(1).collect::<Vec<_>>(), all[2..]);
    let of_one: [&dyn AsRef<OsStr>; 5] =
        [&"journal", &"export", &journal, &"--entity", &"Lamp/hall"];
    let log = sandglass(&[&"log", &journal, &"--entity", &"Lamp/hall", &"--json"]).exits(0);
    assert_eq!(sandglass(&of_one).exits(0).out.split_once('\n').expect("a header").1, log.out);

    let to = folder.path("export.jsonl");
    let into: [&dyn AsRef<OsStr>; 5] = [&"journal", &"export", &journal, &"--to", &to];
    assert_eq!(sandglass(&into).exits(0).out, "");
    assert_eq!(fs::read_to_string(&to).expect("there"), export.out);
    sandglass(&into).exits(2).says("already");
    let said = with_nobody_reading(&[&"journal", &"export", &journal]).exits(0);
    assert_eq!(said.err, "");
}

#[test]
fn an_export_continues_after_damage_and_reports_it() {
    let (folder, journal) = played();
    let all = logged(&journal);
    sql(&journal, "UPDATE records SET at_ms = at_ms + 1 WHERE position = 2");
    sql(&journal, "DELETE FROM records WHERE position IN (3, 4)");
    let said = sandglass(&[&"journal", &"export", &journal]).exits(3);
    assert!(said.err.contains("position 2: its checksum"), "{}", said.err);
    assert!(said.err.contains("position 3: it is missing, as is all up to 4"), "{}", said.err);
    let lines: Vec<&str> = said.out.lines().skip(1).collect();
    assert_eq!(
        (lines[0], &lines[3..]),
        (&*all[0], &all[4..].iter().map(|l| &**l).collect::<Vec<_>>()[..])
    );
    let gaps: Vec<serde_json::Value> =
        lines[1..3].iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let places = |gap: &serde_json::Value| {
        (gap["type"].clone(), gap["position"].clone(), gap["last"].clone())
    };
    assert_eq!(places(&gaps[0]), ("damaged".into(), 2.into(), 2.into()));
    assert_eq!(places(&gaps[1]), ("missing".into(), 3.into(), 4.into()));

    let to = folder.path("backup.db");
    let refused = sandglass(&[&"journal", &"backup", &journal, &to]).exits(3);
    refused.says("no backup was made").says("position 2");
    assert!(!to.exists());
}

#[test]
fn a_file_that_is_not_a_journal_is_neither_backed_up_nor_exported() {
    let (folder, journal) = played();
    let text = folder.write("notes.txt", "not a journal\n");
    let other = folder.path("other.db");
    sql(&other, "CREATE TABLE records (position)");
    let newer = folder.path("newer.db");
    fs::copy(&journal, &newer).expect("copied");
    sql(&newer, "PRAGMA user_version = 9");
    let before = names(&folder);
    let to = folder.path("to");
    let refusals =
        [(&text, "no SQLite"), (&other, "something else"), (&newer, "format 9"), (&to, "no such")];
    for (path, why) in refusals {
        let bytes = fs::read(path).ok();
        sandglass(&[&"journal", &"backup", path, &folder.path("copy")]).exits(2).says(why);
        sandglass(&[&"journal", &"export", path, &"--to", &folder.path("copy")]).exits(2).says(why);
        sandglass(&[&"journal", &"export", path]).exits(2).says(why);
        assert_eq!(fs::read(path).ok(), bytes, "nothing is written into it");
    }
    assert_eq!(names(&folder), before);
}

#[test]
fn a_truncated_journal_is_exported_up_to_its_end_and_not_backed_up() {
    let (folder, journal) = played();
    let whole = fs::read(&journal).expect("there");
    for kept in (0..whole.len() / 4096 - 1).map(|page| page * 4096 + 100) {
        let cut = folder.write("cut.journal", &whole[..kept]);
        let said = sandglass(&[&"journal", &"export", &cut]);
        assert!(matches!(said.code, Some(2 | 3)), "cut at {kept}: {said:?}");
        assert!(!said.err.is_empty() && !said.err.contains("panicked"), "{said:?}");
        let to = folder.path("backup.db");
        let said = sandglass(&[&"journal", &"backup", &cut, &to]);
        assert!(matches!(said.code, Some(2 | 3)), "cut at {kept}: {said:?}");
        assert!(!to.exists() && !said.err.contains("panicked"), "{said:?}");
        assert!(fs::read(&cut).expect("there") == whole[..kept], "cut at {kept}");
    }
}

#[test]
fn budgets_are_reported_with_kills_and_suggested_values() {
    let folder = Folder::new();
    let journal = folder.path("runs.db");
    let guest = fixture("built/hang.wasm");
    sandglass(&[&"run", &guest, &"--journal", &journal, &"--deadline", &"100ms"]).exits(124);
    sandglass(&[&"budgets", &journal])
        .exits(0)
        .says("100 ms")
        .says("killed  1")
        .says("all were killed");
    let json = sandglass(&[&"budgets", &journal, &"--json"]).exits(0).json_lines();
    let one = &json[0]["budgets"][0];
    assert_eq!((&one["budget_ms"], &one["runs"]), (&100.into(), &1.into()), "{one}");
    assert_eq!((&one["advice"], &one["suggested_ms"]), (&"all_killed".into(), &().into()), "{one}");
    let killed = one["killed"].as_object().expect("by what was running");
    assert_eq!(killed.values().collect::<Vec<_>>(), [1], "{one}");
    assert!(one["took"]["p99_ms"].as_u64().is_some_and(|took| took >= 100), "{one}");

    let (_folder, none) = played();
    sandglass(&[&"budgets", &none]).exits(0).says("no handler was dispatched");
    sandglass(&[&"budgets", &none.with_extension("absent")]).exits(2).says("no such file");
    sql(&journal, "UPDATE records SET at_ms = at_ms + 1 WHERE kind = 'ended'");
    sandglass(&[&"budgets", &journal]).exits(3).says("sandglass log");
}

#[test]
fn the_documented_queries_return_rows() {
    let folder = Folder::new();
    let journal = folder.path("runs.db");
    let guest = fixture("built/hang.wasm");
    sandglass(&[&"run", &guest, &"--journal", &journal, &"--deadline", &"100ms"]).exits(124);
    let page = fs::read_to_string(repository("docs/journal.md")).expect("there");
    let queries: Vec<&str> =
        page.split("```sql\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert_eq!(queries.len(), 3);
    let connection = rusqlite::Connection::open(&journal).expect("a SQLite file");
    for query in queries {
        let mut statement =
            connection.prepare(query).unwrap_or_else(|why| panic!("{query}: {why}"));
        assert!(statement.exists([]).expect("it runs"), "{query} finds nothing");
    }
}

/// How many records of an entity there are, and whether they begin with its creation.
fn of(journal: &Path, entity: &str) -> usize {
    let lines = logged(journal);
    lines.iter().filter(|line| line.contains(&format!("\"entity\":\"{entity}\""))).count()
}

#[test]
fn pruning_removes_what_has_ended_and_the_rest_replays() {
    let (_folder, journal) = played();
    let (hall, kitchen) = (of(&journal, "Lamp/hall"), of(&journal, "Lamp/kitchen"));
    assert!(hall > 1 && kitchen > 1, "{hall} and {kitchen}");
    let would = format!("would remove 1 entity with {hall} records\n");
    let dry = sandglass(&[&"journal", &"prune", &journal, &"--keep", &"0", &"--dry-run"]).exits(0);
    assert_eq!(dry.out, would);
    let young = sandglass(&[&"journal", &"prune", &journal, &"--older-than", &"1h"]).exits(0);
    assert_eq!(young.out, "removed 0 entities with 0 records\n");
    assert_eq!(of(&journal, "Lamp/hall"), hall);
    let gone = sandglass(&[&"journal", &"prune", &journal, &"--keep", &"0", &"--json"]).exits(0);
    let gone = &gone.json_lines()[0];
    assert_eq!((&gone["entities"], &gone["records"]), (&1.into(), &hall.into()));
    assert_eq!((of(&journal, "Lamp/hall"), of(&journal, "Lamp/kitchen")), (0, kitchen));
    sandglass(&[&"replay", &journal]).exits(0).says("0 divergences");
    sandglass(&[&"log", &journal]).exits(0).says("removed on purpose");
    let export = sandglass(&[&"journal", &"export", &journal]).exits(0);
    assert!(export.out.contains("\"type\":\"pruned\""), "{}", export.out);
    let copy = journal.with_extension("copy");
    sandglass(&[&"journal", &"backup", &journal, &copy]).exits(0);
    sandglass(&[&"replay", &copy]).exits(0);
    sandglass(&[&"journal", &"prune", &journal, &"--keep", &"0"]).exits(0).says("removed 0 ");
    sandglass(&[&"journal", &"prune", &journal]).exits(2);
    let taken = sandglass(&[&"journal", &"prune", &journal, &"--keep", &"0", &"--take-over"]);
    taken.exits(2).says("Stop that process");
    let absent = journal.with_file_name("absent.db");
    sandglass(&[&"journal", &"prune", &absent, &"--keep", &"0"]).exits(2).says("no such file");
    assert!(!absent.exists(), "none is made");
}

#[test]
fn a_copied_file_has_the_same_records_and_replays() {
    let (folder, journal) = played();
    let copy = folder.path("copy.journal");
    sandglass(&[&"journal", &"copy", &journal, &copy]).exits(0).says("copied");
    let records = |journal: &PathBuf| sandglass(&[&"log", journal, &"--json"]).exits(0).out;
    assert_eq!(records(&copy), records(&journal));
    assert_eq!(
        sandglass(&[&"replay", &copy]).exits(0).out,
        "0 dispatches, 0 timeouts, 0 divergences\n"
    );
    sandglass(&[&"journal", &"copy", &journal, &copy]).exits(2).says("such a file already");

    sql(&journal, "UPDATE records SET body = '{}' WHERE position = 2");
    let absent = folder.path("absent.journal");
    sandglass(&[&"journal", &"copy", &journal, &absent]).exits(3).says("position 2");
    assert!(!absent.exists());
    let left = fs::read_dir(folder.path(".")).expect("a folder");
    let left = left.filter(|entry| {
        let name = entry.as_ref().expect("an entry").file_name();
        name.to_string_lossy().starts_with(".sandglass-copy-")
    });
    assert_eq!(left.count(), 0, "what was copied is removed");
}

#[test]
fn a_database_with_a_password_in_an_argument_is_refused_without_repeating_it() {
    let url = "postgresql://ann:secret@127.0.0.1/runs";
    for arguments in [
        vec!["log", url],
        vec!["why", url],
        vec!["replay", url],
        vec!["budgets", url],
        vec!["scan", url],
        vec!["status", url],
        vec!["journal", "check", url],
        vec!["journal", "copy", "absent.db", url],
        vec!["journal", "create", url],
        vec!["journal", "export", url],
        vec!["journal", "prune", "--keep", "1", url],
        vec!["journal", "upgrade", url],
        // The parser of arguments refuses these.
        vec!["journal", url],
        vec!["replay", "run.journal", url],
    ] {
        let arguments: Vec<&dyn AsRef<OsStr>> =
            arguments.iter().map(|one| one as &dyn AsRef<OsStr>).collect();
        let said = sandglass(&arguments).exits(2);
        assert!(!said.err.contains("secret"), "{}", said.err);
    }
    sandglass(&[&"log", &url]).exits(2).says("PGPASSWORD");
    sandglass(&[&"journal", &"create", &"runs.db"]).exits(2).says("is a file");
}
