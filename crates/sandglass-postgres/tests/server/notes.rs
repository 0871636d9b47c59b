//! Notes of how entities rest: few statements, and each partition's by itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandglass_journal::conformance::{creation, session};
use sandglass_journal::{Error, Journals, Rest, Resting};
use sandglass_model::{EntityRef, Partition, Position, RulesVersion, SpecDigest, WallTime};
use sandglass_postgres::Database;

use crate::load;
use crate::server::{self, Server, block};

/// An entity of each partition.
pub(crate) fn one_of_each() -> Vec<EntityRef> {
    let of = |partition: Partition| {
        (0..)
            .map(|number| session(&format!("one-{number}")))
            .find(|it| Partition::of(it) == partition)
    };
    Partition::all().filter_map(of).collect()
}

/// A note with this time of its next timer.
fn note(entity: &EntityRef, wake_at: i64) -> Resting {
    let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
    let rest = Rest { wake_at: Some(WallTime::from_millis(wake_at)), spec, is_listed: false };
    Resting { entity: entity.clone(), last: Position(1), rest }
}

fn create_all(database: &Database, entities: &[EntityRef]) {
    let (journals, entities) = (database.journals(), entities.to_vec());
    block(async move {
        for entity in &entities {
            journals.append(creation(entity)).await.unwrap();
        }
    });
}

async fn wake_at(journals: &Journals, entity: &EntityRef) -> Option<i64> {
    let entry = journals.last_of(entity.clone()).await.unwrap().expect("it exists");
    entry.rest.and_then(|rest| rest.wake_at).map(WallTime::as_millis)
}

fn statements(server: &Server, database: &str) -> u64 {
    let sql = "SELECT coalesce(sum(calls), 0) FROM pg_stat_statements \
               JOIN pg_database d ON d.oid = dbid WHERE datname = current_database() \
               AND query LIKE '%UPDATE sandglass.entities e SET rests_at%'";
    server.psql(database, sql).parse().unwrap()
}

#[test]
fn notes_of_all_partitions_share_statements() {
    let server = server::shared();
    let database = server::open(&server.new_database("shared_notes"));
    server.psql("shared_notes", "CREATE EXTENSION pg_stat_statements");
    let entities = one_of_each();
    create_all(&database, &entities);
    let (journals, noted) = (database.journals(), entities.clone());
    block(async move {
        journals.rest(noted.iter().map(|it| note(it, 5)).collect()).await.unwrap();
        for entity in &noted {
            assert_eq!(wake_at(&journals, entity).await, Some(5), "{entity}");
        }
    });
    let count = statements(server, "shared_notes");
    println!("{count} statements for notes in {} partitions", entities.len());
    assert!((1..16).contains(&count), "{count} statements");
}

#[test]
fn notes_wait_for_appends_and_are_written_beside_them() {
    let server = server::shared();
    let database = server::open(&server.new_database("waiting_notes"));
    server.psql("waiting_notes", "CREATE EXTENSION pg_stat_statements");
    let entities = one_of_each();
    create_all(&database, &entities);
    let load = load::start(&database, "client", 32);
    load.wait_for(100);
    let stopped = Arc::new(AtomicBool::new(false));
    let before = database.counts().batches;
    let sleepers = block({
        let (journals, stopped) = (database.journals(), Arc::clone(&stopped));
        async move {
            let sleep = |entity: EntityRef| {
                let (journals, stopped) = (journals.clone(), Arc::clone(&stopped));
                tokio::spawn(async move {
                    let mut last = 0;
                    while !stopped.load(Ordering::Relaxed) {
                        last += 1;
                        journals.rest(vec![note(&entity, last)]).await.unwrap();
                    }
                    assert_eq!(wake_at(&journals, &entity).await, Some(last));
                    last
                })
            };
            entities.into_iter().map(sleep).collect::<Vec<_>>()
        }
    });
    load.wait_for(3_000);
    stopped.store(true, Ordering::Relaxed);
    let notes = block(async move {
        let mut notes = 0;
        for sleeper in sleepers {
            notes += sleeper.await.unwrap();
        }
        notes
    });
    let batches = database.counts().batches - before;
    load.stop();
    let count = statements(server, "waiting_notes");
    println!("{count} statements for {notes} notes beside {batches} batches");
    // A hundredth of a statement for each batch; more only where the writer had nothing to do.
    assert!(count * 10 < batches, "{count} statements beside {batches} batches");
}

#[test]
fn a_lost_partition_fails_its_own_notes_only() {
    let server = server::shared();
    let database = server::open(&server.new_database("lost_notes"));
    let entities = one_of_each();
    create_all(&database, &entities);
    let lost = Partition::of(&entities[0]);
    let sql = "UPDATE sandglass.partitions SET epoch = epoch + 1, owner = 'another' \
               WHERE partition = ";
    server.psql("lost_notes", &format!("{sql}{lost}"));
    let journals = database.journals();
    block(async move {
        let each = entities.iter().map(|entity| {
            let (journals, entity) = (journals.clone(), entity.clone());
            tokio::spawn(async move { journals.rest(vec![note(&entity, 7)]).await })
        });
        let each: Vec<_> = each.collect();
        for (entity, noted) in entities.iter().zip(each) {
            let (noted, is_lost) = (noted.await.unwrap(), Partition::of(entity) == lost);
            assert_eq!(matches!(noted, Err(Error::Disowned { .. })), is_lost, "{noted:?}");
            assert_eq!(noted.is_ok(), !is_lost, "{noted:?}");
            assert_eq!(wake_at(&journals, entity).await, (!is_lost).then_some(7));
        }
    });
}
