//! Three hosts that follow what is active, while clients send requests.

use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use serde_json::Value;

use super::empty;
use crate::binary::{Folder, Running, Said, answer_of, fixture, sandglass};
use crate::server::{free_port, shared, until};

const JSON: &str = "content-type: application/json\r\n";

const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[state]]
name = "counted"
type = "counter"

[[action]]
name = "Count"
from = ["Open"]
effect = ["increment counted"]
"#;

/// What the second version has besides.
const BUMP: &str = r#"
[[action]]
name = "Bump"
from = ["Open"]
effect = ["increment counted"]
"#;

/// An integration whose module is never called.
const TOOL: &str = r#"
[automaton]
name = "Tool"
states = ["Idle", "Busy"]
initial = "Idle"
allow_indefinite_states = ["Idle", "Busy"]

[[action]]
name = "Begin"
from = ["Idle"]
to = "Busy"
effect = ["trigger tool"]

[[action]]
name = "End"
from = ["Busy"]
to = "Idle"

[[integration]]
name = "tool"
trigger = "tool"
type = "wasm"
module = "tool"
on_success = "End"
on_failure = "End"
"#;

const MANIFEST: &str = "name = \"tool\"\nmodule = \"tool.wat\"\nabi = \"core\"\n";

/// A module that can be loaded and does nothing.
fn module() -> Vec<u8> {
    fs::read(fixture("wat/echo.wat")).expect("a fixture")
}

/// A host with a folder of its own.
struct Host {
    folder: Folder,
    port: u16,
    url: String,
    running: Option<Running>,
}

impl Host {
    fn new() -> Self {
        let (folder, port) = (Folder::new(), free_port());
        folder.write("specs/counter.ioa.toml", COUNTER);
        folder.write("sandglass.toml", "");
        Self { folder, port, url: format!("http://127.0.0.1:{port}"), running: None }
    }

    fn start(&mut self, journal: &str, more: &[&str]) {
        self.start_on(journal, &self.folder.path("specs"), more);
    }

    fn start_on(&mut self, journal: &str, specs: &Path, more: &[&str]) {
        let said = File::options().create(true).append(true).open(self.folder.path("said"));
        let configuration = self.folder.path("sandglass.toml");
        let listen = self.address();
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> = vec![
            &"up",
            &"--specs",
            &specs,
            &"--config",
            &configuration,
            &"--listen",
            &listen,
            &"--journal-env",
            &"JOURNAL",
            &"--advertise",
            &self.url,
        ];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        let variables = [("JOURNAL", journal), ("TOKEN", "a value")];
        let stderr = Stdio::from(said.expect("a file"));
        let mut running = Running::with_variables(&variables, stderr, &arguments);
        running.address();
        self.running = Some(running);
    }

    fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn said(&self) -> String {
        fs::read_to_string(self.folder.path("said")).unwrap_or_default()
    }

    /// Has the host read its folder again, and waits until it has proposed it.
    fn reload(&self, proposes: u64) {
        self.running.as_ref().expect("it runs").signal("HUP");
        let line = format!("reloaded; the folder is generation {proposes}");
        until(|| self.said().contains(&line));
    }

    fn cluster(&self) -> Value {
        let (status, body) = answer_of(&self.address(), "GET /v1/cluster", "", b"");
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).expect("JSON")
    }

    fn activate(&self, generation: u64, more: &[&str]) -> Said {
        let generation = generation.to_string();
        let mut arguments: Vec<&dyn AsRef<std::ffi::OsStr>> =
            vec![&"cluster", &"activate", &generation, &self.url];
        arguments.extend(more.iter().map(|one| one as &dyn AsRef<_>));
        sandglass(&arguments)
    }
}

/// What a host runs, and why it cannot run what is active, as `at` sees it.
fn runs(at: &Host, host: &Host) -> (Option<u64>, Option<String>) {
    let cluster = at.cluster();
    let hosts = cluster["hosts"].as_array().expect("a list");
    let is_host = |one: &&Value| one["url"] == host.url.as_str() && one["state"] != "dead";
    let Some(found) = hosts.iter().find(is_host) else { return (None, None) };
    (found["generation"].as_u64(), found["error"].as_str().map(str::to_owned))
}

