//! Measures durable handlers over HTTP in Sandglass and in Obelisk, in turns: clients request one
//! execution of a guest after the other, and wait for its end. Each request has a connection of its own: on
//! one that is kept, the second segment of Obelisk's response waits for a delayed acknowledgment (40 ms). Both
//! servers write to SQLite and sync each commit; a guest is a fresh instance that succeeds at once: a core
//! module in Sandglass, and a component in Obelisk, which executes nothing else. Clients and servers share the machine.
//!
//! ```text
//! cargo install obelisk --version 0.38.3 --locked --root peers
//! cargo build --release
//! cargo run --release --manifest-path benches/obelisk/Cargo.toml -- target/release/sandglass peers/bin/obelisk
//! ```

#![expect(clippy::disallowed_methods, reason = "time is what is measured")]

#[path = "../../hosts/client.rs"]
#[allow(dead_code, reason = "the benchmark of several hosts uses the rest")]
mod client;
#[path = "../../load.rs"]
mod load;
#[path = "../../hosts/sample.rs"]
mod sample;
mod server;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use client::Client;
use sample::Sample;
use server::{Served, obelisk, sandglass};

/// Clients, each with one request in flight.
const CLIENTS: [usize; 2] = [1, 32];
/// Rounds of each kind; the medians are printed.
const ROUNDS: usize = 3;

/// What is measured. A server runs only while it is.
#[derive(Clone, Copy)]
enum Kind {
    Sandglass,
    Obelisk,
    ObeliskTuned,
}

const KINDS: [Kind; 3] = [Kind::Sandglass, Kind::Obelisk, Kind::ObeliskTuned];

fn main() -> Result<()> {
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let usage = "pass the paths of both programs: SANDGLASS OBELISK";
    let programs = (arguments.next().context(usage)?, arguments.next().context(usage)?);
    for clients in CLIENTS {
        let mut rounds: [Vec<(f64, Sample)>; 3] = Default::default();
        for _ in 0..ROUNDS {
            for (kind, rounds) in KINDS.into_iter().zip(&mut rounds) {
                let folder = tempfile::tempdir_in(".").context("no folder on this disk")?;
                let server = start(kind, &programs, folder.path())?;
                rounds.push(round(&server, clients));
            }
        }
        for (kind, rounds) in KINDS.into_iter().zip(rounds) {
            load::print(&format!("{}, {clients} clients", kind.name()), rounds);
        }
    }
    Ok(())
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Sandglass => "Sandglass",
            Self::Obelisk => "Obelisk",
            Self::ObeliskTuned => "Obelisk, tuned",
        }
    }
}

fn start(kind: Kind, programs: &(PathBuf, PathBuf), folder: &Path) -> Result<Served> {
    let tuned = ["exec.batch_size = 64", "exec.tick_sleep.milliseconds = 1"];
    match kind {
        Kind::Sandglass => sandglass(&programs.0, folder),
        Kind::Obelisk => obelisk(&programs.1, folder, &[]),
        Kind::ObeliskTuned => obelisk(&programs.1, folder, &tuned),
    }
}

/// Executions that all clients request and await.
fn round(server: &Served, clients: usize) -> (f64, Sample) {
    load::round(clients, |number| {
        let path = (server.path)(number);
        move || {
            let mut client = Client::of(&server.address);
            let (status, body) = client.send("POST", &path, &server.body).expect("a response");
            let body = String::from_utf8_lossy(&body);
            let succeeded = (200..300).contains(&status) && body.contains(server.success);
            assert!(succeeded, "the server returned {status} {body}");
        }
    })
}
