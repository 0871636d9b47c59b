//! Hosts of the tests: started with the sample workflows, and the packs that a test needs.

use std::fs::{self, File};
use std::io::Read as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use serde_json::{Value, json};

use crate::binary::{Folder, Running, fixture, repository, sandglass};
use crate::client::{Ask, KEY, Reply, Stream};
use crate::log::Run;

/// The packs that the shared host has: all that run, good or bad.
pub(crate) const PACKS: [&str; 12] = [
    "vendor.openwop.misbehaving.memory-bomb",
    "vendor.openwop.rust-hello",
    "vendor.sandglass.misbehaving.fuel-burner",
    "vendor.sandglass.misbehaving.grower",
    "vendor.sandglass.misbehaving.liar",
    "vendor.sandglass.misbehaving.no-json",
    "vendor.sandglass.misbehaving.no-outcome",
    "vendor.sandglass.misbehaving.spinner",
    "vendor.sandglass.misbehaving.trapper",
    "vendor.sandglass.misbehaving.wild-alloc",
    SAMPLES,
    ECHO,
];
pub(crate) const SAMPLES: &str = "vendor.sandglass.samples";
pub(crate) const ECHO: &str = "vendor.sandglass.wat-echo";
pub(crate) const GREETER: &str = "vendor.openwop.rust-hello";

/// The folders and the journal of a host, which outlive it.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) folder: Folder,
    command: Vec<String>,
    arguments: Vec<String>,
    variables: Vec<(&'static str, &'static str)>,
}

impl Setup {
    /// With all good sample workflows, and no packs.
    pub(crate) fn new() -> Self {
        let setup = Self {
            folder: Folder::new(),
            command: vec!["openwop".to_owned()],
            arguments: Vec::new(),
            variables: Vec::new(),
        };
        fs::create_dir_all(setup.folder.path("packs")).expect("made");
        let samples = fixture("openwop/workflows");
        for folder in [samples, repository("crates/sandglass-openwop/data/workflows")] {
            setup.workflows_of(&folder)
        }
        setup
    }

    /// Takes all workflows of a folder.
    pub(crate) fn workflows_of(&self, folder: &std::path::Path) {
        for file in fs::read_dir(folder).expect("it is there") {
            let file = file.expect("it is there");
            let text = fs::read(file.path()).expect("it is there");
            let name = file.file_name().into_string().expect("a text");
            self.folder.write(&format!("workflows/{name}"), text);
        }
    }

    /// With these packs, too.
    pub(crate) fn packs(self, names: &[&str]) -> Self {
        names.iter().for_each(|name| self.pack(&format!("packs/{name}"), name));
        self
    }

    /// Takes the folder of a pack in `from`, as `name`.
    pub(crate) fn pack(&self, from: &str, name: &str) {
        for file in fs::read_dir(fixture("openwop").join(from)).expect("it is there") {
            let file = file.expect("it is there");
            let content = fs::read(file.path()).expect("it is there");
            let file = file.file_name().into_string().expect("a text");
            self.folder.write(&format!("packs/{name}/{file}"), content);
        }
    }

    /// With a workflow of its own, of these nodes and edges.
    pub(crate) fn workflow(self, id: &str, nodes: &Value, edges: &[(&str, &str)]) -> Self {
        let nodes = nodes.as_array().expect("a list").iter().map(|node| {
            let mut whole = json!({
                "name": node["id"], "position": { "x": 0, "y": 0 }, "config": {}, "inputs": {},
            });
            let all = whole.as_object_mut().expect("an object");
            all.extend(node.as_object().expect("an object").clone());
            whole
        });
        let edge = |(from, to): &(&str, &str)| json!({ "id": format!("{from}-{to}"), "sourceNodeId": from, "targetNodeId": to });
        let definition = json!({
            "id": id, "name": id, "version": "1.0", "nodes": nodes.collect::<Vec<_>>(),
            "edges": edges.iter().map(edge).collect::<Vec<_>>(),
            "triggers": [{ "id": "manual", "type": "manual", "enabled": true }],
            "variables": [], "metadata": {}, "settings": { "timeout": 0 },
        });
        self.folder.write(&format!("workflows/{id}.json"), definition.to_string());
        self
    }

    /// By this command.
    pub(crate) fn served_by(mut self, command: &[&str]) -> Self {
        self.command = command.iter().map(|&word| word.to_owned()).collect();
        self
    }

