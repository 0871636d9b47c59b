//! How the cost of a run grows with the workflows that a host has, the nodes that the run executes, and the
//! readers of its events. It prints rows of the table in `docs/performance.md`, "Growth", and asserts
//! nothing about time. The host is in this process, with its journal in memory; its clients connect over
//! loopback. A thousand readers need 2,100 open files.
//!
//! ```sh
//! cargo bench --workspace --bench growth
//! ```

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the figures are for people")]
#![allow(clippy::cast_precision_loss, reason = "no count here needs 53 bits")]
#![allow(missing_docs, reason = "it is no library")]

#[path = "../../sandglass-http/tests/described/client.rs"]
mod client;
#[path = "../../sandglass-http/tests/described/document.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod document;
#[path = "../tests/all/host.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod host;
#[path = "../../sandglass-runtime/benches/growth/table.rs"]
mod table;
#[path = "../../sandglass-runtime/benches/journal/timing.rs"]
#[allow(dead_code, reason = "the benchmark of the journal uses the rest")]
mod timing;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use sandglass_openwop::Settings;
use serde_json::{Value, json};

use client::{connect, exchange, request};
use host::{KEY, Make, World, is_terminal};
use table::{Growth, repeat};
use timing::Quantiles;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How often all readers read a run.
const RUNS_READ: usize = 5;

fn main() {
    // A thread of a reader that fails must not leave the others waiting for it.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(1);
    }));
    let threads = tokio::runtime::Builder::new_current_thread().build().expect("a thread");
    by_workflows(&threads);
    by_nodes();
    by_readers();
}

/// A workflow of `nodes` nodes that do nothing, one after the other.
fn chain(id: &str, nodes: u64) -> Value {
    let node = |number| {
        let name = format!("n{number}");
        let position = json!({ "x": 0, "y": 0 });
        json!({ "id": name, "typeId": "core.noop", "name": name, "position": position, "config": {}, "inputs": {} })
    };
    let edge = |number: u64| {
        let (from, to) = (format!("n{}", number - 1), format!("n{number}"));
        json!({ "id": format!("e{number}"), "sourceNodeId": from, "targetNodeId": to })
    };
    json!({
        "id": id,
        "name": id,
        "version": "1.0",
        "nodes": (0..nodes).map(node).collect::<Vec<_>>(),
        "edges": (1..nodes).map(edge).collect::<Vec<_>>(),
        "triggers": [{ "id": "manual", "type": "manual", "enabled": true }],
        "variables": [],
        "metadata": {},
        "settings": { "timeout": 0 },
    })
}

fn world(workflows: Vec<Value>) -> World {
    let settings = Settings { max_node_executions: 10_000, ..Settings::default() };
    let http = sandglass_http::Settings {
        max_connections: 2_000,
        max_unauthenticated: 2_000,
        max_unauthenticated_per_address: 2_000,
        ..sandglass_http::Settings::default()
    };
    World::of(Make { settings, workflows, http, ..Make::default() })
}

fn send(world: &World, method: &str, target: &str, body: &str) -> Value {
    let key = format!("Bearer {KEY}");
    let headers = [("authorization", key.as_str()), ("content-type", "application/json")];
    exchange(world.address, &request(method, target, &headers, body.as_bytes())).json()
}

/// Begins a run of a workflow without inputs; returns its id.
fn begin(world: &World, workflow: &str) -> String {
    let begun = send(world, "POST", "/v1/runs", &json!({ "workflowId": workflow }).to_string());
    begun["runId"].as_str().expect("an id").to_owned()
}

/// Executes a run, and reads all of its events.
fn run(world: &World, workflow: &str) {
    let run = begin(world, workflow);
    let mut last = -1_i64;
    loop {
        let target = format!("/v1/runs/{run}/events/poll?lastSequence={last}&timeout=30");
        let polled = send(world, "GET", &target, "");
        let events = polled["events"].as_array().expect("a list");
        if events.iter().any(is_terminal) {
            return;
        }
        last += i64::try_from(events.len()).expect("few");
    }
}

fn by_workflows(threads: &tokio::runtime::Runtime) {
    let mut runs = Growth::of("a run of three nodes over HTTP, by workflows of the host");
    let mut starts = Growth::of("a start of the OpenWOP host, by workflows");
    for count in [1, 10, 100, 900] {
        let all = (0..count).map(|number| chain(&format!("chain-{number}"), 3)).collect();
        let begun = Instant::now();
        let world = world(all);
        starts.add(count, begun.elapsed());
        let one = format!("chain-{}", count / 2);
        runs.add(count, threads.block_on(repeat(|| async { run(&world, &one) })));
        world.shutdown();
    }
    starts.print();
    runs.print();
}

fn by_nodes() {
    let mut growth = Growth::of("a run over HTTP, by its nodes");
    let counts = [1, 10, 100, 1_000];
    let all = counts.iter().map(|count| chain(&format!("chain-{count}"), *count)).collect();
    let world = world(all);
    for count in counts {
        let took = (0..RUNS_READ).map(|_| {
            let begun = Instant::now();
            run(&world, &format!("chain-{count}"));
            begun.elapsed()
        });
        growth.add(count, Quantiles::of(took.collect()).p50);
    }
    growth.print();
    world.shutdown();
}

fn by_readers() {
    let mut growth = Growth::of("until all readers have a run's last event, by readers");
    let world = world(Vec::new());
    for count in [1, 10, 100, 1_000] {
        let took = (0..RUNS_READ).map(|_| until_all_have_read(&world, count));
        growth.add(count, Quantiles::of(took.collect()).p50);
    }
    growth.print();
    world.shutdown();
}

/// How long it takes from the cancellation of a run until `readers` readers have its last event, each of
/// which has read an earlier one.
fn until_all_have_read(world: &World, readers: u64) -> Duration {
    let run = begin(world, "conformance-cancellable");
    let target = format!("/v1/runs/{run}/events");
    let places = usize::try_from(readers).expect("few");
    let (ready, done) = (Barrier::new(places + 1), Barrier::new(places + 1));
    thread::scope(|threads| {
        for _ in 0..readers {
            // A thread for each, with a small stack: they only wait.
            let reader = thread::Builder::new().stack_size(64 << 10);
            let read = || {
                let mut stream = subscribe(world, &target);
                ready.wait();
                let mut line = String::new();
                while stream.read_line(&mut line).expect("a stream of events") > 0 {
                    if line.starts_with("event: run.cancelled") {
                        break;
                    }
                    line.clear();
                }
                assert!(!line.is_empty(), "a stream ended before the run did");
                done.wait();
            };
            reader.spawn_scoped(threads, read).expect("a thread");
        }
        ready.wait();
        let begun = Instant::now();
        send(world, "POST", &format!("/v1/runs/{run}/cancel"), "{}");
        done.wait();
        begun.elapsed()
    })
}

/// A stream of a run's events, of which the first line of an event has arrived.
fn subscribe(world: &World, target: &str) -> BufReader<TcpStream> {
    let key = format!("Bearer {KEY}");
    let headers = [("authorization", key.as_str()), ("accept", "text/event-stream")];
    let mut stream = connect(world.address);
    stream.write_all(&request("GET", target, &headers, b"")).expect("sent");
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while !line.starts_with("event: ") {
        line.clear();
        assert!(stream.read_line(&mut line).expect("a stream") > 0, "it ended: {target}");
    }
    stream
}
