//! Dispatches through the runtime on PostgreSQL beside SQLite, on the same disk and in turns: 64 in
//! flight, with and without recordings, and accepted actions without load. For PostgreSQL it counts what
//! a dispatch costs the server: statements by `pg_stat_statements`, bytes of WAL, and processor time. It
//! starts a server; .ci/install-postgres installs it.
//!
//! ```text
//! cargo bench -p sandglass-postgres --bench dispatches
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "it prints its results")]
#![allow(clippy::unwrap_used, reason = "it is not part of the product")]
#![allow(clippy::cast_precision_loss, reason = "some thousand dispatches")]

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::{Journal, Journals, SqliteJournal};
use sandglass_liveness::Spec;
use sandglass_model::{
    Cause, Completion, EntityRef, Object, Outcome, Recording, Rejection, RejectionKind, RunReport,
};
use sandglass_runtime::{HandlerRun, Handlers, RunFuture, Runtime, not_run};

#[path = "../tests/server/server.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod server;

use server::{Server, block};

/// As the command line has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Of which the medians are printed.
const ROUNDS: usize = 5;
/// How long a round is measured, after it warmed up.
const LENGTH: Duration = Duration::from_secs(4);
const WARM_UP: Duration = Duration::from_secs(1);
/// Dispatches in flight.
const AT_ONCE: usize = 64;
/// Bytes of the recording of a handler that calls the host a few times.
const RECORDED_BYTES: usize = 1_024;

const SPEC: &str = r#"
[automaton]
name = "Session"
states = ["Idle", "Working", "Gone"]
initial = "Idle"
terminal = ["Gone"]

[[action]]
name = "Work"
from = ["Idle"]
to = "Working"
effect = [{ type = "trigger", name = "work" }]

[[action]]
name = "Finish"
from = ["Working"]
to = "Idle"

[[action]]
name = "Leave"
from = ["Idle", "Working"]
to = "Gone"

[[integration]]
name = "work"
trigger = "work"
module = "work"
deadline = "900s"
on_success = "Finish"
on_failure = "Leave"
on_timeout = "Leave"

[[state_timeout]]
state = "Idle"
after_seconds = 31536000
on_timeout = "Leave"

[[state_timeout]]
state = "Working"
after_seconds = 31536000
on_timeout = "Leave"
"#;

fn main() {
    let server = Server::start(&[]);
    println!(
        "| in flight | recordings | journal | dispatches/s | an accepted action | a dispatch |"
    );
    println!("|---|---|---|---|---|---|");
    for (at_once, recorded) in [(1, 0), (AT_ONCE, 0), (AT_ONCE, RECORDED_BYTES)] {
        let (mut sqlite, mut postgres) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            sqlite.push(on_sqlite(at_once, recorded));
            postgres.push(on_postgres(&server, at_once, recorded, round));
        }
        let sqlite = Round::median(&sqlite);
        let postgres = Round::median(&postgres);
        sqlite.print("SQLite", at_once, recorded, None);
        postgres.print("PostgreSQL", at_once, recorded, Some(sqlite.rate));
        let [statements, wal, cpu] = postgres.costs;
        println!(
            "A dispatch on PostgreSQL: {statements:.3} statements, {wal:.0} B of WAL, {cpu:.0} us of \
             the server's processor time.\n"
        );
    }
}

fn on_sqlite(at_once: usize, recorded: usize) -> Round {
    // On a disk: the usual temporary folder may be memory.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let settings = sandglass_journal::Settings::default();
    let opened = SqliteJournal::open(folder.path().join("bench.journal"), settings).unwrap();
    let journal: Arc<dyn Journal> = Arc::new(opened.journal);
    measure(&journal.into(), at_once, recorded, || [0.0; 3])
}

fn on_postgres(server: &Server, at_once: usize, recorded: usize, round: usize) -> Round {
    let name = format!("bench_{at_once}_{recorded}_{round}");
    let address = server.new_database(&name);
    server.psql(&name, "CREATE EXTENSION pg_stat_statements");
    let database = server::open(&address);
    let (beating, (stop, mut stopped)) = (database.clone(), tokio::sync::oneshot::channel::<()>());
    // As a host does.
    let beats = std::thread::spawn(move || {
        block(async move {
            while tokio::time::timeout(Duration::from_secs(1), &mut stopped).await.is_err() {
                beating.beat().await.unwrap();
            }
        });
    });
    let round = measure(&database.journals(), at_once, recorded, || costs(server, &name));
    drop(stop);
    beats.join().unwrap();
    block(async move { database.close().await });
    round
}

/// What the server has spent: statements in a database, bytes of WAL, microseconds of processor time.
fn costs(server: &Server, database: &str) -> [f64; 3] {
    let sql = "SELECT sum(s.calls), pg_current_wal_lsn() - '0/0' FROM pg_stat_statements s \
               JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()";
    let row = server.psql(database, sql);
    let (statements, wal) = row.split_once('|').unwrap();
    // Hundredths of a second: of the processes that run, and of those of its children that have ended.
    let ticks = |pid: &String| -> Option<f64> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(fields[11..15].iter().map(|field| field.parse::<f64>().unwrap()).sum())
    };
    let ticks: f64 = server.processes().iter().filter_map(ticks).sum();
    [statements.parse().unwrap(), wal.parse().unwrap(), ticks * 10_000.0]
}

