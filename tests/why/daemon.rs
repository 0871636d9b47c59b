//! What a daemon's journal tells of handlers that it has run again, cancelled, had wait for
//! each other, and lost.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};

use crate::binary::{Folder, Running, WAITER, fixture, sandglass};

/// Asks a waiter to wait, until that has settled.
const ASKER: &str = r#"(module
  (import "env" "host_ask" (func $ask (param i32 i32 i32 i32) (result i32)))
  (memory (export "memory") 1)
  (data (i32.const 16) "{\"entity\":\"Waiter/asked\",\"action\":\"Wait\",\"until\":\"settled\"}")
  (func (export "run") (param i32 i32) (result i32)
    (drop (call $ask (i32.const 16) (i32.const 59) (i32.const 1024) (i32.const 1024)))
    (unreachable)))"#;

const MANIFEST: &str = r#"
name = "asks"
module = "asks.wat"
abi = "core"
[grants]
ask = ["Waiter.Wait"]
"#;

/// A daemon and its journal.
struct Up {
    folder: Folder,
    running: Option<(Running, String)>,
}

impl Up {
    fn new() -> Self {
        let folder = Folder::new();
        let rests = WAITER
            .replace("terminal = [\"Done\"]", "")
            .replace("[\"Idle\", \"Waiting\"]", "[\"Idle\", \"Waiting\", \"Done\"]")
            .replace("from = [\"Waiting\"]", "from = [\"Waiting\", \"Done\"]");
        folder.write("specs/waiter.ioa.toml", &rests);
        let again = rests
            .replace("name = \"Waiter\"", "name = \"Again\"")
            .replace("on_timeout", "on_crash = \"rerun\"\non_timeout");
        folder.write("specs/again.ioa.toml", &again);
        let asker = rests
            .replace("name = \"Waiter\"", "name = \"Asker\"")
            .replace("module = \"waits\"", "module = \"asks\"")
            .replace("3600s", "2s");
        folder.write("specs/asker.ioa.toml", &asker);
        let guest = std::fs::read(fixture("wat/sleeps_in_wasi_poll.wat")).expect("it is there");
        folder.write("specs/waits.wat", guest);
        folder.write("specs/asks/integration.toml", MANIFEST);
        folder.write("specs/asks/asks.wat", ASKER);
        folder.write("up.toml", "grace = \"1s\"\n");
        let mut up = Self { folder, running: None };
        up.start();
        up
    }

    fn journal(&self) -> PathBuf {
        self.folder.path("runs.db")
    }

    fn start(&mut self) {
        let (specs, config) = (self.folder.path("specs"), self.folder.path("up.toml"));
        let (journal, listen) = (self.journal(), "127.0.0.1:0");
        let mut running = Running::with_stderr(
            Stdio::null(),
            &[
                &"up",
                &"--specs",
                &specs,
                &"--config",
                &config,
                &"--journal",
                &journal,
                &"--listen",
                &listen,
            ],
        );
        let address = running.address();
        self.running = Some((running, address));
    }

    /// Kills it, as nothing can prevent.
    fn kill(&mut self) {
        self.running = None;
    }

    fn post(&self, target: &str, body: &Value) -> Value {
        let (_, address) = self.running.as_ref().expect("it runs");
        let mut stream = TcpStream::connect(address).expect("it listens");
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let length = body.len();
        let head = format!(
            "POST /v1/{target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        stream.write_all(head.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 20"), "{target}: {answer}");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a body");
        serde_json::from_str(body).expect("JSON")
    }

    /// Makes an entity and has it wait; answers the dispatch.
    fn wait(&self, entity: &str) -> String {
        self.post(&format!("entities/{entity}"), &Value::Null);
        let taken = self.post(&format!("entities/{entity}/actions/Wait"), &Value::Null);
        taken["dispatches"][0].as_str().expect("an id").to_owned()
    }

    fn why(&self, dispatch: Option<&str>) -> Value {
        let journal = self.journal();
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![&"why", &journal, &"--json"];
        arguments.extend(dispatch.iter().map(|one| one as &dyn AsRef<_>));
        serde_json::from_str(&sandglass(&arguments).exits(0).out).expect("one object")
    }

    /// What is told of the dispatch once that `holds`.
    #[track_caller]
    fn once(&self, dispatch: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let mut found = Value::Null;
        crate::binary::until(|| {
            found = self.why(Some(dispatch));
            holds(&found)
        });
        found
    }

    fn text(&self, dispatch: &str) -> String {
        sandglass(&[&"why", &self.journal(), &dispatch]).exits(0).out
    }
}

