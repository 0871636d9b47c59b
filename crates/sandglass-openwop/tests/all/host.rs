//! A host with all sample packs and workflows, on its own port, and a client that checks each response
//! against the document that the host serves.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use sandglass_host::Host;
use sandglass_http::key::Digest;
use sandglass_http::{Serving, serve};
use sandglass_journal::{Journal, Journals, MemoryJournal, Opened, SqliteJournal};
use sandglass_model::{Clock, EntityRef, SystemClock};
use sandglass_openwop::{DISCOVERY_PATH, Library, OPENAPI_PATH, OpenWop, RunHandlers, Service};
use sandglass_openwop::{EventKind, RUN_TYPE, Settings};
use sandglass_runtime::Runtime;
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;

use crate::client::{Answer, exchange, request};
use crate::document::Document;

pub(crate) const KEY: &str = "a-key-of-these-tests";

/// The names of the subfolders that a host reads.
const PACKS: &str = "packs";
const WORKFLOWS: &str = "workflows";
/// A pack that takes seconds to be refused.
const SLOW: &str = "vendor.sandglass.misbehaving.slow-describer";

/// The options of a test's host.
#[derive(Default)]
pub(crate) struct Make {
    pub(crate) settings: Settings,
    /// The file of the journal; in memory if `None`.
    pub(crate) journal: Option<PathBuf>,
    /// Whether the journal in memory has partitions.
    pub(crate) is_partitioned: bool,
    /// The folder of packs; if `None`, the samples that are loaded or refused at once.
    pub(crate) packs: Option<PathBuf>,
    /// More definitions.
    pub(crate) workflows: Vec<Value>,
    /// What receives its spans.
    pub(crate) tracer: Tracer,
    /// The limits of its connections.
    pub(crate) http: sandglass_http::Settings,
}

/// A folder of the samples for hosts.
pub(crate) fn samples(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../guest-fixtures/openwop").join(folder)
}

