//! Asks, signals and spawns of handlers that reach entities of another host, over HTTP.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sandglass_daemon::{
    Cluster, ClusterKey, Daemon, Keys, Modules, Parts, Peers, Route, Serving, Settings,
};
use sandglass_host::Host;
use sandglass_journal::{Journals, MemoryJournal};
use sandglass_liveness::Spec;
use sandglass_model::{
    Answered, Ask, AskError, AskUntil, Cancellation, CancelledBy, Cause, Clock as _, Completion,
    EntityRef, EntitySignal, HostId, Object, Outcome, Partition, RunReport, SignalError,
    SystemClock,
};
use sandglass_runtime::{HandlerRun, Handlers, HostHandlers, RunFuture, Runtime};
use sandglass_telemetry::prometheus::Exporter;
use sandglass_telemetry::{Prefix, Telemetry, Tracer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::client::{exchange, request};
use crate::peers::{Fake, Fault, OWNER, ROUTER};

const KEY: &str = "all-hosts-share-this-key";
const PATH: &str = "/v1/cluster/deliver";

/// A job whose work asks another one, or never ends.
const JOB: &str = r#"
[automaton]
name = "Job"
states = ["Idle", "Working", "Done"]
initial = "Idle"
terminal = ["Done"]
allow_indefinite_states = ["Idle"]

[[state]]
name = "count"
type = "counter"

[[action]]
name = "Count"
from = ["Idle", "Working"]
effect = "increment count"

[[action]]
name = "Split"
from = ["Idle"]
params = ["id"]
effect = { type = "spawn", entity_type = "Job", entity_id_source = "id", initial_action = "Count" }

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
params = ["ask", "action", "signal"]
effect = "trigger work"

[[action]]
name = "Worked"
from = ["Working"]
to = "Idle"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "2h"
on_success = "Worked"
on_failure = "Worked"
on_timeout = "Worked"
on_interrupted = "Worked"
on_cancelled = "Worked"
"#;

/// What was seen of the handlers of a host.
#[derive(Clone, Debug, Default, PartialEq)]
struct Seen {
    killed: Vec<Cause>,
    answers: Vec<Result<Answered, AskError>>,
    signals: Vec<Result<(), SignalError>>,
}

/// Handlers that ask the job that their action names, or send it a signal; without one, they never end.
struct Works(Arc<watch::Sender<Seen>>, SystemClock);

impl Handlers for Works {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let (seen, not_after) = (Arc::clone(&self.0), self.1.now().after(Duration::from_secs(60)));
        Box::pin(async move {
            let text =
                |name: &str| run.dispatched.params.get(name).and_then(|value| value.as_str());
            let work = async {
                let Some(id) = text("ask") else { return std::future::pending().await };
                let target: EntityRef = format!("Job/{id}").parse().expect("a name");
                if let Some(name) = text("signal") {
                    let signal = EntitySignal { target, name: name.to_owned(), payload: json!(1) };
                    let sent = run.asks.clone().signal(signal).await;
                    seen.send_modify(|seen| seen.signals.push(sent));
                    return;
                }
                let ask = Ask {
                    target,
                    action: text("action").unwrap_or("Count").to_owned(),
                    params: Object::new(),
                    until: AskUntil::Settled,
                    not_after,
                    trace: run.dispatched.trace,
                };
                let answer = run.asks.clone().ask(ask).await;
                seen.send_modify(|seen| seen.answers.push(answer));
            };
            let (outcome, cause) = tokio::select! {
                biased;
                request = run.stop.killed() => {
                    seen.send_modify(|seen| seen.killed.push(request.cause));
                    let by = CancelledBy::of(request.cause);
                    let cancelled = Cancellation { by, reason: request.reason, dying_span: None };
                    (Outcome::Cancelled(cancelled), request.cause)
                }
                () = work => (Outcome::Completed(Completion::default()), Cause::Returned),
            };
            RunReport::unreported(&run.dispatched, outcome, cause)
        })
    }
}

/// A host over the journals of a store.
struct Member {
    runtime: Runtime,
    peers: Arc<Fake>,
    address: SocketAddr,
    seen: Arc<watch::Sender<Seen>>,
    _serving: Serving,
}

