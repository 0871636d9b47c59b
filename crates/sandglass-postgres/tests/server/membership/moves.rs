//! Partitions that move between members while both append and read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sandglass_journal::conformance::{batch, creation, ended, recording, session, signal};
use sandglass_journal::{Entry, Error, Expected, Rest, Resting};
use sandglass_model::{
    Cursor, DispatchId, EntityRef, Partition, Position, RulesVersion, SpecDigest,
};
use sandglass_postgres::{Database, Settings};

use super::{append, beat, check_gapless, claim, claim_all, claim_some, join, release, seen};
use crate::load;
use crate::locks::{self, Lock};
use crate::notes::one_of_each;
use crate::server::{self, block, spawn};

#[test]
fn what_is_given_away_goes_on_without_a_gap() {
    let address = server::shared().new_database("given_away");
    let (first, second) = (join(&address), join(&address));
    claim_all(&first);
    let former = load::start(&first, "former", 32);
    former.wait_for(300);
    let mut loads = vec![former];
    // Some move while their clients append, and then they are appended to by others.
    for part in 0..4 {
        let some: Vec<Partition> = Partition::all().filter(|it| it.number() % 4 == part).collect();
        assert_eq!(release(&first, some.clone()), Ok(some));
        claim_some(&second, |it| it.number() % 4 == part);
        let next = load::start(&second, &format!("next-{part}"), 8);
        if part < 3 {
            loads[0].wait_for(50);
        }
        loads.push(next);
    }
    loads.last().unwrap().wait_for(50);
    let all: Vec<_> = loads.into_iter().flat_map(load::Load::stop).collect();
    assert!(
        all.iter()
            .filter(|it| it.entity.id().starts_with("former"))
            .all(|answers| { matches!(answers.ended, Some(Error::Disowned { .. })) })
    );
    assert_eq!((first.counts().lost_records, second.counts().lost_records), (0, 0));
    load::check(&first, all);
}

#[test]
fn a_member_of_which_partitions_were_taken_continues_with_the_others() {
    let server = server::shared();
    let address = server.new_database("partly_taken");
    let (first, second) = (join(&address), join(&address));
    claim_all(&first);
    let entities = one_of_each();
    for entity in &entities {
        append(&first, entity, 0).unwrap();
    }
    let is_taken = |partition: Partition| partition.number() < 10;
    let sql = "UPDATE sandglass.partitions SET epoch = epoch + 1, owner = ";
    let taken = format!("{sql}'{}' WHERE partition < 10", second.host());
    server.psql("partly_taken", &taken);
    let appends = entities.iter().map(|entity| {
        let (first, entity) = (first.clone(), entity.clone());
        spawn(async move {
            let next = batch(&entity, Expected::At(Position(1)), vec![(0, signal(1))]);
            let begun = Instant::now();
            loop {
                let result = first.journal(Partition::of(&entity)).append(next.clone()).await;
                // `Unavailable`: it arrived while the writer took its partitions again.
                if !matches!(result, Err(Error::Unavailable { .. })) {
                    return result;
                }
                assert!(begun.elapsed() < Duration::from_secs(60), "{result:?}");
            }
        })
    });
    let appends: Vec<_> = appends.collect();
    for (entity, result) in entities.iter().zip(appends) {
        let (result, partition) = (block(result).unwrap(), Partition::of(entity));
        assert_eq!(
            matches!(result, Err(Error::Disowned { .. })),
            is_taken(partition),
            "{result:?}"
        );
        assert_eq!(result.is_ok(), !is_taken(partition), "{result:?}");
    }
    // The second one is stated as the owner, but does not know it.
    let refused = append(&second, &entities[0], 1);
    assert!(matches!(refused, Err(Error::Disowned { .. })), "{refused:?}");
    claim_some(&second, is_taken);
    append(&second, &entities[0], 1).unwrap();
    for entity in &entities {
        let count = if Partition::of(entity) == Partition::of(&entities[0]) { 2 } else { 1 };
        let count = if is_taken(Partition::of(entity)) { count } else { 2 };
        check_gapless(&first, Partition::of(entity), count);
    }
}