pub(crate) struct World {
    threads: tokio::runtime::Runtime,
    serving: Option<Serving>,
    interface: OpenWop,
    runtime: Runtime,
    host: Host,
    /// The journal, if it has no file.
    pub(crate) journal: Arc<MemoryJournal>,
    pub(crate) address: SocketAddr,
    pub(crate) document: Document,
    /// Operations with the statuses that they returned.
    driven: Mutex<BTreeSet<(String, u16)>>,
    _folder: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self::of(Make::default())
    }

    pub(crate) fn of(make: Make) -> Self {
        let threads = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("threads");
        let folder = filled(&make.workflows);
        let journal = Arc::new(MemoryJournal::new());
        let used: Journals = match &make.journal {
            Some(file) => opened(file).into(),
            None if make.is_partitioned => {
                Journals::partitioned(|_| Arc::new(MemoryJournal::new()))
            }
            None => (Arc::<MemoryJournal>::clone(&journal) as Arc<dyn Journal>).into(),
        };
        let http = make.http.clone();
        let (interface, runtime, host) = threads.block_on(started(make, used, folder.path()));
        let serving = threads.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
            serve(listener, interface.router(), http, None)
        });
        let serving = serving.expect("it has an address");
        let address = serving.local_addr();
        let served = exchange(address, &request("GET", OPENAPI_PATH, &[], b"")).is(200).json();
        let document = Document::of(sealed(served), "ErrorEnvelope");
        Self {
            threads,
            serving: Some(serving),
            interface,
            runtime,
            host,
            journal,
            address,
            document,
            driven: Mutex::default(),
            _folder: folder,
        }
    }

    /// Sends a request with exactly these headers. Checks that the document describes the response, and
    /// that it is not an internal error.
    #[track_caller]
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let answer = exchange(self.address, &request(method, target, headers, body));
        assert_ne!(answer.status, 500, "{method} {target}: {}", answer.text());
        if let Some(operation) = self.document.check(method, target, &answer) {
            let mut driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
            driven.insert((operation, answer.status));
        }
        answer
    }

    /// Sends a request with the key and one more header.
    #[track_caller]
    pub(crate) fn get_with(&self, target: &str, name: &str, value: &str) -> Answer {
        let key = format!("Bearer {KEY}");
        self.ask("GET", target, &[("authorization", &key), (name, value)], b"")
    }

    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.get_with(target, "accept", "application/json")
    }

    #[track_caller]
    pub(crate) fn post(&self, target: &str, body: &str) -> Answer {
        self.post_with(target, &[], body.as_bytes())
    }

    /// Sends a request with the key, the media type of JSON, and more headers.
    #[track_caller]
    pub(crate) fn post_with(&self, target: &str, more: &[(&str, &str)], body: &[u8]) -> Answer {
        let key = format!("Bearer {KEY}");
        let mut headers = vec![("authorization", key.as_str())];
        if more.iter().all(|(name, _)| *name != "content-type") {
            headers.push(("content-type", "application/json"));
        }
        headers.extend(more);
        self.ask("POST", target, &headers, body)
    }

    /// Starts a run; returns its id.
    #[track_caller]
    pub(crate) fn run(&self, body: &Value) -> String {
        let created = self.post("/v1/runs", &body.to_string()).is(201).json();
        created["runId"].as_str().expect("an id").to_owned()
    }

    /// Starts a run of a workflow without inputs, and waits for its end.
    #[track_caller]
    pub(crate) fn ended(&self, workflow: &str) -> String {
        let run = self.run(&json!({ "workflowId": workflow }));
        self.until_over(&run);
        run
    }

    /// The events of a run, once there is one that `is_it`.
    #[track_caller]
    pub(crate) fn until(&self, run: &str, is_it: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut events = Vec::new();
        loop {
            let last = events.len().checked_sub(1).map_or(-1, |last| last as i64);
            let target = format!("/v1/runs/{run}/events/poll?lastSequence={last}&timeout=30");
            let polled = self.get(&target).is(200).json();
            events.extend(polled["events"].as_array().expect("a list").iter().cloned());
            if events.iter().any(&is_it) {
                return events;
            }
            assert_eq!(polled["isComplete"], false, "it is over without that: {events:#?}");
        }
    }

    /// The events of a run, once it is over.
    #[track_caller]
    pub(crate) fn until_over(&self, run: &str) -> Vec<Value> {
        self.until(run, is_terminal)
    }

    /// Waits until a run waits; returns the node.
    #[track_caller]
    pub(crate) fn until_waiting(&self, run: &str) -> String {
        let events = self.until(run, |event| event["type"] == "interrupt.requested");
        let node = events.last().and_then(|event| event["nodeId"].as_str());
        node.expect("it waits at a node").to_owned()
    }

    #[track_caller]
    pub(crate) fn snapshot(&self, run: &str) -> Value {
        self.get(&format!("/v1/runs/{run}")).is(200).json()
    }

    #[track_caller]
    pub(crate) fn discovery(&self) -> Value {
        self.ask("GET", DISCOVERY_PATH, &[], b"").is(200).json()
    }

    /// Each operation of the document with each declared status that it has not returned.
    pub(crate) fn not_driven(&self) -> Vec<(String, u16)> {
        let driven = self.driven.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |operation: String| {
            let (method, template) = operation.split_once(' ').expect("both");
            let declared = &self.document.text["paths"][template][method.to_lowercase()];
            let statuses = declared["responses"].as_object().expect("answers").keys();
            let statuses = statuses.map(|status| status.parse::<u16>().expect("a status"));
            statuses.map(|status| (operation.clone(), status)).collect::<Vec<_>>()
        };
        let all = self.document.operations().into_iter().flat_map(of);
        all.filter(|one| !driven.contains(one)).collect()
    }

    /// Announces the shutdown of the host, which continues to serve.
    pub(crate) fn close(&self) {
        self.interface.close();
    }

    /// Removes the records of a run from the journal in memory, of which its host does not learn.
    pub(crate) fn remove_records(&self, run: &str) {
        let run = EntityRef::new(RUN_TYPE, run).expect("a name");
        let removed = self.threads.block_on(async {
            let last = self.journal.last_of(run.clone()).await.expect("it is in memory");
            let last = last.expect("it has records").last.position;
            self.journal.prune(vec![(run, last)]).await
        });
        assert!(removed.expect("it is in memory")[0] > 0);
    }

    /// Shuts the host down; another host can use the file of its journal.
    pub(crate) fn shutdown(mut self) {
        let serving = self.serving.take().expect("it is served");
        self.interface.close();
        self.threads.block_on(async {
            self.runtime.shutdown(Duration::ZERO).await;
            self.host.shutdown().await;
            // Connections of tests are closed by then.
            let _ = serving.drain(Duration::from_secs(60)).await;
        });
    }
}

