//! Starts the servers with their guests, and ends them.

use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::client::Client;

/// A server that runs until this is dropped.
pub(crate) struct Served {
    pub(crate) address: String,
    /// Where the client of a number requests an execution.
    pub(crate) path: fn(usize) -> String,
    pub(crate) body: String,
    /// What a response contains if the guest has succeeded.
    pub(crate) success: &'static str,
    process: Child,
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended by itself; then there is nothing to kill.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// More entities than there are clients.
const ENTITIES: usize = 64;

const START_MAX: Duration = Duration::from_secs(60);

const SPEC: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Working", "Failed"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Working", "Failed"]

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = [{ type = "trigger", name = "work" }]

[[action]]
name = "Finish"
from = ["Working"]
to = "Idle"

[[action]]
name = "Fail"
from = ["Working"]
to = "Failed"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "10s"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"
"#;

const MANIFEST: &str = r#"
name = "work"
module = "work.wasm"
abi = "core"
"#;

/// A handler that succeeds at once.
const HANDLER: &str = r#"(module
  (import "env" "host_set_result" (func $set_result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 1024) "{\"success\":true}")
  (func (export "run") (param i32 i32) (result i32)
    (call $set_result (i32.const 1024) (i32.const 16))
    (i32.const 0)))"#;

/// The same for Obelisk, where an activity has no context.
const ACTIVITY: &str = r#"(component
  (core module $m (func (export "run") (result i32) i32.const 0))
  (core instance $i (instantiate $m))
  (func $run (result (result)) (canon lift (core func $i "run")))
  (instance $handler (export "run" (func $run)))
  (export "bench:durable/handler" (instance $handler)))"#;

pub(crate) fn sandglass(program: &Path, folder: &Path) -> Result<Served> {
    let specs = folder.join("specs");
    fs::create_dir_all(&specs)?;
    fs::write(specs.join("job.ioa.toml"), SPEC)?;
    fs::write(specs.join("work.integration.toml"), MANIFEST)?;
    fs::write(specs.join("work.wasm"), wat::parse_str(HANDLER)?)?;
    let address = free_address()?;
    let mut command = Command::new(program);
    command.arg("up").arg("--specs").arg(&specs).arg("--journal").arg(folder.join("jobs.db"));
    command.args(["--listen", &address]);
    let served = Served {
        address,
        path: |number| format!("/v1/entities/Job/{number}/actions/Work?wait=settled"),
        body: String::new(),
        success: "\"Idle\"",
        process: start(&mut command)?,
    };
    wait_for(&served, "/healthz")?;
    let mut client = Client::of(&served.address);
    for number in 0..ENTITIES {
        let status = client.post(&format!("/v1/entities/Job/{number}"));
        ensure!(status == 201, "an entity is not created: {status}");
    }
    Ok(served)
}

/// `settings` are of the activity, in the form of its deployment file.
pub(crate) fn obelisk(program: &Path, folder: &Path, settings: &[&str]) -> Result<Served> {
    let folder = fs::canonicalize(folder)?;
    let activity = folder.join("activity.wasm");
    fs::write(&activity, wat::parse_str(ACTIVITY)?)?;
    let address = free_address()?;
    let server = format!(
        "api.listening_addr = \"{address}\"\nwebui.enabled = false\nexternal.enabled = false\n\
         database.sqlite.directory = \"{0}/sqlite\"\nwasm.cache_directory = \"{0}/cache\"\n\
         log.console.level = \"warn\"\n",
        folder.display()
    );
    fs::write(folder.join("server.toml"), server)?;
    let deployment = format!(
        "[[activity_wasm]]\nname = \"handler\"\nlocation = \"{}\"\nmax_retries = 0\n{}\n",
        activity.display(),
        settings.join("\n")
    );
    fs::write(folder.join("deployment.toml"), deployment)?;
    let mut command = Command::new(program);
    command.current_dir(&folder).args(["server", "run", "--server-config", "server.toml"]);
    command.args(["--deployment", "deployment.toml"]);
    let served = Served {
        address,
        path: |_| "/v1/executions?follow=true".to_owned(),
        body: r#"{"ffqn": "bench:durable/handler.run", "params": []}"#.to_owned(),
        success: "\"ok\"",
        process: start(&mut command)?,
    };
    wait_for(&served, "/v1/functions")?;
    Ok(served)
}

fn start(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    command.spawn().with_context(|| format!("cannot start {}", command.get_program().display()))
}

/// An address on which nothing listens.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Waits until the server responds to `GET path`.
fn wait_for(server: &Served, path: &str) -> Result<()> {
    let began = Instant::now();
    loop {
        let response = Client::of(&server.address).send("GET", path, "");
        if response.is_some_and(|(status, _)| status == 200) {
            return Ok(());
        }
        ensure!(began.elapsed() < START_MAX, "the server at {} does not start", server.address);
        thread::sleep(Duration::from_millis(20));
    }
}
