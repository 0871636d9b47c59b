//! How long a cancel takes whose handler is in the middle of a host call: until nothing of it
//! runs, and until that is durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_host::{Host, Manifest};
use sandglass_journal::{Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object, StopCause, SystemClock};
use sandglass_runtime::{HostHandlers, Module, Runtime, SessionStop};

/// Sessions that are cancelled, one after the other.
const CANCELS: usize = 300;

/// Tells that it has begun, and polls for an hour.
const WAITS: &str = r#"(module
    (import "env" "host_set_status" (func $status (param i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "poll_oneoff" (func $poll (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (func (export "run") (param i32 i32) (result i32)
        (i32.store (i32.const 16) (i32.const 1))
        (i64.store (i32.const 24) (i64.const 3600000000000))
        (drop (call $status (i32.const 512) (i32.const 1)))
        (drop (call $poll (i32.const 0) (i32.const 64) (i32.const 1) (i32.const 128)))
        i32.const 0))"#;

const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working", "Stopped"]
initial = "Idle"
terminal = ["Stopped"]
allow_indefinite_states = ["Idle", "Working"]

[limits]

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Stop"
from = ["Working"]
to = "Stopped"

[[integration]]
name = "work"
module = "work"
deadline = "2h"
on_failure = "Stop"
on_timeout = "Stop"
"#;

pub(crate) async fn run() {
    let host = Host::builder().build().expect("a host");
    let modules = [("work".to_owned(), Module::new(WAITS.as_bytes(), Manifest::default()))];
    let handlers = HostHandlers::new(host, Arc::new(SystemClock::new()), modules);
    handlers.compile().await;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder on a disk");
    let opened = SqliteJournal::open(folder.path().join("runs.db"), Settings::default());
    let journal = Arc::new(opened.expect("a new file").journal);
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let runtime = Runtime::builder(journal).specs([spec]).handlers(Arc::new(handlers));
    let runtime = runtime.build().await.expect("an empty journal");
    let (mut cancelled, mut plain) = (Vec::new(), Vec::new());
    for number in 0..CANCELS {
        cancelled.push(cancel(&runtime, number, true).await);
        plain.push(cancel(&runtime, number, false).await);
    }
    runtime.shutdown(Duration::from_secs(5)).await;
    println!("| cancel in a host call, until it is durable that it stopped | p50 | p99 |");
    println!("|---|---|---|");
    print("of a session", cancelled);
    print("of its handler alone", plain);
}

async fn cancel(runtime: &Runtime, number: usize, is_of_session: bool) -> Duration {
    let name: EntityRef =
        format!("Session/{is_of_session}-{number}").parse().expect("a valid name");
    runtime.create(name.clone()).await.expect("new");
    runtime.send(&name, "Work", Object::new()).await.expect("taken");
    let is_in_its_call = runtime.wait_until(&name, |snapshot| {
        snapshot.session.as_ref().is_some_and(|session| session.status_text.is_some())
    });
    is_in_its_call.await.expect("it lives");
    let begun = Instant::now();
    if is_of_session {
        let cause = StopCause::Operator { by: "bench".to_owned(), reason: String::new() };
        let stop = SessionStop { run_seq: None, cause };
        runtime.stop_session(&name, stop).await.expect("it runs");
    } else {
        runtime.cancel(&name, None, "").await.expect("it lives");
    }
    runtime.settled(&name).await.expect("it lives");
    begun.elapsed()
}

fn print(what: &str, mut all: Vec<Duration>) {
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    println!("| {what} | {:.2} ms | {:.2} ms |", at(50), at(99));
}
