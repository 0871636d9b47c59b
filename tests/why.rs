//! `sandglass why` on journals that real runs have written: a handler that hung, one
//! that was killed in its own code, ones of which nothing is to be explained, and what daemons do
//! to handlers: retries, cancels, asks, and an end of their own.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

mod binary;
#[path = "why/daemon.rs"]
mod daemon;

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::{Path, PathBuf};

use binary::{Folder, Said, fixture, sandglass};
use sandglass_journal::SqliteJournal;
use serde_json::{Value, json};

/// A server that takes connections and never answers.
fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").expect("a free port")
}

/// Runs the guest that asks `server` for something, into `journal`, until it is killed.
fn hang(journal: &Path, server: &TcpListener) -> Said {
    let address = server.local_addr().expect("it listens");
    let url = format!("url=http://me:hush@{address}/v1/charge?token=secret");
    let (guest, allowed) = (fixture("built/slow_http.wasm"), address.to_string());
    sandglass(&[
        &"run",
        &guest,
        &"--config",
        &url,
        &"--allow-host",
        &allowed,
        &"--deadline",
        &"300ms",
        &"--entity",
        &"Order/7",
        &"--action",
        &"Pay",
        &"--journal",
        &journal,
    ])
    .exits(124)
}

fn why(journal: &Path) -> Value {
    let said = sandglass(&[&"why", &journal, &"--json"]).exits(0);
    serde_json::from_str(&said.out).expect("one object")
}

fn journal(folder: &Folder) -> PathBuf {
    folder.path("runs.db")
}

/// Calls `url`, ignores what comes of it, and reports success.
fn ignoring(url: &str) -> String {
    format!(
        r#"(module
        (import "env" "host_http_call" (func $get
            (param i32 i32 i32 i32 i32 i32 i32 i32 i32 i32) (result i32)))
        (import "env" "host_set_result" (func $set_result (param i32 i32)))
        (memory (export "memory") 1)
        (data (i32.const 16) "GET{url}")
        (data (i32.const 1024) "{{\"action\":\"Finish\",\"success\":true}}")
        (func (export "run") (param i32 i32) (result i32)
            (drop (call $get (i32.const 16) (i32.const 3) (i32.const 19) (i32.const {})
                (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)
                (i32.const 8192) (i32.const 4096)))
            (call $set_result (i32.const 1024) (i32.const 34))
            (i32.const 0)))"#,
        url.len()
    )
}

#[test]
fn a_call_that_failed_is_explained_even_if_the_guest_ignores_it() {
    let folder = Folder::new();
    let journal = journal(&folder);
    let closed = silent().local_addr().expect("it listened").to_string();
    let guest = folder.write("ignoring.wat", ignoring(&format!("http://{closed}/")));
    let run = |more: &[&dyn AsRef<std::ffi::OsStr>]| {
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"run", &guest, &"--journal", &journal];
        arguments.extend(more);
        sandglass(&arguments)
    };
    // The call is granted, and nobody listens: the guest may go on without it.
    let granted = run(&[&"--allow-host", &closed]).exits(0);
    granted.says("failed     host_http_call: the request failed").says("onnection refused");
    let said = run(&[&"--allow-host", &closed, &"--report", &"json"]).exits(0);
    let report: Value = serde_json::from_str(&said.out).expect("a report");
    let error = report["calls"][0]["error"].as_str().expect("the reason");
    assert!(error.contains("onnection refused"), "{report}");
    assert_eq!(report["requests"][0]["error"], error);
    let dispatch = report["dispatch_id"].as_str().expect("an id");
    sandglass(&[&"why", &journal, &dispatch]).exits(0).says(&format!("failed: {error}"));
    // It is not granted: the guest may not.
    run(&[]).exits(1).says("denied: the host `127.0.0.1").says("sandglass explain denied");
    let found = why(&journal);
    assert_eq!((&found["outcome"], &found["error"]["kind"]), (&json!("failed"), &json!("denied")));
    let error = found["calls"][0]["error"].as_str().expect("the reason");
    assert!(error.contains("is not allowed for this integration"), "{found}");
    sandglass(&[&"why", &journal])
        .exits(0)
        .says("refused, never sent")
        .says("change `on_denied` there");
    // Its manifest allows it to.
    folder.write(
        "integration.toml",
        "name = \"ignoring\"\nmodule = \"ignoring.wat\"\nabi = \"core\"\non_denied = \"report\"\n",
    );
    run(&[]).exits(0).says("failed     host_http_call: the host `127.0.0.1");
    sandglass(&[&"inspect", &guest]).exits(0).says("a refused call that it ignores: reported");
}