/// The result of a round, or the medians of several.
struct Round {
    /// Dispatches per second.
    rate: f64,
    /// The median and the 99th percentile of how long it takes to accept an action, and of how long it
    /// takes until its handler's end is recorded, in milliseconds.
    accepted: [f64; 2],
    dispatched: [f64; 2],
    /// What a dispatch costs the server.
    costs: [f64; 3],
}

impl Round {
    fn median(rounds: &[Self]) -> Self {
        let median = |of: &dyn Fn(&Self) -> f64| {
            let mut all: Vec<f64> = rounds.iter().map(of).collect();
            all.sort_by(f64::total_cmp);
            all[all.len() / 2]
        };
        Self {
            rate: median(&|round| round.rate),
            accepted: [0, 1].map(|index| median(&|round| round.accepted[index])),
            dispatched: [0, 1].map(|index| median(&|round| round.dispatched[index])),
            costs: [0, 1, 2].map(|index| median(&|round| round.costs[index])),
        }
    }

    fn print(&self, journal: &str, at_once: usize, recorded: usize, baseline: Option<f64>) {
        let share = baseline.map(|rate| format!(" ({:.0} %)", self.rate / rate * 100.0));
        let times = |[p50, p99]: [f64; 2]| format!("p50 {p50:.2} ms, p99 {p99:.2} ms");
        println!(
            "| {at_once} | {recorded} B | {journal} | {:.0}{} | {} | {} |",
            self.rate,
            share.unwrap_or_default(),
            times(self.accepted),
            times(self.dispatched)
        );
    }
}

/// Runs dispatches through a runtime over `journals`.
fn measure(
    journals: &Journals,
    at_once: usize,
    recorded: usize,
    costs: impl Fn() -> [f64; 3],
) -> Round {
    let journals = journals.clone();
    let runtime = block(async move {
        let spec = Spec::parse(SPEC).spec.expect("sound");
        let builder = Runtime::builder_over(journals).specs([spec]);
        let runtime = builder.handlers(Arc::new(AtOnce { recorded })).build().await.unwrap();
        for number in 0..at_once {
            runtime.create(name(number)).await.unwrap();
        }
        dispatch(&runtime, at_once, WARM_UP).await;
        runtime
    });
    let (before, begun) = (costs(), Instant::now());
    let measured = runtime.clone();
    let took = block(async move { dispatch(&measured, at_once, LENGTH).await });
    let (elapsed, after) = (begun.elapsed(), costs());
    block(async move { runtime.shutdown(Duration::from_secs(5)).await });
    let count = took.len() as f64;
    let quantiles = |of: fn(&(Duration, Duration)) -> Duration| {
        let mut all: Vec<Duration> = took.iter().map(of).collect();
        all.sort_unstable();
        [50, 99].map(|percent| all[(all.len() - 1) * percent / 100].as_secs_f64() * 1e3)
    };
    Round {
        rate: count / elapsed.as_secs_f64(),
        accepted: quantiles(|it| it.0),
        dispatched: quantiles(|it| it.1),
        costs: [0, 1, 2].map(|index| (after[index] - before[index]) / count),
    }
}

fn name(number: usize) -> EntityRef {
    format!("Session/{number:04}").parse().unwrap()
}

/// Has each entity dispatch one after the other; returns when each action was accepted, and when its
/// handler had ended.
async fn dispatch(
    runtime: &Runtime,
    at_once: usize,
    length: Duration,
) -> Vec<(Duration, Duration)> {
    let over = Instant::now() + length;
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..at_once {
        let (runtime, name) = (runtime.clone(), name(number));
        tasks.spawn(async move {
            let mut took = Vec::new();
            while Instant::now() < over {
                let begun = Instant::now();
                runtime.send(&name, "Work", Object::new()).await.unwrap();
                let accepted = begun.elapsed();
                let after = runtime.settled(&name).await.unwrap();
                assert_eq!(after.state, "Idle", "it finished");
                took.push((accepted, begun.elapsed()));
            }
            took
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

/// Handlers that finish at once, with recordings of this many bytes.
struct AtOnce {
    recorded: usize,
}

impl Handlers for AtOnce {
    fn start(&self, run: HandlerRun) -> RunFuture {
        let rejection = Rejection { kind: RejectionKind::HostUnavailable, message: String::new() };
        // Each has other bytes, so that none is stored already.
        let bytes = run.dispatched.dispatch.to_string().into_bytes();
        let bytes: Vec<u8> = bytes.into_iter().cycle().take(self.recorded).collect();
        let report = RunReport {
            outcome: Outcome::Completed(Completion {
                action: None,
                params: Object::new(),
                result: serde_json::json!({ "action": "Finish", "params": {}, "success": true }),
            }),
            cause: Cause::Returned,
            recording: (self.recorded > 0).then(|| Recording::Whole(bytes.into())),
            ..not_run(&run.dispatched, rejection)
        };
        Box::pin(std::future::ready(report))
    }
}
