//! A daemon whose PostgreSQL server has a full disk: it refuses what it cannot record and still ends
//! handlers in time; and when there is space again, it goes on by itself, and has lost nothing.
//!
//! `SANDGLASS_SMALL_DISK` is a folder on a file system of 160 MB, which `.ci/check-full-disk` mounts.

#![allow(clippy::print_stdout, reason = "figures of the trial")]

mod binary;
#[path = "recovery/daemon.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod daemon;
#[path = "recovery/http.rs"]
mod http;
#[path = "recovery/load.rs"]
mod load;
#[path = "recovery/log.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod log;
#[path = "recovery/place.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod place;
#[path = "../crates/sandglass-postgres/tests/server/proxy.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
#[allow(clippy::unwrap_used, reason = "it is a part of tests")]
mod proxy;
#[path = "recovery/random.rs"]
mod random;
#[path = "outages/rig.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod rig;
#[path = "../crates/sandglass-postgres/tests/server/server.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
#[allow(clippy::unwrap_used, clippy::disallowed_methods, reason = "it is a part of tests")]
mod server;
#[path = "recovery/specs.rs"]
mod specs;
#[path = "recovery/trial.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod trial;

use std::fs::{self, File};
use std::hash::{BuildHasher as _, RandomState};
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sandglass_model::{Cursor, Event, OutcomeKind};
use serde_json::Value;

use binary::{Folder, answer_of, fixture};
use daemon::{Answer, Daemon, ask};
use load::Life;
use place::Place as _;
use rig::Rig;
use server::{Server, until};
use trial::{Trial, number};

/// A small disk holds little: the log for recovery is recycled early, and none is kept for standbys.
const LINES: [&str; 4] =
    ["max_wal_size = '32MB'", "min_wal_size = '32MB'", "wal_keep_size = 0", "autovacuum = off"];
/// Entities whose handlers may be started.
const ENTITIES: usize = 300;
/// After so many refusals in a row, nothing fits.
const REFUSED: usize = 20;
/// The deadline of the handler that hangs.
const DEADLINE_MS: u64 = 5_000;

/// The small disk, which one test uses at a time.
struct Disk {
    folder: PathBuf,
    _one: MutexGuard<'static, ()>,
}

impl Disk {
    fn new() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = std::env::var_os("SANDGLASS_SMALL_DISK").expect("run .ci/check-full-disk");
        Self { folder: folder.into(), _one: one }
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }

    /// Leaves no space.
    fn fill(&self) {
        let mut filler = File::options()
            .create(true)
            .append(true)
            .open(self.filler())
            .expect("its folder is there");
        while filler.write_all(&[0; 4_096]).is_ok() {}
    }

    fn free(&self) {
        fs::remove_file(self.filler()).expect("it was full");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // It is there if the test failed.
        let _ = fs::remove_file(self.filler());
    }
}

/// Fills the disk of the server of a daemon under load, until the server refuses statements, or ends.
fn survives_a_full_disk(disk: &Disk, server: Server, ends: bool) {
    let seed = number("SANDGLASS_SEED").unwrap_or_else(|| RandomState::new().hash_one(()));
    let mut trial = Trial::new(seed, |_| Rig::over(server));
    let daemon = trial.first_start();
    let (address, is_ending) = (daemon.address.clone(), AtomicBool::new(false));
    let life = Life { address: &address, timers: true, is_ending: &is_ending };
    trial.under_load(&life, |trial, heard| {
        trial.hear(heard, 100);
        until(|| {
            disk.fill();
            // The first requests wait for the outcome of what was sent before.
            trial.told.extend(heard.try_iter());
            let is_refused = trial.told.iter().any(|one| one.answer.is_unavailable());
            let has_ended = trial.log.place.has_ended();
            !daemon.is_healthy() && is_refused && (!ends || has_ended)
        });
        assert_eq!(trial.log.place.has_ended(), ends, "only a server that cannot log ends");
        disk.free();
        trial.log.place.revive();
        // What was answered before.
        trial.told.extend(heard.try_iter());
        trial.hear(heard, 100);
        until(|| daemon.is_healthy());
        assert!(daemon.is_alive(), "the daemon has stopped");
        is_ending.store(true, Ordering::Relaxed);
        daemon.kill();
    });
    trial.log.place.settle();
    let (daemon, _) = trial.restart(0);
    let told = trial.end(daemon);
    let count = |is: fn(&Answer) -> bool| told.iter().filter(|one| is(&one.answer)).count();
    let refused = count(Answer::is_unavailable);
    assert!(refused > 0, "nothing was refused");
    println!("{} acknowledged, {refused} refused", count(|it| matches!(it, Answer::Done(_))));
}

