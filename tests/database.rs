//! Commands on the journal of a database, on a PostgreSQL server that the tests start;
//! `.ci/check-postgres` runs them.

#![allow(
    clippy::disallowed_methods,
    reason = "tests may panic without a thread, and wait for a server"
)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod binary;
#[path = "database/deployments.rs"]
mod deployments;
#[allow(dead_code, reason = "this test uses a part of it")]
#[path = "../crates/sandglass-postgres/tests/server/server.rs"]
mod server;

#[path = "database/hosts.rs"]
mod hosts;

use std::fs::{self, File};
use std::process::Stdio;

use binary::{Folder, LAMP_STEPS, Running, answer_of, fixture, played, sandglass, with_variable};
use serde_json::Value;

const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Count"
from = ["Open"]
to = "Open"
"#;

const JSON: &str = "content-type: application/json\r\n";

/// An empty journal in a new database; returns its URL.
fn empty(name: &str) -> String {
    server::shared().psql("postgres", &format!("CREATE DATABASE {name}"));
    let url = server::shared().url(name);
    sandglass(&[&"journal", &"create", &url]).exits(0).says("has a journal of format");
    url
}

/// The summary of a replay, without snapshots, which are not copied.
fn replayed(journal: &dyn AsRef<std::ffi::OsStr>) -> Value {
    let said = sandglass(&[&"replay", journal, &"--json"]).exits(0);
    let mut summary = said.json_lines().remove(0);
    let fields = summary.as_object_mut().unwrap();
    fields.remove("snapshots");
    fields.remove("snapshots_unusable");
    assert_eq!(fields["divergence_count"], 0);
    summary
}

/// The records of a journal without positions.
fn records(journal: &dyn AsRef<std::ffi::OsStr>) -> Vec<Value> {
    let mut records = sandglass(&[&"log", journal, &"--json"]).exits(0).json_lines();
    for record in &mut records {
        let fields = record.as_object_mut().unwrap();
        fields.remove("position");
        fields.remove("partition");
    }
    records
}

#[test]
fn a_copied_journal_has_the_same_contents_in_a_database_and_in_a_file() {
    let (folder, journal) = played();
    let url = empty("copied");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0).says("copied");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(2).says("contains records");
    let back = folder.path("back.journal");
    sandglass(&[&"journal", &"copy", &url, &back]).exits(0);
    sandglass(&[&"journal", &"copy", &url, &back]).exits(2).says("such a file already");

    assert_eq!(replayed(&url), replayed(&journal));
    assert_eq!(replayed(&back), replayed(&journal));
    assert_eq!(records(&back).len(), records(&journal).len());
    for command in ["why", "budgets", "scan"] {
        let file = sandglass(&[&command, &journal]).exits(0);
        assert_eq!(
            sandglass(&[&command, &back]).exits(0).out.lines().count(),
            file.out.lines().count()
        );
        assert_eq!(
            sandglass(&[&command, &url]).exits(0).out.lines().count(),
            file.out.lines().count()
        );
    }
    let lines = sandglass(&[&"log", &url, &"--json"]).exits(0).json_lines();
    assert!(lines.iter().all(|line| line["partition"].is_u64()));
    sandglass(&[&"log", &url, &"--entity", &"Lamp/hall"]).exits(0).says("Lamp/hall");
    sandglass(&[&"journal", &"check", &url]).exits(0).says("all are intact");
    sandglass(&[&"journal", &"export", &url]).exits(0).says("\"partition\":");
    sandglass(&[&"journal", &"export", &url, &"--from", &"2"]).exits(2).says("name an entity");
    let following = Running::start(&[&"log", &url, &"--follow"]);
    drop(following);
    sandglass(&[&"journal", &"prune", &url, &"--keep", &"0", &"--dry-run"]).exits(0);
    sandglass(&[&"journal", &"prune", &url, &"--keep", &"0"]).exits(0).says("removed");
    sandglass(&[&"replay", &url]).exits(0);
}

