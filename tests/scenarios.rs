//! The scenarios of sessions, each played and then asked about as an operator would.

mod binary;

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use binary::{Folder, LAMP, fixture, sandglass};
use serde_json::{Value, json};

/// What a scenario left.
struct Played {
    _folder: Folder,
    journal: PathBuf,
}

impl Played {
    /// Plays `guest-fixtures/sessions/scenario-NAME.toml`, all of whose expectations hold.
    fn of(name: &str) -> Self {
        let folder = Folder::new();
        let journal = folder.path("journal.db");
        let scenario = fixture(&format!("sessions/scenario-{name}.toml"));
        sandglass(&[&"play", &scenario, &"--journal", &journal]).exits(0).says("all held");
        Self { _folder: folder, journal }
    }

    fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let mut all: Vec<&dyn AsRef<OsStr>> = vec![&self.journal];
        all.splice(0..0, arguments[..1].iter().map(|argument| argument as &dyn AsRef<OsStr>));
        all.extend(arguments[1..].iter().map(|argument| argument as &dyn AsRef<OsStr>));
        sandglass(&all).exits(0).json_lines()
    }

    fn log_as(&self, shape: &str) -> Vec<Value> {
        self.lines(&["log", "--as", shape])
    }
}

#[test]
fn a_subprocess_that_hangs_for_forty_minutes_is_reported_silent_and_killed_on_opt_in() {
    let played = Played::of("silence");
    let silence = played.log_as("silence");
    let of = |session: &str| -> Vec<&Value> {
        silence.iter().filter(|record| record["session_id"] == session).collect()
    };
    let (patient, strict) = (of("Agent/patient"), of("Agent/strict"));
    assert_eq!(patient.len(), 1, "{silence:?}");
    assert_eq!(patient[0]["failure_type"], "sdk_silence");
    assert!(patient[0]["elapsed_silent_seconds"].as_f64().is_some_and(|s| s >= 600.0));
    assert_eq!(strict.len(), 2, "{silence:?}");
    assert_eq!(strict[1]["killed"], true, "{silence:?}");
}

#[test]
fn five_timeouts_of_one_shape_are_one_failure_in_the_next_runs_preamble() {
    let played = Played::of("retry-loop");
    let scan = &played.lines(&["scan", "--json"])[0];
    let shown = scan.to_string();
    assert!(shown.contains("\"count\":5") && shown.contains("host_http_call"), "{shown}");
    assert!(!shown.contains("sk-live"), "{shown}");
    let finished = played.lines(&["log", "--json"]);
    let is_finish = |record: &&Value| record["event"]["action"] == "Finish";
    let finished = finished.iter().rfind(is_finish).expect("it finished");
    let preamble = finished["event"]["params"]["preamble"].as_str().expect("it was told");
    assert_eq!(
        preamble,
        "Prior failure mode \u{2014} do NOT retry this shape: tool=work error_type=timeout \
         repeated=5\u{d7}, command=run all tests, api_key=[REDACTED]"
    );
    let audit = played.log_as("audit");
    let timeouts = audit.iter().filter(|record| record["error_type"] == "timeout");
    assert_eq!(timeouts.count(), 5, "{audit:?}");
    let stop = audit.iter().find(|record| !record["last_failure_signature"].is_null());
    assert!(stop.is_some(), "{audit:?}");
}

#[test]
fn a_session_of_hours_is_blocked_resumed_twice_and_ended_by_its_total_limit() {
    let played = Played::of("four-hours");
    let watchdog = played.log_as("watchdog");
    let fired: Vec<&Value> =
        watchdog.iter().filter(|record| record["reason"] == "wall_clock_exceeded").collect();
    assert_eq!(fired.len(), 2, "{watchdog:?}");
    for record in fired {
        assert_eq!(record["event_kind"], "runtime.watchdog.cancel");
        assert_eq!(record["aggregate_type"], "runtime_control");
        assert_eq!(record["configured_budget_seconds"], 14_400);
        assert_eq!(record["elapsed_seconds"], 14_401, "rounded up");
    }
}

#[test]
fn a_cancel_inside_a_call_of_five_minutes_stops_it_at_once() {
    let audit = Played::of("cancel-in-call").log_as("audit");
    let cancelled: Vec<&Value> =
        audit.iter().filter(|record| record["status"] == "cancelled").collect();
    assert!(!cancelled.is_empty(), "{audit:?}");
    assert!(audit.iter().all(|record| record["status"] != "success"), "{audit:?}");
}

#[test]
fn a_handler_that_is_cancelled_in_the_queue_never_starts_even_after_a_restart() {
    Played::of("cancel-queued");
}

#[test]
fn a_completed_session_is_never_silent() {
    assert!(Played::of("done").log_as("silence").is_empty());
}

#[test]
fn a_person_who_takes_an_hour_is_not_silent() {
    assert!(Played::of("person").log_as("silence").is_empty());
}

#[test]
fn a_busy_session_without_progress_is_not_stuck() {
    Played::of("busy");
}

