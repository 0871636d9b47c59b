//! Sessions as their operators meet them: a daemon, the commands, and the journal afterwards.

mod binary;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use sandglass_journal::{Batch, Expected, Journal as _, Settings, SqliteJournal};
use sandglass_model::Position;

use binary::{Folder, Running, WAITER, answer_of, fixture, sandglass, until};
use serde_json::Value;

/// What is said of the sessions' limits, where a test says nothing else.
const LIMITS: &str = "\n[limits]\nabort_timeout = \"100ms\"\ninactivity_warn = \"500ms\"\n";

/// A daemon whose sessions wait forever in a host call.
struct Daemon {
    folder: Folder,
    running: Running,
    address: String,
}

/// A folder with the handler of a [`WAITER`].
fn with_a_handler_that_waits() -> Folder {
    let folder = Folder::new();
    let guest = std::fs::read(fixture("wat/sleeps_until_the_end_of_time.wat"));
    folder.write("waits.wat", guest.expect("it is there"));
    folder
}

impl Daemon {
    fn with(limits: &str, configuration: &str) -> Self {
        Self::of(with_a_handler_that_waits(), limits, configuration)
    }

    /// The same with whatever the folder has for a handler.
    fn of(folder: Folder, limits: &str, configuration: &str) -> Self {
        folder.write("waiter.ioa.toml", format!("{WAITER}{limits}"));
        folder.write("daemon.toml", configuration);
        let mut running = Self::run(&folder);
        let address = running.address();
        Self { folder, running, address }
    }

