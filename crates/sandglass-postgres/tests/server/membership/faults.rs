//! Members whose connections fail while partitions are claimed and given away.

use std::collections::BTreeMap;

use sandglass_journal::conformance::session;
use sandglass_journal::{Error, Health};
use sandglass_model::{HostId, Partition};

use super::{
    append, beat, check_gapless, claim, claim_all, claim_some, declare_dead, join, membership,
    release, seen,
};
use crate::faults::through;
use crate::locks::{self, Lock};
use crate::proxy::{Flow, Proxy};
use crate::server::{self, Server, block, spawn};

/// Whether the database states this owner for `count` partitions.
fn owns(server: &Server, database: &str, host: Option<HostId>, count: usize) -> bool {
    let owner = host.map_or("owner IS NULL".to_owned(), |host| format!("owner = '{host}'"));
    let sql = format!("SELECT count(*) FROM sandglass.partitions WHERE {owner}");
    server.psql(database, &sql) == count.to_string()
}

#[test]
fn a_claim_whose_result_is_lost_is_claimed_again() {
    let server = server::shared();
    server.new_database("lost_claim");
    let proxy = Proxy::of(server.port);
    let member = join(&through(&proxy, "lost_claim"));
    let other = join(&server.address("lost_claim"));
    // The connection for claims is there.
    claim_some(&member, |it| it.number() == 0);
    let entity = session("a");
    let partition = Partition::of(&entity);
    assert!(partition.number() > 0);
    let wanted = seen(&other, |it| it.number() > 0);
    proxy.set(Flow::Pass, Flow::Lose);
    let (claiming, first) = (member.clone(), wanted.clone());
    let claimed = spawn(async move { claiming.claim(&first).await });
    server::until(|| owns(server, "lost_claim", Some(member.host()), 64));
    proxy.cut();
    proxy.set(Flow::Pass, Flow::Pass);
    let claimed = block(claimed).unwrap();
    assert!(matches!(claimed, Err(Error::Unavailable { .. })), "{claimed:?}");
    let refused = append(&member, &entity, 0);
    assert!(matches!(refused, Err(Error::Disowned { .. })), "{refused:?}");
    // It has one of them nevertheless.
    let state = beat(&member).unwrap();
    let owned = state.partitions.iter().filter(|it| it.owner == Some(member.host())).count();
    assert_eq!(owned, 64);
    assert_eq!(claim(&other, seen(&other, |_| true)), Ok(Vec::new()), "its owner lives");
    assert_eq!(claim(&member, wanted), Ok(Vec::new()), "the epochs are others by now");
    claim_all(&member);
    append(&member, &entity, 0).unwrap();
    check_gapless(&other, partition, 1);
}

#[test]
fn a_release_whose_result_is_lost_is_looked_up() {
    let server = server::shared();
    server.new_database("lost_release");
    let proxy = Proxy::of(server.port);
    let member = join(&through(&proxy, "lost_release"));
    let other = join(&server.address("lost_release"));
    claim_all(&member);
    let (entity, kept) = (session("kept"), session("lost"));
    let (partition, stays) = (Partition::of(&entity), Partition::of(&kept));
    assert_ne!(partition, stays);
    append(&member, &entity, 0).unwrap();
    append(&member, &kept, 0).unwrap();
    // It arrives, and its result does not.
    proxy.set(Flow::Pass, Flow::Lose);
    let releasing = member.clone();
    let released = spawn(async move { releasing.release(&[partition]).await });
    server::until(|| owns(server, "lost_release", None, 1));
    claim_some(&other, |it| it == partition);
    append(&other, &entity, 1).unwrap();
    proxy.cut();
    proxy.set(Flow::Pass, Flow::Pass);
    assert_eq!(block(released).unwrap(), Ok(vec![partition]));
    append(&member, &kept, 1).unwrap();
    let refused = append(&member, &entity, 2);
    assert!(matches!(refused, Err(Error::Disowned { .. })), "{refused:?}");
    assert_eq!(member.journal(partition).health(), Health::Working);
    // It ends with its connection before it has given anything away.
    let sql = "LOCK TABLE sandglass.partitions IN EXCLUSIVE MODE";
    let lock = Lock::by(server, "lost_release", sql);
    let releasing = member.clone();
    let released = spawn(async move { releasing.release(&[stays]).await });
    locks::until_waiting(server, "lost_release", 1);
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
               WHERE wait_event_type = 'Lock' AND datname = current_database()";
    server.psql("lost_release", sql);
    lock.release();
    assert_eq!(block(released).unwrap(), Ok(Vec::new()));
    append(&member, &kept, 2).unwrap();
    assert_eq!(release(&member, vec![stays]), Ok(vec![stays]));
    assert_eq!((member.counts().lost_records, other.counts().lost_records), (0, 0));
    check_gapless(&other, partition, 2);
    check_gapless(&other, stays, 3);
}