fn until_all_run(hosts: &[Host], generation: u64) {
    until(|| {
        let runs_it = |host| hosts.iter().all(|at| runs(at, host) == (Some(generation), None));
        hosts.iter().all(runs_it)
    });
}

/// Waits until each partition has an owner, and each host owns some.
fn until_whole(hosts: &[Host]) {
    until(|| {
        let cluster = hosts[0].cluster();
        let owners = cluster["partitions"].as_array().expect("a list").iter();
        let owners: Vec<&Value> = owners.map(|one| &one["owner"]).collect();
        let distinct: std::collections::BTreeSet<_> =
            owners.iter().filter_map(|owner| owner.as_str()).collect();
        owners.iter().all(|owner| owner.is_string()) && distinct.len() == hosts.len()
    });
}

fn started(journal: &str) -> Vec<Host> {
    let mut hosts = vec![Host::new(), Host::new(), Host::new()];
    hosts.iter_mut().for_each(|host| host.start(journal, &[]));
    until_all_run(&hosts, 1);
    until_whole(&hosts);
    hosts
}

fn post(host: &str, path: &str) -> (u16, String) {
    answer_of(host, &format!("POST /v1/entities/Counter/{path}"), JSON, b"")
}

/// Clients that send requests to all hosts until they are stopped.
struct Clients {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<Vec<String>>>,
}

impl Clients {
    fn start(hosts: &[Host]) -> Self {
        let (stop, sent) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let threads = (0..3)
            .map(|client| {
                let addresses: Vec<String> = hosts.iter().map(Host::address).collect();
                let (stop, sent) = (Arc::clone(&stop), Arc::clone(&sent));
                thread::Builder::new()
                    .spawn(move || {
                        let mut failed = Vec::new();
                        for turn in 0.. {
                            if stop.load(Ordering::Relaxed) {
                                break;
                            }
                            let address = &addresses[turn % addresses.len()];
                            let id = format!("{client}-{}", turn % 20);
                            let path = if turn < 20 { id } else { format!("{id}/actions/Count") };
                            let (status, body) = post(address, &path);
                            if status >= 400 {
                                failed.push(format!("{path}: {status} {body}"));
                            }
                            sent.fetch_add(1, Ordering::Relaxed);
                        }
                        failed
                    })
                    .expect("a thread")
            })
            .collect();
        Self { stop, sent, threads }
    }

    /// Waits until so many more requests were sent.
    fn go_on(&self, more: usize) {
        let before = self.sent.load(Ordering::Relaxed);
        until(|| self.sent.load(Ordering::Relaxed) >= before + more);
    }

    /// Stops them; none of their requests has failed.
    fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let failed = thread.join().expect("a client");
            assert!(
                failed.is_empty(),
                "{} failed: {:?}",
                failed.len(),
                &failed[..failed.len().min(5)]
            );
        }
        self.sent.load(Ordering::Relaxed)
    }
}