impl Member {
    async fn start(stores: &[Arc<MemoryJournal>], id: HostId, serves: u8) -> Self {
        let peers = Fake::http2(id, Route::Moving);
        let key = Some(ClusterKey::new(KEY).expect("a key"));
        let peers_of = Arc::clone(&peers) as Arc<dyn Peers>;
        let cluster = Cluster { peers: peers_of, key, has_certificates: false, deployments: None };
        let exporter = Exporter::new(Prefix::default());
        let telemetry = Telemetry { metrics: exporter.metrics(), tracer: Tracer::default() };
        let settings = sandglass_host::Settings { max_runs: 2, ..Default::default() };
        let host = Host::builder().settings(settings).telemetry(telemetry).build();
        let clock = SystemClock::new();
        let modules = Modules::open([], None).expect("nothing to read");
        let handlers =
            HostHandlers::new(host.expect("a host"), Arc::new(clock), modules.for_handlers());
        let journals =
            Journals::partitioned(|partition| Arc::clone(&stores[partition.index()]) as _);
        let seen = Arc::new(watch::Sender::default());
        let runtime = Runtime::builder_over(journals.clone())
            .without_partitions()
            .handlers(Arc::new(Works(Arc::clone(&seen), clock)))
            .clock(Arc::new(clock))
            .specs([Spec::parse(JOB).spec.expect("sound")])
            .build()
            .await
            .expect("empty journals");
        cluster.connect(&runtime, Arc::new(clock));
        let served = Partition::new(serves).expect("there are more");
        runtime.adopt(served).await.expect("an empty journal");
        let parts = Parts {
            runtime: runtime.clone(),
            handlers,
            journals,
            exporter,
            clock: Arc::new(clock),
            modules,
            operated_elsewhere: BTreeSet::new(),
            cluster: Some(cluster),
        };
        let daemon = Daemon::new(parts, Settings::default(), Keys::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let serving = daemon.serve(listener).expect("it has an address");
        let address = serving.local_addr();
        Self { runtime, peers, address, seen, _serving: serving }
    }

    fn route(&self, id: HostId) -> Route {
        Route::At { host: id, url: format!("http://{}", self.address) }
    }

    /// Waits until the handlers have shown something.
    async fn until(&self, is_seen: impl Fn(&Seen) -> bool) -> Seen {
        let mut seen = self.seen.subscribe();
        let found =
            sandglass_http::timer::within(Duration::from_secs(60), seen.wait_for(is_seen)).await;
        found.expect("it was never seen").expect("the host lives").clone()
    }

    fn targets(&self) -> Vec<String> {
        self.peers.table().sent.iter().map(|sent| sent.target.clone()).collect()
    }
}

/// Two hosts: the second one owns `b`, and the first one everything else that there is.
struct Two {
    first: Member,
    second: Member,
    a: EntityRef,
    b: EntityRef,
}

fn job_in(number: u8, name: &str) -> EntityRef {
    let names = (0..).map(|number| format!("Job/{name}-{number}"));
    let mut names = names.map(|name| name.parse::<EntityRef>().expect("a name"));
    names.find(|name| Partition::of(name).number() == number).expect("there are more names")
}

fn params(of: &[(&str, &str)]) -> Object {
    of.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect()
}

impl Two {
    async fn start() -> Self {
        let stores: Vec<_> = Partition::all().map(|_| Arc::new(MemoryJournal::new())).collect();
        let first = Member::start(&stores, ROUTER, 1).await;
        let second = Member::start(&stores, OWNER, 2).await;
        first.peers.set_route(second.route(OWNER));
        second.peers.set_route(first.route(ROUTER));
        let (a, b) = (job_in(1, "a"), job_in(2, "b"));
        first.runtime.create(a.clone()).await.expect("new");
        second.runtime.create(b.clone()).await.expect("new");
        Self { first, second, a, b }
    }

    async fn work(&self, more: &[(&str, &str)]) {
        let params = params(&[&[("ask", self.b.id())], more].concat());
        self.first.runtime.send(&self.a, "Work", params).await.expect("taken");
    }
}

fn multi() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("threads")
}

