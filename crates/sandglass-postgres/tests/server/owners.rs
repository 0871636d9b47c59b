//! Several processes that own the same partitions, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Error, Expected, Health};
use sandglass_model::{EntityRef, Partition, Position};

use crate::load::{self, read_all};
use crate::server::{self, block};

#[test]
fn a_stale_epoch_appends_nothing() {
    let address = server::shared().new_database("stale");
    let (first, entity) = (server::open(&address), session("a"));
    let journal = first.journal(Partition::of(&entity));
    let create = creation(&entity);
    block({
        let (journal, create) = (Arc::clone(&journal), create.clone());
        async move { journal.append(create).await }
    })
    .unwrap();
    let second = server::open(&address);
    let next = step(&entity, Expected::At(Position(1)), 1);
    let stale = block({
        let (journal, next) = (Arc::clone(&journal), next.clone());
        async move { journal.append(next).await }
    });
    let Err(Error::Disowned { what }) = &stale else { panic!("{stale:?}") };
    assert!(what.contains("another process owns partition"), "{what}");
    assert_eq!(journal.health(), Health::Disowned { what: what.clone() });
    let taken = second.journal(Partition::of(&entity));
    block(async move {
        assert_eq!(taken.last().await, Ok(Position(1)));
        taken.append(next).await.unwrap();
        assert_eq!(journal.last().await, Ok(Position(2)), "it still reads");
        let pruned = journal.prune(vec![(entity.clone(), Position(2))]).await;
        assert!(matches!(pruned, Err(Error::Disowned { .. })), "{pruned:?}");
        assert!(matches!(journal.rest(Vec::new()).await, Err(Error::Disowned { .. })));
    });
}

#[test]
fn a_stale_owner_that_does_not_know_it_prunes_and_rests_nothing() {
    let address = server::shared().new_database("stale_upkeep");
    let (first, entity) = (server::open(&address), session("a"));
    let partition = Partition::of(&entity);
    let journal = first.journal(partition);
    let create = creation(&entity);
    block(async move { journal.append(create).await }).unwrap();
    let _second = server::open(&address);
    let journal = first.journal(partition);
    let (doomed, kept) = (entity.clone(), server::open(&address));
    block(async move {
        let pruned = journal.prune(vec![(doomed, Position(1))]).await;
        assert!(matches!(pruned, Err(Error::Disowned { .. })), "{pruned:?}");
        assert_eq!(
            kept.journal(partition).last_of(entity).await.unwrap().unwrap().last.position.0,
            1
        );
    });
}

#[test]
fn the_other_partitions_of_a_group_are_written() {
    let server = server::shared();
    let address = server.new_database("other_partitions");
    let database = server::open(&address);
    let names: Vec<EntityRef> = (0..12).map(|number: u8| session(&number.to_string())).collect();
    let taken = Partition::of(&names[0]);
    let sql = "UPDATE sandglass.partitions SET epoch = epoch + 1, owner = 'another' \
               WHERE partition = ";
    server.psql("other_partitions", &format!("{sql}{taken}"));
    let opened = database.clone();
    let appended = names.clone();
    let results = block(async move {
        let appends = appended.iter().map(|entity| {
            let (journal, batch) = (opened.journal(Partition::of(entity)), creation(entity));
            tokio::spawn(async move {
                let begun = Instant::now();
                loop {
                    let result = journal.append(batch.clone()).await;
                    // `Unavailable`: it arrived behind the group, while the writer took its
                    // partitions again.
                    if !matches!(result, Err(Error::Unavailable { .. })) {
                        return result;
                    }
                    assert!(begun.elapsed() < Duration::from_secs(60), "{result:?}");
                }
            })
        });
        let appends: Vec<_> = appends.collect();
        let mut results = Vec::new();
        for append in appends {
            results.push(append.await.unwrap());
        }
        results
    });
    for (entity, result) in names.iter().zip(results) {
        let is_taken = Partition::of(entity) == taken;
        assert_eq!(matches!(result, Err(Error::Disowned { .. })), is_taken, "{entity} {result:?}");
        assert_eq!(result.is_ok(), !is_taken, "{entity} {result:?}");
    }
    assert_eq!(database.counts().lost_records, 0);
    let entries = block(async move { read_all(&database, taken).await });
    assert_eq!(entries, []);
}

#[test]
fn positions_have_no_gaps_under_racing_owners() {
    let address = server::shared().new_database("racing");
    let (mut loads, mut databases) = (Vec::new(), Vec::new());
    for round in 0..5 {
        let database = server::open(&address);
        let load = load::start(&database, &format!("owner-{round}"), 8);
        load.wait_for(200);
        loads.push(load);
        databases.push(database);
    }
    let mut all: Vec<_> = loads.pop().unwrap().stop();
    for load in loads {
        let of_former = load.stop();
        let is_disowned = |it: &load::Answers| matches!(it.ended, Some(Error::Disowned { .. }));
        assert!(of_former.iter().all(is_disowned), "{of_former:?}");
        all.extend(of_former);
    }
    // The last owner sees all that was acknowledged to the others.
    load::check(databases.last().unwrap(), all);
}
