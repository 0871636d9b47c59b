//! Removing entities with many records while others are appended to.

use std::time::Instant;

use sandglass_journal::conformance::{batch, creation, session, signal};
use sandglass_journal::{BATCH_MAX_RECORDS, Entry, Error, Expected};
use sandglass_model::{EntityRef, Partition, Position};
use sandglass_postgres::Database;
use tokio::task::JoinHandle;

use crate::load::{self, read_all};
use crate::locks::{self, Lock};
use crate::server::{self, Server, block, spawn};

/// Appends an entity of so many batches that one statement would not remove it together with others;
/// returns its last position.
fn fill(database: &Database, entity: &EntityRef) -> Position {
    let (journal, entity) = (database.journal(Partition::of(entity)), entity.clone());
    block(async move {
        let mut last = journal.append(creation(&entity)).await.unwrap().last;
        for _ in 0..45 {
            let records = (0..BATCH_MAX_RECORDS as u64).map(|it| (0, signal(it))).collect();
            last = journal.append(batch(&entity, Expected::At(last), records)).await.unwrap().last;
        }
        last
    })
}

fn prune(
    database: &Database,
    entities: Vec<(EntityRef, Position)>,
) -> JoinHandle<Result<Vec<u64>, Error>> {
    let journal = database.journal(Partition::of(&entities[0].0));
    spawn(async move { journal.prune(entities).await })
}

/// The number of its records.
const RECORDS: u64 = 1 + 45 * BATCH_MAX_RECORDS as u64;

/// What holds a statement that removes the entity.
const HELD: &str = "SELECT 1 FROM sandglass.entities WHERE id = 'huge-{a}' FOR UPDATE";

#[test]
fn appends_do_not_wait_for_the_removal_of_a_huge_entity() {
    let server = server::shared();
    let database = server::open(&server.new_database("beside_prune"));
    let (huge, small) = (session("huge-{a}"), session("small-{a}"));
    let last = fill(&database, &huge);
    let partition = Partition::of(&huge);
    let journal = database.journal(partition);
    let create = creation(&small);
    let of_small = block(async move { journal.append(create).await }).unwrap().last;
    let lock = Lock::by(server, "beside_prune", HELD);
    let load = load::start(&database, "client", 16);
    let pruning = prune(&database, vec![(huge.clone(), last), (small, of_small)]);
    locks::until_waiting(server, "beside_prune", 1);
    // In all partitions, also that of the entity, while the statement waits.
    load.wait_for(500);
    let (journal, own) = (database.journal(partition), session("own-{a}"));
    let held = huge.clone();
    block(async move {
        journal.append(creation(&own)).await.unwrap();
        let held = batch(&held, Expected::At(last), vec![(0, signal(0))]);
        let refused = journal.append(held).await;
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
    });
    lock.release();
    assert_eq!(block(pruning).unwrap(), Ok(vec![RECORDS, 1]));
    let again = database.journal(partition);
    block(async move { again.append(creation(&huge)).await }).unwrap();
    load.stop();
    let entries = block(async move { read_all(&database, partition).await });
    assert!(entries.iter().all(|entry| entry.damage().is_none()));
    let pruned = entries.iter().filter(|entry| matches!(entry, Entry::Pruned { .. }));
    assert_eq!(pruned.map(Entry::places).sum::<u64>(), RECORDS + 1);
}

#[test]
fn a_removal_of_unknown_outcome_is_looked_up() {
    let server = server::shared();
    let database = server::open(&server.new_database("unknown_prune"));
    let huge = session("huge-{a}");
    let last = fill(&database, &huge);
    let lock = Lock::by(server, "unknown_prune", HELD);
    let pruning = prune(&database, vec![(huge.clone(), last)]);
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE wait_event_type = 'Lock' AND datname = current_database()";
    for _ in 0..2 {
        locks::until_waiting(server, "unknown_prune", 1);
        server.psql("unknown_prune", end);
    }
    locks::until_waiting(server, "unknown_prune", 1);
    lock.release();
    assert_eq!(block(pruning).unwrap(), Ok(vec![RECORDS]));
    let (journal, next) = (database.journal(Partition::of(&huge)), Position(last.0 + 1));
    block(async move {
        assert_eq!(journal.last().await, Ok(last));
        assert_eq!(journal.append(creation(&huge)).await.unwrap().first, next);
    });
}

