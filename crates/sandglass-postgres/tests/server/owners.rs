//! Several processes that own the same partitions, one after the other.

use std::future::{Future as _, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Error, Expected, Health};
use sandglass_model::{EntityRef, Partition, Position};

use crate::faults::through;
use crate::load::{self, read_all};
use crate::proxy::{Flow, Proxy};
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
    server.new_database("other_partitions");
    let proxy = Proxy::of(server.port);
    let database = server::open(&through(&proxy, "other_partitions"));
    // Of one lane, so that one statement appends to all of them.
    let mut names = (0..).map(|number| session(&number.to_string()));
    let mut of_lane = || names.find(|it| Partition::of(it).number().is_multiple_of(2)).unwrap();
    let names: Vec<EntityRef> = (0..12).map(|_| of_lane()).collect();
    let taken = Partition::of(&names[0]);
    let sql = "UPDATE sandglass.partitions SET epoch = epoch + 1, owner = 'another' \
               WHERE partition = ";
    server.psql("other_partitions", &format!("{sql}{taken}"));
    let opened = database.clone();
    let appended = names.clone();
    let (_proxy, results) = block(async move {
        // Nothing arrives, so the lane waits with its first statement until all others are in its queue.
        proxy.set(Flow::Hold, Flow::Pass);
        let first = session("first-{2}");
        assert!(Partition::of(&first).number().is_multiple_of(2) && Partition::of(&first) != taken);
        let mut appends: Vec<_> = [&first]
            .into_iter()
            .chain(&appended)
            .map(|entity| {
                let (journal, batch) = (opened.journal(Partition::of(entity)), creation(entity));
                Box::pin(async move { journal.append(batch).await })
            })
            .collect();
        poll_fn(|context| {
            let mut are_pending =
                appends.iter_mut().map(|it| it.as_mut().poll(context).is_pending());
            assert!(are_pending.all(|is_pending| is_pending));
            Poll::Ready(())
        })
        .await;
        proxy.set(Flow::Pass, Flow::Pass);
        let mut results = Vec::new();
        for append in appends {
            results.push(append.await);
        }
        (proxy, results.split_off(1))
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