#[test]
fn handlers_reach_entities_of_another_host() {
    multi().block_on(async {
        let two = Two::start().await;
        two.work(&[]).await;
        let seen = two.first.until(|seen| !seen.answers.is_empty()).await;
        let [Ok(answered)] = &seen.answers[..] else { panic!("{seen:?}") };
        assert_eq!(answered.fields["count"], 1);
        two.first.runtime.settled(&two.a).await.expect("it lives");
        two.work(&[("signal", "Note")]).await;
        let seen = two.first.until(|seen| !seen.signals.is_empty()).await;
        assert_eq!(seen.signals, [Ok(())]);
        two.first.runtime.settled(&two.a).await.expect("it lives");
        let child = job_in(2, "child");
        let split = params(&[("id", child.id())]);
        two.first.runtime.send(&two.a, "Split", split).await.expect("taken");
        let count = two.second.runtime.entity(&child).await.expect("it is created");
        assert_eq!(count.variables["count"], 1);
        // A question about waits, the ask, the signal, and the spawn.
        assert_eq!(two.first.targets(), [PATH; 4]);
        let sent = two.first.peers.table().sent.pop().expect("four");
        assert_eq!(sent.headers["sandglass-cluster-key"], KEY);
        assert_eq!(sent.headers["sandglass-forwarded-by"], ROUTER.to_string());
    });
}

#[test]
fn handlers_end_when_the_request_of_their_asker_does() {
    multi().block_on(async {
        let two = Two::start().await;
        two.work(&[("action", "Work")]).await;
        let working = two.second.runtime.wait_until(&two.b, |job| job.state == "Working").await;
        working.expect("it lives");
        two.first.runtime.cancel(&two.a, None, "enough").await.expect("it works");
        let seen = two.second.until(|seen| !seen.killed.is_empty()).await;
        assert_eq!(seen.killed, [Cause::CallerGone]);
    });
}

#[test]
fn what_is_not_known_or_not_found_is_unavailable_with_the_reason() {
    multi().block_on(async {
        for (fault, route, text) in [
            (Some(Fault::ResponseLost), None, "may have been done"),
            (None, Some(Route::Moving), "nothing was done"),
        ] {
            let two = Two::start().await;
            two.first.peers.table().faults.extend(fault);
            if let Some(route) = route {
                two.first.peers.set_route(route);
            }
            two.work(&[("signal", "Note")]).await;
            let seen = two.first.until(|seen| !seen.signals.is_empty()).await;
            let [Err(SignalError::Unavailable(why))] = &seen.signals[..] else {
                panic!("{seen:?}")
            };
            assert!(why.contains(text), "{why}");
        }
    });
}

#[test]
fn only_hosts_of_the_cluster_deliver() {
    let threads = multi();
    let two = threads.block_on(Two::start());
    let post = |headers: &[(&str, &str)], body: &str| {
        let json = [("content-type", "application/json")];
        let headers = [&json, headers].concat();
        exchange(two.second.address, &request("POST", PATH, &headers, body.as_bytes()))
    };
    let peer = [("sandglass-cluster-key", KEY)];
    let waits = |name: &EntityRef| json!({ "waits": name }).to_string();
    post(&[], &waits(&two.b)).refuses(403, "forbidden");
    let wrong = [("sandglass-cluster-key", "this-is-another-key-than-theirs")];
    post(&wrong, &waits(&two.b)).refuses(401, "wrong_cluster_key");
    let found = post(&peer, &waits(&two.b)).is(200).json();
    assert_eq!(found, json!({ "waits": { "on": [], "elsewhere": [], "probing": [] } }));
    post(&peer, &waits(&two.a)).refuses(421, "not_owner");
    for bad in ["", "{}", r#"{"waits": 1}"#, r#"{"waits": "Job/1", "more": 1}"#] {
        post(&peer, bad).is(400);
    }
    two.second.peers.change(|table| table.is_trusted = false);
    post(&peer, &waits(&two.b)).refuses(421, "not_owner");
}
