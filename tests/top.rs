//! `sandglass top`: the live view of a daemon, as scripts read it and terminals show it.

mod binary;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use binary::{Folder, Running, WAITER, fixture, sandglass, with_variable};
use serde_json::Value;

const POLL: &str = "wasi_snapshot_preview1.poll_oneoff";

/// A daemon with a handler that waits in a poll.
struct Up {
    running: Running,
    url: String,
}

impl Up {
    fn start(folder: &Folder, variables: &[(&str, &str)], more: &[&str]) -> Self {
        Self::configured("", folder, variables, more)
    }

    /// With more lines in its configuration's `[http]`.
    fn configured(http: &str, folder: &Folder, variables: &[(&str, &str)], more: &[&str]) -> Self {
        folder.write("waiter.ioa.toml", WAITER);
        let guest = std::fs::read(fixture("wat/sleeps_in_wasi_poll.wat")).expect("it is there");
        folder.write("waits.wat", guest);
        // Its handler never ends by itself, and no caller waits for it.
        let config = format!("grace = \"1s\"\n[http]\nkeep_alive = \"1s\"\n{http}");
        let config = folder.write("up.toml", config);
        let specs = folder.path(".");
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"up", &"--specs", &specs, &"--config", &config];
        if !more.contains(&"--listen") {
            arguments.extend([&"--listen" as &dyn AsRef<_>, &"127.0.0.1:0"]);
        }
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        let mut running = Running::with_variables(variables, Stdio::null(), &arguments);
        let url = format!("http://{}", running.address());
        Self { running, url }
    }

    fn address(&self) -> &str {
        self.url.trim_start_matches("http://")
    }

    /// Has an entity's handler wait, whatever its name is, percent-encoded.
    fn wait(&self, id: &str) {
        self.post(&format!("Waiter/{id}"));
        self.post(&format!("Waiter/{id}/actions/Wait"));
    }

    fn post(&self, target: &str) {
        let mut stream = TcpStream::connect(self.address()).expect("it listens");
        let head = format!(
            "POST /v1/entities/{target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    }

    fn ends(self) {
        self.running.signal("TERM");
        assert_eq!(self.running.ended().code(), Some(0));
    }
}

#[test]
fn without_a_terminal_one_snapshot_is_printed() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    sandglass(&[&"top", &up.url]).exits(0).says("no handler is in flight");
    up.wait("a%E2%80%AEb");
    // Until the guest has come to its call.
    binary::until(|| sandglass(&[&"top", &up.url, &"--once"]).out.contains(POLL.split_at(20).0));
    let said = sandglass(&[&"top", &format!("{}/", up.url)]).exits(0);
    let line = said.out.lines().find(|line| line.contains("Waiter/")).expect("it is in flight");
    assert!(line.contains("Wait") && line.contains("██████████"), "{line}");
    assert!(!said.out.contains('\u{1b}') && line.contains(r"\u{202e}"), "{line}");
    assert!(said.out.contains("no kills"), "{}", said.out);

    let json = sandglass(&[&"top", &up.url, &"--once", &"--json"]).exits(0).json_lines();
    let [scene] = &json[..] else { panic!("{json:?}") };
    assert_eq!(scene["handlers"][0]["doing"], POLL);
    assert_eq!(scene["in_flight"], 1);
    up.ends();
}