#[test]
fn what_is_disowned_is_refused_at_once_until_it_is_claimed_again() {
    let address = server::shared().new_database("disowned");
    let member = join(&address);
    claim_all(&member);
    let entity = session("a");
    let partition = Partition::of(&entity);
    append(&member, &entity, 0).unwrap();
    member.disown(&[partition], "another host owns it");
    let refused = append(&member, &entity, 1);
    assert_eq!(refused, Err(Error::Disowned { what: "another host owns it".to_owned() }));
    let refused = release(&member, vec![partition]);
    assert_eq!(refused, Ok(Vec::new()), "it is not this one's to give away");
    let journal = member.journal(partition);
    let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
    let rest = Rest { wake_at: None, spec, is_listed: false };
    let note = Resting { entity: entity.clone(), last: Position(1), rest };
    let (noted, pruned) = (note.clone(), entity.clone());
    block(async move {
        let noted = journal.rest(vec![noted]).await;
        assert!(matches!(noted, Err(Error::Disowned { .. })), "{noted:?}");
        let pruned = journal.prune(vec![(pruned, Position(1))]).await;
        assert!(matches!(pruned, Err(Error::Disowned { .. })), "{pruned:?}");
    });
    claim_some(&member, |it| it == partition);
    append(&member, &entity, 1).unwrap();
    // What waits when it is given away is written before.
    let note = Resting { last: Position(2), ..note };
    let (journal, giving) = (member.journal(partition), member.clone());
    block(async move {
        let given = [partition];
        let (noted, released) = tokio::join!(journal.rest(vec![note]), giving.release(&given));
        assert_eq!((noted, released), (Ok(()), Ok(vec![partition])));
    });
    let journal = member.journal(partition);
    let entry = block(async move { journal.last_of(entity).await }).unwrap().unwrap();
    assert!(entry.rest.is_some(), "{entry:?}");
}

#[test]
fn a_claim_does_not_wait_for_long() {
    let server = server::shared();
    let address = server.new_database("locked_claim");
    let member = join(&address);
    claim_some(&member, |it| it.number() == 0);
    let one = "SELECT 1 FROM sandglass.partitions WHERE partition = 40 FOR UPDATE";
    let lock = Lock::by(server, "locked_claim", one);
    let wanted = seen(&member, |it| it.number() > 0);
    let begun = Instant::now();
    let obtained = claim(&member, wanted).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(obtained.len(), 62, "all but the one that is locked");
    // Several that are held by different statements are waited for together.
    lock.release();
    claim_some(&member, |it| it.number() == 40);
    assert_eq!(release(&member, Partition::all().collect()).unwrap().len(), 64);
    let locks: Vec<Lock> = (10..15)
        .map(|number| {
            let sql = "SELECT 1 FROM sandglass.partitions WHERE partition = ";
            Lock::by(server, "locked_claim", &format!("{sql}{number} FOR SHARE"))
        })
        .collect();
    let wanted = seen(&member, |_| true);
    let begun = Instant::now();
    assert_eq!(claim(&member, wanted).unwrap().len(), 59);
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    locks::until_none_waits(server, "locked_claim");
    locks.into_iter().for_each(Lock::release);
    // What is locked is not given away, and stays.
    let lock = Lock::by(server, "locked_claim", one);
    let given = release(&member, Partition::all().collect()).unwrap();
    assert_eq!(given.len(), 58);
    lock.release();
    let kept = one_of_each().into_iter().nth(40).unwrap();
    append(&member, &kept, 0).unwrap();
}

#[test]
fn a_member_reads_what_the_others_append() {
    let address = server::shared().new_database("readers");
    let (first, second) = (join(&address), join(&address));
    claim_some(&first, |it| it.number() < 32);
    claim_some(&second, |it| it.number() >= 32);
    let opened = address.clone();
    let reading = async move { Database::open_read_only(&opened, Settings::default()).await };
    let reader = block(reading).unwrap();
    let entities = one_of_each();
    let stopped = Arc::new(AtomicBool::new(false));
    let followers: Vec<_> = [first.clone(), second.clone(), reader]
        .into_iter()
        .map(|database| spawn(follow(database, Arc::clone(&stopped))))
        .collect();
    // Both append, and partitions change hands in between.
    let mut lasts: BTreeMap<EntityRef, u64> = BTreeMap::new();
    for round in 0..12_u8 {
        for entity in &entities {
            let last = lasts.entry(entity.clone()).or_default();
            let is_first = (Partition::of(entity).number() < 32) == (round % 2 == 0);
            let database = if is_first { &first } else { &second };
            assert_eq!(append(database, entity, *last).unwrap().last.0, *last + 1);
            *last += 1;
        }
        let half = |is_lower| Partition::all().filter(move |it| (it.number() < 32) == is_lower);
        let (of_first, of_second) =
            (half(round % 2 == 0).collect::<Vec<_>>(), half(round % 2 == 1).collect::<Vec<_>>());
        assert_eq!(release(&first, of_first.clone()), Ok(of_first.clone()));
        assert_eq!(release(&second, of_second.clone()), Ok(of_second.clone()));
        claim_some(&first, |it| of_second.contains(&it));
        claim_some(&second, |it| of_first.contains(&it));
    }
    stopped.store(true, Ordering::Relaxed);
    let due: BTreeMap<usize, Vec<u64>> = entities
        .iter()
        .map(|entity| (Partition::of(entity).index(), (1..=lasts[entity]).collect()))
        .collect();
    for follower in followers {
        assert_eq!(block(follower).unwrap(), due);
    }
    for entity in &entities {
        check_gapless(&first, Partition::of(entity), 12);
        check_gapless(&second, Partition::of(entity), 12);
    }
}

