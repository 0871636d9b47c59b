//! `sandglass run` on good guests and bad ones: the exit codes and the report that
//! scripts rely on.

mod binary;

use std::ffi::OsStr;
use std::path::Path;

use binary::{Folder, Running, Said, fixture, sandglass, with_input, with_nobody_reading};
use serde_json::Value;

/// Runs a sample guest with a JSON report.
fn run(guest: &str, more: &[&str]) -> (Said, Value) {
    let guest = fixture(guest);
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![&"run", &guest, &"--report", &"json"];
    arguments.extend(more.iter().map(|one| one as &dyn AsRef<OsStr>));
    report(sandglass(&arguments))
}

fn report(said: Said) -> (Said, Value) {
    let report = serde_json::from_str(&said.out);
    let report = report.unwrap_or_else(|error| panic!("{error} in {said:?}"));
    (said, report)
}

/// A guest, its arguments, and what comes of it: exit code, outcome, kind of error.
type Case = (&'static str, &'static [&'static str], i32, &'static str, Option<&'static str>);

/// The keys that every report has.
const KEYS: [&str; 17] = [
    "outcome",
    "result",
    "error",
    "deadline",
    "dying_span",
    "dying_call",
    "backtrace",
    "host_calls",
    "overruns",
    "time_split_us",
    "wall_us",
    "cpu_us",
    "allocation",
    "memory",
    "telemetry_dropped",
    "trace_id",
    "dispatch_id",
];

#[test]
fn each_outcome_has_its_exit_code_and_every_report_its_keys() {
    let cases: [Case; 11] = [
        ("wat/echo.wat", &[], 0, "completed", None),
        ("wat/guest_failure.wat", &[], 1, "failed", Some("guest_failure")),
        ("wat/absent_result.wat", &[], 1, "failed", Some("absent_result")),
        ("wat/invalid_json.wat", &[], 1, "failed", Some("invalid_json")),
        (
            "wat/spins.wat",
            &["--deadline", "100ms"],
            124,
            "timed_out",
            Some("handler_deadline_exceeded"),
        ),
        (
            "built/hang.wasm",
            &["--deadline", "100ms"],
            124,
            "timed_out",
            Some("handler_deadline_exceeded"),
        ),
        ("wat/missing_import.wat", &[], 125, "rejected", Some("missing_import")),
        ("wat/traps.wat", &[], 126, "trapped", Some("unreachable")),
        ("wat/recurses.wat", &[], 126, "trapped", Some("stack_overflow")),
        ("wat/grows_memory.wat", &["--memory", "2MiB"], 126, "limit", Some("wasm-memory")),
        ("wat/spins.wat", &["--fuel", "10000"], 126, "limit", Some("wasm-fuel")),
    ];
    for (guest, more, code, outcome, error) in cases {
        let (said, report) = run(guest, more);
        let said = said.exits(code);
        assert_eq!(report["outcome"], outcome, "{guest}: {said:?}");
        assert_eq!(report["error"]["kind"].as_str(), error, "{guest}: {report}");
        for key in KEYS {
            assert!(report.get(key).is_some(), "{guest}: no `{key}` in {report}");
        }
    }
}

#[test]
fn a_flood_of_log_lines_is_reported_by_its_size() {
    let (said, report) = run("wat/logs_without_end.wat", &["--fuel", "1000000"]);
    let dropped = &report["telemetry_dropped"];
    let lines = dropped["log_lines"].as_u64().expect("a number");
    assert!(lines > 0, "{report}");
    for none in ["spans", "span_events", "attributes", "metrics"] {
        assert_eq!(dropped[none], 0, "{report}");
    }
    let told =
        format!("the guest exceeded the limits on telemetry; dropped: {lines} lines of the log");
    let stderr = &said.exits(126).err;
    assert!(stderr.lines().any(|line| line.ends_with(&told)), "{stderr}");
    let (said, report) = run("wat/echo.wat", &[]);
    assert_eq!(report["telemetry_dropped"]["log_lines"], 0, "{report}");
    assert!(!said.exits(0).err.contains("dropped"), "nothing was");
}

#[test]
fn the_exit_code_is_the_same_if_the_report_is_not_read() {
    for (guest, code) in [("wat/echo.wat", 0), ("wat/spins.wat", 124), ("wat/absent.wat", 125)] {
        let guest = fixture(guest);
        for form in ["text", "json"] {
            with_nobody_reading(&[&"run", &guest, &"--deadline", &"100ms", &"--report", &form])
                .exits(code);
        }
    }
}

#[test]
fn a_killed_guest_reports_where_it_was() {
    let (_, report) = run("wat/sleeps_in_wasi_poll.wat", &["--deadline", "150ms"]);
    assert_eq!(report["dying_span"], "wasi_snapshot_preview1.poll_oneoff");
    assert_eq!(report["deadline"]["budget_ms"], 150);
    assert_eq!(report["deadline"]["owner"], "handler");
    assert!(report["deadline"]["elapsed_ms"].as_u64() > Some(150), "{report}");
    let calls = &report["host_calls"]["by_function"][0];
    assert_eq!((&calls["count"], &calls["in_flight"]), (&1.into(), &true.into()));
    let parts = report["time_split_us"].as_object().expect("parts");
    let total: u64 = parts.values().map(|part| part.as_u64().expect("a number")).sum();
    let wall = report["wall_us"].as_u64().expect("a number");
    let rounding = wall.checked_sub(total).expect("no part is counted twice");
    assert!(wall >= 150_000 && rounding <= parts.len() as u64, "they add up: {report}");
    assert!(report["cpu_us"].as_u64().expect("a number") < wall, "it slept: {report}");
}

#[test]
fn a_trap_has_function_file_and_line() {
    let (said, report) = run("built/panics.wasm", &[]);
    said.exits(126);
    let frames = report["backtrace"].as_array().expect("frames");
    let named = frames.iter().find(|frame| {
        frame["file"].as_str().is_some_and(|file| file.ends_with("panics/src/lib.rs"))
    });
    let frame = named.unwrap_or_else(|| panic!("no frame of the guest in {report}"));
    assert!(frame["line"].as_u64().is_some() && frame["function"].is_string(), "{frame}");
}

/// By the SDK, whichever way the guest was built.
#[test]
fn the_message_of_a_panic_is_in_the_log() {
    for guest in ["sdk_core", "sdk_wasip1", "sdk_wasip2", "sdk_component", "sdk_async"] {
        let guest = format!("built/{guest}.wasm");
        let (said, report) = run(&guest, &["--input", r#"{"does": "panic"}"#]);
        assert_eq!(said.code, Some(126), "{guest}: {said:?}");
        assert_eq!(report["error"]["kind"], "unreachable", "{guest}: {report}");
        let line = said.err.lines().find(|line| line.contains("no item of 0 cents"));
        let line = line.unwrap_or_else(|| panic!("{guest}: {}", said.err));
        assert!(line.contains("src/lib.rs"), "{guest}: it says where: {line}");
    }
}

#[test]
fn parameters_are_read_from_the_standard_input() {
    let echo = fixture("wat/echo.wat");
    let arguments: [&dyn AsRef<OsStr>; 6] =
        [&"run", &echo, &"--input", &"@-", &"--report", &"json"];
    let piped = with_input(r#"{"city": "Bergen"}"#, &arguments).exits(0);
    let report: Value = serde_json::from_str(&piped.out).expect("a report");
    assert_eq!(report["result"]["params"]["trigger_params"]["city"], "Bergen", "{report}");
}

#[test]
fn the_context_has_what_the_command_line_gave() {
    let folder = Folder::new();
    let input = folder.write("params.json", r#"{"city": "Oslo"}"#);
    let at_file = format!("@{}", input.display());
    let (_, report) = run(
        "wat/echo.wat",
        &["--input", &at_file, "--action", "Ask", "--entity", "Weather/no", "--config", "unit=C=F"],
    );
    let params = &report["result"]["params"];
    assert_eq!(params["trigger_params"]["city"], "Oslo", "{report}");
    assert_eq!(params["trigger_action"], "Ask");
    assert_eq!((&params["entity_type"], &params["entity_id"]), (&"Weather".into(), &"no".into()));
    assert_eq!(params["integration_config"]["unit"], "C=F");
    assert_eq!(report["deadline"]["budget_ms"], 120_000, "by default");
    assert_eq!(params["dispatch_id"], report["dispatch_id"]);
    assert_eq!(params["trace_id"], report["trace_id"]);
}

#[test]
fn a_state_is_given_as_json_or_as_a_file() {
    let folder = Folder::new();
    let state = r#"{"status": "Open", "entity_type": "Weather",
        "fields": {"city": "Oslo"}, "counters": {"n": 3}}"#;
    let file = folder.write("state.json", state).display().to_string();
    for given in [state, &file, &format!("@{file}")] {
        let (said, report) = run(
            "wat/echo.wat",
            &["--state", given, "--input", r#"{"city": "Bergen"}"#, "--config", "at={field:city}"],
        );
        said.exits(0);
        let params = &report["result"]["params"];
        assert_eq!(params["entity_type"], "Weather", "{report}");
        let state = &params["entity_state"];
        assert_eq!((&state["status"], &state["entity_id"]), (&"Open".into(), &params["entity_id"]));
        assert_eq!(state["fields"]["city"], "Oslo", "it takes precedence over params");
        assert_eq!(
            (&state["fields"]["Status"], &state["fields"]["n"]),
            (&"Open".into(), &3.into())
        );
        assert_eq!((&state["sequence_nr"], &state["lists"]), (&1.into(), &serde_json::json!({})));
        assert_eq!(params["integration_config"]["at"], "Oslo");
    }
    let wrong = folder.write("wrong.json", "{\n  \"fields\" {}}").display().to_string();
    for (given, says) in [
        (&*wrong, "wrong.json: it must be a JSON object"),
        (&wrong, "at line 2 column 12"),
        (r#"{"city":"Oslo"}"#, "`city` is no key of an entity's state"),
        (r#"{"fields":7}"#, "`fields` must be an object"),
        (r#"{"entity_id":"a/b\n"}"#, "--state"),
        ("no/such/file.json", "can't read `no/such/file.json`"),
    ] {
        let (said, report) = run("wat/echo.wat", &["--state", given]);
        said.exits(125);
        let message = report["error"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("--state") && message.contains(says), "{given}: {message}");
    }
    let both = ["--state", r#"{"entity_id":"7"}"#, "--entity", "Order/8"];
    run("wat/echo.wat", &both).0.exits(125).says("omit one of them");
}

#[test]
fn a_secret_in_the_configuration_is_in_no_report_and_no_journal() {
    const KEY: &str = "correct-horse-battery";
    let folder = Folder::new();
    let (echo, journal) = (fixture("wat/echo.wat"), folder.path("runs.db"));
    let mut arguments: Vec<&dyn AsRef<OsStr>> = vec![&"run", &echo, &"--report", &"json"];
    arguments.extend([&"--config" as &dyn AsRef<OsStr>, &"auth=Bearer {secret:API_KEY}"]);
    arguments.extend([&"--journal" as &dyn AsRef<OsStr>, &journal]);
    let without = sandglass(&arguments).exits(125).says("unresolved_template");
    assert!(without.out.contains("`{secret:API_KEY}`"), "{without:?}");
    arguments.extend([&"--secret" as &dyn AsRef<OsStr>, &"API_KEY=SANDGLASS_TEST_KEY"]);
    let (said, report) = report(binary::with_variable("SANDGLASS_TEST_KEY", KEY, &arguments));
    let said = said.exits(0);
    let config = &report["result"]["params"]["integration_config"];
    assert_eq!(config["auth"], "Bearer [redacted]", "{report}");
    let log = sandglass(&[&"log", &journal, &"--json"]).exits(0);
    assert!(log.out.contains("Bearer {secret:API_KEY}"), "{log:?}");
    for text in [said.out, said.err, log.out] {
        assert!(!text.contains(KEY), "{text}");
    }
    for file in std::fs::read_dir(folder.path("")).expect("a folder") {
        let path = file.expect("a file").path();
        let bytes = std::fs::read(&path).expect("readable");
        assert!(!bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()), "{}", path.display());
    }
}

#[test]
fn configuration_with_reserved_keys_reaches_the_guest() {
    let keys = ["timeout_secs", "deadline", "module", "name", "config", "on_failure", "a.b", "é"];
    let entries = keys.map(|key| format!("{key}=5"));
    let given: Vec<&str> = entries.iter().flat_map(|entry| ["--config", entry]).collect();
    for (more, budget_ms) in [(&[][..], 120_000), (&["--deadline", "7s"], 7_000)] {
        let (said, report) = run("wat/echo.wat", &[&given, more].concat());
        said.exits(0);
        assert_eq!(report["deadline"]["budget_ms"], budget_ms, "no entry changes it: {report}");
        for key in keys {
            assert_eq!(report["result"]["params"]["integration_config"][key], "5", "{key}");
        }
    }
}

#[test]
fn a_run_is_recorded_and_replays_without_a_spec_file() {
    let folder = Folder::new();
    let journal = folder.path("runs.db");
    let journal_text = journal.display().to_string();
    run("wat/spins.wat", &["--deadline", "80ms", "--journal", &journal_text]).0.exits(124);
    run("wat/echo.wat", &["--journal", &journal_text]).0.exits(0);
    run("wat/missing_import.wat", &["--journal", &journal_text]).0.exits(125);
    let said = sandglass(&[&"replay", &journal]).exits(0);
    assert_eq!(said.out.trim(), "3 dispatches, 1 timeout, 0 divergences");
    sandglass(&[&"log", &journal]).exits(0).says("HandlerTimedOut");
}

/// Evaluates a spec, and completes with the result as its parameter.
const EVALUATES: &str = r#"(module
    (import "env" "host_evaluate_spec"
        (func $evaluate (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
    (import "env" "host_set_result" (func $set (param i32 i32)))
    (memory (export "memory") 1)
    (data (i32.const 0) "SPEC")
    (data (i32.const 4096) "OpenClose")
    (data (i32.const 8192) "{\"success\":true,\"params\":{\"evaluated\":")
    (func (export "run") (param i32 i32) (result i32) (local $end i32)
        (local.set $end (i32.add (i32.const 8230) (call $evaluate
            (i32.const 0) (i32.const LENGTH) (i32.const 4096) (i32.const 4)
            (i32.const 4100) (i32.const 5) (i32.const 0) (i32.const 0)
            (i32.const 8230) (i32.const 1024))))
        (i32.store16 (local.get $end) (i32.const 0x7d7d))
        (call $set (i32.const 8192) (i32.sub (i32.add (local.get $end) (i32.const 2)) (i32.const 8192)))
        i32.const 0))"#;

#[test]
fn a_guest_evaluates_a_spec_by_the_rules_of_the_runtime() {
    let spec = "[automaton]\nname = 'Door'\nstates = ['Open', 'Shut']\ninitial = 'Open'\n\
                terminal = ['Shut']\nallow_indefinite_states = ['Open']\n\
                [[action]]\nname = 'Close'\nfrom = ['Open']\nto = 'Shut'\n";
    let guest = EVALUATES
        .replace("SPEC", &spec.replace('\n', "\\n"))
        .replace("LENGTH", &spec.len().to_string());
    let folder = Folder::new();
    let guest = folder.write("evaluates.wat", &guest);
    let (said, report) = report(sandglass(&[&"run", &guest, &"--report", &"json"]));
    said.exits(0);
    let expected = serde_json::json!({ "success": true, "new_state": "Shut", "error": null });
    assert_eq!(report["result"]["params"]["evaluated"], expected, "{report}");
}

#[test]
fn bad_arguments_are_a_report_too() {
    let folder = Folder::new();
    let text = folder.write("text.json", "[1]");
    let at_text = format!("@{}", text.display());
    let cases: [(&[&str], &str); 14] = [
        (&["--deadline", "soon"], "deadline"),
        (&["--memory", "1MiB "], "`1MiB ` is no size in bytes: write \"64MiB\""),
        (&["--input", " "], "--input: it is empty; write a JSON object"),
        (&["--deadline", "0s"], "deadline"),
        (&["--memory", "5GiB"], "memory"),
        (&["--fuel", "-1"], "fuel"),
        (&["--fuel", "0"], "fuel"),
        (&["--max-response", "1TiB"], "at most 256MiB"),
        (&["--entity", "nobody"], "entity"),
        (&["--allow-host", "http://x/"], "host"),
        (&["--input", "{"], "--input"),
        (&["--input", &at_text], "object"),
        (&["--secret", "KEY=SANDGLASS_TEST_HAS_NO_SUCH_VARIABLE"], "environment"),
        (&["--config", "novalue"], "KEY=VALUE"),
    ];
    for (more, part) in cases {
        let (said, report) = run("wat/echo.wat", more);
        said.exits(125);
        assert_eq!(report["outcome"], "rejected", "{more:?}");
        let message = report["error"]["message"].as_str().unwrap_or_default();
        assert!(message.contains(part), "{more:?}: {message}");
    }
    let (said, report) = run("wat/there_is_no_such_guest.wat", &[]);
    said.exits(125);
    assert_eq!(report["error"]["kind"], "unknown_module");
}

#[test]
fn a_path_that_is_not_a_file_is_reported_without_waiting() {
    let folder = Folder::new();
    let pipe = folder.path("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.expect("mkfifo is there").success());
    for (no_file, what) in [
        (pipe.as_path(), "a pipe, a socket or a device"),
        (Path::new("/dev/zero"), "a pipe, a socket or a device"),
        (&folder.path(""), "a folder"),
    ] {
        let says = format!("is no file but {what}");
        sandglass(&[&"run", &no_file]).exits(125).says("guest module: ").says(&says);
        let input = format!("@{}", no_file.display());
        let (said, report) = run("wat/echo.wat", &["--input", &input]);
        said.exits(125);
        let message = report["error"]["message"].as_str().unwrap_or_default();
        assert!(message.starts_with("--input: ") && message.contains(&says), "{message}");
    }
}

#[test]
fn any_bytes_are_a_guest_or_a_rejection() {
    let folder = Folder::new();
    let whole = std::fs::read(fixture("built/echo.wasm")).expect("kept");
    let half = &whole[..whole.len() / 2];
    let cases: [(&str, &[u8], &str); 6] = [
        ("empty.wasm", b"", "module"),
        ("noise.wasm", &[0xff, 0, 0x1b, 0x9b, 7, 13, 10], "module"),
        ("text.wat", b"(module (func", "module"),
        ("magic.wasm", b"\0asm", "module"),
        ("component.wasm", b"\0asm\x0d\0\x01\0", "component does not export `handle`"),
        ("half.wasm", half, "module"),
    ];
    for (name, bytes, why) in cases {
        let guest = folder.write(name, bytes);
        let said = sandglass(&[&"run", &guest]).exits(125).says(why);
        assert!(!said.out.contains('\u{1b}') && !said.err.contains('\u{1b}'), "{name}: {said:?}");
    }
}

#[test]
fn a_secret_reaches_the_guest_and_no_output() {
    // A guest that sends its secret back in its result, in a log line and in its error.
    let folder = Folder::new();
    let guest = folder.write(
        "leaks.wat",
        r#"(module
            (import "env" "host_get_secret" (func $secret (param i32 i32 i32 i32) (result i32)))
            (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
            (import "env" "host_set_result" (func $set (param i32 i32)))
            (import "wasi_snapshot_preview1" "fd_write"
                (func $write (param i32 i32 i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "KEY")
            (data (i32.const 128) "\2a\00\00\00\10\00\00\00")
            (data (i32.const 8) "warn")
            (data (i32.const 16) "{\"success\":false,\"error\":\"")
            (data (i32.const 58) "\"}")
            (func (export "run") (param i32 i32) (result i32)
                (drop (call $secret (i32.const 0) (i32.const 3) (i32.const 42) (i32.const 16)))
                (call $log (i32.const 8) (i32.const 4) (i32.const 42) (i32.const 16))
                (drop (call $write (i32.const 1) (i32.const 128) (i32.const 1) (i32.const 160)))
                (drop (call $write (i32.const 2) (i32.const 128) (i32.const 1) (i32.const 160)))
                (call $set (i32.const 16) (i32.const 44))
                i32.const 0))"#,
    );
    let journal = folder.path("runs.db");
    let secret = "hunter2-hunter2!";
    let said = binary::with_variable(
        "SANDGLASS_TEST_KEY",
        secret,
        &[
            &"run",
            &guest,
            &"--secret",
            &"KEY=SANDGLASS_TEST_KEY",
            &"--journal",
            &journal,
            &"--report",
            &"json",
        ],
    );
    let (said, report) = report(said);
    let said = said.exits(1);
    assert_eq!(said.err.matches("[redacted]").count(), 3, "log, output and errors: {}", said.err);
    assert_eq!(report["error"]["message"], "[redacted]", "{report}");
    let kept = std::fs::read(&journal).expect("a journal");
    let leaked = |bytes: &[u8]| bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
    assert!(!leaked(said.out.as_bytes()) && !leaked(said.err.as_bytes()) && !leaked(&kept));
}

#[test]
fn a_log_that_is_not_read_delays_no_kill() {
    let folder = Folder::new();
    let guest = folder.write(
        "logs_for_ever.wat",
        r#"(module
            (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "error")
            (func (export "run") (param i32 i32) (result i32)
                (loop $again
                    (call $log (i32.const 0) (i32.const 5) (i32.const 0) (i32.const 8000))
                    (br $again))
                i32.const 0))"#,
    );
    // A pipe of which nobody reads: it holds a few of these lines.
    let (unread, stderr) = std::io::pipe().expect("a pipe");
    let running = Running::with_stderr(
        stderr.into(),
        &[&"run", &guest, &"--deadline", &"200ms", &"--report", &"json"],
    );
    assert_eq!(running.ended().code(), Some(124));
    drop(unread);
}

#[test]
fn ctrl_c_and_sigterm_cancel_and_are_recorded() {
    for signal in ["INT", "TERM"] {
        cancelled_by(signal);
    }
}

fn cancelled_by(signal: &str) {
    let folder = Folder::new();
    let journal = folder.path("runs.db");
    // It says that it runs, so that nothing has to be waited for.
    let guest = folder.write(
        "says_and_spins.wat",
        r#"(module
            (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
            (memory (export "memory") 1)
            (data (i32.const 0) "running")
            (func (export "run") (param i32 i32) (result i32)
                (drop (call $status (i32.const 0) (i32.const 7)))
                (loop (br 0)) i32.const 0))"#,
    );
    let running = Running::start(&[&"run", &guest, &"--journal", &journal, &"--report", &"json"]);
    binary::until(|| sandglass(&[&"log", &journal]).out.contains("running"));
    running.signal(signal);
    assert_eq!(running.ended().code(), Some(130));
    let said = sandglass(&[&"replay", &journal]).exits(0);
    assert_eq!(said.out.trim(), "1 dispatch, 0 timeouts, 0 divergences");
    sandglass(&[&"log", &journal]).exits(0).says("HandlerCancelled");
}

/// A job whose handler is run again after a crash, in a module that has the name
/// which `run` gives to its own.
const JOB: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Working", "Done", "Failed"]
initial = "Idle"
terminal = ["Done", "Failed"]
allow_indefinite_states = ["Idle", "Working"]

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"

[[action]]
name = "Finish"
from = ["Working"]
to = "Done"

[[action]]
name = "Fail"
from = ["Working"]
to = "Failed"

[[integration]]
name = "work"
trigger = "Work"
module = "guest"
deadline = "20s"
on_crash = "rerun"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"
"#;

#[test]
fn other_entities_of_a_journal_stay_as_they_are() {
    let folder = Folder::with_lamp(
        r#"step = [
            { send = "Work", entity = "Job/1" },
            { send = "SwitchOn", entity = "Lamp/a" },
            { wait = "1h" },
        ]"#,
    );
    folder.write("job.ioa.toml", JOB);
    folder.write("guest.wat", std::fs::read(fixture("wat/spins.wat")).expect("there"));
    let journal = folder.path("play.journal");
    let mut playing =
        Running::start(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]);
    playing.line_with("> wait");
    playing.signal_its_child("KILL");
    assert_eq!(playing.ended().code(), Some(1));
    let log = |entity: &str| sandglass(&[&"log", &journal, &"--entity", &entity]).exits(0).out;
    let before = [log("Job/1"), log("Lamp/a")];
    assert!(before[0].contains("work starts") && before[1].contains("On"), "{before:?}");

    // Longer than the lamp's timer, and by an action that changes nothing of theirs.
    let path = journal.display().to_string();
    run("wat/spins.wat", &["--deadline", "1500ms", "--journal", &path]).0.exits(124);
    let (said, report) = run("wat/echo.wat", &["--journal", &path, "--entity", "Lamp/a"]);
    said.exits(125);
    let message = report["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("other settings"), "{message}");
    assert!(!folder.path("play.journal-wal").exists(), "the journal was closed");
    assert_eq!([log("Job/1"), log("Lamp/a")], before);
    sandglass(&[&"replay", &journal]).exits(0);
}

#[test]
fn an_entity_keeps_the_settings_of_its_creation() {
    let folder = Folder::new();
    let journal = folder.path("runs.db").display().to_string();
    let same = ["--journal", &journal, "--entity", "Session/1", "--deadline", "5s"];
    run("wat/echo.wat", &same).0.exits(0);
    run("wat/echo.wat", &same).0.exits(0);
    let other = ["--journal", &journal, "--entity", "Session/1", "--deadline", "6s"];
    let (said, report) = run("wat/echo.wat", &other);
    said.exits(125);
    let message = report["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("--entity"), "{message}");
}