/// A session that is soon silent, and one that takes longer than it may.
const AGENTS: [(&str, &str); 2] = [
    (
        "agent.ioa.toml",
        r#"
[automaton]
name = "Agent"
states = ["Idle", "Working", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Working"]
[limits]
inactivity_warn = "100ms"
[[action]]
name = "Watch"
from = ["Idle"]
to = "Working"
effect = ["trigger watch"]
[[action]]
name = "Finish"
from = ["Working"]
to = "Done"
[[integration]]
name = "watch"
trigger = "watch"
module = "waits"
deadline = "1h"
on_success = "Finish"
on_failure = "Finish"
on_timeout = "Finish"
"#,
    ),
    (
        "brief.ioa.toml",
        r#"
[automaton]
name = "Brief"
states = ["Idle", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle"]
[limits]
run_timeout = "50ms"
[[action]]
name = "Finish"
from = ["Idle"]
to = "Done"
"#,
    ),
];

#[test]
fn sessions_are_shown_with_their_status_and_blocked_ones_are_listed() {
    let folder = Folder::new();
    for (name, spec) in AGENTS {
        folder.write(name, spec);
    }
    let up = Up::start(&folder, &[], &[]);
    let shown = || sandglass(&[&"top", &up.url, &"--once"]).exits(0).out;
    assert!(!shown().contains("blocked"), "none is");
    up.post("Agent/1");
    up.post("Agent/1/actions/Watch");
    up.post("Brief/1");
    binary::until(|| shown().contains("run 1  SILENT STUCK  3h 59m"));
    binary::until(|| shown().contains("1 blocked until they are resumed"));
    let said = shown();
    let line = said.lines().find(|line| line.starts_with("Brief/1")).expect("it is blocked");
    assert!(line.contains("run 1  watchdog_wall_clock_exceeded  for "), "{line}");
    up.ends();
}

#[test]
fn one_snapshot_takes_no_slot_of_a_follower() {
    let folder = Folder::new();
    let up = Up::configured("max_subscribers = 0\n", &folder, &[], &[]);
    sandglass(&[&"top", &up.url, &"--json"]).exits(2).says("429");
    sandglass(&[&"top", &up.url]).exits(0).says("no handler is in flight");
    sandglass(&[&"top", &up.url, &"--once"]).exits(0).says("no handler is in flight");
    sandglass(&[&"top", &up.url, &"--once", &"--json"]).exits(0).says("in_flight");
    up.ends();
}

#[test]
fn each_change_prints_a_line_of_json() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let mut top = Running::start(&[&"top", &up.url, &"--json"]);
    let first: Value = serde_json::from_str(&top.line_with("")).expect("JSON");
    assert_eq!(first["in_flight"], 0);
    up.wait("a");
    top.line_with(POLL);
    top.signal("INT");
    assert_eq!(top.ended().code(), Some(130));
    up.ends();
}

#[test]
fn closing_the_json_output_ends_top() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let mut top = Running::start(&[&"top", &up.url, &"--json"]);
    top.line_with("in_flight");
    // Nothing happens there that it could write, and fail to.
    assert_eq!(top.unread().code(), Some(0));
    up.ends();
}

#[test]
fn a_frozen_daemon_is_reported_in_json() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let errors = folder.path("errors");
    let stderr = std::fs::File::create(&errors).expect("a file");
    let mut top = Running::with_stderr(stderr.into(), &[&"top", &up.url, &"--json"]);
    top.line_with("in_flight");
    up.running.signal("STOP");
    assert_eq!(top.ended().code(), Some(2));
    let said = std::fs::read_to_string(&errors).expect("text");
    assert!(said.contains("the daemon was silent for 3.0 s"), "{said}");
    up.running.signal("CONT");
    up.ends();
}

#[test]
fn credentials_in_a_url_are_never_shown_and_a_refused_name_is_reported() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let port = up.address().rsplit_once(':').expect("a port").1;
    for address in [format!("http://me:hush@127.0.0.1:{port}"), "http://me:hu sh@x".to_owned()] {
        for more in ["--json", "--once"] {
            let said = sandglass(&[&"top", &address, &more]).exits(2).says("--api-key-env");
            assert!(!said.err.contains("hu") && !said.err.contains("me:"), "{}", said.err);
        }
    }
    // An address that leads here, but is not one by which a daemon without keys is asked.
    let said = sandglass(&[&"top", &format!("http://0.0.0.0:{port}")]).exits(2);
    let said = said.says("must be `localhost`");
    assert!(!said.err.contains("--api-key-env"), "{}", said.err);
    up.ends();
}

#[test]
fn a_server_that_is_no_daemon_or_requires_a_key_is_reported() {
    let folder = Folder::new();
    let secret = "a-key-that-nobody-guesses";
    let up = Up::start(&folder, &[("UP_KEY", secret)], &["--api-key-env", "UP_KEY"]);
    sandglass(&[&"top", &up.url]).exits(2).says("--api-key-env");
    let asked: &[&dyn AsRef<std::ffi::OsStr>] = &[&"top", &up.url, &"--api-key-env", &"UP_KEY"];
    sandglass(asked).exits(2).says("`UP_KEY` holds no key");
    with_variable("UP_KEY", "a-key-that-is-wrong", asked).exits(2).says("requires a key");
    with_variable("UP_KEY", secret, asked).exits(0).says("no handler is in flight");
    up.ends();
    let nobody = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("one");
    sandglass(&[&"top", &format!("http://{nobody}")]).exits(2).says("can't get");
    sandglass(&[&"top", &"ftp://127.0.0.1:1"]).exits(2).says("https://HOST:PORT");
    for text in ["nope.db", "127.0.0.1:1", "http://"] {
        let said = sandglass(&[&"top", &text]).exits(2).says("http://HOST:PORT");
        let said = said.says(&format!("`{text}` is not an address"));
        assert!(!said.err.contains("/v1/"), "{said:?}");
    }
    let ca = fixture("wat/echo.wat");
    sandglass(&[&"top", &"http://127.0.0.1:1", &"--ca", &ca]).exits(2).says("plain HTTP");
    sandglass(&[&"top", &"http://[::1/x"]).exits(2).says("not an address");
    sandglass(&[&"top", &"http://127.0.0.1:99999"]).exits(2).says("port `99999`");
}