/// Follows all partitions until it is stopped and at the end; returns the positions that it saw.
async fn follow(database: Database, stopped: Arc<AtomicBool>) -> BTreeMap<usize, Vec<u64>> {
    let journals = database.journals();
    let (mut after, mut seen) = (Cursor::start(journals.all().len()), BTreeMap::new());
    loop {
        let is_last = stopped.load(Ordering::Relaxed);
        let page = journals.read_behind(after, None, 50).await.unwrap();
        for (index, entry) in page.entries {
            let Entry::Record(record) = entry else { panic!("{index}: {entry:?}") };
            seen.entry(index).or_insert_with(Vec::new).push(record.position.0);
        }
        after = page.next;
        if is_last && page.is_end {
            return seen;
        }
        if page.is_end {
            let _ = tokio::task::spawn_blocking(server::pause).await;
        }
    }
}

#[test]
fn members_prune_and_sweep_at_the_same_time() {
    let server = server::shared();
    let address = server.new_database("upkeep");
    let members = [join(&address), join(&address)];
    claim_some(&members[0], |it| it.number() < 32);
    claim_some(&members[1], |it| it.number() >= 32);
    let entities = one_of_each();
    let owner =
        |entity: &EntityRef| members[usize::from(Partition::of(entity).number() >= 32)].clone();
    let dispatch =
        |entity: &EntityRef| DispatchId::from_bytes([Partition::of(entity).number(); 16]);
    for entity in &entities {
        let (database, entity) = (owner(entity), entity.clone());
        let dispatch = dispatch(&entity);
        block(async move {
            let journal = database.journal(Partition::of(&entity));
            journal.append(creation(&entity)).await.unwrap();
            let end = batch(&entity, Expected::At(Position(1)), vec![(0, ended(dispatch, 1))]);
            // Too large for its row, and the same for all, so that one blob has many names.
            let end = end.with_recordings(vec![recording(dispatch, 1, 100_000)]);
            journal.append(end).await.unwrap();
        });
    }
    let kept = &entities[0];
    let prunes: Vec<_> = entities[1..]
        .iter()
        .map(|entity| {
            let (database, entity) = (owner(entity), entity.clone());
            spawn(async move {
                let journal = database.journal(Partition::of(&entity));
                journal.prune(vec![(entity, Position(2))]).await
            })
        })
        .collect();
    prunes.into_iter().for_each(|prune| assert_eq!(block(prune).unwrap(), Ok(vec![2])));
    members.iter().for_each(|member| {
        let member = member.clone();
        block(async move { member.sweep().await }).unwrap();
    });
    let (database, entity) = (owner(kept), kept.clone());
    let dispatch = dispatch(kept);
    let found = block(async move {
        let journal = database.journal(Partition::of(&entity));
        journal.recording(dispatch, 1).await
    });
    assert_eq!(found.unwrap().map(|bytes| bytes.len()), Some(100_000));
}

#[test]
fn a_process_that_opens_alone_is_refused_while_members_beat() {
    let address = server::shared().new_database("refused_alone");
    let member = join(&address);
    claim_all(&member);
    let open = || {
        let address = address.clone();
        spawn(async move { Database::open(&address, Settings::default()).await })
    };
    let opening = open();
    while !opening.is_finished() {
        beat(&member).expect("it is alive");
    }
    let opened = block(opening).expect("no panic");
    let why = opened.expect_err("a member beats").to_string();
    assert!(why.contains("--advertise"), "{why}");
    let kept = session("kept");
    assert!(append(&member, &kept, 0).is_ok(), "it has its partitions");
    let alone = block(open()).expect("no panic").expect("no member beats");
    assert!(append(&member, &session("lost"), 0).is_err());
    block(async move { alone.close().await });
}
