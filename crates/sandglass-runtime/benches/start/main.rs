//! How long a start takes, and how much memory, with a million sleeping entities and a hundred in
//! flight: opening the journal, and recovering. In addition how long the complete check of the file
//! takes, and the conversion from the format before entities were noted. It asserts nothing about
//! time.
//!
//! ```sh
//! cargo bench --workspace --bench start               # some minutes, most of them to make the file
//! cargo bench --workspace --bench start -- 100000     # with fewer entities
//! ```

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "the figures are for people")]
#![allow(missing_docs, reason = "it is no library")]

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::{
    Batch, Checking, Expected, Journal, REST_MAX_ENTITIES, Rest, Resting, Settings, SqliteJournal,
};
use sandglass_liveness::{Input, Spec, decide};
use sandglass_model::{EntityRef, Incarnation, Object, WallTime};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, Runtime};
use tokio::task::JoinSet;

/// Sleeping entities by default.
const SLEEPING: usize = 1_000_000;
/// Entities with a handler in flight.
const IN_FLIGHT: usize = 100;
/// Appends that wait at the same time, so that the journal writes in groups.
const AT_ONCE: usize = 4 * REST_MAX_ENTITIES;

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Open", "Working", "Closed"]
initial = "Open"
terminal = ["Closed"]
allow_indefinite_states = ["Working"]

[[state]]
name = "topic"
type = "string"
initial = "a conversation about something"

[[action]]
name = "Work"
from = ["Open"]
to = "Working"
effect = "trigger work"

[[action]]
name = "Close"
from = ["Open", "Working"]
to = "Closed"

[[integration]]
name = "work"
module = "work"
deadline = "2h"
on_success = "Close"
on_failure = "Close"
on_timeout = "Close"

[[state_timeout]]
state = "Open"
after_seconds = 86400
on_timeout = "Close"
"#;

/// Handlers that never end.
struct Hanging;

impl Handlers for Hanging {
    fn start(&self, _: HandlerRun) -> RunFuture {
        Box::pin(std::future::pending())
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| !argument.starts_with('-'));
    let first = arguments.next();
    match (first.as_deref(), arguments.next()) {
        // In a process of its own, whose memory is measured.
        (Some("start"), Some(path)) => block_on(start(Path::new(&path))),
        (Some("convert"), Some(path)) => convert(Path::new(&path)),
        (Some("check"), Some(path)) => check(Path::new(&path)),
        (count, _) => {
            let sleeping = count.and_then(|count| count.parse().ok()).unwrap_or(SLEEPING);
            measure(sleeping);
        }
    }
}

fn block_on(work: impl Future<Output = ()>) {
    let mut threads = tokio::runtime::Builder::new_multi_thread();
    let threads = threads.worker_threads(2).enable_all().build().expect("threads");
    threads.block_on(work);
}

fn measure(sleeping: usize) {
    let folder = std::env::var("SANDGLASS_BENCH_FOLDER").map(tempfile::tempdir_in);
    let folder = folder.unwrap_or_else(|_| tempfile::tempdir()).expect("a folder");
    let path = folder.path().join("journal.db");
    let begun = Instant::now();
    block_on(make(&path, sleeping));
    let size = std::fs::metadata(&path).expect("there").len() >> 20;
    println!(
        "{sleeping} sleeping entities, {IN_FLIGHT} in flight: {size} MiB, made in {:.0} s",
        begun.elapsed().as_secs_f64()
    );
    for step in ["start", "check", "convert"] {
        let mut child = std::process::Command::new(std::env::current_exe().expect("a program"));
        let status = child.arg(step).arg(&path).status().expect("a child");
        assert!(status.success(), "{step}: {status}");
    }
}

fn spec() -> Spec {
    Spec::parse(SPEC).spec.expect("sound")
}

fn name(kind: &str, number: usize) -> EntityRef {
    format!("Session/{kind}-{number:08}").parse().expect("a valid name")
}