#[test]
fn a_log_is_followed_beyond_a_restart_of_the_server() {
    let mut server = server::Server::start(&[]);
    server.psql("postgres", "CREATE DATABASE followed");
    let url = server.url("followed");
    sandglass(&[&"journal", &"create", &url]).exits(0);
    let (folder, journal) = played();
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
    let errors = folder.path("errors");
    let stderr = Stdio::from(File::create(&errors).unwrap());
    let mut following = Running::with_stderr(stderr, &[&"log", &url, &"--follow"]);
    following.line_with("Lamp/hall");
    let reads = || {
        let sql = "SELECT xact_commit FROM pg_stat_database WHERE datname = 'followed'";
        server.psql("postgres", sql).parse::<u64>().unwrap()
    };
    // It has printed what was there, and reads on.
    let before = reads();
    server::until(|| reads() > before + 5);
    let has_said =
        |text: &str| server::until(|| fs::read_to_string(&errors).unwrap().contains(text));
    server.stop();
    has_said("trying again");
    server.resume();
    has_said("the database responds again");
}

#[test]
fn journals_of_simulated_worlds_replay_on_both_sides() {
    let folder = Folder::new();
    let journals = binary::repository("tests/journals");
    for (number, name) in ["3400003", "3400004", "3400017"].into_iter().enumerate() {
        let journal = journals.join(format!("rules-3-seed-{name}.db"));
        let url = empty(&format!("world{number}"));
        sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
        let back = folder.path(name);
        sandglass(&[&"journal", &"copy", &url, &back]).exits(0);
        assert_eq!(replayed(&url), replayed(&journal));
        assert_eq!(replayed(&back), replayed(&journal));
        assert_eq!(records(&back).len(), records(&journal).len());
        for command in ["budgets", "scan"] {
            let file = sandglass(&[&command, &journal, &"--json"]).exits(0).out;
            assert_eq!(sandglass(&[&command, &url, &"--json"]).exits(0).out, file);
        }
    }
}

#[test]
fn a_check_reports_each_flaw_with_its_table_partition_and_position() {
    let (_folder, journal) = played();
    let url = empty("flawed");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
    let edits = "UPDATE sandglass.entities SET due = NULL WHERE id = 'hall'; \
                 UPDATE sandglass.records r SET at_ms = at_ms + 1 FROM sandglass.entities e \
                 WHERE e.partition = r.partition AND e.entity = r.entity AND e.id = 'kitchen' \
                 AND r.kind = 'created'";
    server::shared().psql("flawed", edits);
    let said = sandglass(&[&"journal", &"check", &url]).exits(3);
    assert!(said.err.contains("note: sandglass.records, position "), "{}", said.err);
    assert!(said.err.contains("its checksum does not match"), "{}", said.err);
    assert!(said.err.contains("how Lamp/hall rests does not match its records"), "{}", said.err);
    assert!(said.out.contains("2 flaws found"), "{}", said.out);
    let json = sandglass(&[&"journal", &"check", &url, &"--json"]).exits(3).json_lines().remove(0);
    assert_eq!(json["flaw_count"], 2);
    let tables: Vec<&Value> =
        json["flaws"].as_array().unwrap().iter().map(|flaw| &flaw["table"]).collect();
    assert_eq!(tables, ["records", "entities"]);
    assert!(json["flaws"][1]["partition"].is_u64() && json["flaws"][1]["position"].is_u64());
}