#[test]
fn an_agent_that_only_calls_its_tools_is_not_silent() {
    let played = Played::of("tools");
    assert_eq!(played.log_as("silence").len(), 2, "the other one: a warning, and its stop");
}

#[test]
fn a_synthetic_keep_alive_hides_no_wedged_tool() {
    let silence = Played::of("keep-alive").log_as("silence");
    assert!(silence.iter().any(|record| record["killed"] == true), "{silence:?}");
}

#[test]
fn a_journal_that_fails_while_a_limit_fires_prevents_no_kill_and_has_its_record_later() {
    let silence = Played::of("journal-fails").log_as("silence");
    assert!(silence.iter().any(|record| record["killed"] == true), "{silence:?}");
}

/// So that none is left out here.
#[test]
fn every_scenario_of_sessions_has_its_test() {
    let folder = std::fs::read_dir(fixture("sessions")).expect("it is there");
    let names = folder.map(|entry| entry.expect("an entry").file_name().into_string());
    let mut names: Vec<String> = names.map(|name| name.expect("a name")).collect();
    names.retain(|name| name.starts_with("scenario") && name.ends_with(".toml"));
    let source = include_str!("scenarios.rs");
    for name in &names {
        let short = name.trim_start_matches("scenario-").trim_end_matches(".toml");
        assert!(source.contains(&format!("Played::of(\"{short}\")")), "{name} has no test");
    }
    assert_eq!(names.len(), 11);
}

#[test]
fn an_invalid_step_of_a_session_is_refused_at_its_line() {
    let folder = Folder::new();
    std::fs::copy(fixture("sessions/agent.ioa.toml"), folder.path("agent.ioa.toml"))
        .expect("copied");
    std::fs::copy(fixture("sessions/agent.wasm"), folder.path("agent.wasm")).expect("copied");
    for (wrong, what) in [
        ("time = \"fast\"\n[[step]]\nwait = \"1s\"", "`fast` is not a time"),
        ("[[step]]\njournal = \"burns\"", "`burns` is not a state of the journal"),
        (
            "[[step]]\ncreate = \"Agent/a\"\nlimits = { run_timeout = \"-1s\" }",
            "`run_timeout` can't be",
        ),
        ("[[step]]\nresume = \"Agent/a\"\nlimits = { patience = \"1s\" }", "`patience` can't be"),
        (
            "[[step]]\nexpect_session = { status = \"SLEEPING\" }\nentity = \"Agent/a\"",
            "there is no session status \"SLEEPING\"",
        ),
        ("[[step]]\nexpect_no_record = { type = \"limit\" }", "there is no record type `limit`"),
    ] {
        folder.write("scenario.toml", wrong);
        let said = sandglass(&[&"play", &folder.path("scenario.toml")]).exits(2);
        let all = format!("{}{}", said.out, said.err);
        assert!(all.contains(what) && all.contains("scenario.toml:"), "{wrong}:\n{all}");
    }
}

/// The director reads records when it has a reply. A request to go on may therefore be on its way
/// while records that the director has not read are there: time must not pass before it is told of
/// them, or what it expects is found late.
#[test]
fn virtual_time_waits_until_records_are_published() {
    let folder = Folder::new();
    let mut worker = Command::new(env!("CARGO_BIN_EXE_sandglass"))
        .arg("play-worker")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it starts");
    let (mut requests, replies) = (worker.stdin.take(), worker.stdout.take());
    let mut replies = BufReader::new(replies.expect("piped")).lines();
    let start = json!({
        "journal": folder.path("play.db"),
        "specs": [{ "path": "lamp.ioa.toml", "source": LAMP }],
        "modules": [],
        "metrics": null,
        "virtual_time": { "elapsed_ms": 0, "wall": 1_700_000_000_000_i64, "servers": {} },
    });
    let mut write = |message: &Value| {
        writeln!(requests.as_mut().expect("piped"), "{message}").expect("it reads");
    };
    let mut reply_with = |what: &str| loop {
        let line = replies.next().expect("it goes on").expect("text");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        if said["reply"].get(what).is_some() {
            return said;
        }
    };
    write(&start);
    reply_with("ready");
    let send = json!({ "entity": "Lamp/hall", "action": "SwitchOn", "params": {} });
    write(&json!({ "id": 1, "ask": { "send": send } }));
    assert_eq!(reply_with("done")["elapsed_ms"], 0);
    // Rounds in which it could take notice of the records before it is asked to go on.
    for id in 2..12 {
        write(&json!({ "id": id, "ask": "metrics" }));
        reply_with("done");
    }
    write(&json!({ "id": 12, "ask": { "go_on": { "until_ms": 500 } } }));
    assert_eq!(reply_with("done")["elapsed_ms"], 0, "it goes on when the records are read");
    write(&json!({ "id": 13, "ask": { "go_on": { "until_ms": 500 } } }));
    assert_eq!(reply_with("done")["elapsed_ms"], 500, "nothing else is there");
    write(&json!({ "id": 14, "ask": "stop" }));
    reply_with("done");
    assert!(worker.wait().expect("it ends").success());
}
