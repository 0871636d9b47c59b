//! Taking partitions while something else holds them, and beats while everything else waits.

use std::time::{Duration, Instant};

use sandglass_journal::conformance::{creation, session};
use sandglass_journal::{Error, Health, Positions};
use sandglass_model::Partition;
use sandglass_postgres::{Address, Database, Settings};

use crate::locks::{self, Lock};
use crate::server::{self, Server, block, spawn};

const ONE: &str = "SELECT 1 FROM sandglass.partitions WHERE partition = 40 FOR UPDATE";

/// A time limit in seconds that is far longer than a test waits for anything.
const LONG: u64 = 600;

fn settings(statement: u64) -> Settings {
    Settings::default().limits(Duration::from_secs(statement), Duration::from_secs(2))
}

fn append(database: &Database, id: &str) -> Result<Positions, Error> {
    let entity = session(id);
    let journal = database.journal(Partition::of(&entity));
    block(async move { journal.append(creation(&entity)).await })
}

fn owners(server: &Server, database: &str) -> String {
    let sql = "SELECT min(epoch), max(epoch), count(DISTINCT owner) FROM sandglass.partitions";
    server.psql(database, sql)
}

fn try_open(address: &Address, settings: Settings) -> Result<Database, Error> {
    let address = address.clone();
    block(async move { Database::open(&address, settings).await })
}

#[test]
fn an_open_that_fails_takes_nothing_later() {
    let server = server::shared();
    let address = server.new_database("late_take");
    let first = server::open(&address);
    let lock = Lock::by(server, "late_take", ONE);
    let second = try_open(&address, settings(2));
    let Err(Error::Unavailable { what }) = second else { panic!("{second:?}") };
    assert!(what.contains("55P03"), "{what}");
    lock.release();
    locks::until_none_waits(server, "late_take");
    assert_eq!(owners(server, "late_take"), "1|1|1");
    append(&first, "a").unwrap();
}

/// Gives up an open of `through` with this time limit of statements while a lock holds it, and checks that nothing is taken later.
fn give_up(server: &Server, database: &str, through: &Address, limit: u64) {
    let first = server::open(&server.address(database));
    let lock = Lock::by(server, database, ONE);
    let opened = through.clone();
    let opening = spawn(async move { Database::open(&opened, settings(limit)).await.map(drop) });
    locks::until_waiting(server, database, 1);
    opening.abort();
    locks::until_none_waits(server, database);
    lock.release();
    assert_eq!(owners(server, database), "1|1|1");
    append(&first, "a").unwrap();
}

#[test]
fn an_open_that_is_given_up_takes_nothing_later() {
    let server = server::shared();
    let address = server.new_database("dropped_take");
    give_up(server, "dropped_take", &address, LONG);
}

#[test]
fn an_open_through_a_pooler_or_tls_that_is_given_up_takes_nothing_later() {
    let server = Server::start(&[]);
    server.new_database("pooled");
    let url = format!("postgresql://sandglass@127.0.0.1:{}/pooled", server.pooler("pooled"));
    // PgBouncer drops the request to cancel; the wait for the lock has a limit of its own.
    give_up(&server, "pooled", &Address::parse(&url).unwrap(), 10);
    server.new_database("encrypted");
    let folder = tempfile::tempdir().unwrap();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let roots = folder.path().join("roots.pem");
    std::fs::write(&roots, made.cert.pem()).unwrap();
    server.encrypt(&made.cert.pem(), &made.signing_key.serialize_pem());
    let (port, roots) = (server.port, roots.display());
    let url = format!("postgresql://sandglass@localhost:{port}/encrypted?sslrootcert={roots}");
    give_up(&server, "encrypted", &Address::parse(&url).unwrap(), LONG);
}

#[test]
fn of_processes_that_open_at_once_one_has_everything() {
    let server = server::shared();
    let address = server.new_database("at_once");
    for round in 0..10 {
        let each = (0..3).map(|_| {
            let address = address.clone();
            spawn(async move { Database::open(&address, settings(20)).await.unwrap() })
        });
        let each: Vec<_> = each.collect();
        let all = each.into_iter().map(|opening| block(opening).unwrap());
        let all: Vec<Database> = all.collect();
        let epoch = (round + 1) * 3;
        assert_eq!(owners(server, "at_once"), format!("{epoch}|{epoch}|1"));
        let taken = |database: &Database| {
            let database = database.clone();
            block(async move { database.beat().await }).unwrap().len()
        };
        let mut taken: Vec<usize> = all.iter().map(taken).collect();
        taken.sort_unstable();
        assert_eq!(taken, [0, 64, 64]);
        all.into_iter().for_each(|database| block(async move { database.close().await }));
    }
}

#[test]
fn long_reads_delay_no_beat() {
    let server = server::shared();
    let database = server::open(&server.new_database("beats"));
    append(&database, "a").unwrap();
    let lock = Lock::by(server, "beats", "LOCK TABLE sandglass.records IN ACCESS EXCLUSIVE MODE");
    let reads: Vec<_> = (0..8)
        .map(|_| {
            let journal = database.journal(Partition::of(&session("a")));
            spawn(async move { journal.last().await })
        })
        .collect();
    // As many as there are connections for reading.
    locks::until_waiting(server, "beats", 4);
    let begun = Instant::now();
    let beating = database.clone();
    assert_eq!(block(async move { beating.beat().await }), Ok(Vec::new()));
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let health = database.journal(Partition::of(&session("a"))).health();
    assert_eq!(health, Health::Working);
    lock.release();
    reads.into_iter().for_each(|read| drop(block(read).unwrap()));
}
