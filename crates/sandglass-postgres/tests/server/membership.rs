//! Members of a cluster, which share the partitions of one database.

#[path = "membership/faults.rs"]
mod faults;
#[path = "membership/moves.rs"]
mod moves;
#[path = "membership/nomads.rs"]
mod nomads;
#[path = "membership/silence.rs"]
mod silence;

use std::time::Duration;

use sandglass_journal::conformance::{creation, session, step};
use sandglass_journal::{Error, Expected, Health, Positions};
use sandglass_model::{EntityRef, HostId, Membership, Partition, Position};
use sandglass_postgres::{Address, Database, RECORDS_FORMAT, Settings};

use crate::load::read_all;
use crate::notes::one_of_each;
use crate::server::{self, block, spawn};

/// Joins a database with limits that are short enough for tests.
pub(crate) fn join(address: &Address) -> Database {
    let address = address.clone();
    let settings = Settings::default().limits(Duration::from_secs(5), Duration::from_secs(2));
    let url = "http://member.example:7070";
    block(async move { Database::join(&address, settings, url).await }).unwrap()
}

pub(crate) fn membership(database: &Database) -> Membership {
    let database = database.clone();
    block(async move { database.membership().await }).unwrap()
}

/// The partitions that satisfy a condition, with their present epochs.
fn seen(database: &Database, wanted: impl Fn(Partition) -> bool) -> Vec<(Partition, u64)> {
    let partitions = membership(database).partitions.into_iter();
    let mut seen: Vec<_> = partitions.map(|it| (it.partition, it.epoch)).collect();
    seen.retain(|(partition, _)| wanted(*partition));
    seen.sort_unstable();
    seen
}

fn claim(database: &Database, wanted: Vec<(Partition, u64)>) -> Result<Vec<Partition>, Error> {
    let database = database.clone();
    block(async move { database.claim(&wanted).await })
}

/// Claims the partitions that satisfy a condition, and obtains them.
fn claim_some(database: &Database, wanted: impl Fn(Partition) -> bool) {
    let wanted = seen(database, wanted);
    let all: Vec<Partition> = wanted.iter().map(|(partition, _)| *partition).collect();
    assert_eq!(claim(database, wanted), Ok(all));
}

/// Claims all partitions, and returns those that it obtains.
pub(crate) fn claim_any(database: &Database) -> Vec<Partition> {
    claim(database, seen(database, |_| true)).unwrap()
}

/// Claims all partitions, and obtains them.
pub(crate) fn claim_all(database: &Database) {
    claim_some(database, |_| true);
}

fn release(database: &Database, partitions: Vec<Partition>) -> Result<Vec<Partition>, Error> {
    let database = database.clone();
    block(async move { database.release(&partitions).await })
}

fn append(database: &Database, entity: &EntityRef, last: u64) -> Result<Positions, Error> {
    let batch = match last {
        0 => creation(entity),
        last => step(entity, Expected::At(Position(last)), last),
    };
    let journal = database.journal(Partition::of(entity));
    block(async move { journal.append(batch).await })
}

pub(crate) fn beat(database: &Database) -> Option<Membership> {
    let database = database.clone();
    block(async move { database.beat_as_member().await }).unwrap()
}

/// Declares a host dead whose beats did not change.
fn declare_dead(database: &Database, host: HostId) {
    let beats = membership(database).host(host).unwrap().beats;
    let database = database.clone();
    assert_eq!(block(async move { database.declare_dead(&host, beats).await }), Ok(true));
}

fn rejoin(database: &Database) -> HostId {
    let database = database.clone();
    block(async move { database.rejoin().await }).unwrap()
}

/// Checks that the entries of a partition are records with positions from 1 to `last`.
fn check_gapless(database: &Database, partition: Partition, last: u64) {
    let database = database.clone();
    let entries = block(async move { read_all(&database, partition).await });
    let positions = entries.iter().map(|entry| {
        assert!(entry.damage().is_none(), "{entry:?}");
        entry.position().0
    });
    assert!(positions.eq(1..=last), "{partition}: {entries:?}");
}