#[test]
fn an_idle_partition_that_lost_records_is_disowned_until_it_is_claimed_again() {
    let server = server::shared();
    let member = join(&server.new_database("lost_idle"));
    claim_all(&member);
    let (idle, busy) = (session("kept"), session("lost"));
    let partition = Partition::of(&idle);
    assert_ne!(partition, Partition::of(&busy));
    append(&member, &idle, 0).unwrap();
    append(&member, &busy, 0).unwrap();
    // As after a failover to a standby that was behind.
    let sql = format!("DELETE FROM sandglass.records WHERE partition = {partition}");
    server.psql("lost_idle", &sql);
    server.end_connections("lost_idle");
    // The first one finds the connection lost.
    server::until(|| append(&member, &busy, 1).is_ok());
    let journal = member.journal(partition);
    let is_lost = |health| match health {
        Health::Disowned { what } => what.contains("has lost 1 records"),
        _ => false,
    };
    assert!(is_lost(journal.health()), "{:?}", journal.health());
    member.disown(&[partition], "it is to be claimed again");
    assert!(is_lost(journal.health()), "{:?}", journal.health());
    server::until(|| {
        let wanted = seen(&member, |it| it == partition);
        claim(&member, wanted) == Ok(vec![partition])
    });
    beat(&member).unwrap();
    assert_eq!(journal.health(), Health::Working);
    assert_eq!(member.counts().lost_records, 1);
}

#[test]
fn what_a_failover_lost_is_counted_once_for_partitions_given_up_before_the_writer_reconnects() {
    let server = server::shared();
    let member = join(&server.new_database("lost_former"));
    let other = join(&server.address("lost_former"));
    claim_all(&member);
    let mut of_partitions = BTreeMap::new();
    for number in 0..100 {
        let entity = session(&format!("{number}"));
        of_partitions.entry(Partition::of(&entity)).or_insert(entity);
    }
    let mut entities = of_partitions.into_values();
    let [gone, replaced, dead, kept] = [(); 4].map(|()| entities.next().unwrap());
    for entity in [&gone, &replaced, &dead, &kept] {
        append(&member, entity, 0).unwrap();
    }
    let reconnect_until = |lost| {
        server.end_connections("lost_former");
        server::until(|| {
            member.check_connection();
            member.counts().lost_records >= lost
        });
        assert_eq!(member.counts().lost_records, lost);
    };
    let take_claim = |partition| {
        let sql =
            format!("UPDATE sandglass.partitions SET owner = NULL WHERE partition = {partition}");
        server.psql("lost_former", &sql);
    };
    // As after a failover to a standby that was behind, also in the claim.
    let lose = |entity| {
        let partition = Partition::of(entity);
        let sql = format!("DELETE FROM sandglass.records WHERE partition = {partition}");
        server.psql("lost_former", &sql);
        take_claim(partition);
        partition
    };
    // A beat has shown that before the writer connects again.
    let partition = lose(&gone);
    member.disown(&[partition], "it has no owner");
    reconnect_until(1);
    // The next owner has appended as much as was lost, and to what is not lost.
    let taken = [lose(&replaced), Partition::of(&kept)];
    take_claim(taken[1]);
    member.disown(&taken, "another host owns it");
    claim_some(&other, |it| taken.contains(&it));
    append(&other, &replaced, 0).unwrap();
    append(&other, &replaced, 1).unwrap();
    append(&other, &kept, 1).unwrap();
    reconnect_until(2);
    // The host was declared dead.
    lose(&dead);
    super::rejoin(&member);
    reconnect_until(3);
    claim_some(&member, |it| it == Partition::of(&gone));
    server.end_connections("lost_former");
    server::until(|| append(&member, &gone, 0).is_ok());
    assert_eq!(member.counts().lost_records, 3, "it was counted before");
}

#[test]
fn what_a_dead_member_sent_has_no_effect_later() {
    let server = server::shared();
    server.new_database("late_statement");
    let proxy = Proxy::of(server.port);
    let member = join(&through(&proxy, "late_statement"));
    let other = join(&server.address("late_statement"));
    claim_all(&member);
    let entity = session("a");
    let partition = Partition::of(&entity);
    append(&member, &entity, 0).unwrap();
    // A statement is on its way for so long that the member is dead when it arrives.
    proxy.set(Flow::Hold, Flow::Pass);
    let late = member.clone();
    let name = entity.clone();
    let appended = spawn(async move {
        let journal = late.journal(Partition::of(&name));
        journal.append(super::step(&name, super::Expected::At(super::Position(1)), 1)).await
    });
    declare_dead(&other, member.host());
    claim_all(&other);
    append(&other, &entity, 1).unwrap();
    proxy.set(Flow::Pass, Flow::Pass);
    let appended = block(appended).unwrap();
    assert!(matches!(appended, Err(Error::Disowned { .. })), "{appended:?}");
    assert_eq!(beat(&member), None);
    append(&other, &entity, 2).unwrap();
    check_gapless(&other, partition, 3);
    // Its claims have none either.
    let dead = member.host();
    let wanted = seen(&other, |_| true);
    assert_eq!(release(&other, vec![partition]), Ok(vec![partition]));
    assert_eq!(claim(&member, wanted), Ok(Vec::new()));
    assert_eq!(claim(&member, seen(&other, |_| true)), Ok(Vec::new()));
    super::rejoin(&member);
    assert!(membership(&other).partitions.iter().all(|it| it.owner != Some(dead)));
    claim_some(&member, |it| it == partition);
    append(&member, &entity, 3).unwrap();
    check_gapless(&other, partition, 4);
}
