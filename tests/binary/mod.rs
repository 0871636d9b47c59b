//! Drives the built binary: runs it to its end or follows its lines, and never
//! leaves a child behind.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Lines, Read, Seek, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

/// What a run to the end said.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    /// Fails with all that was said where the exit code is another.
    #[track_caller]
    pub(crate) fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, Some(code), "out:\n{}\nerr:\n{}", self.out, self.err);
        assert!(!self.err.contains("panicked"), "{}", self.err);
        self
    }

    #[track_caller]
    pub(crate) fn says(self, text: &str) -> Self {
        let found = self.out.contains(text) || self.err.contains(text);
        assert!(found, "no `{text}` in out:\n{}\nerr:\n{}", self.out, self.err);
        self
    }

    pub(crate) fn json_lines(&self) -> Vec<serde_json::Value> {
        let json = |line| serde_json::from_str(line).expect("each line is JSON");
        self.out.lines().map(json).collect()
    }
}

fn command(arguments: &[&dyn AsRef<OsStr>]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandglass"));
    command
        .args(arguments.iter().map(AsRef::as_ref))
        .env_remove("SANDGLASS_LOG")
        .env_remove("OTEL_EXPORTER_OTLP_ENDPOINT")
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::null());
    command
}

/// Runs the binary to its end.
pub(crate) fn sandglass(arguments: &[&dyn AsRef<OsStr>]) -> Said {
    to_the_end(command(arguments))
}

/// The same, with a variable in its environment.
pub(crate) fn with_variable(name: &str, value: &str, arguments: &[&dyn AsRef<OsStr>]) -> Said {
    let mut command = command(arguments);
    command.env(name, value);
    to_the_end(command)
}

/// The same, with something to read from its standard input.
pub(crate) fn with_input(text: &str, arguments: &[&dyn AsRef<OsStr>]) -> Said {
    let mut file = tempfile::tempfile().expect("a temporary file");
    file.write_all(text.as_bytes()).and_then(|()| file.rewind()).expect("written");
    let mut command = command(arguments);
    command.stdin(file);
    to_the_end(command)
}

/// The same, with nobody who reads its standard output.
pub(crate) fn with_nobody_reading(arguments: &[&dyn AsRef<OsStr>]) -> Said {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut command = command(arguments);
    let child = command.stdout(writer).stderr(Stdio::piped()).spawn().expect("the binary starts");
    said(child.wait_with_output().expect("it is our child"))
}

/// Asks again and again until `holds`, for a minute at the most.
#[track_caller]
pub(crate) fn until(mut holds: impl FnMut() -> bool) {
    // Each question starts a process, so this neither spins nor needs a pause.
    let asked = (0..2000).find(|_| holds());
    assert!(asked.is_some(), "it never held");
}

fn to_the_end(mut command: Command) -> Said {
    said(command.output().expect("the binary starts"))
}

fn said(output: Output) -> Said {
    Said {
        code: output.status.code(),
        out: String::from_utf8(output.stdout).expect("text"),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}

/// The binary, running. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    lines: Option<Lines<BufReader<ChildStdout>>>,
}

impl Running {
    pub(crate) fn start(arguments: &[&dyn AsRef<OsStr>]) -> Self {
        Self::of(&mut command(arguments))
    }

    fn of(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = child.stdout.take().expect("it is piped");
        Self { child, lines: Some(BufReader::new(stdout).lines()) }
    }

    /// The same, with variables in its environment and this for its standard error.
    pub(crate) fn with_variables(
        variables: &[(&str, &str)],
        stderr: Stdio,
        arguments: &[&dyn AsRef<OsStr>],
    ) -> Self {
        Self::of(command(arguments).envs(variables.iter().copied()).stderr(stderr))
    }

    /// The same, with this for its standard error.
    pub(crate) fn with_stderr(stderr: Stdio, arguments: &[&dyn AsRef<OsStr>]) -> Self {
        Self::of(command(arguments).stderr(stderr))
    }