#[test]
fn hosts_follow_an_activation_and_its_rollback_without_a_failed_request() {
    let journal = empty("follows");
    let mut hosts = started(&journal);
    assert_eq!(hosts[2].cluster()["generation"], 1);
    let clients = Clients::start(&hosts);
    clients.go_on(200);

    hosts[1].folder.write("specs/counter.ioa.toml", format!("{COUNTER}{BUMP}"));
    hosts[1].reload(2);
    let command = format!("sandglass cluster activate 2 {}", hosts[1].url);
    assert!(hosts[1].said().contains(&command), "{}", hosts[1].said());
    until(|| hosts[2].cluster()["generations"][1]["state"] == "proposed");
    assert_eq!(hosts[2].cluster()["generation"], 1, "it is only proposed");
    let bump = |host: &Host| post(&host.address(), "0-0/actions/Bump").0;
    assert_eq!(bump(&hosts[1]), 404);

    hosts[2].activate(9, &[]).exits(1).says("there is no such generation");
    hosts[2].activate(2, &["--replacing", "7"]).exits(1).says("another generation was activated");
    let done = hosts[2].activate(2, &["--replacing", "1"]).exits(0);
    done.says("generation 2 is active, and has replaced 1");
    until_all_run(&hosts, 2);
    hosts[0].activate(2, &["--json"]).exits(0).says("\"replaced\":2");
    until(|| hosts.iter().all(|host| bump(host) == 200));
    let status = sandglass(&[&"cluster", &"status", &hosts[0].url]).exits(0);
    status.says("generation 2 is active").says("replaced generations: 1").says("  generation 2");
    clients.go_on(200);

    hosts[0].activate(1, &[]).exits(0).says("has replaced 2");
    until_all_run(&hosts, 1);
    until(|| hosts.iter().all(|host| bump(host) == 404));
    clients.go_on(200);
    let sent = clients.end();
    assert!(sent >= 600, "{sent}");

    // A host whose folder is another generation runs what is active.
    hosts[1].running = None;
    hosts[1].start(&journal, &[]);
    until_all_run(&hosts, 1);
    let said = hosts[1].said();
    assert!(said.contains("the folder is generation 2; generation 1 is active"), "{said}");
    // One that is to activate its folder does.
    hosts[1].running = None;
    hosts[1].start(&journal, &["--activate"]);
    until_all_run(&hosts, 2);
    until_whole(&hosts);
    assert_eq!(bump(&hosts[0]), 200);
}

#[test]
fn hosts_return_to_what_is_active_if_the_database_has_lost_an_activation() {
    let journal = empty("loses");
    let hosts = started(&journal);
    hosts[0].folder.write("specs/counter.ioa.toml", format!("{COUNTER}{BUMP}"));
    hosts[0].reload(2);
    hosts[0].activate(2, &[]).exits(0);
    until_all_run(&hosts, 2);
    // As after a failover to a standby without the last transaction.
    let lost = "UPDATE sandglass.agreed SET generation = 1, changes = changes - 1";
    shared().psql("loses", lost);
    until_all_run(&hosts, 1);
    assert!(hosts[0].said().contains("has lost the last activation"), "{}", hosts[0].said());
    // A row that names no generation cannot be run, whoever says that it is active.
    shared().psql("loses", "UPDATE sandglass.agreed SET generation = 777, changes = changes + 1");
    hosts[1].activate(777, &[]).exits(1).says("there is no such generation");
    hosts[1].activate(1, &[]).exits(0);
    until_all_run(&hosts, 1);
}

