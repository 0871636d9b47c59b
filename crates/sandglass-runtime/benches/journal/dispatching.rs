//! Dispatch and decision through a real runtime, 64 at once: each is a transition with its
//! dispatch, durable before the handler starts, and its end with the transition that
//! follows, durable before it shows.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use sandglass_host::{Host, Manifest};
use sandglass_journal::{
    Around, Batch, Error, GroupSizes, Journal, MemoryJournal, Pending, Positions, Settings,
    SqliteJournal,
};
use sandglass_liveness::Spec;
use sandglass_model::{
    Cause, Completion, EntityRef, Object, Outcome, Rejection, RejectionKind, RunReport, SystemClock,
};
use sandglass_runtime::{HandlerRun, Handlers, HostHandlers, Module, RunFuture, Runtime, not_run};

use crate::baseline;
use crate::history::SPEC;
use crate::timing::{Quantiles, rate};

/// Dispatches in flight.
const AT_ONCE: usize = 64;
/// How long each kind of dispatches is measured, after as much again to warm up.
const TIME: Duration = Duration::from_secs(8);
/// Records of one dispatch.
const RECORDS: u64 = 4;
/// Batches of one dispatch.
const BATCHES: u64 = 2;

/// The shortest guest: it says that it has finished.
const GUEST: &str = r#"(module
  (import "env" "host_set_result" (func $result (param i32 i32)))
  (memory (export "memory") 1)
  (data (i32.const 8) "{\"action\":\"Finish\",\"params\":{},\"success\":true}")
  (func (export "run") (param i32 i32) (result i32)
    (call $result (i32.const 8) (i32.const 46))
    (i32.const 0)))"#;

/// What a run of dispatches came to.
struct Measured {
    dispatches: u64,
    took: Duration,
    whole: Quantiles,
    journal: Quantiles,
}

/// Dispatches that cost nothing but what is recorded of them: in memory, on the disk, and
/// the bytes alone on the disk.
pub(crate) async fn run(folder: &Path) {
    println!("Dispatch and decision, {AT_ONCE} in flight, handlers that answer at once\n");
    println!("| journal | dispatches/s | a dispatch takes | an append of it takes |");
    println!("|---|---|---|---|");
    let in_memory = measure(Arc::new(MemoryJournal::new()), Arc::new(AtOnce)).await;
    print("in memory", &in_memory);
    let path = folder.join("dispatches.db");
    let opened = SqliteJournal::open(&path, Settings::default()).expect("a new file");
    let journal = Arc::new(opened.journal);
    let on_disk = measure(Arc::clone(&journal) as _, Arc::new(AtOnce)).await;
    print("SQLite, durable", &on_disk);
    let groups = journal.group_sizes();
    drop(journal);
    let a_group = groups.batches() * RECORDS / BATCHES / groups.transactions().max(1);
    let records = (on_disk.dispatches * RECORDS).min(400_000);
    let group = usize::try_from(a_group).unwrap_or(usize::MAX).max(1);
    let took = baseline::run(&path, &folder.join("baseline.db"), records, group);
    let plain = rate(records / RECORDS, took);
    println!("| the same bytes alone, in transactions of {group} records | {plain:.0} | | |\n");
    println!("{}", groups_text(&groups));
    let added = on_disk.whole.p99.saturating_sub(in_memory.whole.p99);
    println!(
        "Durable costs {:.2} ms more at p99 than memory, and reaches {:.0} % of the bytes alone.\n",
        added.as_secs_f64() * 1e3,
        100.0 * rate(on_disk.dispatches, on_disk.took) / plain,
    );
}

/// The same with a real guest, which runs in an instance of its own each time.
pub(crate) async fn run_with_a_guest(folder: &Path) {
    println!("The same with a WebAssembly guest\n");
    println!("| journal | dispatches/s | a dispatch takes | an append of it takes |");
    println!("|---|---|---|---|");
    let in_memory = measure(Arc::new(MemoryJournal::new()), guests().await).await;
    print("in memory", &in_memory);
    let path = folder.join("guests.db");
    let opened = SqliteJournal::open(&path, Settings::default()).expect("a new file");
    let journal = Arc::new(opened.journal);
    print("SQLite, durable", &measure(Arc::clone(&journal) as _, guests().await).await);
    println!("\n{}", groups_text(&journal.group_sizes()));
}