    /// Follows the lines up to the first that holds `text`, and gives it.
    #[track_caller]
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        let mut before = Vec::new();
        for line in self.lines.iter_mut().flatten() {
            let line = line.expect("text");
            if line.contains(text) {
                return line;
            }
            before.push(line);
        }
        panic!("no line with `{text}` in:\n{}", before.join("\n"));
    }

    /// The address of a daemon, once it listens.
    #[track_caller]
    pub(crate) fn address(&mut self) -> String {
        let line = self.line_with("listening on http");
        line.trim().rsplit('/').next().expect("an address").to_owned()
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, as `kill -NAME` does.
    pub(crate) fn signal(&self, name: &str) {
        signal(name, &self.child.id().to_string());
    }

    /// Sends a signal to the one process that this one has started.
    pub(crate) fn signal_its_child(&self, name: &str) {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
        let children = children.expect("Linux tells children");
        let [child] = children.split_whitespace().collect::<Vec<_>>()[..] else {
            panic!("not one child: {children}");
        };
        signal(name, child);
    }

    pub(crate) fn ended(mut self) -> ExitStatus {
        self.lines.iter_mut().flatten().for_each(drop);
        self.child.wait().expect("it is our child")
    }

    /// The same where nobody reads any more what it says.
    pub(crate) fn unread(mut self) -> ExitStatus {
        drop(self.lines.take());
        self.child.wait().expect("it is our child")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(name: &str, process: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process).status();
    assert!(sent.expect("kill is there").success());
}

/// What a daemon answers to one request: the status, and the body.
#[track_caller]
pub(crate) fn answer_of(address: &str, request: &str, headers: &str, body: &[u8]) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time");
    let length = body.len();
    let head = format!(
        "{request} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {length}\r\n{headers}\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).expect("it listens");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("an answer");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.expect("a status"), body.to_owned())
}

/// A file of the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// A sample guest, or what belongs to it.
pub(crate) fn fixture(path: &str) -> PathBuf {
    repository("guest-fixtures").join(path)
}

pub(crate) const LAMP_STEPS: &str = r#"
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

/// A journal of two lamps, `Lamp/kitchen` and `Lamp/hall`, which has ended.
pub(crate) fn played() -> (Folder, PathBuf) {
    let folder = Folder::with_lamp(LAMP_STEPS);
    let journal = folder.path("play.journal");
    sandglass(&[&"play", &folder.path("scenario.toml"), &"--journal", &journal]).exits(0);
    (folder, journal)
}

/// A folder that goes away with the test.
#[derive(Debug)]
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    /// In `parent`, which may be on another disk than other temporary folders.
    pub(crate) fn within(parent: &str) -> Self {
        Self(tempfile::tempdir_in(parent).expect("a temporary folder"))
    }

    /// With the spec of a lamp, which needs no guest, and a scenario of these steps.
    pub(crate) fn with_lamp(steps: &str) -> Self {
        Self::with_lamp_of(1, steps)
    }

    /// The same with a lamp that goes out after so many seconds: enough of them that
    /// a busy machine does in time what has to come before.
    pub(crate) fn with_lamp_of(seconds: u32, steps: &str) -> Self {
        let folder = Self::new();
        let after = format!("after_seconds = {seconds}");
        folder.write("lamp.ioa.toml", LAMP.replace("after_seconds = 1", &after));
        folder.write("scenario.toml", steps);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("it is in the folder")).expect("made");
        fs::write(&path, content).expect("written");
        path
    }
}

/// Goes out by itself when nobody touches it for a second.
pub(crate) const LAMP: &str = r#"
[automaton]
name = "Lamp"
states = ["Off", "On", "Broken"]
initial = "Off"
terminal = ["Broken"]
allow_indefinite_states = ["Off"]

[[action]]
name = "SwitchOn"
from = ["Off"]
to = "On"

[[action]]
name = "SwitchOff"
from = ["On"]
to = "Off"

[[action]]
name = "Break"
from = ["Off", "On"]
to = "Broken"

[[state_timeout]]
state = "On"
after_seconds = 1
on_timeout = "SwitchOff"
"#;

/// Waits forever in a handler that nobody but a deadline or a signal ends.
pub(crate) const WAITER: &str = r#"
[automaton]
name = "Waiter"
states = ["Idle", "Waiting", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Waiting"]

[[action]]
name = "Wait"
from = ["Idle"]
to = "Waiting"
effect = ["trigger waits"]

[[action]]
name = "End"
from = ["Waiting"]
to = "Done"

[[integration]]
name = "waits"
trigger = "waits"
module = "waits"
deadline = "3600s"
on_success = "End"
on_failure = "End"
on_timeout = "End"
"#;
