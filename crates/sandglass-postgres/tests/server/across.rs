//! All partitions of a database read together, compared with what each journal returns by itself.

use std::collections::BTreeMap;

use sandglass_journal::conformance::{created, dispatched, session, signal};
use sandglass_journal::{
    Batch, Entry, Expected, Journals, LastRecord, Merged, PAGE_MAX_ENTRIES, Rest, Resting, Select,
};
use sandglass_model::{
    Cursor, DispatchId, EntityRef, Position, RulesVersion, Sequence, SpecDigest, WallTime,
};

use sandglass_postgres::{Database, Settings};

use crate::load;
use crate::server::{self, block};

const ENTITIES: u32 = 150;

fn entity(number: u32) -> EntityRef {
    session(&number.to_string())
}

fn dispatch(number: u32) -> DispatchId {
    let mut bytes = [7; 16];
    bytes[12..].copy_from_slice(&number.to_be_bytes());
    DispatchId::from_bytes(bytes)
}

/// Entities with three records each, created one per millisecond.
async fn fill(journals: &Journals) {
    for number in 0..ENTITIES {
        let at = WallTime::from_millis(1_700_000_000_000 + i64::from(number));
        let records = vec![
            (Sequence(0), created()),
            (Sequence(0), signal(number)),
            (Sequence(0), dispatched(dispatch(number), 1)),
        ];
        journals.append(Batch::new(entity(number), Expected::None, at, records)).await.unwrap();
    }
}

/// Everything behind the start, in pages of `limit`.
async fn read_all(
    journals: &Journals,
    kinds: Option<&'static [&'static str]>,
    limit: usize,
) -> Vec<(usize, Entry)> {
    let (mut after, mut found) = (Cursor::start(journals.all().len()), Vec::new());
    loop {
        let Merged { entries, next, is_end } =
            journals.read_behind(after.clone(), kinds, limit).await.unwrap();
        assert!(after.is_within(&next) && (is_end || next != after), "it goes on: {next}");
        found.extend(entries);
        if is_end {
            assert_eq!(next, journals.end().await.unwrap());
            return found;
        }
        after = next;
    }
}

/// The entries of each journal, read by itself.
async fn read_each(journals: &Journals) -> BTreeMap<usize, Vec<Entry>> {
    let mut each = BTreeMap::new();
    for (index, journal) in journals.all().iter().enumerate() {
        let mut next = Some(Position(1));
        while let Some(from) = next {
            let page = journal.read(from, PAGE_MAX_ENTRIES).await.unwrap();
            next = page.next;
            if !page.entries.is_empty() {
                each.entry(index).or_insert_with(Vec::new).extend(page.entries);
            }
        }
    }
    each
}

fn by_journal(entries: &[(usize, Entry)]) -> BTreeMap<usize, Vec<Entry>> {
    let mut each = BTreeMap::<usize, Vec<Entry>>::new();
    for (index, entry) in entries {
        each.entry(*index).or_default().push(entry.clone());
    }
    each
}

#[test]
fn pages_of_all_partitions_have_each_record_once_in_the_order_of_time() {
    let database = server::open(&server::shared().new_database("across"));
    block(async move {
        let journals = database.journals();
        fill(&journals).await;
        let each = read_each(&journals).await;
        for limit in [1, 7, PAGE_MAX_ENTRIES] {
            let found = read_all(&journals, None, limit).await;
            assert_eq!(by_journal(&found), each, "in pages of {limit}");
            let at = |(_, entry): &(usize, Entry)| match entry {
                Entry::Record(record) => record.at,
                other => panic!("{other:?}"),
            };
            assert!(found.is_sorted_by_key(at));
        }
        let signals = read_all(&journals, Some(&["signal"]), 10).await;
        assert_eq!(signals.len(), ENTITIES as usize);
        let found = journals.find_dispatch(dispatch(77)).await.unwrap();
        assert_eq!(found, Some((entity(77), journals_last(&journals, 77).await)));
        assert_eq!(journals.find_dispatch(dispatch(ENTITIES)).await.unwrap(), None);
    });
}