#[test]
fn a_replay_of_a_database_compares_its_snapshots() {
    let (folder, url) = (Folder::new(), empty("snapshots"));
    folder.write("counter.ioa.toml", COUNTER);
    let step = "[[step]]\nsend = \"Count\"\nentity = \"Counter/one\"\n";
    folder.write("scenario.toml", step.repeat(300));
    let (scenario, journal) = (folder.path("scenario.toml"), folder.path("counted.journal"));
    sandglass(&[&"play", &scenario, &"--journal", &journal]).exits(0);
    let of = |place: &dyn AsRef<std::ffi::OsStr>, code| {
        sandglass(&[&"replay", place, &"--json"]).exits(code).json_lines().remove(0)
    };
    assert_eq!(of(&journal, 0)["snapshots"], 1);
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
    assert_eq!(of(&url, 0)["snapshots"], 0, "they are not copied");
    let specs = folder.path(".");
    let mut daemon = Running::with_variables(
        &[("RUNS_URL", url.as_str())],
        Stdio::inherit(),
        &[&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &"--journal-env", &"RUNS_URL"],
    );
    let request = "POST /v1/entities/Counter/one/actions/Count";
    let (status, said) = answer_of(&daemon.address(), request, JSON, b"{}");
    assert_eq!(status, 200, "{said}");
    daemon.signal("TERM");
    daemon.ended();
    assert_eq!(of(&url, 0)["snapshots"], 1);
}

/// `value` without positions.
fn without_positions(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.into_iter().filter(|(key, _)| key != "position");
            kept.map(|(key, value)| (key, without_positions(value))).collect()
        }
        Value::Array(values) => values.into_iter().map(without_positions).collect(),
        value => value,
    }
}

#[test]
fn recorded_executions_are_copied_replayed_and_explained() {
    let (folder, url) = (Folder::new(), empty("recorded"));
    let journal = folder.path("runs.db");
    for (guest, code) in [("wat/echo.wat", 0), ("wat/spins.wat", 124)] {
        let guest = fixture(guest);
        sandglass(&[&"run", &guest, &"--deadline", &"500ms", &"--journal", &journal]).exits(code);
    }
    let back = folder.path("back.db");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0).says("2 recordings");
    sandglass(&[&"journal", &"copy", &url, &back]).exits(0).says("2 recordings");
    let guests = fixture("wat");
    let explained = |journal: &dyn AsRef<std::ffi::OsStr>| {
        let why = sandglass(&[&"why", journal, &"--json"]).exits(0).out;
        without_positions(serde_json::from_str(&why).unwrap())
    };
    let places: [&dyn AsRef<std::ffi::OsStr>; 3] = [&journal, &url, &back];
    for place in places {
        let replay = sandglass(&[&"replay", place, &"--guests", &guests]).exits(0);
        assert_eq!(
            replay.out,
            "2 dispatches, 1 timeout, 0 divergences\nguests: 2 replayed, 0 decision-only\n"
        );
        assert_eq!(explained(place), explained(&journal));
    }
}

#[test]
fn a_daemon_warns_once_of_clocks_that_are_apart_and_works() {
    // Played in virtual time, so its last record is an hour in the future.
    let steps = format!("time = \"virtual\"\n{LAMP_STEPS}within = \"2h\"\n");
    let folder = Folder::with_lamp_of(3_600, &steps);
    let journal = folder.path("play.journal");
    sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]).exits(0);
    let url = empty("clocks");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
    server::shared().set_clock("clocks", 0);
    let path = folder.path("said");
    let stderr = Stdio::from(File::create(&path).unwrap());
    let (specs, place) = (folder.path("."), "JOURNAL");
    let mut daemon = Running::with_variables(
        &[(place, &url)],
        stderr,
        &[&"up", &"--specs", &specs, &"--listen", &"127.0.0.1:0", &"--journal-env", &place],
    );
    let address = daemon.address();
    let said = || fs::read_to_string(&path).unwrap();
    let begun = "s behind the last record of ";
    server::until(|| said().contains(begun));
    assert!(!said().contains("s ahead of that of"), "{}", said());
    let create = |id: &str| {
        let request = format!("POST /v1/entities/Lamp/{id}");
        answer_of(&address, &request, "content-type: application/json\r\n", b"").0
    };
    assert_eq!(create("one"), 201, "{}", said());
    server::shared().set_clock("clocks", -86_400);
    server::until(|| said().contains("the clock of this machine is 86"));
    let beats = "SELECT max(beats) FROM sandglass.hosts";
    let beats = || server::shared().psql("clocks", beats).parse::<i64>().unwrap();
    let before = beats();
    server::until(|| beats() > before + 2);
    assert_eq!(create("two"), 201, "{}", said());
    assert_eq!(said().matches("s ahead of that of postgresql://").count(), 1, "{}", said());
    assert!(said().contains("synchronize both clocks (NTP)"), "{}", said());
    drop(daemon);
    sandglass(&[&"replay", &url]).exits(0);
}

