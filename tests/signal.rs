//! `sandglass signal`: signals from outside, to a daemon that records them.

mod binary;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Stdio;

use binary::{Folder, Running, Said, answer_of, sandglass, with_input, with_variable};
use serde_json::{Value, json};

/// It is closed if its partner does not reply for a day.
const ORDER: &str = r#"
[automaton]
name = "Order"
states = ["Open", "Closed"]
initial = "Open"
terminal = ["Closed"]

[[action]]
name = "Close"
from = ["Open"]
to = "Closed"

[[state_timeout]]
state = "Open"
after_seconds = 86400
on_timeout = "Close"
reset_on = ["PartnerReplied"]
"#;

/// A daemon with orders.
struct Daemon {
    folder: Folder,
    running: Running,
    address: String,
}

impl Daemon {
    fn new() -> Self {
        let folder = Folder::new();
        folder.write("order.ioa.toml", ORDER);
        Self::of(folder, &[], &[])
    }

    fn of(folder: Folder, variables: &[(&str, &str)], more: &[&dyn AsRef<OsStr>]) -> Self {
        let (specs, journal) = (folder.path("."), folder.path("runs.db"));
        let mut arguments: Vec<&dyn AsRef<OsStr>> =
            vec![&"up", &"--specs", &specs, &"--journal", &journal, &"--listen", &"127.0.0.1:0"];
        arguments.extend_from_slice(more);
        let mut running = Running::with_variables(variables, Stdio::null(), &arguments);
        let address = running.address();
        Self { folder, running, address }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn journal(&self) -> PathBuf {
        self.folder.path("runs.db")
    }

    #[track_caller]
    fn post(&self, path: &str, status: u16) {
        let answered = answer_of(&self.address, &format!("POST {path}"), "", b"");
        assert_eq!(answered.0, status, "{}", answered.1);
    }

    /// Sends a signal to this order.
    fn signal(&self, order: &str, name: &str, more: &[&dyn AsRef<OsStr>]) -> Said {
        let (url, order) = (self.url(), format!("Order/{order}"));
        let command: [&dyn AsRef<OsStr>; 4] = [&"signal", &url, &order, &name];
        sandglass(&[&command[..], more].concat())
    }
}

/// The names and payloads of the signals among these records.
fn signals(records: &[Value]) -> Vec<(Value, Value)> {
    let events = records.iter().map(|record| &record["event"]);
    let signals = events.filter(|event| event["type"] == "signal");
    signals.map(|signal| (signal["name"].clone(), signal["payload"].clone())).collect()
}

#[test]
fn a_signal_is_durable_when_the_command_ends() {
    let daemon = Daemon::new();
    let url = daemon.url();
    daemon.post("/v1/entities/Order/7", 201);
    let sent = daemon.signal("7", "PartnerReplied", &[]).exits(0);
    sent.says("signal PartnerReplied to Order/7 is recorded");
    daemon.signal("7", "a note / é", &[&"--payload", &r#"{"paid": [true, 1.5]}"#]).exits(0);
    daemon.signal("7", "number", &[&"--payload", &"-5"]).exits(0);
    let file = daemon.folder.write("payload.json", "\n\"from a file\"\n");
    let file = format!("@{}", file.display());
    let json = daemon.signal("7", "file", &[&"--payload", &file, &"--json"]).exits(0);
    assert_eq!(json.json_lines(), [json!({"entity": "Order/7", "signal": "file"})]);
    for payload in ["-", "@-"] {
        let command: [&dyn AsRef<OsStr>; 6] =
            [&"signal", &url, &"Order/7", &"input", &"--payload", &payload];
        with_input("[null]", &command).exits(0);
    }

    daemon.running.signal("KILL");
    let Daemon { folder, running, .. } = daemon;
    assert_eq!(running.ended().code(), None, "it was killed");
    let daemon = Daemon::of(folder, &[], &[]);
    let answered = answer_of(&daemon.address, "GET /v1/entities/Order/7/history", "", b"");
    let history: Value = serde_json::from_str(&answered.1).expect("JSON");
    let expected = [
        ("PartnerReplied", json!(null)),
        ("a note / é", json!({"paid": [true, 1.5]})),
        ("number", json!(-5)),
        ("file", json!("from a file")),
        ("input", json!([null])),
        ("input", json!([null])),
    ]
    .map(|(name, payload)| (json!(name), payload));
    assert_eq!(signals(history["entries"].as_array().expect("a page")), expected);
    let answered = answer_of(&daemon.address, "GET /v1/entities/Order/7", "", b"");
    let order: Value = serde_json::from_str(&answered.1).expect("JSON");
    assert_eq!((&order["state"], &order["sequence"]), (&json!("Open"), &json!(0)));

    for from in [daemon.url(), daemon.journal().display().to_string()] {
        let records = sandglass(&[&"log", &from, &"--json"]).exits(0).json_lines();
        assert_eq!(signals(&records), expected, "{from}");
        let log = sandglass(&[&"log", &from, &"--entity", &"Order/7"]).exits(0).out;
        let line = |text: &str| log.lines().find(|line| line.contains(text)).expect("a line");
        assert!(line("signal PartnerReplied").contains("from outside (restarts the idle timer)"));
        let other = line("signal number");
        assert!(other.contains("from outside -5") && !other.contains("restarts"), "{other}");
    }
    sandglass(&[&"replay", &daemon.journal()]).exits(0).says("0 divergences");
}

#[test]
fn a_signal_that_is_not_taken_is_refused_with_the_reason() {
    let daemon = Daemon::new();
    daemon.post("/v1/entities/Order/7", 201);
    daemon.signal("nobody", "PartnerReplied", &[]).exits(1).says("there is no entity Order/nobody");
    daemon.post("/v1/entities/Order/7/actions/Close", 200);
    let ended = daemon.signal("7", "PartnerReplied", &[]).exits(1);
    ended.says("state `Closed` doesn't take `PartnerReplied`");
    let records = sandglass(&[&"log", &daemon.journal(), &"--json"]).exits(0).json_lines();
    assert_eq!(signals(&records), []);
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_recorded() {
    let daemon = Daemon::new();
    daemon.post("/v1/entities/Order/7", 201);
    daemon.signal("7", "host_call", &[]).exits(2).says("it is reserved");
    daemon.signal("7", "a\nb", &[]).exits(2).says("it holds a control character");
    daemon.signal("7", "", &[]).exits(2).says("the signal has no name");
    for payload in ["", "{", "paid", "1 2"] {
        daemon.signal("7", "note", &[&"--payload", &payload]).exits(2).says("it is not JSON");
    }
    let absent = format!("@{}", daemon.folder.path("absent.json").display());
    daemon.signal("7", "note", &[&"--payload", &absent]).exits(2).says("absent.json");
    let large = daemon.folder.write("large.json", format!("\"{}\"", "x".repeat(64 << 10)));
    let large = format!("@{}", large.display());
    daemon.signal("7", "note", &[&"--payload", &large]).exits(2).says("65536 bytes");
    // It is larger as it is recorded.
    let numbers = format!("[{}1e9]", "1e9,".repeat(12_000));
    let numbers = daemon.folder.write("numbers.json", numbers);
    let numbers = format!("@{}", numbers.display());
    daemon.signal("7", "note", &[&"--payload", &numbers]).exits(2).says("65536 bytes");
    let records = sandglass(&[&"log", &daemon.journal(), &"--json"]).exits(0).json_lines();
    assert_eq!(signals(&records), []);
    sandglass(&[&"signal", &"daemon", &"Order/7", &"note"]).exits(2).says("is not an address");
    sandglass(&[&"signal", &daemon.url(), &"Order", &"note"]).exits(2);
    // Port 1 of this machine has no listener.
    sandglass(&[&"signal", &"http://127.0.0.1:1", &"Order/7", &"note"]).exits(2);
    let help = sandglass(&[&"signal", &"--help"]).exits(0);
    help.says("Exit code: 0").says("Examples:").says("--payload @report.json");
}

#[test]
fn a_key_that_may_only_read_sends_no_signals() {
    let (reader, actor) = ("a-key-that-may-only-read", "a-key-that-may-act-only");
    let folder = Folder::new();
    folder.write("order.ioa.toml", ORDER);
    let configuration = folder.write(
        "daemon.toml",
        "[[key]]\nowner = \"bob\"\nenv = \"READER_KEY\"\nmay = [\"read\"]\n\
         [[key]]\nowner = \"ann\"\nenv = \"ACTOR_KEY\"\nmay = [\"act\"]\n",
    );
    let keys = [("READER_KEY", reader), ("ACTOR_KEY", actor)];
    let daemon = Daemon::of(folder, &keys, &[&"--config", &configuration]);
    let bearer = format!("authorization: Bearer {actor}\r\n");
    let created = answer_of(&daemon.address, "POST /v1/entities/Order/7", &bearer, b"");
    assert_eq!(created.0, 201, "{}", created.1);
    let url = daemon.url();
    let command: [&dyn AsRef<OsStr>; 6] =
        [&"signal", &url, &"Order/7", &"PartnerReplied", &"--api-key-env", &"KEY"];
    with_variable("KEY", reader, &command).exits(2).says("the key of `bob` may not `act`");
    with_variable("KEY", "a-key-of-nobody-at-all", &command).exits(2).says("401");
    with_variable("KEY", actor, &command).exits(0);
    let records = sandglass(&[&"log", &daemon.journal(), &"--json"]).exits(0).json_lines();
    assert_eq!(signals(&records), [(json!("PartnerReplied"), json!(null))]);
}