#[test]
fn a_reader_that_follows_misses_none_and_sees_none_twice_while_owners_change() {
    let address = server::shared().new_database("followed");
    let first = server::open(&address);
    let of_first = load::start(&first, "first", 8);
    let (stop, mut stopped) = tokio::sync::oneshot::channel::<()>();
    let reader = {
        let address = address.clone();
        std::thread::spawn(move || {
            block(async move {
                let opened = Database::open_read_only(&address, Settings::default()).await.unwrap();
                let journals = opened.journals();
                let (mut after, mut found) = (Cursor::start(journals.all().len()), Vec::new());
                loop {
                    // After the last append, everything that is there has to be read once more.
                    let is_last = stopped.try_recv().is_ok();
                    loop {
                        let read = journals.read_behind(after.clone(), None, 50).await.unwrap();
                        after = read.next;
                        found.extend(read.entries);
                        if read.is_end {
                            break;
                        }
                    }
                    if is_last {
                        return found;
                    }
                    tokio::task::yield_now().await;
                }
            })
        })
    };
    of_first.wait_for(300);
    let second = server::open(&address);
    let of_second = load::start(&second, "second", 8);
    of_second.wait_for(300);
    of_first.stop();
    of_second.stop();
    stop.send(()).unwrap();
    let found = by_journal(&reader.join().unwrap());
    let each = block(async move { read_each(&second.journals()).await });
    assert!(each.values().map(Vec::len).sum::<usize>() >= 600);
    assert_eq!(found, each);
}

async fn journals_last(journals: &Journals, number: u32) -> Position {
    journals.last_of(entity(number)).await.unwrap().expect("it exists").last.position
}

#[test]
fn pruned_and_lost_records_show_in_their_partitions() {
    let address = server::shared().new_database("across_gaps");
    let database = server::open(&address);
    block(async move {
        let journals = database.journals();
        fill(&journals).await;
        for number in [0, 3, ENTITIES - 1] {
            let last = journals_last(&journals, number).await;
            assert_eq!(journals.prune(vec![(entity(number), last)]).await.unwrap(), [3]);
        }
        let lose = "DELETE FROM sandglass.records r USING sandglass.entities e \
                    WHERE r.partition = e.partition AND r.entity = e.entity AND e.id = '5' \
                    AND r.kind = 'signal'";
        let lost = tokio::task::spawn_blocking(|| server::shared().psql("across_gaps", lose));
        lost.await.unwrap();
        let each = read_each(&journals).await;
        let gaps = each.values().flatten().filter(|entry| !matches!(entry, Entry::Record(_)));
        assert!(gaps.clone().any(|entry| matches!(entry, Entry::Pruned { .. })));
        let missing = gaps.filter(|entry| entry.damage().is_some()).count();
        assert_eq!(missing, 1);
        for limit in [1, 10, PAGE_MAX_ENTRIES] {
            let found = read_all(&journals, None, limit).await;
            assert_eq!(by_journal(&found), each, "in pages of {limit}");
        }
    });
}

#[test]
fn entities_of_all_partitions_are_selected_in_one_order() {
    // Not with short limits, because 64 statements at once wait for each other on a busy machine.
    let database =
        server::open_as_usual(&server::shared().new_database("across_entities")).unwrap();
    block(async move {
        let journals = database.journals();
        fill(&journals).await;
        let spec = SpecDigest::of("one", RulesVersion::CURRENT);
        let mut resting = Vec::new();
        for number in 0..ENTITIES {
            let last: LastRecord =
                journals.last_of(entity(number)).await.unwrap().expect("it exists").last;
            // Those that are a multiple of three stay awake, and each fifth one has ended.
            if number % 3 > 0 {
                let wake_at = Some(WallTime::from_millis(i64::from(number % 10)));
                let spec = (number % 5 > 0).then_some(spec);
                let rest = Rest { wake_at, spec, is_listed: false };
                resting.push(Resting { entity: entity(number), last: last.position, rest });
            }
        }
        journals.rest(resting).await.unwrap();
        let alone = Journals::partitioned(|partition| database.journal(partition));
        let other = SpecDigest::of("another", RulesVersion::CURRENT);
        for which in [
            Select::All,
            Select::Due { until: WallTime::from_millis(5) },
            Select::Ended,
            Select::OtherSpec { entity_type: "Session".to_owned(), spec },
            Select::OtherSpec { entity_type: "Session".to_owned(), spec: other },
        ] {
            for limit in [1_000, 7] {
                let mut after = None;
                loop {
                    let page = journals.select(which.clone(), after.clone(), limit).await.unwrap();
                    let expected = alone.select(which.clone(), after, limit).await.unwrap();
                    assert_eq!(page.entries, expected.entries, "{which:?}");
                    after = page.next;
                    if after.is_none() {
                        break;
                    }
                }
            }
        }
    });
}
