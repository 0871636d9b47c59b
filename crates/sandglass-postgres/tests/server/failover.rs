//! A server that fails, and a standby that takes its place.

use std::time::Duration;

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Entry, Error, Expected, Health};
use sandglass_model::{EntityRef, Partition, Position};
use sandglass_postgres::{Address, Database, Settings};

use crate::load::{self, read_all};
use crate::server::{self, Server, block};

/// The URL of a database on whichever of these servers accepts writes.
fn either(one: &Server, other: &Server, database: &str) -> Address {
    let (one, other) = (one.port, other.port);
    let url = format!("postgresql://sandglass@127.0.0.1:{one},127.0.0.1:{other}/{database}");
    Address::parse(&url).unwrap()
}

fn append(database: &Database, entity: &EntityRef, at: u64, sequence: u64) -> Result<u64, Error> {
    let (journal, entity) = (database.journal(Partition::of(entity)), entity.clone());
    block(async move {
        let batch = match sequence {
            0 => creation(&entity),
            _ => step(&entity, Expected::At(Position(at)), sequence),
        };
        journal.append(batch).await.map(|positions| positions.last.0)
    })
}

/// The first server accepts connections, and says nothing.
#[test]
fn a_server_that_hangs_keeps_nobody_from_the_next_one() {
    // Its system accepts connections as long as this exists.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = listener.local_addr().unwrap().port();
    let server = server::shared();
    server.new_database("behind_silence");
    let url = format!(
        "postgresql://sandglass@127.0.0.1:{silent},localhost:{}/behind_silence?sslmode=disable",
        server.port
    );
    let address = Address::parse(&url).unwrap();
    let limit = Duration::from_secs(2);
    let settings = Settings::default().limits(Duration::from_secs(5), limit);
    block(async move {
        let database = Database::open(&address, settings).await.unwrap();
        let journal = database.journal(Partition::of(&session("a")));
        journal.append(creation(&session("a"))).await.unwrap();
        // On a connection of the pool.
        assert_eq!(database.membership().await.unwrap().partitions.len(), 64);
    });
}

#[test]
fn a_synchronous_standby_that_is_promoted_has_everything() {
    let mut primary = Server::start(&["wal_level = replica"]);
    primary.new_database("main");
    let standby = Server::standby_of(&primary, "standby");
    primary.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = 'standby'");
    primary.psql("postgres", "SELECT pg_reload_conf()");
    let state = "SELECT sync_state FROM pg_stat_replication";
    server::until(|| primary.psql("postgres", state) == "sync");
    let database = server::open(&either(&primary, &standby, "main"));
    let load = load::start(&database, "client", 16);
    load.wait_for(300);
    primary.kill();
    standby.pg_ctl(&["promote", "-w"]);
    // The standby names no standby of its own that it waits for.
    standby.psql("postgres", "ALTER SYSTEM SET synchronous_standby_names = ''");
    standby.psql("postgres", "SELECT pg_reload_conf()");
    load.wait_for(300);
    let all = load.stop();
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    println!("{:?}", database.counts());
    assert_eq!(database.counts().lost_records, 0);
    load::check(&database, all);
}

#[test]
fn what_an_asynchronous_standby_lost_is_reported_and_not_written_over() {
    let mut primary = Server::start(&["wal_level = replica"]);
    primary.new_database("main");
    let mut standby = Server::standby_of(&primary, "standby");
    let database = server::open(&either(&primary, &standby, "main"));
    let (kept, lost) = (session("kept"), session("lost"));
    assert_ne!(Partition::of(&kept), Partition::of(&lost));
    assert_eq!(append(&database, &kept, 0, 0), Ok(1));
    assert_eq!(append(&database, &lost, 0, 0), Ok(1));
    let caught_up = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication";
    server::until(|| primary.psql("postgres", caught_up) == "t");
    standby.stop();
    for sequence in 1..=3 {
        assert_eq!(append(&database, &lost, sequence, sequence), Ok(sequence + 1));
    }
    primary.kill();
    standby.resume();
    standby.pg_ctl(&["promote", "-w"]);
    let refused = loop {
        match append(&database, &lost, 4, 4) {
            // The connection is found lost by the first one.
            Err(Error::Unavailable { .. }) => {}
            other => break other,
        }
    };
    let Err(Error::Disowned { what }) = refused else { panic!("{refused:?}") };
    assert!(what.contains("lost 3 records") && what.contains("positions 2 to 4"), "{what}");
    let journal = database.journal(Partition::of(&lost));
    assert_eq!(journal.health(), Health::Disowned { what });
    assert_eq!(database.counts().lost_records, 3);
    let partition = Partition::of(&lost);
    let opened = database.clone();
    let entries = block(async move { read_all(&opened, partition).await });
    let missing = Entry::Missing { first: Position(2), last: Position(4) };
    assert_eq!(entries.get(1..), Some(&[missing][..]), "readers see the gap");
    assert!(append(&database, &session("new"), 0, 0).is_ok(), "other partitions continue");
    assert_eq!(append(&database, &kept, 1, 1), Ok(2));
    let sql = format!("SELECT max(position) FROM sandglass.records WHERE partition = {partition}");
    assert_eq!(standby.psql("main", &sql), "1", "nothing was written over the gap");
    // A process that starts now knows nothing of them, and continues behind what is there.
    let again = server::open(&either(&primary, &standby, "main"));
    assert_eq!(append(&again, &lost, 1, 1), Ok(2));
}

#[test]
fn what_was_lost_is_noticed_although_nothing_is_appended() {
    let mut primary = Server::start(&["wal_level = replica"]);
    primary.new_database("main");
    let mut standby = Server::standby_of(&primary, "standby");
    let database = server::open(&either(&primary, &standby, "main"));
    let lost = session("lost");
    let journal = database.journal(Partition::of(&lost));
    assert_eq!(append(&database, &lost, 0, 0), Ok(1));
    let caught_up = "SELECT replay_lsn = pg_current_wal_lsn() FROM pg_stat_replication";
    server::until(|| primary.psql("postgres", caught_up) == "t");
    standby.stop();
    assert_eq!(append(&database, &lost, 1, 1), Ok(2));
    database.check_connection();
    primary.kill();
    standby.resume();
    standby.pg_ctl(&["promote", "-w"]);
    server::until(|| {
        database.check_connection();
        matches!(journal.health(), Health::Disowned { .. })
    });
    assert_eq!(database.counts().lost_records, 1);
}