#[test]
fn nothing_is_lost_when_tables_cannot_grow() {
    let disk = Disk::new();
    let server = Server::start_in(&disk.folder, &std::env::temp_dir(), &LINES);
    survives_a_full_disk(&disk, server, false);
}

#[test]
fn nothing_is_lost_when_the_server_ends_because_it_cannot_log() {
    let disk = Disk::new();
    let server = Server::start_in(&std::env::temp_dir(), &disk.folder, &LINES);
    survives_a_full_disk(&disk, server, true);
}

const SPEC: &str = r#"
[automaton]
name = "Run"
states = ["Idle", "Running", "Over"]
initial = "Idle"
terminal = ["Over"]
allow_indefinite_states = ["Idle", "Running"]

[[action]]
name = "Begin"
from = ["Idle"]
to = "Running"
effect = ["trigger waits"]

[[action]]
name = "End"
from = ["Running"]
to = "Over"

[[integration]]
name = "waits"
module = "waits"
deadline = "5s"
on_success = "End"
on_failure = "End"
on_timeout = "End"
"#;

#[test]
fn a_handler_ends_in_time_and_its_end_is_recorded_when_there_is_space() {
    let disk = Disk::new();
    let mut rig = Rig::over(Server::start_in(&disk.folder, &std::env::temp_dir(), &LINES));
    let folder = Folder::new();
    folder.write("run.ioa.toml", SPEC);
    let guest = fs::read(fixture("wat/sleeps_in_wasi_poll.wat")).expect("it is there");
    folder.write("waits.wat", guest);
    let daemon = Daemon::listening(daemon::begin(&folder, &rig));
    let request = |request: &str| ask(&daemon.address, request, &Value::Null);
    let is_done = |answer| matches!(answer, Answer::Done(_));
    for number in 0..ENTITIES {
        assert!(is_done(request(&format!("POST /v1/entities/Run/{number}"))));
    }
    let begin = |number: usize| request(&format!("POST /v1/entities/Run/{number}/actions/Begin"));
    // Some still fit into the space that the tables have. Then none does.
    let (mut number, mut started, mut refused) = (0, 0, 0);
    while started == 0 || refused < REFUSED {
        let answer = begin(number);
        number += 1;
        match answer {
            Answer::Done(_) => (started, refused) = (started + 1, 0),
            answer if answer.is_unavailable() => refused += 1,
            other => panic!("{other:?}"),
        }
        disk.fill();
    }
    let (status, body) = answer_of(&daemon.address, "GET /healthz", "", b"");
    assert!(status == 503 && body.contains("journal"), "{status}: {body}");
    let killed = "temper_handler_deadline_exceeded_total";
    until(|| {
        let (_, metrics) = answer_of(&daemon.address, "GET /metrics", "", b"");
        metrics.lines().any(|line| line.starts_with(killed) && !line.ends_with(" 0"))
    });
    assert!(begin(number).is_unavailable(), "the disk is still full");
    disk.free();
    assert!(!rig.has_ended(), "the server refuses statements and continues");
    rig.revive();
    // The writer of all partitions notices it with its next append.
    until(|| {
        started += usize::from(is_done(begin(number)));
        number += 1;
        daemon.is_healthy()
    });
    let records = || rig.read_to_end(&mut Cursor::start(rig.journals()));
    let is_end = |event: &Event| matches!(event, Event::Ended(_));
    until(|| records().iter().filter(|(_, record)| is_end(&record.event)).count() == started);
    let all = records();
    for (_, record) in &all {
        let Event::Ended(ended) = &record.event else { continue };
        assert_eq!(ended.outcome.kind(), OutcomeKind::TimedOut, "{ended:?}");
        let elapsed = ended.deadline.elapsed_ms;
        assert!((DEADLINE_MS..DEADLINE_MS + 3_000).contains(&elapsed), "{ended:?}");
    }
    drop(daemon);
    rig.settle();
    rig.replay(&all);
    let said = fs::read_to_string(folder.path("said")).expect("it is there");
    assert!(said.contains("make room on the server's disk"), "{said}");
}