async fn guests() -> Arc<dyn Handlers> {
    let host = Host::builder().build().expect("a host");
    let bytes: Arc<[u8]> = GUEST.as_bytes().into();
    let module = Module::new(bytes, Manifest::default());
    let modules = [("work".to_owned(), module)];
    let handlers = HostHandlers::new(host, Arc::new(SystemClock::new()), modules);
    handlers.compile().await;
    Arc::new(handlers)
}

/// Batches in one transaction.
fn mean(groups: &GroupSizes) -> f64 {
    groups.batches() as f64 / groups.transactions() as f64
}

fn groups_text(groups: &GroupSizes) -> String {
    format!(
        "Batches in one transaction: mean {:.1}, p50 {}, p99 {}, max {}, in {} transactions.",
        mean(groups),
        groups.quantile(500),
        groups.quantile(990),
        groups.quantile(1_000),
        groups.transactions(),
    )
}

fn print(what: &str, measured: &Measured) {
    let Measured { dispatches, took, whole, journal } = measured;
    println!("| {what} | {:.0} | {whole} | {journal} |", rate(*dispatches, *took));
}

async fn measure(journal: Arc<dyn Journal>, handlers: Arc<dyn Handlers>) -> Measured {
    let timed = Arc::new(Timed { journal, appends: Mutex::default() });
    let spec = Spec::parse(SPEC).spec.expect("sound");
    let runtime = Runtime::builder(Arc::clone(&timed) as _).specs([spec]).handlers(handlers);
    let runtime = runtime.build().await.expect("an empty journal");
    let name = |number: usize| -> EntityRef {
        format!("Session/{number:04}").parse().expect("a valid name")
    };
    for number in 0..AT_ONCE {
        runtime.create(name(number)).await.expect("new");
    }
    each(&runtime, name, TIME).await;
    timed.appends().clear();
    let begun = Instant::now();
    let whole = each(&runtime, name, TIME).await;
    let took = begun.elapsed();
    let appends = std::mem::take(&mut *timed.appends());
    runtime.shutdown(Duration::from_secs(5)).await;
    let dispatches = whole.len() as u64;
    let journal = Quantiles::of(appends);
    Measured { dispatches, took, whole: Quantiles::of(whole), journal }
}

/// Has each of the entities dispatch one after the other; how long each dispatch took.
async fn each(
    runtime: &Runtime,
    name: impl Fn(usize) -> EntityRef,
    time: Duration,
) -> Vec<Duration> {
    let over = Instant::now() + time;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..AT_ONCE {
        let (runtime, name) = (runtime.clone(), name(number));
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < over {
                let begun = Instant::now();
                runtime.send(&name, "Work", Object::new()).await.expect("taken");
                let after = runtime.settled(&name).await.expect("there");
                assert_eq!(after.state, "Idle", "it finished");
                took.push(begun.elapsed());
            }
            took
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Handlers that finish at once.
struct AtOnce;

impl Handlers for AtOnce {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let rejection = Rejection { kind: RejectionKind::HostUnavailable, message: String::new() };
        let report = RunReport {
            outcome: Outcome::Completed(Completion {
                action: None,
                params: Object::new(),
                result: serde_json::json!({ "action": "Finish", "params": {}, "success": true }),
            }),
            cause: Cause::Returned,
            ..not_run(&run.dispatched, rejection)
        };
        Box::pin(std::future::ready(report))
    }
}

/// A journal that notes how long appends take.
#[derive(Debug)]
struct Timed {
    journal: Arc<dyn Journal>,
    appends: Mutex<Vec<Duration>>,
}

impl Timed {
    fn appends(&self) -> std::sync::MutexGuard<'_, Vec<Duration>> {
        self.appends.lock().expect("no panic")
    }
}

impl Around for Timed {
    fn inner(&self) -> &dyn Journal {
        &*self.journal
    }

    fn append(&self, batch: Batch) -> Pending<'_, Result<Positions, Error>> {
        Box::pin(async move {
            let begun = Instant::now();
            let answer = self.journal.append(batch).await;
            self.appends().push(begun.elapsed());
            answer
        })
    }
}