#[test]
fn a_daemon_whose_journal_is_taken_has_an_exit_code_of_its_own() {
    let (folder, url) = (Folder::new(), empty("taken"));
    folder.write("counter.ioa.toml", COUNTER);
    let (specs, path) = (folder.path("."), folder.path("said"));
    let begin = |stderr| {
        let variables = [("RUNS_URL", url.as_str())];
        let journal = ["--listen", "127.0.0.1:0", "--journal-env", "RUNS_URL"];
        let [listen, address, option, variable] = &journal;
        let arguments: [&dyn AsRef<std::ffi::OsStr>; 7] =
            [&"up", &"--specs", &specs, listen, address, option, variable];
        let mut daemon = Running::with_variables(&variables, stderr, &arguments);
        daemon.address();
        daemon
    };
    let first = begin(Stdio::from(File::create(&path).unwrap()));
    let second = begin(Stdio::inherit());
    let said = || fs::read_to_string(&path).unwrap();
    assert_eq!(first.ended().code(), Some(4), "{}", said());
    assert!(said().contains("another process has taken"), "{}", said());
    second.signal("TERM");
    assert_eq!(second.ended().code(), Some(0));
}

#[test]
fn an_incomplete_copy_is_not_opened() {
    let (_folder, journal) = played();
    let url = empty("incomplete");
    let sql = "UPDATE sandglass.cluster SET hash = 'incomplete copy'";
    server::shared().psql("incomplete", sql);
    sandglass(&[&"log", &url]).exits(2).says("DROP SCHEMA");
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(2).says("DROP SCHEMA");
    sandglass(&[&"journal", &"create", &url]).exits(2).says("DROP SCHEMA");
    server::shared().psql("incomplete", "DROP SCHEMA sandglass CASCADE");
    sandglass(&[&"journal", &"create", &url]).exits(0);
    sandglass(&[&"journal", &"copy", &journal, &url]).exits(0);
}

#[test]
fn what_cannot_be_opened_is_refused_with_what_to_do() {
    let url = server::shared().url("postgres");
    sandglass(&[&"log", &url]).exits(2).says("sandglass journal create");
    sandglass(&[&"log", &server::shared().url("absent")]).exits(2).says("create the database");
    let closed = format!("postgresql://ann@127.0.0.1:{}/runs", server::free_port());
    sandglass(&[&"log", &closed]).exits(2).says("check that the server runs");
    let secret = closed.replace("ann@", "ann:secret@");
    let said = sandglass(&[&"log", &secret]).exits(2).says("PGPASSWORD");
    assert!(!said.err.contains("secret"), "{}", said.err);
    let said = sandglass(&[&"journal", &secret]).exits(2);
    assert!(!said.err.contains("secret"), "{}", said.err);
    let absent = format!("{url}?password_file=/absent/file");
    sandglass(&[&"log", &absent]).exits(2).says("the password is from `/absent/file`");
    sandglass(&[&"log", &"env:ABSENT_URL"]).exits(2).says("ABSENT_URL");
    with_variable("RUNS_URL", &empty("by_variable"), &[&"log", &"env:RUNS_URL"]).exits(0);
}