#[test]
fn a_generation_that_a_host_cannot_run_is_refused_or_reported() {
    let journal = empty("broken");
    let mut hosts = started(&journal);
    let health = |host: &Host| answer_of(&host.address(), "GET /healthz", "", b"").0;
    // A module that no host can compile.
    hosts[0].folder.write("specs/tool.ioa.toml", TOOL);
    hosts[0].folder.write("specs/tool.integration.toml", MANIFEST);
    hosts[0].folder.write("specs/tool.wat", "(module (func");
    hosts[0].reload(2);
    let refused = hosts[1].activate(2, &[]).exits(1);
    refused.says("this host cannot run generation 2").says("nothing was changed");
    until_all_run(&hosts, 1);
    assert_eq!(hosts[1].cluster()["generation"], 1);

    // A secret that only one host has.
    hosts[0].folder.write("specs/tool.wat", module());
    let granted = format!("{MANIFEST}\n[grants]\nsecrets = [\"token\"]\n");
    hosts[0].folder.write("specs/tool.integration.toml", granted);
    hosts[0].folder.write("sandglass.toml", "[secrets]\ntoken = \"TOKEN\"\n");
    hosts[0].reload(3);
    let (status, _) = post(&hosts[0].address(), "kept");
    assert_eq!(status, 201);
    hosts[1].activate(3, &[]).exits(1).says("the secret `token` is granted and has no value");
    hosts[0].activate(3, &[]).exits(0);
    until(|| runs(&hosts[1], &hosts[0]) == (Some(3), None));
    for host in &hosts[1..] {
        until(|| runs(&hosts[0], host).1.is_some());
        let (generation, error) = runs(&hosts[0], host);
        assert_eq!(generation, Some(1), "it keeps what it runs");
        let error = error.expect("a reason");
        assert!(error.contains("cannot run generation 3: tool.integration.toml:"), "{error}");
        assert_eq!(health(host), 200);
    }
    // What they own moves to the one that can.
    let owned = |host: &Host| {
        let cluster = hosts[0].cluster();
        let found = cluster["hosts"].as_array().expect("a list").iter();
        found
            .filter(|one| one["url"] == host.url.as_str() && one["state"] != "dead")
            .map(|one| one["partitions"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    until(|| owned(&hosts[0]) == 64);
    assert_eq!(post(&hosts[1].address(), "kept/actions/Count").0, 200);
    let status = sandglass(&[&"cluster", &"status", &hosts[2].url]).exits(0);
    status.says("this host cannot run generation 3");

    // One that starts then owns nothing.
    let mut late = Host::new();
    late.start(&journal, &[]);
    until(|| runs(&hosts[0], &late).1.is_some());
    assert_eq!((runs(&hosts[0], &late).0, health(&late)), (None, 503));
    assert_eq!(post(&late.address(), "kept/actions/Count").0, 200, "it forwards");
    hosts.push(late);

    hosts[3].activate(1, &[]).exits(0).says("has replaced 3");
    until_all_run(&hosts, 1);
    until_whole(&hosts);
    assert_eq!(health(&hosts[3]), 200);
}

#[test]
fn an_uploaded_module_reaches_all_hosts() {
    let journal = empty("uploaded");
    let mut hosts = vec![Host::new(), Host::new(), Host::new()];
    let specs = fixture("incident");
    hosts.iter_mut().for_each(|host| host.start_on(&journal, &specs, &[]));
    until_all_run(&hosts, 1);
    // A custom section, which changes nothing but the hash.
    let mut bytes = fs::read(specs.join("run_tools.wasm")).expect("a fixture");
    bytes.extend([0, 2, 1, b'x']);
    let module = |host: &Host| -> Value {
        let (status, body) = answer_of(&host.address(), "GET /v1/modules", "", b"");
        assert_eq!(status, 200, "{body}");
        let list: Value = serde_json::from_str(&body).expect("JSON");
        list["modules"][0].clone()
    };
    assert_eq!(module(&hosts[0])["source"], "folder");
    let put = |host: &Host, name: &str, bytes: &[u8]| {
        let request = format!("PUT /v1/modules/{name}");
        answer_of(&host.address(), &request, "content-type: application/wasm\r\n", bytes)
    };
    assert_eq!(put(&hosts[1], "other", &bytes).0, 404);
    let (status, body) = put(&hosts[1], "run_tools", b"\0asm\x01\0\0\0");
    assert_eq!(status, 422, "{body}");
    let (status, body) = put(&hosts[1], "run_tools", &bytes);
    assert_eq!(status, 200, "{body}");
    let view: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((&view["source"], &view["bytes"]), (&"put".into(), &bytes.len().into()));
    until_all_run(&hosts, 2);
    hosts.iter().for_each(|host| assert_eq!(module(host), view));
    assert_eq!(put(&hosts[2], "run_tools", &bytes).0, 200, "again");
    assert_eq!(hosts[2].cluster()["generation"], 2, "it is the same");
    // It is still used after a restart.
    hosts[0].running = None;
    hosts[0].start_on(&journal, &specs, &[]);
    until_all_run(&hosts, 2);
    assert_eq!(module(&hosts[0]), view);
    hosts[0].activate(1, &[]).exits(0);
    until_all_run(&hosts, 1);
    hosts.iter().for_each(|host| assert_eq!(module(host)["source"], "folder"));
}