#[test]
fn a_hung_handler_is_explained_with_the_request_that_it_waited_for() {
    let (folder, server) = (Folder::new(), silent());
    let journal = journal(&folder);
    hang(&journal, &server);
    let found = why(&journal);
    assert_eq!(found["outcome"], "timed_out");
    assert_eq!(found["dying_span"], "host_http_call");
    assert_eq!((&found["entity"], &found["action"]), (&json!("Order/7"), &json!("Pay")));
    let calls = found["calls"].as_array().expect("a list");
    let last = calls.last().expect("it called");
    assert_eq!((&last["name"], &last["outcome"]), (&json!("host_http_call"), &json!("unfinished")));
    assert!(last["duration_us"].as_u64() > Some(200_000), "{last}");
    assert_eq!(calls[0]["name"], "host_get_context", "{found}");
    let ended = calls[..calls.len() - 1].iter().all(|call| call["outcome"] == "ok");
    assert!(ended, "{calls:?}");
    let requests = found["requests"].as_array().expect("a list");
    let [request] = requests.as_slice() else { panic!("{requests:?}") };
    let host = server.local_addr().expect("it listens").to_string();
    assert_eq!((&request["host"], &request["path"]), (&json!(host), &json!("/v1/charge")));
    assert_eq!(request["outcome"], "unfinished");
    assert!(!found["requests"].to_string().contains("token"), "{found}");
    assert_eq!(found["decision"]["action"], "HandlerTimedOut");
    assert_eq!(found["transition"]["action"], "HandlerTimedOut");
    assert_eq!(found["seen_before"]["count"], 0);
    assert_eq!(found["time_split_us"].as_object().map(serde_json::Map::len), Some(6));
    let text = sandglass(&[&"why", &journal]).exits(0);
    assert!(!text.out.contains("hush") && !text.out.contains('\u{1b}'), "{}", text.out);
    text.says("Order/7")
        .says("timed out after")
        .says("unfinished")
        .says(&format!("{host}/v1/charge"))
        .says("takes HandlerTimedOut")
        .says("never (Order slow_http");
}

#[test]
fn repeated_failures_are_counted_by_signature() {
    let (folder, server) = (Folder::new(), silent());
    let journal = journal(&folder);
    for _ in 0..3 {
        hang(&journal, &server);
    }
    let spins = fixture("wat/spins.wat");
    let deadline = ["--deadline", "100ms"];
    let arguments: [&dyn AsRef<std::ffi::OsStr>; 6] =
        [&"run", &spins, &deadline[0], &deadline[1], &"--journal", &journal];
    sandglass(&arguments).exits(124);
    let spun = why(&journal);
    assert_eq!((&spun["dying_span"], &spun["seen_before"]["count"]), (&json!("guest"), &json!(0)));
    hang(&journal, &server);
    let hung = why(&journal);
    assert_eq!(hung["seen_before"]["count"], 3);
    assert!(hung["seen_before"]["first_at"].as_i64() < hung["seen_before"]["last_at"].as_i64());
    let next = hung["next"].to_string();
    assert!(next.contains("3 times before"), "{next}");
    let next = spun["next"].to_string();
    assert!(
        next.contains("`sandglass run`") && !next.contains("/v1/"),
        "there is no daemon: {next}"
    );

    // An earlier one, by its id.
    let dispatch = spun["dispatch_id"].as_str().expect("an id").to_owned();
    let said = sandglass(&[&"why", &journal, &dispatch]).exits(0);
    said.says("in guest").says(&dispatch);
}