/// Columns and rows of the terminal.
const SIZE: (u16, u16) = (110, 30);

/// `sandglass top` on a terminal of its own, which `script` makes. Only cells that change are
/// written, so a parser keeps what the screen shows.
struct Terminal {
    child: Child,
    screen: vt100::Parser,
    /// Everything that was written.
    written: String,
}

impl Terminal {
    fn open(url: &str) -> Self {
        let (columns, rows) = SIZE;
        let binary = env!("CARGO_BIN_EXE_sandglass");
        let top = format!("stty cols {columns} rows {rows}; {binary} top {url}");
        let child = Command::new("script")
            .args(["-qec", &top, "/dev/null"])
            .env("NO_COLOR", "1")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`script` is part of every Linux");
        let screen = vt100::Parser::new(rows, columns, 0);
        Self { child, screen, written: String::new() }
    }

    /// Reads until the alternate screen is entered.
    #[track_caller]
    fn enters(&mut self) {
        self.read_until("the alternate screen", |screen| screen.alternate_screen());
    }

    /// Reads until the screen shows `text`.
    #[track_caller]
    fn until(&mut self, text: &str) {
        self.read_until(text, |screen| screen.contents().contains(text));
    }

    #[track_caller]
    fn read_until(&mut self, what: &str, is_shown: impl Fn(&vt100::Screen) -> bool) {
        let out = self.child.stdout.as_mut().expect("it is piped");
        // Small pieces, so that no frame between two is missed.
        let mut piece = [0; 64];
        while !is_shown(self.screen.screen()) {
            let read = out.read(&mut piece).expect("it is open");
            assert!(read > 0, "no {what:?} in {}", self.written);
            self.screen.process(&piece[..read]);
            self.written.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }

    fn types(&mut self, text: &str) {
        let keys = self.child.stdin.as_mut().expect("it is piped");
        keys.write_all(text.as_bytes()).and_then(|()| keys.flush()).expect("it is open");
    }

    /// Reads to the end; returns the exit code and everything that was written.
    fn ends(mut self) -> (Option<i32>, String) {
        let mut rest = Vec::new();
        let out = self.child.stdout.as_mut().expect("it is piped");
        out.read_to_end(&mut rest).expect("it is open");
        self.written.push_str(&String::from_utf8_lossy(&rest));
        (self.child.wait().expect("our child").code(), std::mem::take(&mut self.written))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn a_terminal_shows_changes_waits_for_an_absent_daemon_and_is_restored() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let mut terminal = Terminal::open(&up.url);
    terminal.enters();
    terminal.until("no handler is in flight");
    up.wait("a");
    terminal.until("Waiter/a");
    terminal.until("wasi_snapshot");
    let address = up.address().to_owned();
    up.ends();
    terminal.until("the connection ended; reconnecting");
    let again = Up::start(&folder, &[], &["--listen", &address]);
    terminal.until("no handler is in flight");
    terminal.types("q");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(0));
    assert!(shown.contains(LEAVE) && shown.rfind(LEAVE) > shown.rfind(ENTER), "given back");
    again.ends();
}

#[test]
fn a_frozen_daemon_is_reported_retried_and_found_again() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let mut terminal = Terminal::open(&up.url);
    terminal.until("ticker and journal work");
    up.running.signal("STOP");
    terminal.until("no updates for");
    terminal.until("the daemon was silent for 3.0 s; reconnecting in");
    terminal.until("reconnecting now");
    up.running.signal("CONT");
    terminal.until("ticker and journal work");
    terminal.types("q");
    assert_eq!(terminal.ends().0, Some(0));
    up.ends();
}

#[test]
fn a_wait_for_a_connection_can_be_ended() {
    // It takes connections, and answers none.
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", silent.local_addr().expect("it listens"));
    for (key, code) in [("q", 0), ("\u{3}", 130)] {
        let mut terminal = Terminal::open(&url);
        terminal.until("connecting");
        terminal.types(key);
        let (ended, shown) = terminal.ends();
        assert_eq!(ended, Some(code), "{shown}");
        assert!(shown.contains(LEAVE), "{shown}");
    }
}

#[test]
fn ctrl_c_restores_the_terminal() {
    let folder = Folder::new();
    let up = Up::start(&folder, &[], &[]);
    let mut terminal = Terminal::open(&up.url);
    terminal.until("no handler is in flight");
    terminal.types("\u{3}");
    let (code, shown) = terminal.ends();
    assert_eq!(code, Some(130), "{shown}");
    assert!(shown.contains(LEAVE), "{shown}");
    up.ends();
}