async fn make(path: &Path, sleeping: usize) {
    let opened = SqliteJournal::open(path, Settings::default()).expect("a new file");
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    let builder = Runtime::builder(Arc::clone(&journal)).specs([spec()]);
    let runtime = builder.handlers(Arc::new(Hanging)).build().await.expect("empty");
    for number in 0..IN_FLIGHT {
        let entity = name("busy", number);
        runtime.create(entity.clone()).await.expect("new");
        runtime.send(&entity, "Work", Object::new()).await.expect("taken");
    }
    let now = WallTime::from_millis(i64::try_from(wall_ms()).expect("a time"));
    let (created, spec): (Vec<_>, _) = ((0..sleeping).collect(), Arc::new(spec()));
    for piece in created.chunks(AT_ONCE) {
        let mut appends = JoinSet::new();
        for number in piece.iter().copied() {
            let (journal, spec) = (Arc::clone(&journal), Arc::clone(&spec));
            appends.spawn(append(journal, spec, name("sleeper", number), now));
        }
        let notes = appends.join_all().await;
        for some in notes.chunks(REST_MAX_ENTITIES) {
            journal.rest(some.to_vec()).await.expect("noted");
        }
    }
    // As after a kill, but for the file.
    drop(runtime);
    journal.close().await;
}

fn wall_ms() -> u128 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_millis()
}

async fn append(
    journal: Arc<dyn Journal>,
    spec: Arc<Spec>,
    entity: EntityRef,
    at: WallTime,
) -> Resting {
    let incarnation = Incarnation::from_bytes([7; 16]);
    let create =
        Input::Create { name: entity.clone(), incarnation, tenant: None, spawned_by: None };
    let events = decide(&spec, None, &create, at).expect("new").events;
    let records = events.into_iter().map(|event| (Default::default(), event)).collect();
    let batch = Batch::new(entity.clone(), Expected::None, at, records);
    let last = journal.append(batch).await.expect("new").last;
    let wake_at = Some(at.after(Duration::from_secs(86_400)));
    let rest = Rest { wake_at, spec: Some(spec.digest), is_listed: false };
    Resting { entity, last, rest }
}

/// The most that this process has had in memory, in MiB.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a field");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
}

fn report(what: &str, begun: Instant) {
    let (ms, mib) = (begun.elapsed().as_millis(), peak_mib());
    println!("  {what:<32} {ms:>8} ms   {mib:>5} MiB at most");
}

async fn start(path: &Path) {
    let begun = Instant::now();
    let settings = Settings::default().checking(Checking::Later);
    let opened = SqliteJournal::open(path, settings).expect("a journal");
    report("opened", begun);
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    let builder = Runtime::builder(Arc::clone(&journal)).specs([spec()]);
    let runtime = builder.handlers(Arc::new(Hanging)).build().await.expect("sound");
    report("opened and recovered", begun);
    let begun = Instant::now();
    let entity = name("sleeper", 12_345);
    runtime.send(&entity, "Close", Object::new()).await.expect("taken");
    report("the first request to a sleeper", begun);
    // The file stays as it is, apart from these records.
    runtime.shutdown(Duration::from_secs(10)).await;
}

fn check(path: &Path) {
    let begun = Instant::now();
    let mut reader = SqliteJournal::open_read_only(path).expect("a journal");
    let go_on = Arc::new(|_| ControlFlow::Continue(()));
    reader.check(&(go_on as _)).expect("intact");
    report("checked completely", begun);
}

/// Takes the file back to the format before, and opens it.
fn convert(path: &Path) {
    let connection = rusqlite::Connection::open(path).expect("a SQLite file");
    let back = "DROP TABLE entities; PRAGMA user_version = 5;";
    connection.execute_batch(back).expect("valid SQL");
    connection.close().expect("closed");
    let begun = Instant::now();
    let opened = SqliteJournal::open(path, Settings::default()).expect("a journal");
    report("checked and converted", begun);
    let begun = Instant::now();
    block_on(async {
        let journal: Arc<dyn Journal> = Arc::new(opened.journal);
        let builder = Runtime::builder(Arc::clone(&journal)).specs([spec()]);
        let runtime = builder.handlers(Arc::new(Hanging)).build().await.expect("sound");
        report("the first start, which reads all", begun);
        runtime.shutdown(Duration::from_secs(10)).await;
    });
}
