//! What is lost when connections and servers fail: nothing that was acknowledged.

use std::time::{Duration, Instant};

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Error, Expected, Health};
use sandglass_model::Partition;
use sandglass_postgres::Address;

use crate::load;
use crate::proxy::{Flow, Proxy, wait};
use crate::server::{self, Server, block};

/// Seeds that repeat the faults of a run, though not their moments: `SANDGLASS_SEED` adds one.
fn seeds() -> Vec<u64> {
    let fresh = std::env::var("SANDGLASS_SEED").ok().and_then(|seed| seed.parse().ok());
    [1, 2].into_iter().chain(fresh).collect()
}

/// The URL of a database behind a proxy.
pub(crate) fn through(proxy: &Proxy, database: &str) -> Address {
    let url = format!("postgresql://sandglass@127.0.0.1:{}/{database}", proxy.port);
    Address::parse(&url).unwrap()
}

#[test]
fn an_unknown_append_is_there_once_or_never() {
    let server = Server::start(&[]);
    for seed in seeds() {
        println!("seed {seed}");
        let name = format!("unknown_{seed}");
        server.new_database(&name);
        let proxy = Proxy::of(server.port);
        let database = server::open(&through(&proxy, &name));
        let load = load::start(&database, "client", 16);
        load.wait_for(50);
        let opened = database.clone();
        let proxy = block(async move {
            let mut random = fastrand::Rng::with_seed(seed);
            for _ in 0..25 {
                let millis =
                    |random: &mut fastrand::Rng, range| Duration::from_millis(random.u64(range));
                match random.u8(0..6) {
                    0 => proxy.cut(),
                    // The statement arrives, and its result does not.
                    1 | 2 => {
                        proxy.set(Flow::Pass, Flow::Lose);
                        wait(millis(&mut random, 1..40)).await;
                        proxy.cut();
                    }
                    // The statement does not arrive.
                    3 => {
                        proxy.set(Flow::Lose, Flow::Pass);
                        wait(millis(&mut random, 1..40)).await;
                        proxy.cut();
                    }
                    4 => {
                        proxy.set(Flow::Delay(millis(&mut random, 1..30)), Flow::Pass);
                        wait(millis(&mut random, 10..200)).await;
                    }
                    _ => {
                        proxy.close(true);
                        proxy.cut();
                        wait(millis(&mut random, 10..300)).await;
                        proxy.close(false);
                    }
                }
                proxy.set(Flow::Pass, Flow::Pass);
                wait(millis(&mut random, 20..200)).await;
            }
            let counts = opened.counts();
            println!("{counts:?}");
            assert!(counts.unknown_commits > 0, "no outcome was unknown");
            assert_eq!(counts.lost_records, 0);
            proxy
        });
        let all = load.stop();
        // Connections end with it.
        drop(proxy);
        assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
        let direct = server::open(&server.address(&name));
        load::check(&direct, all);
    }
}

#[test]
fn a_half_open_connection_does_not_hang() {
    let server = Server::start(&[]);
    server.new_database("half_open");
    let proxy = Proxy::of(server.port);
    let database = server::open(&through(&proxy, "half_open"));
    let load = load::start(&database, "client", 4);
    load.wait_for(20);
    proxy.set(Flow::Pass, Flow::Hold);
    // Its statement limit is 5 s, and its attempts to connect hang, too, until they are cut.
    let begun = Instant::now();
    let entity = session("client-0");
    let journal = database.journal(Partition::of(&entity));
    server::until(|| journal.health() != Health::Working);
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    let other = session("new");
    let refused = block({
        let journal = database.journal(Partition::of(&entity));
        async move { journal.append(creation(&other)).await }
    });
    assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    // The connections that are held stay so: the host makes new ones.
    proxy.set(Flow::Pass, Flow::Pass);
    load.wait_for(50);
    let all = load.stop();
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    let direct = server::open(&server.address("half_open"));
    load::check(&direct, all);
}

#[test]
fn a_server_that_is_killed_and_restarted_loses_nothing() {
    let mut server = Server::start(&[]);
    let address = server.new_database("killed");
    let database = server::open(&address);
    let load = load::start(&database, "client", 16);
    for round in 0..4 {
        load.wait_for(200);
        if round % 2 == 0 {
            server.kill()
        } else {
            server.stop()
        }
        server.resume();
    }
    load.wait_for(200);
    let all = load.stop();
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    println!("{:?}", database.counts());
    assert_eq!(database.counts().lost_records, 0);
    load::check(&database, all);
}

#[test]
fn backends_that_are_terminated_lose_nothing() {
    let server = Server::start(&[]);
    let address = server.new_database("terminated");
    let database = server::open(&address);
    let load = load::start(&database, "client", 16);
    for _ in 0..15 {
        load.wait_for(100);
        server.end_connections("terminated");
    }
    load.wait_for(100);
    let all = load.stop();
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    println!("{:?}", database.counts());
    load::check(&database, all);
}

#[test]
fn a_server_that_stays_away_refuses_and_the_database_closes() {
    let mut server = Server::start(&[]);
    let address = server.new_database("away");
    let database = server::open(&address);
    let load = load::start(&database, "client", 4);
    load.wait_for(20);
    server.kill();
    let entity = session("client-0");
    let journal = database.journal(Partition::of(&entity));
    server::until(|| matches!(journal.health(), Health::Failing { .. }));
    let closing = database.clone();
    let begun = Instant::now();
    block(async move { closing.close().await });
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(journal.health(), Health::Closed);
    let all = load.stop();
    let is_closed = |ended: &Option<Error>| matches!(ended, None | Some(Error::Closed));
    assert!(all.iter().all(|answers| is_closed(&answers.ended)), "{all:?}");
}

#[test]
fn a_canceled_wait_for_a_standby_acknowledges_nothing() {
    let server = Server::start(&[]);
    let address = server.new_database("canceled");
    let database = server::open(&address);
    let entity = session("a");
    let journal = database.journal(Partition::of(&entity));
    block({
        let (journal, entity) = (database.journal(Partition::of(&entity)), entity.clone());
        async move { journal.append(creation(&entity)).await }
    })
    .unwrap();
    let set = |value: &str| {
        let value = format!("ALTER SYSTEM SET synchronous_standby_names = '{value}'");
        server.psql("postgres", &value);
        server.psql("postgres", "SELECT pg_reload_conf()");
    };
    set("absent");
    server::until(|| server.psql("postgres", "SHOW synchronous_standby_names") == "absent");
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let append = scope.spawn(|| {
            let (journal, entity) = (database.journal(Partition::of(&entity)), entity.clone());
            sender
                .send(block(async move {
                    let first = Expected::At(sandglass_model::Position(1));
                    journal.append(step(&entity, first, 1)).await
                }))
                .unwrap();
        });
        let waiting = "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity \
                       WHERE datname = 'canceled' AND wait_event = 'SyncRep'";
        server::until(|| server.psql("postgres", waiting) != "0");
        // The record is in the primary, and the server reports success with a warning.
        server::until(|| matches!(journal.health(), Health::Failing { .. }));
        assert!(receiver.try_recv().is_err(), "it was acknowledged");
        set("");
        append.join().unwrap();
    });
    assert!(receiver.recv().unwrap().is_ok());
    assert_eq!(database.counts().unknown_commits, 1);
}