    /// With these arguments.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Self {
        self.arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        self
    }

    /// With this variable in its environment.
    pub(crate) fn variable(mut self, name: &'static str, value: &'static str) -> Self {
        self.variables.push((name, value));
        self
    }

    /// Starts a host, and waits until it takes requests.
    #[track_caller]
    pub(crate) fn start(self) -> Host {
        let (workflows, packs) = (self.folder.path("workflows"), self.folder.path("packs"));
        let journal = self.folder.path("runs.db");
        let said = File::options().create(true).append(true).open(self.said_path());
        let stderr = Stdio::from(said.expect("made"));
        type Word<'a> = &'a dyn AsRef<std::ffi::OsStr>;
        let mut all: Vec<Word<'_>> = self.command.iter().map(|word| word as Word<'_>).collect();
        all.extend([&"--workflows" as Word<'_>, &workflows, &"--packs", &packs]);
        all.extend([&"--journal" as Word<'_>, &journal, &"--listen", &"127.0.0.1:0"]);
        all.extend([&"--api-key-env" as Word<'_>, &"OPENWOP_TESTS_KEY"]);
        all.extend(self.arguments.iter().map(|argument| argument as Word<'_>));
        let variables = [&[("OPENWOP_TESTS_KEY", KEY)], self.variables.as_slice()].concat();
        let mut running = Running::with_variables(&variables, stderr, &all);
        let address = running.address();
        Host { running: Some(running), address, setup: Some(self) }
    }

    fn said_path(&self) -> std::path::PathBuf {
        self.folder.path("said")
    }

    /// What its hosts have said on their standard error.
    pub(crate) fn said(&self) -> String {
        let mut said = String::new();
        let file = File::open(self.said_path()).expect("made");
        { file }.read_to_string(&mut said).expect("text");
        said
    }

    /// The lines of the journal, as JSON.
    pub(crate) fn journal(&self) -> Vec<Value> {
        let journal = self.folder.path("runs.db");
        sandglass(&[&"log", &journal, &"--json"]).exits(0).json_lines()
    }
}

/// A host that takes requests. Dropped, it is killed.
#[derive(Debug)]
pub(crate) struct Host {
    running: Option<Running>,
    pub(crate) address: String,
    setup: Option<Setup>,
}

impl Host {
    /// Kills it, as nothing can prevent.
    #[track_caller]
    pub(crate) fn kill(mut self) -> Setup {
        drop(self.running.take());
        self.setup.take().expect("it is taken once")
    }

    /// Has it stop in order.
    #[track_caller]
    pub(crate) fn stop(mut self) -> Setup {
        let running = self.running.take().expect("it is taken once");
        running.signal("TERM");
        assert_eq!(running.ended().code(), Some(0), "{}", self.setup().said());
        self.setup.take().expect("it is taken once")
    }

    /// From now on no file of it grows beyond so many bytes; without a limit, as it likes.
    pub(crate) fn limit_files(&self, bytes: Option<u64>) {
        let bytes = bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let process = self.running.as_ref().expect("it runs").id().to_string();
        let limit = format!("--fsize={bytes}:");
        let set = Command::new("prlimit").args(["--pid", &process, &limit]).status();
        assert!(set.expect("prlimit is there").success());
    }

    /// Has it read anew what it reads anew.
    pub(crate) fn hang_up(&self) {
        self.running.as_ref().expect("it runs").signal("HUP");
    }

    pub(crate) fn setup(&self) -> &Setup {
        self.setup.as_ref().expect("it runs")
    }

    #[track_caller]
    pub(crate) fn ask(&self, ask: &Ask) -> Reply {
        ask.send(&self.address).unwrap_or_else(|| panic!("no whole answer to {ask:?}"))
    }

    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Reply {
        self.ask(&Ask::new(&format!("GET {path}")).header("accept", "application/json"))
    }

    #[track_caller]
    pub(crate) fn post(&self, path: &str, body: &Value) -> Reply {
        self.ask(&Ask::new(&format!("POST {path}")).json(body))
    }

    /// Creates a run.
    #[track_caller]
    pub(crate) fn run(&self, workflow: &str) -> Run<'_> {
        self.run_with(&json!({ "workflowId": workflow }))
    }

    /// Creates a run that is to have these bounds.
    #[track_caller]
    pub(crate) fn bounded(&self, workflow: &str, configurable: &Value) -> Run<'_> {
        self.run_with(&json!({ "workflowId": workflow, "configurable": configurable }))
    }

    /// Creates the run that a body asks for.
    #[track_caller]
    pub(crate) fn run_with(&self, body: &Value) -> Run<'_> {
        let created = self.post("/v1/runs", body).expect(201);
        let id = created["runId"].as_str().expect("an id");
        assert_eq!(created["eventsUrl"], format!("/v1/runs/{id}/events"));
        assert_eq!(created["statusUrl"], format!("/v1/runs/{id}"));
        assert!(created["status"].is_string(), "{created}");
        self.again(id)
    }

    /// A run that is there.
    pub(crate) fn again(&self, id: &str) -> Run<'_> {
        Run { host: self, id: id.to_owned() }
    }

    /// Forks a run.
    #[track_caller]
    pub(crate) fn fork(&self, source: &str, body: &Value) -> Run<'_> {
        let forked = self.post(&format!("/v1/runs/{source}:fork"), body).expect(201);
        assert_eq!(forked["sourceRunId"], source, "{forked}");
        assert_eq!(forked["mode"], body["mode"], "{forked}");
        // A branch from the middle of a node is one from its beginning.
        let is_there = match body["mode"] == "branch" {
            true => forked["fromSeq"].as_u64() <= body["fromSeq"].as_u64(),
            false => forked["fromSeq"] == body["fromSeq"],
        };
        assert!(is_there, "{forked}");
        let id = forked["runId"].as_str().expect("an id");
        assert_eq!(forked["eventsUrl"], format!("/v1/runs/{id}/events"));
        self.again(id)
    }

    #[track_caller]
    pub(crate) fn replay(&self, source: &str) -> Run<'_> {
        self.fork(source, &json!({ "mode": "replay", "fromSeq": 0 }))
    }

    /// Opens the stream of a run's events.
    #[track_caller]
    pub(crate) fn stream(&self, run: &str, query: &str, last: Option<&str>) -> Stream {
        let line = format!("GET /v1/runs/{run}/events{query}");
        let ask = Ask::new(&line).header("accept", "text/event-stream");
        let ask = match last {
            Some(last) => ask.header("last-event-id", last),
            None => ask,
        };
        ask.open(&self.address)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.running.take());
        if let (Some(setup), false) = (&self.setup, std::thread::panicking()) {
            let said = setup.said();
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}

/// The host of tests that need none of their own; the last of those that run at a time ends it.
#[track_caller]
pub(crate) fn shared() -> Arc<Host> {
    static SHARED: Mutex<Weak<Host>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let host = Arc::new(Setup::new().packs(&PACKS).start());
        *shared = Arc::downgrade(&host);
        host
    })
}
