//! Appends per second to PostgreSQL beside SQLite, on the same disk and in turns: one and 64 callers, each
//! with an entity of its own and two records per batch. It starts a server; .ci/install-postgres installs
//! it.
//!
//! ```text
//! cargo bench -p sandglass-postgres --bench appends
//! ```
#![allow(clippy::disallowed_methods, reason = "it measures in real time")]
#![allow(clippy::print_stdout, reason = "it prints its results")]
#![allow(clippy::unwrap_used, reason = "it is not part of the product")]
#![allow(clippy::cast_precision_loss, reason = "some thousand appends")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandglass_journal::conformance::{batch, session, signal, transition};
use sandglass_journal::{Expected, Journal, SqliteJournal};
use sandglass_model::{EntityRef, Partition};

#[path = "../tests/server/server.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod server;

use server::{Server, block};

const ROUNDS: usize = 7;
const LENGTH: Duration = Duration::from_secs(3);

/// Gives the journal of an entity.
type Store = Arc<dyn Fn(&EntityRef) -> Arc<dyn Journal> + Send + Sync>;

fn main() {
    let server = Server::start(&[]);
    let address = server.new_database("bench");
    server.psql("bench", "CREATE EXTENSION pg_stat_statements");
    let database = server::open(&address);
    let folder = tempfile::tempdir().unwrap();
    let settings = sandglass_journal::Settings::default();
    let opened = SqliteJournal::open(folder.path().join("bench.journal"), settings).unwrap();
    let sqlite: Arc<dyn Journal> = Arc::new(opened.journal);
    let in_sqlite: Store = Arc::new(move |_| Arc::clone(&sqlite));
    let opened = database.clone();
    let in_postgres: Store = Arc::new(move |entity| opened.journal(Partition::of(entity)));
    println!("callers  store       appends/s (median of {ROUNDS})  p50 ms  p99 ms");
    for callers in [1, 64] {
        let (mut sqlite, mut postgres) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            sqlite.push(measure(&in_sqlite, callers, &format!("s{callers}-{round}")));
            postgres.push(measure(&in_postgres, callers, &format!("p{callers}-{round}")));
        }
        let (before, wal) = (database.counts(), wal(&server));
        postgres.push(measure(&in_postgres, callers, &format!("p{callers}-costs")));
        let batches = database.counts().batches - before.batches;
        let bytes = (self::wal(&server) - wal) / batches as f64;
        let statements = database.counts().statements - before.statements;
        for (name, rounds) in [("SQLite", sqlite), ("PostgreSQL", postgres)] {
            let [rate, p50, p99] = [0, 1, 2].map(|column| median(&rounds, column));
            println!("{callers:7}  {name:10}  {rate:9.0}  {p50:26.2}  {p99:6.2}");
        }
        let share = statements as f64 / batches as f64;
        println!("         for each append: {share:.3} statements, {bytes:.0} B of WAL");
    }
}

fn wal(server: &Server) -> f64 {
    server.psql("bench", "SELECT pg_current_wal_lsn() - '0/0'").parse().unwrap()
}

fn median(rounds: &[[f64; 3]], column: usize) -> f64 {
    let mut all: Vec<f64> = rounds.iter().map(|round| round[column]).collect();
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Appends per second, and the median and 99th percentile of their latency in milliseconds.
fn measure(store: &Store, callers: usize, prefix: &str) -> [f64; 3] {
    let (store, prefix) = (Arc::clone(store), prefix.to_owned());
    let begun = Instant::now();
    let mut latencies = block(async move {
        let stopped = Arc::new(AtomicBool::new(false));
        let clients: Vec<_> = (0..callers)
            .map(|number| {
                let entity = session(&format!("{prefix}-{number}"));
                let journal = store(&entity);
                tokio::spawn(append_until(journal, entity, Arc::clone(&stopped)))
            })
            .collect();
        tokio::time::sleep(LENGTH).await;
        stopped.store(true, Ordering::Relaxed);
        let mut latencies = Vec::new();
        for client in clients {
            latencies.extend(client.await.unwrap());
        }
        latencies
    });
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let quantile = |thousandths: usize| {
        latencies[(latencies.len() * thousandths / 1_000).min(latencies.len() - 1)].as_secs_f64()
            * 1_000.0
    };
    [rate, quantile(500), quantile(990)]
}

async fn append_until(
    journal: Arc<dyn Journal>,
    entity: EntityRef,
    stopped: Arc<AtomicBool>,
) -> Vec<Duration> {
    let mut latencies = Vec::new();
    let creation = vec![(0, sandglass_journal::conformance::created()), (0, signal(0))];
    let created = journal.append(batch(&entity, Expected::None, creation)).await.unwrap();
    let mut expected = Expected::At(created.last);
    for sequence in 1.. {
        if stopped.load(Ordering::Relaxed) {
            break;
        }
        let records = vec![(sequence, transition("Go")), (sequence, signal("x".repeat(400)))];
        let begun = Instant::now();
        let positions = journal.append(batch(&entity, expected, records)).await.unwrap();
        latencies.push(begun.elapsed());
        expected = Expected::At(positions.last);
    }
    latencies
}