#[test]
fn an_entity_that_cannot_be_removed_in_time_does_not_keep_the_others() {
    let server = server::shared();
    let database = server::open(&server.new_database("slow_prune"));
    let (huge, small) = (session("huge-{a}"), session("small-{a}"));
    let last = fill(&database, &huge);
    let (journal, create) = (database.journal(Partition::of(&small)), creation(&small));
    let of_small = block(async move { journal.append(create).await }).unwrap().last;
    let lock = Lock::by(server, "slow_prune", HELD);
    let both = vec![(huge.clone(), last), (small, of_small)];
    assert_eq!(block(prune(&database, both.clone())).unwrap(), Ok(vec![0, 1]));
    lock.release();
    assert_eq!(block(prune(&database, both)).unwrap(), Ok(vec![RECORDS, 0]));
}

#[test]
fn a_takeover_waits_for_a_removal_that_has_begun() {
    let server = server::shared();
    let address = server.new_database("taken_while_pruning");
    let database = server::open(&address);
    let huge = session("huge-{a}");
    let last = fill(&database, &huge);
    let lock = Lock::by(server, "taken_while_pruning", HELD);
    let pruning = prune(&database, vec![(huge.clone(), last)]);
    locks::until_waiting(server, "taken_while_pruning", 1);
    let opening = std::thread::spawn(move || server::open(&address));
    locks::until_waiting(server, "taken_while_pruning", 2);
    lock.release();
    let next = opening.join().unwrap();
    // It was removed completely, before the next owner began.
    assert_eq!(block(pruning).unwrap(), Ok(vec![RECORDS]));
    let partition = Partition::of(&huge);
    let (former, journal) = (database.journal(partition), next.journal(partition));
    block(async move {
        let stale = former.append(creation(&huge)).await;
        assert!(matches!(stale, Err(Error::Disowned { .. })), "{stale:?}");
        assert_eq!(journal.last_of(huge.clone()).await, Ok(None));
        let created = journal.append(creation(&huge)).await.unwrap();
        assert_eq!(created.first, Position(last.0 + 1));
    });
}

/// Two entities whose records alternate, so that each of the first one's is a range of its own. Their
/// checksums are not valid, which pruning does not read.
fn alternate(server: &Server, database: &str, partition: Partition, records: u64) {
    server.psql(
        database,
        &format!(
            "INSERT INTO sandglass.entities (partition, entity, type, id) VALUES \
               ({partition}, 1, 'Session', 'odd-{{a}}'), ({partition}, 2, 'Session', 'even-{{a}}'); \
             INSERT INTO sandglass.records SELECT {partition}, n, n, 0, 0, 2 - n % 2, 0, 'signal', \
               NULL, repeat('x', 300), '' FROM generate_series(1, 2 * {records}) n;"
        ),
    );
}

#[test]
fn entities_whose_records_alternate_leave_one_range() {
    let server = server::shared();
    let address = server.new_database("alternating");
    let (odd, even) = (session("odd-{a}"), session("even-{a}"));
    let (partition, records) = (Partition::of(&odd), 50_000);
    alternate(server, "alternating", partition, records);
    let database = server::open(&address);
    let load = load::start(&database, "client", 16);
    load.wait_for(200);
    let ranges = "SELECT count(*), sum(last - first + 1) FROM sandglass.pruned";
    for (entity, last, expected) in [
        (odd, 2 * records - 1, format!("{records}|{records}")),
        (even, 2 * records, format!("1|{}", 2 * records)),
    ] {
        let begun = Instant::now();
        let pruning = prune(&database, vec![(entity, Position(last))]);
        assert_eq!(block(pruning).unwrap(), Ok(vec![records]));
        println!("{records} records were removed in {:?}", begun.elapsed());
        assert_eq!(server.psql("alternating", ranges), expected);
    }
    load.wait_for(200);
    let all = load.stop();
    let longest = all.iter().map(|answers| answers.longest).max().unwrap_or_default();
    // How long depends on the disk: `appends_do_not_wait_for_the_removal_of_a_huge_entity` holds the
    // statement by a lock instead.
    println!("the longest append took {longest:?}");
    assert!(all.iter().all(|answers| answers.ended.is_none()), "{all:?}");
    let entries = block(async move { read_all(&database, partition).await });
    assert!(entries.iter().all(|entry| entry.damage().is_none()));
}
