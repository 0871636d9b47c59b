//! Durable actions without a handler over HTTP: 64 clients, each with an entity and a connection of its own,
//! send one action after the other to a daemon with a journal in SQLite. The baseline is a request that
//! writes nothing, to the same daemon, in turns. Clients and daemon share the machine.
//!
//! ```text
//! cargo bench -p sandglass-cli --bench http
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "it prints its results")]
#![allow(clippy::cast_precision_loss, reason = "some hundred thousand requests")]

#[path = "../../tests/binary/mod.rs"]
mod binary;
#[path = "../hosts/client.rs"]
#[allow(dead_code, reason = "the benchmark of several hosts uses the rest")]
mod client;
#[path = "../hosts/sample.rs"]
mod sample;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use binary::{Folder, Running};
use client::Client;
use sample::Sample;

/// Clients, each with one request in flight.
const CLIENTS: usize = 64;
/// Rounds of each kind of request; the medians are printed.
const ROUNDS: usize = 5;
const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(5);

const COUNTER: &str = r#"
[automaton]
name = "Counter"
states = ["Open"]
initial = "Open"
allow_indefinite_states = ["Open"]

[[action]]
name = "Touch"
from = ["Open"]
"#;

fn main() {
    // On a disk: the usual temporary folder may be memory.
    let folder = Folder::within(env!("CARGO_TARGET_TMPDIR"));
    folder.write("specs/counter.ioa.toml", COUNTER);
    let (specs, journal) = (folder.path("specs"), folder.path("actions.db"));
    let mut daemon = Running::start(&[
        &"up",
        &"--specs",
        &specs,
        &"--journal",
        &journal,
        &"--listen",
        &"127.0.0.1:0",
    ]);
    let address = daemon.address();
    let mut client = Client::of(&address);
    for number in 0..CLIENTS {
        assert_eq!(client.post(&format!("/v1/entities/Counter/{number}")), 201, "it is new");
    }
    let (mut actions, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        actions.push(round(&address, "POST", |number| {
            format!("/v1/entities/Counter/{number}/actions/Touch")
        }));
        reads.push(round(&address, "GET", |_| "/healthz".to_owned()));
    }
    print("durable actions", actions);
    print("GET /healthz", reads);
    daemon.signal("TERM");
    assert!(daemon.ended().success(), "the daemon ends when it is told to");
}

/// Requests per second of all clients together, and how long each took.
fn round(address: &str, method: &str, path: impl Fn(usize) -> String) -> (f64, Sample) {
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| {
                let (is_over, path) = (&is_over, path(number));
                threads.spawn(move || {
                    let mut client = Client::of(address);
                    let mut took = Vec::new();
                    let measured = Instant::now() + WARM_UP;
                    while !is_over.load(Ordering::Relaxed) {
                        let begun = Instant::now();
                        let status = client.send(method, &path, "").map(|(status, _)| status);
                        assert_eq!(status, Some(200), "{method} {path}");
                        if begun >= measured {
                            took.push(begun.elapsed());
                        }
                    }
                    took
                })
            })
            .collect();
        thread::sleep(WARM_UP + LENGTH);
        is_over.store(true, Ordering::Relaxed);
        let mut sample = Sample::default();
        let took: Vec<_> = clients.into_iter().flat_map(|one| one.join().expect("200")).collect();
        let rate = took.len() as f64 / LENGTH.as_secs_f64();
        sample.add(took);
        (rate, sample)
    })
}

fn print(what: &str, mut rounds: Vec<(f64, Sample)>) {
    rounds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let (least, most) = (rounds[0].0, rounds[ROUNDS - 1].0);
    let (median, sample) = &rounds[ROUNDS / 2];
    println!("{what}: {median:.0}/s ({least:.0} to {most:.0}), {sample}");
}
