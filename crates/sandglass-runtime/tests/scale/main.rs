//! A hundred thousand idle entities in one journal on a disk, with their timers: how much
//! memory they take, and how long it takes to wake one. It prints the figures; see them by
//! `cargo test -p sandglass-runtime --test scale -- --nocapture`.

#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "the figures are for people")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::{Batch, Expected, Journal, Settings, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{EntityRef, Object, Position, Sequence};
use sandglass_runtime::Runtime;
use sandglass_telemetry::{Prefix, Telemetry, prometheus::Exporter};

const ENTITIES: usize = 100_000;
/// Those that are created at the same time, so that the journal writes in groups.
const AT_ONCE: usize = 500;
/// What the whole process may take.
const MEMORY_MAX_BYTES: u64 = 300 << 20;
/// Records of the entity with a long history.
const HISTORY: u64 = 10_000;

/// Every state but the last has a timer, and all limits of a session are on.
const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Open", "Closed"]
initial = "Open"
terminal = ["Closed"]

[limits]
run_timeout = "24h"
execution_timeout = "48h"
inactivity_timeout = "2h"
progress_timeout = "4h"
max_loop_iterations = 1000
max_handler_runs = 1000

[[state]]
name = "touched"
type = "counter"

[[state]]
name = "topic"
type = "string"
initial = "a conversation about something"

[[action]]
name = "Touch"
from = ["Open"]
effect = "increment touched"

[[action]]
name = "Close"
from = ["Open"]
to = "Closed"

[[state_timeout]]
state = "Open"
after_seconds = 86400
on_timeout = "Close"
"#;

fn name(number: usize) -> EntityRef {
    format!("Session/conversation-{number:08}").parse().expect("a valid name")
}

/// What this process has in memory, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split(' ').nth(1).expect("a field").parse().expect("a number");
    pages * 4096
}

fn report(what: &str, begun: Instant) {
    println!("{what}: {} MiB resident, {} ms", resident() >> 20, begun.elapsed().as_millis());
    assert!(resident() < MEMORY_MAX_BYTES, "{what}: {} bytes", resident());
}

async fn open(path: &Path) -> (Runtime, Exporter) {
    let begun = Instant::now();
    let opened = SqliteJournal::open(path, Settings::default()).expect("a journal");
    report("journal opened", begun);
    let exporter = Exporter::new(Prefix::default());
    let telemetry = Telemetry { metrics: exporter.metrics(), ..Telemetry::disabled() };
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let begun = Instant::now();
    let builder = Runtime::builder(Arc::new(opened.journal)).specs([spec]).telemetry(telemetry);
    let runtime = builder.linger(Duration::from_millis(500)).build().await.expect("sound");
    report("runtime built", begun);
    (runtime, exporter)
}

/// Waits until no entity is awake.
async fn asleep(exporter: &Exporter) {
    let begun = Instant::now();
    while !exporter.render().contains("temper_entities_loaded 0\n") {
        assert!(begun.elapsed() < Duration::from_secs(60), "not all entities sleep");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Does the same for many entities, some at once.
async fn each<F>(count: usize, act: impl Fn(EntityRef) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..count {
        if tasks.len() >= AT_ONCE {
            tasks.join_next().await.expect("there are some").expect("no panic");
        }
        tasks.spawn(act(name(number)));
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("no panic");
    }
}

/// Gives an entity that there isn't yet a history, past the runtime.
async fn write_history(path: &Path, entity: &EntityRef) {
    let opened = SqliteJournal::open(path, Settings::default()).expect("a journal");
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    let model = journal.read_entity(name(0), Position(0), 3).await;
    let records = model.expect("readable").into_records().expect("whole");
    let [created, _, touched] = &records[..] else { panic!("three records") };
    let mut expected = Expected::None;
    let mut next = 0;
    while next < HISTORY {
        let of = |number: u64| {
            let event = if number == 0 { created.event.clone() } else { touched.event.clone() };
            (Sequence(number), event)
        };
        let records = (next..(next + 250).min(HISTORY)).map(of).collect();
        let batch = Batch::new(entity.clone(), expected, touched.at, records);
        let positions = journal.append(batch).await.expect("it follows");
        next += 250;
        expected = Expected::At(positions.last);
    }
    journal.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_idle_entities_fit_into_300_mib() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.db");
    println!("before: {} MiB resident", resident() >> 20);

    let (runtime, exporter) = open(&path).await;
    let begun = Instant::now();
    each(ENTITIES, |name| {
        let runtime = runtime.clone();
        async move { drop(runtime.create(name).await.expect("new")) }
    })
    .await;
    report("100,000 entities created", begun);
    asleep(&exporter).await;
    report("all of them asleep", begun);

    let begun = Instant::now();
    each(1_000, |name| {
        let runtime = runtime.clone();
        async move { drop(runtime.send(&name, "Touch", Object::new()).await.expect("taken")) }
    })
    .await;
    report("1,000 woken by an action", begun);
    asleep(&exporter).await;
    runtime.shutdown(Duration::from_secs(10)).await;
    drop(runtime);

    let old = name(ENTITIES);
    write_history(&path, &old).await;
    println!("file: {} MiB", std::fs::metadata(&path).expect("there").len() >> 20);
    let (runtime, exporter) = open(&path).await;
    asleep(&exporter).await;
    report("started again, all of them asleep", begun);
    assert_eq!(
        runtime.entities(Some(&name(ENTITIES - 1)), 2).await.expect("readable"),
        std::slice::from_ref(&old)
    );
    let begun = Instant::now();
    let seen = runtime.entity(&old).await.expect("there");
    assert_eq!(seen.sequence, Sequence(HISTORY - 1));
    report("one with 10,000 records woken", begun);
    let seen = runtime.entity(&name(5)).await.expect("there");
    assert_eq!((seen.sequence, &*seen.state), (Sequence(1), "Open"));
    runtime.shutdown(Duration::from_secs(10)).await;
}