/// Whether a run ends with an event.
pub(crate) fn is_terminal(event: &Value) -> bool {
    EventKind::ALL.iter().any(|kind| kind.is_terminal() && event["type"] == kind.as_str())
}

/// A folder with the sample packs, and with the sample definitions, those of the protocol, and
/// `more`.
fn filled(more: &[Value]) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let (packs, workflows) = (folder.path().join(PACKS), folder.path().join(WORKFLOWS));
    fs::create_dir(&packs).expect("a folder");
    fs::create_dir(&workflows).expect("a folder");
    for pack in fs::read_dir(samples("packs")).expect("a folder") {
        let pack = pack.expect("a pack");
        let name = pack.file_name();
        if name != SLOW {
            fs::create_dir(packs.join(&name)).expect("a folder");
            for file in ["pack.json", "module.wasm"] {
                let to = packs.join(&name).join(file);
                fs::copy(pack.path().join(file), to).expect("a copy");
            }
        }
    }
    let protocol = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/workflows");
    for from in [samples("workflows"), protocol] {
        for file in fs::read_dir(from).expect("a folder") {
            let file = file.expect("a file");
            fs::copy(file.path(), workflows.join(file.file_name())).expect("a copy");
        }
    }
    for definition in more {
        let name = format!("{}.json", definition["id"].as_str().expect("an id"));
        fs::write(workflows.join(name), definition.to_string()).expect("a file");
    }
    folder
}

fn opened(file: &Path) -> Arc<dyn Journal> {
    let opened = SqliteJournal::open(file, sandglass_journal::Settings::default());
    let Opened { journal, .. } = opened.expect("a file of a journal");
    Arc::new(journal)
}

async fn started(make: Make, journals: Journals, folder: &Path) -> (OpenWop, Runtime, Host) {
    let Make { settings, packs, workflows: own, tracer, .. } = make;
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let host = Host::builder()
        .clock(Arc::clone(&clock))
        .telemetry(telemetry.clone())
        .build()
        .expect("a host");
    let packs = packs.unwrap_or_else(|| folder.join(PACKS));
    let workflows = folder.join(WORKFLOWS);
    let read = Library::read(&host, &workflows, Some(&packs), &settings.packs).await;
    let (library, left_out) = read.expect("folders");
    for definition in &own {
        let id = definition["id"].as_str().expect("an id");
        assert!(library.definition(id).is_some(), "{id} is left out: {left_out:#?}");
    }
    let handlers =
        RunHandlers::new(host.clone(), journals.clone(), Arc::clone(&clock), library, settings);
    let runtime = Runtime::builder_over(journals)
        .clock(clock)
        .handlers(Arc::new(handlers.clone()))
        .telemetry(telemetry)
        .ceilings(settings.ceilings())
        .specs(sandglass_openwop::specs())
        .build()
        .await
        .expect("a journal that can be read");
    let service = Service::start(runtime.clone(), &handlers);
    let interface = OpenWop::new(service, Digest::of(KEY), exporter, None);
    (interface, runtime, host)
}

/// The document with closed objects, so that properties that it does not describe are found.
fn sealed(mut document: Value) -> Value {
    fn seal(value: &mut Value) {
        match value {
            Value::Array(values) => values.iter_mut().for_each(seal),
            Value::Object(fields) => {
                if fields.contains_key("properties") && !fields.contains_key("additionalProperties")
                {
                    fields.insert("additionalProperties".to_owned(), json!(false));
                }
                let inner = fields.iter_mut();
                inner.filter(|(key, _)| *key != "examples").for_each(|(_, value)| seal(value));
            }
            _ => {}
        }
    }
    seal(&mut document);
    document
}