#[test]
fn claims_are_exclusive() {
    let address = server::shared().new_database("exclusive");
    let members = [join(&address), join(&address), join(&address)];
    let entities = one_of_each();
    let mut lasts = vec![0; entities.len()];
    for round in 0..200 {
        let wanted = seen(&members[0], |_| true);
        let claims: Vec<_> = members
            .iter()
            .map(|member| {
                let (member, wanted) = (member.clone(), wanted.clone());
                spawn(async move { member.claim(&wanted).await.unwrap() })
            })
            .collect();
        let held: Vec<Vec<Partition>> =
            claims.into_iter().map(|claim| block(claim).unwrap()).collect();
        let mut all = held.concat();
        all.sort_unstable();
        assert!(Partition::all().eq(all), "each has one owner in round {round}");
        let owners = membership(&members[1]).partitions;
        for (member, held) in members.iter().zip(&held) {
            let own = owners.iter().filter(|it| it.owner == Some(member.host()));
            let mut own: Vec<Partition> = own.map(|it| it.partition).collect();
            own.sort_unstable();
            assert_eq!(own, *held);
        }
        // One partition of each round is appended to, by its owner alone, who may be another one each
        // time and knows what the others appended.
        let index = round % entities.len();
        let entity = &entities[index];
        let mut appended = 0;
        for (member, held) in members.iter().zip(&held) {
            let result = append(member, entity, lasts[index]);
            if held.contains(&Partition::of(entity)) {
                appended += 1;
                assert_eq!(result.unwrap().last.0, lasts[index] + 1);
            } else {
                assert!(matches!(result, Err(Error::Disowned { .. })), "{result:?}");
            }
        }
        assert_eq!(appended, 1);
        lasts[index] += 1;
        for (member, held) in members.iter().zip(held) {
            assert_eq!(release(member, held.clone()), Ok(held));
        }
    }
    for (entity, last) in entities.iter().zip(lasts) {
        check_gapless(&members[0], Partition::of(entity), last);
    }
}

#[test]
fn a_member_has_nothing_before_it_claims() {
    let server = server::shared();
    let member = join(&server.new_database("nothing"));
    let entity = session("a");
    let partition = Partition::of(&entity);
    let Err(Error::Disowned { what }) = append(&member, &entity, 0) else { panic!("it appends") };
    assert_eq!(what, "this host has not claimed the partition");
    let journal = member.journal(partition);
    assert_eq!(journal.health(), Health::Working, "another host may have it");
    let state = beat(&member).unwrap();
    let [host] = &state.hosts[..] else { panic!("{state:?}") };
    assert_eq!((host.host, host.beats, host.is_dead), (member.host(), 1, false));
    assert_eq!(host.url.as_deref(), Some("http://member.example:7070"));
    assert_eq!((host.reads_format, host.is_draining), (RECORDS_FORMAT, false));
    assert!(state.partitions.iter().all(|it| it.owner.is_none() && it.epoch == 0));
    assert_eq!(state.partitions.len(), usize::from(Partition::COUNT));
    // It has no part in what one member does for all.
    let swept = member.clone();
    block(async move {
        assert_eq!(swept.sweep().await, Ok(0));
        assert!(swept.has_swept().await);
    });
    let (drained, host) = (member.clone(), member.host());
    block(async move {
        assert_eq!(drained.set_draining(&host, true).await, Ok(true));
        let state = drained.beat_as_member().await.unwrap().unwrap();
        assert!(state.host(host).unwrap().is_draining);
        assert_eq!(drained.set_draining(&host, false).await, Ok(true));
        let other = HostId::random().unwrap();
        assert_eq!(drained.set_draining(&other, true).await, Ok(false));
        drained.close().await;
    });
    let sql = "SELECT dead, draining FROM sandglass.hosts";
    assert_eq!(server.psql("nothing", sql), "t|f", "others need not wait for its death");
}