#[test]
fn a_journal_without_an_end_is_not_said_to_have_completed_handlers() {
    let folder = Folder::new();
    let journal = journal(&folder);
    let opened = SqliteJournal::open(&journal, sandglass_journal::Settings::default());
    drop(opened.expect("a new journal"));
    sandglass(&[&"why", &journal]).exits(0).says("no handler has ended yet");
}

#[test]
fn a_completed_handler_is_explained_only_if_it_is_named() {
    let folder = Folder::new();
    let journal = journal(&folder);
    let echo = fixture("wat/echo.wat");
    let said = sandglass(&[&"run", &echo, &"--journal", &journal, &"--report", &"json"]).exits(0);
    let report: Value = serde_json::from_str(&said.out).expect("a report");
    assert!(report["calls"].as_array().is_some_and(|calls| !calls.is_empty()), "{report}");
    sandglass(&[&"why", &journal]).exits(0).says("every handler that has ended has completed");
    let dispatch = report["dispatch_id"].as_str().expect("an id").to_owned();
    let said = sandglass(&[&"why", &journal, &dispatch, &"--json"]).exits(0);
    let found: Value = serde_json::from_str(&said.out).expect("one object");
    let missing: Vec<_> = report
        .as_object()
        .expect("an object")
        .keys()
        .filter(|key| found.get(key.as_str()).is_none())
        .collect();
    assert!(missing.is_empty(), "the report has {missing:?}, too");
    assert_eq!(found["next"], json!([]));
}

#[test]
fn foreign_text_never_controls_the_terminal_and_json_loses_nothing() {
    let folder = Folder::new();
    let journal = journal(&folder);
    let (entity, traps) = ("Order/a\u{202e}\u{2028}\u{200b}b", fixture("wat/traps.wat"));
    let run: [&dyn AsRef<std::ffi::OsStr>; 8] =
        [&"run", &traps, &"--entity", &entity, &"--journal", &journal, &"--report", &"json"];
    let (log, export, out) = (["log", "--json"], ["journal", "export"], folder.path("out.jsonl"));
    let mut said = vec![sandglass(&run).exits(126).out];
    said.push(sandglass(&[&"why", &journal, &"--json"]).exits(0).out);
    said.push(sandglass(&[&log[0], &journal, &log[1]]).exits(0).out);
    sandglass(&[&export[0], &export[1], &journal, &"--to", &out]).exits(0);
    said.push(std::fs::read_to_string(&out).expect("text"));
    for text in &said {
        let drives =
            |c: char| c.is_control() && c != '\n' || "\u{202e}\u{2028}\u{200b}".contains(c);
        assert!(!text.contains(drives), "{text:?}");
    }
    assert!(said[1].contains(r"a\u202e\u2028\u200bb"), "{}", said[1]);
    assert_eq!(why(&journal)["entity"], entity);
    // Nor where the arguments are wrong.
    for argument in ["--\u{1b}[31m\u{202e}", "\u{9b}31m"] {
        let said = sandglass(&[&"why", &journal, &argument]).exits(2);
        assert!(!said.err.contains(['\u{1b}', '\u{9b}', '\u{202e}']), "{:?}", said.err);
    }
}

#[test]
fn a_hung_body_may_be_requested_again_if_its_method_is_safe() {
    let (folder, server) = (Folder::new(), silent());
    let journal = journal(&folder);
    let answering = server.try_clone().expect("a handle");
    let answer = std::thread::spawn(move || {
        let (mut stream, _) = answering.accept().expect("a connection");
        let mut asked = Vec::new();
        while !asked.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a request");
            asked.extend(byte);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nab").expect("it reads");
        stream
    });
    hang(&journal, &server);
    drop(answer.join().expect("it answered"));
    let found = why(&journal);
    assert_eq!(found["requests"][0]["status"], 200, "{found}");
    let next = found["next"].to_string();
    assert!(next.contains("may be sent again without another effect"), "{next}");
}

