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
#[path = "../load.rs"]
mod load;
#[path = "../hosts/sample.rs"]
mod sample;

use binary::{Folder, Running};
use client::Client;
use sample::Sample;

/// Clients, each with one request in flight.
const CLIENTS: usize = 64;
/// Rounds of each kind of request; the medians are printed.
const ROUNDS: usize = 5;

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
    load::print("durable actions", actions);
    load::print("GET /healthz", reads);
    daemon.signal("TERM");
    assert!(daemon.ended().success(), "the daemon ends when it is told to");
}

/// Requests of one kind from all clients.
fn round(address: &str, method: &str, path: impl Fn(usize) -> String + Sync) -> (f64, Sample) {
    load::round(CLIENTS, |number| {
        let (mut client, path) = (Client::of(address), path(number));
        move || {
            let status = client.send(method, &path, "").map(|(status, _)| status);
            assert_eq!(status, Some(200), "{method} {path}");
        }
    })
}
