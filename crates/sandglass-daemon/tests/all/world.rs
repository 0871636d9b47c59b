//! A daemon with some types of entities, on a port of its own, and a client that checks each response
//! against the document that the daemon serves.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use sandglass_daemon::{Cluster, Daemon, DeclaredModule, Keys, Modules, Parts, Serving, Settings};
use sandglass_host::{Host, Manifest};
use sandglass_journal::{Journal, Journals, MemoryJournal};
use sandglass_liveness::Spec;
use sandglass_model::SystemClock;
use sandglass_runtime::{HostHandlers, Runtime};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use crate::client::{Answer, exchange, request};
use crate::document::Document;

/// Finishes at once, with its context as its result.
pub(crate) const FINISHES: &str = include_str!("../../../../guest-fixtures/wat/echo.wat");
/// Waits forever in a WASI poll.
pub(crate) const WAITS: &str =
    include_str!("../../../../guest-fixtures/wat/sleeps_in_wasi_poll.wat");

/// `Begin` starts a handler that finishes at once, and `Wait` one that never does.
pub(crate) const SESSION: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Executing", "Done", "Failed"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle", "Executing", "Failed"]

[[state]]
name = "sum"
type = "counter"

[[action]]
name = "Begin"
from = ["Idle"]
to = "Executing"
effect = ["trigger quick"]

[[action]]
name = "Wait"
from = ["Idle", "Failed"]
to = "Executing"
effect = ["trigger slow"]

[[action]]
name = "Touch"
from = ["Idle", "Executing", "Failed"]
effect = ["increment sum"]

[[action]]
name = "Settle"
from = ["Idle"]
guard = "sum > 0"

[[action]]
name = "Finish"
from = ["Executing", "Failed"]
to = "Done"

[[action]]
name = "Fail"
from = ["Executing", "Failed"]
to = "Failed"

[[integration]]
name = "quick"
trigger = "quick"
module = "finishes"
deadline = "60s"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"

[[integration]]
name = "slow"
trigger = "slow"
module = "waits"
deadline = "3600s"
on_success = "Finish"
on_failure = "Fail"
on_timeout = "Fail"
"#;

/// A session, which can be closed, or wait for a handler that never finishes. A partner that replies
/// restarts the timer of its first state.
const BOUNDED: &str = r#"
[automaton]
name = "Bounded"
states = ["Open", "Working", "Closed"]
initial = "Open"
terminal = ["Closed"]
allow_indefinite_states = ["Working"]

[limits]
max_handler_runs = 10
material = ["milestone"]
synthetic = ["keep_alive"]

[[state_timeout]]
state = "Open"
after_seconds = 86400
on_timeout = "Close"
reset_on = ["PartnerReplied"]

[[action]]
name = "Close"
from = ["Open", "Working"]
to = "Closed"

[[action]]
name = "Work"
from = ["Open"]
to = "Working"
effect = ["trigger slow"]

[[integration]]
name = "slow"
trigger = "slow"
module = "waits"
deadline = "3600s"
on_success = "Close"
on_failure = "Close"
on_timeout = "Close"
"#;

/// The type of entities like [`BOUNDED`] that another interface operates.
pub(crate) const ELSEWHERE: &str = "Elsewhere";

pub(crate) struct World {
    threads: tokio::runtime::Runtime,
    serving: Option<Serving>,
    pub(crate) journal: Arc<MemoryJournal>,
    pub(crate) daemon: Daemon,
    pub(crate) address: SocketAddr,
    document: Document,
    used: RefCell<BTreeSet<String>>,
}

/// The settings of the daemon of a test.
#[derive(Default)]
pub(crate) struct Make {
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    /// The folder of uploaded modules.
    pub(crate) modules: Option<PathBuf>,
    /// By default with at most eight handlers in flight.
    pub(crate) host: Option<sandglass_host::Settings>,
    /// By default the one of the world.
    pub(crate) journals: Option<Journals>,
    /// By default none.
    pub(crate) cluster: Option<Cluster>,
}

impl Answer {
    /// Checks for an error of this status and code.
    #[track_caller]
    pub(crate) fn refuses(self, status: u16, code: &str) -> Value {
        let error = self.is(status).json()["error"].clone();
        assert_eq!(error["code"], code, "{error}");
        assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        error
    }
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
        let journal = Arc::new(MemoryJournal::new());
        let (daemon, serving) = threads.block_on(serve(make, Arc::clone(&journal)));
        let address = serving.local_addr();
        let fetched = exchange(address, &request("GET", "/openapi.json", &[], b"")).is(200);
        let document = Document::of(fetched.json(), "Envelope");
        let used = RefCell::default();
        Self { threads, serving: Some(serving), journal, daemon, address, document, used }
    }

    /// Sends a request, and checks that the document describes the response.
    #[track_caller]
    pub(crate) fn ask(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Answer {
        let answer = exchange(self.address, &request(method, target, headers, body));
        let operation = self.document.check(method, target, &answer);
        self.used.borrow_mut().extend(operation);
        answer
    }

    #[track_caller]
    pub(crate) fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], b"")
    }

    #[track_caller]
    pub(crate) fn post(&self, target: &str, body: &str) -> Answer {
        self.ask("POST", target, &[("content-type", "application/json")], body.as_bytes())
    }

    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.threads.block_on(future)
    }

    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.threads.spawn(future)
    }

    /// The operations of the document that no request has used.
    pub(crate) fn unused_operations(&self) -> Vec<String> {
        let used = self.used.borrow();
        self.document.operations().into_iter().filter(|one| !used.contains(one)).collect()
    }

    /// Returns the number of handlers whose end is not recorded.
    pub(crate) fn shutdown(&mut self, grace: Duration) -> usize {
        let serving = self.serving.take().expect("the first shutdown");
        self.threads.block_on(serving.shutdown(grace, |_| {})).len()
    }
}

async fn serve(make: Make, journal: Arc<MemoryJournal>) -> (Daemon, Serving) {
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::default() };
    let clock = Arc::new(SystemClock::new());
    let small = || sandglass_host::Settings { max_runs: 8, ..Default::default() };
    let settings = make.host.unwrap_or_else(small);
    let host =
        Host::builder().settings(settings).telemetry(telemetry.clone()).build().expect("a host");
    let declared = [("finishes", FINISHES), ("waits", WAITS)].map(|(name, text)| DeclaredModule {
        name: name.to_owned(),
        bytes: text.as_bytes().into(),
        manifest: Manifest::named(name),
        uploaded: None,
    });
    let modules = Modules::open(declared, make.modules).expect("a folder that can be read");
    let handlers = HostHandlers::new(host, clock.clone(), modules.for_handlers());
    let elsewhere = BOUNDED.replace("Bounded", ELSEWHERE);
    let specs = [SESSION, BOUNDED, &elsewhere];
    let journals = make.journals.unwrap_or_else(|| Journals::from(journal as Arc<dyn Journal>));
    let runtime = Runtime::builder_over(journals.clone())
        .handlers(Arc::new(handlers.clone()))
        .clock(clock.clone())
        .telemetry(telemetry)
        .specs(specs.map(|source| Spec::parse(source).spec.expect("sound")))
        .build()
        .await
        .expect("an empty journal");
    let operated_elsewhere = BTreeSet::from([ELSEWHERE.to_owned()]);
    let parts = Parts {
        runtime,
        handlers,
        journals,
        exporter,
        clock,
        modules,
        operated_elsewhere,
        cluster: make.cluster,
    };
    let daemon = Daemon::new(parts, make.settings, make.keys);
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let serving = daemon.serve(listener).expect("it has an address");
    (daemon, serving)
}