    fn run(folder: &Folder) -> Running {
        let [specs, journal, configuration] =
            [".", "runs.db", "daemon.toml"].map(|name| folder.path(name));
        Running::with_stderr(
            Stdio::null(),
            &[
                &"up",
                &"--specs",
                &specs,
                &"--journal",
                &journal,
                &"--config",
                &configuration,
                &"--listen",
                &"127.0.0.1:0",
            ],
        )
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn journal(&self) -> PathBuf {
        self.folder.path("runs.db")
    }

    #[track_caller]
    fn post(&self, path: &str, body: &str, status: u16) -> Value {
        let kind = "content-type: application/json\r\n";
        let answered = answer_of(&self.address, &format!("POST {path}"), kind, body.as_bytes());
        assert_eq!(answered.0, status, "{}", answered.1);
        serde_json::from_str(&answered.1).expect("JSON")
    }

    /// A session whose handler waits.
    #[track_caller]
    fn waiting(&self, id: &str, body: &str) {
        self.post(&format!("/v1/entities/Waiter/{id}"), body, 201);
        self.post(&format!("/v1/entities/Waiter/{id}/actions/Wait"), "", 200);
    }

    /// Waits until `id` stands so.
    #[track_caller]
    fn until(&self, id: &str, status: &str) {
        let (url, session) = (self.url(), format!("Waiter/{id}"));
        until(|| {
            let said = sandglass(&[&"status", &url, &session, &"--json"]);
            said.json_lines().iter().any(|view| view["status"] == status)
        });
    }
}

#[test]
fn a_run_over_its_time_is_blocked_resumed_and_reported_as_a_watchdog_record() {
    let daemon = Daemon::with(LIMITS, "");
    let (url, session) = (daemon.url(), "Waiter/a");
    daemon.waiting("a", r#"{"limits": {"run_timeout": "300ms"}}"#);
    daemon.until("a", "BLOCKED");
    let said = sandglass(&[&"status", &url, &session, &"--line"]).exits(0);
    said.says("Waiter/a BLOCKED(watchdog_wall_clock_exceeded) run 1");
    let refused = daemon.post("/v1/entities/Waiter/a/actions/End", "", 409);
    assert_eq!(refused["error"]["code"], "already_stopped");

    let resume: [&dyn AsRef<std::ffi::OsStr>; 6] =
        [&"resume", &session, &"--url", &url, &"--limit", &"run_timeout=1h"];
    sandglass(&resume).exits(0).says("Waiter/a resumes");
    sandglass(&resume).exits(1).says("run 2 of the session goes on");
    let view = &sandglass(&[&"status", &url, &session, &"--json"]).exits(0).json_lines()[0];
    assert_eq!((&view["run_seq"], &view["in_flight"]), (&2.into(), &serde_json::json!(["waits"])));
    until(|| {
        let said = sandglass(&[&"status", &url, &session, &"--line"]).exits(0);
        said.out.contains("in waits (wasi_snapshot_preview1.poll_oneoff)")
    });

    let journal = daemon.journal();
    let told = sandglass(&[&"log", &journal, &"--as", &"watchdog"]).exits(0).json_lines();
    let [cancel] = &told[..] else { panic!("one record, not {told:?}") };
    assert_eq!(cancel["event_kind"], "runtime.watchdog.cancel");
    assert_eq!(
        (&cancel["aggregate_type"], &cancel["aggregate_id"]),
        (&"runtime_control".into(), &session.into())
    );
    assert_eq!(
        (&cancel["reason"], &cancel["status"]),
        (&"wall_clock_exceeded".into(), &"BLOCKED".into())
    );
    assert_eq!(
        (&cancel["elapsed_seconds"], &cancel["configured_budget_seconds"]),
        (&1.into(), &1.into())
    );
    assert_eq!(cancel["session_id"], session);
}

#[test]
fn records_and_their_forms_are_followed_in_a_file_and_at_a_daemon_until_ctrl_c() {
    let daemon = Daemon::with(LIMITS, "");
    let (url, journal) = (daemon.url(), daemon.journal());
    let follow = |from: &dyn AsRef<std::ffi::OsStr>, system: &str| {
        Running::start(&[&"log", from, &"--as", &system, &"--follow"])
    };
    let mut followers = [follow(&url, "watchdog"), follow(&journal, "watchdog")];
    let mut audits = [follow(&url, "audit"), follow(&journal, "audit")];
    let mut records = Running::start(&[&"log", &journal, &"--entity", &"Waiter/a", &"--follow"]);
    daemon.waiting("a", r#"{"limits": {"run_timeout": "300ms"}}"#);
    let [by_daemon, by_file] = followers.each_mut().map(|follower| -> Value {
        let line = follower.line_with("runtime.watchdog.cancel");
        serde_json::from_str(&line).expect("JSON")
    });
    assert_eq!(by_daemon, by_file);
    assert_eq!(by_daemon["aggregate_id"], "Waiter/a");
    for audit in &mut audits {
        audit.line_with("\"tool\":\"waits\"");
        audit.line_with("\"status\":\"blocked\"");
    }
    records.line_with("watchdog_wall_clock_exceeded");
    for follower in followers.into_iter().chain(audits).chain([records]) {
        follower.signal("INT");
        assert_eq!(follower.ended().code(), Some(130));
    }

    daemon.until("a", "BLOCKED");
    let of = |from: &dyn AsRef<std::ffi::OsStr>| sandglass(&[&"log", from, &"--json"]).exits(0);
    assert_eq!(of(&url).json_lines(), of(&journal).json_lines());
    let text = |from: &dyn AsRef<std::ffi::OsStr>| {
        sandglass(&[&"log", from, &"--entity", &"Waiter/a"]).exits(0).out
    };
    assert_eq!(text(&url), text(&journal));
    assert!(text(&url).contains("Waiter/a"));
}

#[test]
fn a_follower_that_lost_its_daemon_continues_behind_the_last_event() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("it has one"));
    let mut follower = Running::start(&[&"log", &url, &"--as", &"audit", &"--follow"]);
    for (after, id) in [(0, 17), (17, 29)] {
        let (mut stream, _) = listener.accept().expect("it connects");
        let head = BufReader::new(&stream).lines().next().expect("a line").expect("text");
        assert_eq!(head, format!("GET /v1/events?after={after}&as=audit HTTP/1.1"));
        let response = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n\
             id: {id}\nevent: audit\ndata: {{\"tool\":\"bash-{id}\"}}\n\n"
        );
        stream.write_all(response.as_bytes()).expect("it reads");
        drop(stream);
        follower.line_with(&format!("bash-{id}"));
    }
    follower.signal("INT");
    assert_eq!(follower.ended().code(), Some(130));
}

#[test]
fn what_cannot_be_followed_is_refused() {
    let folder = Folder::new();
    let absent = folder.path("absent.db");
    sandglass(&[&"log", &absent, &"--follow"]).exits(2);
    sandglass(&[&"log", &absent, &"--as", &"watchdog", &"--follow"]).exits(2);
    assert!(!absent.exists(), "it is not created");
    sandglass(&[&"log", &absent, &"--as", &"scream"]).exits(2);

    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it has one");
    std::thread::scope(|scope| {
        // Moved, so that nothing listens afterwards.
        scope.spawn(move || {
            let (mut stream, _) = listener.accept().expect("it connects");
            let _ = BufReader::new(&stream).lines().next();
            let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 2\r\n\r\nhi";
            stream.write_all(page.as_bytes()).expect("it reads");
        });
        let refused = sandglass(&[&"log", &format!("http://{address}"), &"--follow"]).exits(2);
        assert!(refused.err.contains("is not a stream of events"), "{}", refused.err);
    });
    // The first connection is not tried again, because it is unknown whether there is a daemon.
    sandglass(&[&"log", &format!("http://{address}"), &"--follow"]).exits(2);
}

#[test]
fn a_cancel_stops_a_host_call_and_names_the_owner_of_the_key() {
    let daemon = Daemon::with(LIMITS, "");
    let (url, session) = (daemon.url(), "Waiter/a");
    daemon.waiting("a", "");
    let cancel: [&dyn AsRef<std::ffi::OsStr>; 6] =
        [&"cancel", &session, &"--url", &url, &"--reason", &"wrong branch"];
    sandglass(&cancel).exits(0).says("Waiter/a is stopped");
    daemon.until("a", "DONE");
    sandglass(&cancel).exits(1).says("already stopped");
    sandglass(&[&"cancel", &"Waiter/nobody", &"--url", &url]).exits(1);
    for from in [url, daemon.journal().display().to_string()] {
        sandglass(&[&"status", &from, &"Waiter/nobody"]).exits(1).says("there is no such session");
    }
    let told = sandglass(&[&"log", &daemon.journal(), &"--as", &"audit"]).exits(0).json_lines();
    let stop = told.iter().find(|one| one["status"] == "cancelled").expect("an audit of the stop");
    assert_eq!((&stop["by"], &stop["reason"]), (&"local".into(), &"wrong branch".into()));
    sandglass(&[&"replay", &daemon.journal()]).exits(0).says("0 divergences");
}

#[test]
fn an_entity_without_limits_is_no_session_in_a_journal_and_in_a_daemon() {
    let daemon = Daemon::with("", "");
    daemon.post("/v1/entities/Waiter/plain", "", 201);
    for from in [daemon.url(), daemon.journal().display().to_string()] {
        let said = sandglass(&[&"status", &from, &"Waiter/plain"]).exits(1);
        said.says("there is no such session");
    }
}

/// Copies a journal, as if everything in it were older by `age`.
fn copy_aged(journal: &Path, copy: &Path, age: Duration) {
    let threads = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    threads.block_on(async {
        let open = |path| SqliteJournal::open(path, Settings::default()).expect("a journal");
        let (from, to) = (open(journal).journal, open(copy).journal);
        let page = from.read(Position(0), 100).await.expect("readable");
        for record in page.into_records().expect("whole") {
            let records = vec![(record.sequence, record.event)];
            let batch = Batch::new(record.entity, Expected::Any, record.at.before(age), records);
            to.append(batch).await.expect("taken");
        }
        from.close().await;
        to.close().await;
    });
}

#[test]
fn a_handler_without_limits_is_shown_while_it_is_in_flight_and_fails_a_check_if_it_is_stuck() {
    let daemon = Daemon::with("", "");
    daemon.waiting("plain", "");
    let (url, journal) = (daemon.url(), daemon.journal());
    for from in [url, journal.display().to_string()] {
        let said = sandglass(&[&"status", &from, &"--check", &"--json"]).exits(0).json_lines();
        let [view] = &said[..] else { panic!("one entity, not {said:?}") };
        assert_eq!(
            (&view["session"], &view["status"]),
            (&"Waiter/plain".into(), &"RUNNING".into())
        );
        assert_eq!((view.get("run_seq"), &view["stuck"]), (None, &false.into()));
        let said = sandglass(&[&"status", &from, &"Waiter/plain", &"--line"]).exits(0);
        said.says("Waiter/plain RUNNING no session, busy for");
        let said = sandglass(&[&"status", &from, &"--line"]).exits(0);
        said.says("0 sessions and 1 without [limits]: 1 RUNNING");
    }
    // Nothing records that its host was lost.
    daemon.running.signal("KILL");
    let Daemon { folder, running, .. } = daemon;
    assert_eq!(running.ended().code(), None, "it was killed");
    let aged = folder.path("aged.db");
    copy_aged(&journal, &aged, Duration::from_secs(400));
    sandglass(&[&"status", &aged]).exits(0).says("STUCK");
    sandglass(&[&"status", &aged, &"--check"]).exits(1).says("STUCK");
    sandglass(&[&"status", &aged, &"Waiter/plain", &"--line", &"--check"]).exits(1).says("STUCK");
    let view = &sandglass(&[&"status", &aged, &"--json"]).exits(0).json_lines()[0];
    assert_eq!((&view["status"], &view["stuck"]), (&"STUCK".into(), &true.into()));
}

#[test]
fn silence_is_reported_while_it_lasts_and_fails_a_check() {
    let daemon = Daemon::with(LIMITS, "");
    let url = daemon.url();
    daemon.post("/v1/entities/Waiter/idle", "", 201);
    sandglass(&[&"status", &url, &"--check"]).exits(0);
    // Long enough that its guest is compiled and in its call by then.
    daemon.waiting("a", r#"{"limits": {"inactivity_warn": "3s"}}"#);
    daemon.until("a", "SILENT");
    sandglass(&[&"status", &url, &"--check"]).exits(1).says("STUCK");
    let told = sandglass(&[&"log", &daemon.journal(), &"--as", &"silence"]).exits(0).json_lines();
    let [silent] = &told[..] else { panic!("one record, not {told:?}") };
    assert_eq!(
        (&silent["failure_type"], &silent["phase"]),
        (&"sdk_silence".into(), &"Waiting".into())
    );
    let last = &silent["last_event"];
    assert_eq!(
        (&last["tool_name"], &last["handler"]),
        (&"wasi_snapshot_preview1.poll_oneoff".into(), &"waits".into())
    );
    assert_eq!(silent["elapsed_silent_seconds"], 4);
}

#[test]
fn a_handler_that_calls_its_tools_is_not_silent_and_one_that_hangs_is_killed() {
    let folder = with_a_handler_that_waits();
    // Calls of 200 ms without a signal, for four seconds: less in each than may be silent, and more
    // together.
    let guest = std::fs::read(fixture("wat/naps_twenty_times.wat")).expect("it is there");
    folder.write("naps.wat", guest);
    let limits = "\n[limits]\nabort_timeout = \"100ms\"\ninactivity_warn = \"2s\"\n\
                  inactivity_timeout = \"3s\"\n";
    let worker = WAITER.replace("Waiter", "Worker").replace("\"waits\"", "\"naps\"");
    let worker = worker.replace("trigger waits", "trigger naps");
    folder.write("worker.ioa.toml", format!("{worker}{limits}"));
    let daemon = Daemon::of(folder, limits, "");
    daemon.waiting("hangs", "");
    daemon.post("/v1/entities/Worker/works", "", 201);
    daemon.post("/v1/entities/Worker/works/actions/Wait", "", 200);
    daemon.until("hangs", "DONE");
    let url = daemon.url();
    until(|| {
        let said = sandglass(&[&"status", &url, &"Worker/works", &"--json"]);
        said.json_lines().iter().any(|view| view["status"] == "DONE")
    });
    let records = sandglass(&[&"log", &daemon.journal(), &"--json"]).exits(0).json_lines();
    let of = |entity: &str, kind: &str| -> Vec<Value> {
        let of = records
            .iter()
            .filter(|record| record["entity"] == entity && record["event"]["type"] == kind);
        of.map(|record| record["event"].clone()).collect()
    };
    let breaches = of("Worker/works", "limit.breached");
    assert!(breaches.is_empty(), "it was never silent: {breaches:?}");
    assert_eq!(of("Worker/works", "ended")[0]["outcome"]["outcome"], "completed");
    let breaches = of("Waiter/hangs", "limit.breached");
    let limits: Vec<&Value> = breaches.iter().map(|breach| &breach["limit"]).collect();
    assert_eq!(limits[..2], ["inactivity_warn", "inactivity_timeout"], "{breaches:?}");
    // The call can begin in the millisecond of the dispatch.
    let last = breaches[1]["last_signal"]["kind"].as_str();
    assert!(last == Some("host_call") || last == Some("dispatched"), "{breaches:?}");
    sandglass(&[&"replay", &daemon.journal()]).exits(0).says("0 divergences");
}

#[test]
fn a_watch_repeats_until_ctrl_c() {
    let daemon = Daemon::with(LIMITS, "");
    daemon.waiting("a", "");
    for from in [daemon.url(), daemon.journal().display().to_string()] {
        let mut watch = Running::start(&[&"status", &from, &"--watch"]);
        for _ in 0..2 {
            watch.line_with("Waiter/a");
        }
        watch.signal("INT");
        assert_eq!(watch.ended().code(), Some(130), "{from}");
    }
}

#[test]
fn a_shutdown_leaves_a_record_and_interrupted_work_continues_after_the_restart() {
    let daemon = Daemon::with(LIMITS, "");
    daemon.waiting("a", "");
    daemon.running.signal("TERM");
    let Daemon { folder, running, .. } = daemon;
    assert_eq!(running.ended().code(), Some(0));
    let mut running = Daemon::run(&folder);
    let address = running.address();
    let daemon = Daemon { folder, running, address };
    let (url, session) = (daemon.url(), "Waiter/a");
    let said = sandglass(&[&"status", &url, &session, &"--line"]).exits(0);
    said.says("BLOCKED(host_shutdown)");
    sandglass(&[&"resume", &session, &"--url", &url]).exits(0);
    daemon.until("a", "RUNNING");
    sandglass(&[&"replay", &daemon.journal()]).exits(0).says("0 divergences");
}

#[test]
fn a_shutdown_is_recorded_at_once_even_if_a_kill_precedes_the_end_of_its_grace() {
    let daemon = Daemon::with("\n[limits]\nabort_timeout = \"60s\"\n", "");
    daemon.waiting("a", "");
    daemon.running.signal("TERM");
    // Nobody but the signal ends what it waits in, and it has most of the grace for that.
    let journal = daemon.journal();
    let is_recorded = || {
        let log = sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines();
        log.iter().any(|record| {
            record["event"]["type"] == "run.stopping"
                && record["event"]["stop_reason_code"] == "host_shutdown"
        })
    };
    until(is_recorded);
    daemon.running.signal("KILL");
    let Daemon { folder, running, .. } = daemon;
    assert_eq!(running.ended().code(), None, "it was killed");
    let mut running = Daemon::run(&folder);
    let address = running.address();
    let daemon = Daemon { folder, running, address };
    let (url, session) = (daemon.url(), "Waiter/a");
    daemon.until("a", "BLOCKED");
    sandglass(&[&"resume", &session, &"--url", &url]).exits(0);
    daemon.until("a", "RUNNING");
    sandglass(&[&"replay", &daemon.journal()]).exits(0).says("0 divergences");
}

#[test]
fn the_settings_of_a_watchdog_and_a_silence_detector_hold_and_the_smaller_comes_first() {
    let settings = "[runtime_controls]\nsession_wall_clock_seconds = 7200\n\
                    [runtime_controls.goals.Waiter]\nsession_wall_clock_seconds = 3600\n\
                    [sdk_timeouts]\nsilence_threshold_seconds = 60\n";
    // Without [limits] in its spec: the settings alone make it a session.
    let daemon = Daemon::with("", settings);
    let url = daemon.url();
    let left = |id: &str| {
        let session = format!("Waiter/{id}");
        let view = sandglass(&[&"status", &url, &session, &"--json"]).exits(0).json_lines();
        view[0]["budget_left_ms"].as_u64().expect("a limit")
    };
    daemon.post("/v1/entities/Waiter/a", "", 201);
    assert!((3_000_000..=3_600_000).contains(&left("a")));
    daemon.post("/v1/entities/Waiter/b", r#"{"limits": {"run_timeout": "10m"}}"#, 201);
    assert!((500_000..=600_000).contains(&left("b")));
    let refused = daemon.post("/v1/entities/Waiter/c", r#"{"limits": {"run_timeout": -1}}"#, 422);
    let message = refused["error"]["message"].as_str().expect("a text");
    assert!(message.contains("`run_timeout` can't be -1"), "{message}");
    assert_eq!(answer_of(&daemon.address, "GET /v1/sessions/Waiter/c", "", b"").0, 404);
}

#[test]
fn invalid_settings_are_refused_with_their_key() {
    for (settings, expected) in [
        ("[runtime_controls]\nsession_wall_clock_seconds = -1\n", "session_wall_clock_seconds"),
        ("[runtime_controls]\nsession_wall_clock_seconds = 1.5\n", "session_wall_clock_seconds"),
        ("[runtime_controls]\nsession_wall_clock = 1\n", "unknown key `session_wall_clock`"),
        ("[sdk_timeouts]\nkill_threshold_seconds = \"1h\"\n", "kill_threshold_seconds"),
        ("[limits]\nrun_timeout = 3600\n", "`3600` has no unit"),
        ("[limits]\nmaterial = [\"x\"]\n", "unknown key `material`"),
        ("[limits.of.Waiter]\nrun_timout = \"1h\"\n", "did you mean `run_timeout`?"),
        ("[limits.of.Waitr]\nrun_timeout = \"1h\"\n", "`Waitr`"),
        ("[sdk_timeouts.campaigns.waiter]\nkill_threshold_seconds = 9\n", "did you mean `Waiter`?"),
    ] {
        let folder = with_a_handler_that_waits();
        let path = folder.write("daemon.toml", settings);
        folder.write("waiter.ioa.toml", WAITER);
        let specs = folder.path(".");
        let said = sandglass(&[&"up", &"--specs", &specs, &"--config", &path]).exits(2);
        said.says(expected);
    }
}

#[test]
fn a_limit_on_an_unknown_function_is_refused_at_its_line() {
    let folder = with_a_handler_that_waits();
    let limits = "\n[limits.host_call]\nhost_htp_call = \"1s\"\nhost_http_call = \"1s\"\n";
    let spec = folder.write("waiter.ioa.toml", format!("{WAITER}{limits}"));
    let line = WAITER.lines().count() + 3;
    let place = format!("waiter.ioa.toml:{line}:1");
    let help = "did you mean `host_http_call`?";
    sandglass(&[&"check", &spec]).exits(1).says(&place).says("`host_htp_call`").says(help);
    let refused = sandglass(&[&"up", &"--specs", &folder.path(".")]).exits(2);
    refused.says(&place).says("`host_htp_call`").says(help);
}

/// Makes five calls of a server that never answers, and spins. If its context states what failed
/// before, sets that as its status instead, from the preamble on, and ends.
const CALLS_AND_SPINS: &str = r#"(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (import "env" "host_set_status" (func $set_status (param i32 i32) (result i32)))
  (import "env" "host_http_call" (func $http_call (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "GET")
  (data (i32.const 32) "URL")
  (data (i32.const 256) "{\"action\":\"End\",\"success\":true,\"params\":{}}")
  (func (export "run") (param $context i32) (param $context_len i32) (result i32)
    (local $end i32) (local $calls i32)
    (local.set $end (i32.add (local.get $context) (local.get $context_len)))
    (loop $search
      (if (i32.lt_u (i32.add (local.get $context) (i32.const 120)) (local.get $end))
        (then
          ;; "preamble", and everything up to the count is shorter than 120 bytes.
          (if (i64.eq (i64.load (local.get $context)) (i64.const 0x656c626d61657270))
            (then
              (drop (call $set_status (local.get $context) (i32.const 120)))
              (call $set_result (i32.const 256) (i32.const 43))
              (return (i32.const 0))))
          (local.set $context (i32.add (local.get $context) (i32.const 1)))
          (br $search))))
    (loop $call
      (drop (call $http_call
        (i32.const 16) (i32.const 3) (i32.const 32) (i32.const URL_BYTES)
        (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
        (i32.const 4096) (i32.const 4096)))
      (local.set $calls (i32.add (local.get $calls) (i32.const 1)))
      (br_if $call (i32.lt_u (local.get $calls) (i32.const 5))))
    (loop $spin (br $spin))
    (unreachable)))"#;

#[test]
fn a_limit_on_an_ask_or_a_signal_names_its_target() {
    let folder = with_a_handler_that_waits();
    let limits =
        "\n[limits.host_call]\n\"ask:Ledger.Reserve\" = \"1s\"\n\"signal:Ledger.*\" = \"1s\"\n";
    let spec = folder.write("waiter.ioa.toml", format!("{WAITER}{limits}"));
    sandglass(&[&"check", &spec]).exits(0);
    let wrong =
        ["ask:Ledger", "ask:Ledger.*", "signal:", "told:Ledger.Reserve", "host_ask", "host_signal"];
    for wrong in wrong {
        let limits = format!("\n[limits.host_call]\n\"{wrong}\" = \"1s\"\n");
        let spec = folder.write("waiter.ioa.toml", format!("{WAITER}{limits}"));
        sandglass(&[&"check", &spec]).exits(1).says(&format!("`{wrong}`"));
    }
}

#[test]
fn calls_that_timed_out_before_a_kill_are_named_to_the_next_attempt() {
    let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("it listens").to_string();
    let url = format!("http://{address}/");
    let bytes = url.len().to_string();
    let folder = Folder::new();
    let guest = CALLS_AND_SPINS.replace("URL_BYTES", &bytes).replace("URL", &url);
    folder.write("calls.wat", guest);
    let manifest = format!(
        "name = \"waits\"\nmodule = \"calls.wat\"\nabi = \"core\"\n[grants]\nhosts = [\"{address}\"]\n"
    );
    folder.write("integration.toml", manifest);
    let limits =
        format!("on_crash = \"rerun\"\n{LIMITS}\n[limits.host_call]\nhost_http_call = \"300ms\"\n");
    let daemon = Daemon::of(folder, &limits, "");
    daemon.waiting("a", "");
    let journal = daemon.journal();
    let calls = || {
        let records = sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines();
        let events = records.into_iter().map(|record| record["event"].clone());
        events.filter(|event| event["limit"] == "host_call_timeout").collect::<Vec<_>>()
    };
    // They are recorded while the handler spins, which it does for an hour.
    until(|| calls().len() == 5);
    daemon.running.signal("KILL");
    let Daemon { folder, running, .. } = daemon;
    assert_eq!(running.ended().code(), None, "it was killed");
    let mut running = Daemon::run(&folder);
    let address = running.address();
    let daemon = Daemon { folder, running, address };
    daemon.until("a", "DONE");

    let journal = daemon.journal();
    let records = sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines();
    let status = records.iter().map(|record| &record["event"]).find(|one| one["name"] == "status");
    let learned = status.and_then(|status| status["payload"].as_str()).expect("it had a recovery");
    assert!(learned.contains("tool=waits error_type=timeout repeated=5\u{d7}"), "{learned}");
    assert_eq!(calls().len(), 5, "each is recorded once");
    let scanned = sandglass(&[&"scan", &journal, &"--json"]).exits(0).json_lines();
    assert_eq!(scanned[0]["call_timeouts"], 5, "{scanned:?}");
    assert_eq!(scanned[0]["repeats"][0]["count"], 5, "{scanned:?}");
    let audited = sandglass(&[&"log", &journal, &"--as", &"audit"]).exits(0).json_lines();
    let audited = audited.iter().filter(|one| one["host_call"] == "host_http_call");
    assert_eq!(audited.filter(|one| one["error_type"] == "timeout").count(), 5);
    sandglass(&[&"replay", &journal]).exits(0).says("0 divergences");
}

#[test]
fn a_flood_of_calls_that_take_too_long_is_one_record_beyond_the_first_hundred() {
    // It takes connections and never answers, and the guest ignores that.
    let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = server.local_addr().expect("it listens").to_string();
    let guest = std::fs::read_to_string(fixture("wat/ignores_errors_and_calls_on.wat"));
    let (url, text) = (format!("http://{address}/"), guest.expect("it is there"));
    let text = text.replace("http://nowhere.invalid/", &url);
    let folder = Folder::new();
    folder.write("calls.wat", text.replace("i32.const 23", &format!("i32.const {}", url.len())));
    let manifest = format!(
        "name = \"waits\"\nmodule = \"calls.wat\"\nabi = \"core\"\n[grants]\nhosts = [\"{address}\"]\n"
    );
    folder.write("integration.toml", manifest);
    let limits = format!("{LIMITS}\n[limits.host_call]\nhost_http_call = \"1ms\"\n");
    let daemon = Daemon::of(folder, &limits, "");
    daemon.waiting("a", "");
    until(|| {
        let (_, metrics) = answer_of(&daemon.address, "GET /metrics", "", b"");
        let counted = "temper_host_call_timeouts_total{function=\"host_http_call\"} ";
        let many = metrics.lines().find_map(|line| line.strip_prefix(counted)?.parse().ok());
        many.is_some_and(|many: u64| many > 110)
    });
    daemon.post("/v1/sessions/Waiter/a/cancel", "", 202);
    daemon.until("a", "DONE");
    let journal = daemon.journal();
    let told = sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines();
    let breaches: Vec<_> = told
        .iter()
        .map(|record| &record["event"])
        .filter(|event| event["limit"] == "host_call_timeout")
        .collect();
    let (running, with_the_end): (Vec<&Value>, Vec<&Value>) =
        breaches.into_iter().partition(|breach| breach.get("dispatch").is_some());
    assert!((1..=100).contains(&running.len()), "{running:?}");
    let [breach] = with_the_end.as_slice() else { panic!("one record, not {with_the_end:?}") };
    assert_eq!((&breach["scope"], &breach["threshold"]), (&"host_call".into(), &1.into()));
    assert_eq!(breach["in_flight"]["host_call"], "host_http_call");
    assert!(breach["times"].as_u64() > Some(2), "{breach}");
    let said = sandglass(&[&"log", &journal]).exits(0);
    said.says("host_call_timeout of 1 ms breached").says("more times");
    sandglass(&[&"log", &journal, &"--as", &"audit"])
        .exits(0)
        .says("\"host_call\":\"host_http_call\"");
    sandglass(&[&"scan", &journal]).exits(0).says("host calls timed out");
    sandglass(&[&"why", &journal])
        .exits(0)
        .says("host_call_timeout of 1ms breached by host_http_call");
    sandglass(&[&"replay", &journal]).exits(0);
}
