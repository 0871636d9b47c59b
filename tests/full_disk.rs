//! A disk that is full under a handler that runs: the kernel's own errors, by a limit on
//! the size of files, which needs no privileges. `.ci/check-full-disk` does the same with
//! a file system that is full.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]
#![cfg(target_os = "linux")]

mod binary;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use binary::{Folder, fixture, sandglass};

/// Far longer than anything here takes.
const LATE: Duration = Duration::from_secs(120);
/// The deadline of the guest: long enough that the limit comes before it.
const DEADLINE_MS: u64 = 5_000;

/// Says that it runs, and then spins.
const SPIN: &str = r#"(module
  (import "env" "host_log" (func $log (param i32 i32 i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 32) "info")
  (data (i32.const 64) "begun to spin")
  (func (export "run") (param i32 i32) (result i32)
    (call $log (i32.const 32) (i32.const 4) (i32.const 64) (i32.const 13))
    (loop $for_ever (br $for_ever))
    (i32.const 0)))"#;

/// The binary, with what it says on its standard error. Dropped, it is killed.
struct Limited {
    child: Child,
    said: Receiver<String>,
}

impl Limited {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sandglass"));
        command.args(arguments).env_remove("SANDGLASS_LOG");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("sh is there");
        let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
        let (tell, said) = channel();
        std::thread::spawn(move || {
            stderr.lines().map_while(Result::ok).try_for_each(|line| tell.send(line))
        });
        Self { child, said }
    }

    /// From now on no file grows beyond so many bytes.
    fn limit(&self, bytes: &str) {
        let process = self.child.id().to_string();
        let set = Command::new("prlimit")
            .args(["--pid", &process, &format!("--fsize={bytes}:")])
            .status();
        assert!(set.expect("prlimit is there").success());
    }

    fn says(&self, text: &str) {
        loop {
            let line = self.said.recv_timeout(LATE);
            if line.unwrap_or_else(|error| panic!("no `{text}`: {error}")).contains(text) {
                return;
            }
        }
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_kill_does_not_wait_for_disk_space_and_no_record_is_lost() {
    let folder = Folder::new();
    let journal = folder.path("runs.journal").display().to_string();
    let guest = folder.write("spin.wat", SPIN).display().to_string();
    let deadline = format!("{DEADLINE_MS}ms");
    let arguments = [
        "run",
        &guest,
        "--journal",
        &journal,
        "--deadline",
        &deadline,
        "--report",
        "json",
        "--entity",
        "Run/one",
    ];
    let mut run = Limited::start(&arguments);
    run.says("begun to spin");

    // The second process on one journal.
    sandglass(&[&"run", &guest, &"--journal", &journal])
        .exits(125)
        .says("is in use by another process");

    run.limit("1");
    run.says("the journal takes no records");
    run.limit("unlimited");
    run.says("the journal takes records again");
    let status = run.child.wait().expect("it is our child");
    assert_eq!(status.code(), Some(124), "its deadline passed");
    let stdout = run.child.stdout.take().expect("it is piped");
    let report: serde_json::Value = serde_json::from_reader(stdout).expect("a report");
    let elapsed = report["deadline"]["elapsed_ms"].as_u64().expect("a number");
    assert!((DEADLINE_MS..DEADLINE_MS + 5_000).contains(&elapsed), "killed in time: {report}");
    sandglass(&[&"replay", &journal]).exits(0);
    let told = sandglass(&[&"log", &journal, &"--json"]).exits(0);
    let kinds: Vec<_> = told.json_lines().iter().map(|one| one["event"]["type"].clone()).collect();
    assert_eq!(
        kinds,
        ["spec_registered", "created", "transition", "dispatched", "ended", "transition"]
    );
}

#[test]
fn no_guest_starts_if_its_dispatch_cannot_be_recorded() {
    let folder = Folder::new();
    let journal = folder.path("runs.journal").display().to_string();
    let guest = fixture("built/hang.wasm").display().to_string();
    let mut arguments: [&dyn AsRef<std::ffi::OsStr>; 8] =
        [&"run", &guest, &"--journal", &journal, &"--entity", &"Run/one", &"--deadline", &"100ms"];
    sandglass(&arguments).exits(124);
    let limited = "ulimit -f 8; exec \"$0\" \"$@\"";
    let said = Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_sandglass"), "run", &guest])
        .args(["--journal", &journal, "--entity", "Run/two", "--report", "json"])
        .output()
        .expect("sh is there");
    assert_eq!(said.status.code(), Some(125), "{said:?}");
    sandglass(&[&"replay", &journal]).exits(0);
    let told = sandglass(&[&"log", &journal, &"--entity", &"Run/two"]);
    assert!(!told.out.contains("Run/two @"), "nothing of it was begun: {told:?}");
    arguments[5] = &"Run/three";
    sandglass(&arguments).exits(124);
}