#[test]
fn handlers_lost_by_a_killed_host_are_explained_before_all_that_ended() {
    let mut up = Up::new();
    let cancelled = up.wait("Waiter/cancelled");
    up.post(&format!("dispatches/{cancelled}/cancel"), &json!({"reason": "no use"}));
    up.once(&cancelled, |found| found["outcome"] == "cancelled");
    let (first, last) = (up.wait("Waiter/first"), up.wait("Waiter/last"));
    // While they go on, nothing is wrong with them.
    let found = up.why(None);
    assert_eq!((&found["dispatch_id"], &found["host"]), (&json!(cancelled), &json!("alive")));
    assert_eq!(found["unended"], json!([]));
    assert!(up.text(&last).contains("has not ended: it is queued or running"));
    up.kill();
    let found = up.why(None);
    assert_eq!((&found["dispatch_id"], &found["host"]), (&json!(last), &json!("gone")));
    assert_eq!(found["outcome"], Value::Null);
    assert_eq!(found["unended"][0]["dispatch"], *first);
    let next = found["next"].to_string();
    assert!(
        next.contains("next start of its host") && next.contains("side effects are unknown"),
        "{next}"
    );
    let said = sandglass(&[&"why", &up.journal()]).exits(0);
    let said = said.says("was queued or running when the log ended").says("log ends");
    said.says("Waiter/first for Wait");
    // The next start ends them, and says so.
    up.start();
    let found = up.once(&last, |found| !found["outcome"].is_null());
    assert_eq!(found["outcome"], "interrupted");
    assert!(up.text(&cancelled).contains("no use"), "{}", up.text(&cancelled));
}

#[test]
fn every_attempt_of_a_rerun_and_a_retry_is_explained_and_can_be_named() {
    let mut up = Up::new();
    let dispatch = up.wait("Again/1");
    up.kill();
    up.start();
    up.once(&dispatch, |found| found["attempt"] == 2);
    up.post(&format!("dispatches/{dispatch}/cancel"), &Value::Null);
    up.once(&dispatch, |found| found["outcome"] == "cancelled");
    let retry = json!({"budget_ms": 300, "reason": "the upstream is back"});
    up.post(&format!("dispatches/{dispatch}/retry"), &retry);
    let found = up.once(&dispatch, |found| found["outcome"] == "timed_out");
    assert_eq!(found["attempt"], 3);
    let attempts = found["attempts"].as_array().expect("a list");
    let how: Vec<_> = attempts.iter().map(|one| (&one["attempt"], &one["outcome"])).collect();
    let expected = [(1, "interrupted"), (2, "cancelled"), (3, "timed_out")];
    let expected = expected.map(|(attempt, outcome)| (json!(attempt), json!(outcome)));
    assert_eq!(how, expected.iter().map(|(one, other)| (one, other)).collect::<Vec<_>>());
    assert_eq!(attempts[0]["decision"]["decision"], "rerun");
    assert_eq!(attempts[0]["transition"], Value::Null);
    assert_eq!(attempts[1]["transition"]["action"], "End");
    assert_eq!(attempts[2]["retried"]["reason"], "the upstream is back");
    let latest = up.why(None);
    assert_eq!(latest["attempts"], found["attempts"], "it needs no name for that");

    let first = up.why(Some(&format!("{dispatch}#1")));
    assert_eq!((&first["attempt"], &first["outcome"]), (&json!(1), &json!("interrupted")));
    assert_eq!(first["transition"], Value::Null, "what followed is of the later ones");
    assert!(first["next"].to_string().contains("its later attempts tell more"), "{first}");
    let text = up.text(&dispatch);
    for line in [
        "1: interrupted; it is dispatched again",
        "2: cancelled after",
        "3: retried for local: the upstream is back; timed out after",
        "(this one)",
    ] {
        assert!(text.contains(line), "no {line:?} in {text}");
    }
    let nobody = format!("{dispatch}#4");
    sandglass(&[&"why", &up.journal(), &nobody]).exits(1).says("attempt 4");
}

#[test]
fn a_handler_that_waited_for_another_entity_leads_to_the_handler_there() {
    let up = Up::new();
    up.post("entities/Waiter/asked", &Value::Null);
    let asker = up.wait("Asker/1");
    let found = up.once(&asker, |found| found["outcome"] == "timed_out");
    assert_eq!(found["dying_span"], "ask:Waiter.Wait");
    let found = up.once(&asker, |found| !found["started"][0]["outcome"].is_null());
    let [asked] = &found["started"].as_array().expect("a list")[..] else { panic!("{found}") };
    assert_eq!((&asked["entity"], &asked["action"]), (&json!("Waiter/asked"), &json!("Wait")));
    let asked = asked["dispatch"].as_str().expect("an id");
    assert!(found["next"].to_string().contains(asked), "{}", found["next"]);
    let text = up.text(&asker);
    assert!(text.contains("Waiter/asked for Wait, timed out in"), "{text}");
    let text = up.text(asked);
    assert!(text.contains(&format!("by a handler of Asker/1, dispatch {asker}")), "{text}");
    assert!(text.contains("the time was that of its asker"), "{text}");
}