#[test]
fn a_dead_member_appends_nothing_and_comes_back_under_another_id() {
    let server = server::shared();
    let address = server.new_database("dead_member");
    let (first, second) = (join(&address), join(&address));
    claim_all(&first);
    let entity = session("a");
    let partition = Partition::of(&entity);
    append(&first, &entity, 0).unwrap();
    assert_eq!(claim(&second, seen(&second, |_| true)), Ok(Vec::new()), "its owner lives");
    let dead = first.host();
    declare_dead(&second, dead);
    assert_eq!(beat(&first), None);
    let (again, member) = (membership(&second), second.clone());
    let beats = again.host(dead).unwrap().beats;
    let repeated = block(async move { member.declare_dead(&dead, beats).await });
    assert_eq!(repeated, Ok(false), "it was another call");
    claim_all(&second);
    let Err(Error::Disowned { what }) = append(&first, &entity, 1) else { panic!("it appends") };
    assert!(what.contains("another host owns partition"), "{what}");
    assert_eq!(first.journal(partition).health(), Health::Working);
    let nothing = claim(&first, seen(&first, |_| true));
    assert_eq!(nothing, Ok(Vec::new()), "a dead host claims nothing");
    append(&second, &entity, 1).unwrap();
    let id = rejoin(&first);
    assert_ne!(id, dead);
    assert_eq!(first.host(), id);
    let state = beat(&first).unwrap();
    assert!(state.host(dead).unwrap().is_dead && !state.host(id).unwrap().is_dead);
    // What the second one gives away, the first one obtains with all that was appended meanwhile.
    assert_eq!(release(&second, vec![partition]), Ok(vec![partition]));
    let given = append(&second, &entity, 2);
    assert!(matches!(given, Err(Error::Disowned { .. })), "{given:?}");
    claim_some(&first, |it| it == partition);
    append(&first, &entity, 2).unwrap();
    let last = session("b{a}");
    assert_eq!(append(&first, &last, 0).unwrap().last, Position(4));
    check_gapless(&second, partition, 4);
    // A row that was removed is that of a dead host.
    server.psql("dead_member", &format!("DELETE FROM sandglass.hosts WHERE host = '{id}'"));
    assert_eq!(beat(&first), None);
    assert_eq!(server.psql("dead_member", "SELECT count(*) FROM sandglass.hosts"), "2");
}

#[test]
fn a_drained_member_that_enters_again_is_still_drained() {
    let address = server::shared().new_database("still_drained");
    let (member, other) = (join(&address), join(&address));
    for is_draining in [true, false] {
        // By another host, and not seen by the member before it is declared dead.
        let (draining, host) = (other.clone(), member.host());
        assert_eq!(block(async move { draining.set_draining(&host, is_draining).await }), Ok(true));
        declare_dead(&other, host);
        let id = rejoin(&member);
        assert_eq!(beat(&member).unwrap().host(id).unwrap().is_draining, is_draining);
    }
}

#[test]
fn a_beat_and_a_declaration_exclude_each_other() {
    let server = server::shared();
    let address = server.new_database("declarations");
    let (member, observer) = (join(&address), join(&address));
    let mut declared = 0;
    for round in 0..200 {
        let host = member.host();
        let beats = membership(&observer).host(host).unwrap().beats;
        let (beating, declaring) = (member.clone(), observer.clone());
        let beaten = spawn(async move { beating.beat_as_member().await.unwrap().is_some() });
        let is_dead = spawn(async move { declaring.declare_dead(&host, beats).await.unwrap() });
        let (is_alive, is_dead) = (block(beaten).unwrap(), block(is_dead).unwrap());
        assert_ne!(is_alive, is_dead, "round {round}");
        assert_eq!(membership(&observer).host(host).unwrap().is_dead, is_dead);
        if is_dead {
            declared += 1;
            rejoin(&member);
        } else if round % 2 == 0 {
            // So that many are declared dead, whichever side wins the races.
            declare_dead(&observer, host);
            declared += 1;
            rejoin(&member);
        }
    }
    let hosts = membership(&observer).hosts.len();
    println!("{declared} declarations, {hosts} hosts in the table");
    assert!(declared > 70, "{declared}");
    assert!(hosts < 70, "the table of hosts grows: {hosts}");
}

#[test]
fn a_process_that_opens_the_database_alone_has_all_of_it() {
    let address = server::shared().new_database("alone");
    let member = join(&address);
    claim_all(&member);
    let entity = session("a");
    append(&member, &entity, 0).unwrap();
    let alone = server::open(&address);
    let taken = append(&member, &entity, 1);
    assert!(matches!(taken, Err(Error::Disowned { .. })), "{taken:?}");
    append(&alone, &entity, 1).unwrap();
    assert_eq!(beat(&member), None, "it had nothing any more, and was forgotten");
    rejoin(&member);
    let state = beat(&member).unwrap();
    assert_eq!(state.host(alone.host()).unwrap().url, None);
    assert_eq!(claim(&member, seen(&member, |_| true)), Ok(Vec::new()), "its owner lives");
    block(async move { alone.close().await });
    claim_all(&member);
    append(&member, &entity, 2).unwrap();
}