#[test]
fn a_refused_connection_leads_to_the_host_that_refused_it() {
    let folder = Folder::new();
    let journal = journal(&folder);
    let address = silent().local_addr().expect("it listened").to_string();
    let (guest, url) = (fixture("built/slow_http.wasm"), format!("url=http://{address}/v1/charge"));
    sandglass(&[
        &"run",
        &guest,
        &"--config",
        &url,
        &"--allow-host",
        &address,
        &"--journal",
        &journal,
    ]);
    let found = why(&journal);
    assert_eq!(found["requests"][0]["outcome"], "failed", "{found}");
    let first = found["next"][0].as_str().expect("an advice");
    assert!(first.contains(&format!("look at `{address}` first")), "{first}");
}

#[test]
fn an_unreadable_end_is_explained_by_what_followed_and_not_called_lost() {
    let (folder, server) = (Folder::new(), silent());
    let journal = journal(&folder);
    hang(&journal, &server);
    let whole = why(&journal);
    let damage = |record: &Value| {
        let connection = rusqlite::Connection::open(&journal).expect("a SQLite file");
        let position = record.as_i64().expect("a position");
        let damage = "UPDATE records SET body = '{' WHERE position = ?1";
        assert_eq!(connection.execute(damage, [position]).expect("valid SQL"), 1);
    };
    let unread = || {
        let text = sandglass(&[&"why", &journal]).exits(3).out;
        let explained = sandglass(&[&"why", &journal, &"--json"]).exits(3).out;
        let explained: Value = serde_json::from_str(&explained).expect("one object");
        assert!(!text.contains("lost with its host"), "{text}");
        assert_eq!(explained["dispatch_id"], whole["dispatch_id"]);
        assert_eq!(explained["outcome"], Value::Null);
        (text, explained["end_unread"].clone())
    };
    damage(&whole["position"]);
    let (text, explained) = unread();
    assert!(text.contains("has ended; the record of its end can't be read"), "{text}");
    assert!(text.contains("takes HandlerTimedOut"), "{text}");
    assert_eq!(explained["transition"], whole["transition"]);
    assert_eq!(explained["params"]["cause"], "timed_out", "{explained}");
    // Without what followed, it is unknown whether it has ended.
    damage(&whole["transition"]["position"]);
    let (text, explained) = unread();
    assert!(text.contains("may have ended"), "{text}");
    assert_eq!(explained["transition"], Value::Null);
}

#[test]
fn missing_and_damaged_journals_are_reported() {
    let (folder, server) = (Folder::new(), silent());
    let journal = journal(&folder);
    sandglass(&[&"why", &journal]).exits(2).says("runs.db");
    hang(&journal, &server);
    let nobody = "0".repeat(32);
    sandglass(&[&"why", &journal, &nobody]).exits(1).says("no record of the journal is about");
    sandglass(&[&"why", &journal, &"xyz"]).exits(2).says("dispatch id");
    for none in ["#0", "#x", "#"] {
        let named = format!("{nobody}{none}");
        sandglass(&[&"why", &journal, &named]).exits(2).says("the number of an attempt");
    }
    let named = format!("{nobody}#2");
    sandglass(&[&"why", &journal, &named]).exits(1).says("is about attempt 2 of dispatch");
    let connection = rusqlite::Connection::open(&journal).expect("a SQLite file");
    let damage = "UPDATE records SET body = '{' WHERE position = 1";
    connection.execute(damage, []).expect("valid SQL");
    drop(connection);
    sandglass(&[&"why", &journal]).exits(3).says("timed out").says("damaged");
    let mut garbage = std::fs::File::create(&journal).expect("it is ours");
    garbage.write_all(&[0; 4096]).expect("there is room");
    sandglass(&[&"why", &journal]).exits(2);
}
