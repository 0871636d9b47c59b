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
#[path = "../../hosts/sample.rs"]
mod sample;
mod server;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use client::Client;
use sample::Sample;
use server::{Served, obelisk, sandglass};

/// Clients, each with one request in flight.
const CLIENTS: [usize; 2] = [1, 32];
/// Rounds of each kind; the medians are printed.
const ROUNDS: usize = 3;
const WARM_UP: Duration = Duration::from_secs(1);
const LENGTH: Duration = Duration::from_secs(5);

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
                rounds.push(round(&server, clients)?);
            }
        }
        for (kind, mut rounds) in KINDS.into_iter().zip(rounds) {
            rounds.sort_by(|(one, _), (other, _)| one.total_cmp(other));
            let (rate, sample) = &rounds[ROUNDS / 2];
            println!("{}, {clients} clients: {rate:.0}/s, {sample}", kind.name());
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

/// Handlers per second of all clients together, and how long each took.
fn round(server: &Served, clients: usize) -> Result<(f64, Sample)> {
    let is_over = AtomicBool::new(false);
    let all: Vec<Result<Vec<Duration>>> = thread::scope(|threads| {
        let begun: Vec<_> = (0..clients)
            .map(|number| {
                let is_over = &is_over;
                threads.spawn(move || requests(server, number, is_over))
            })
            .collect();
        thread::sleep(WARM_UP + LENGTH);
        is_over.store(true, Ordering::Relaxed);
        begun.into_iter().map(|one| one.join().expect("a client does not panic")).collect()
    });
    let mut sample = Sample::default();
    let mut count = 0_u32;
    for took in all {
        for one in took? {
            sample.add([one]);
            count += 1;
        }
    }
    Ok((f64::from(count) / LENGTH.as_secs_f64(), sample))
}

/// Sends one request after the other, and returns how long those took that began after the warm-up.
fn requests(server: &Served, number: usize, is_over: &AtomicBool) -> Result<Vec<Duration>> {
    let path = (server.path)(number);
    let measured = Instant::now() + WARM_UP;
    let mut took = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let mut client = Client::of(&server.address);
        let (status, body) = client.send("POST", &path, &server.body).context("no response")?;
        let body = String::from_utf8_lossy(&body);
        let succeeded = (200..300).contains(&status) && body.contains(server.success);
        ensure!(succeeded, "the server returned {status} {body}");
        if begun >= measured {
            took.push(begun.elapsed());
        }
    }
    Ok(took)
}
