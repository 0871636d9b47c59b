//! The journals of a partitioned store, read as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use sandglass_journal::conformance::{created, dispatched, session, signal};
use sandglass_journal::{
    Batch, Entry, Error, Expected, Health, Journal, Journals, MemoryJournal, Merged,
};
use sandglass_model::{Cursor, DispatchId, Partition, Position, Sequence, WallTime};

fn partitioned() -> Journals {
    Journals::partitioned(|_| Arc::new(MemoryJournal::new()))
}

/// Creates `entities` entities, one per millisecond.
async fn create(journals: &Journals, entities: u32) {
    for number in 0..entities {
        let at = WallTime::from_millis(i64::from(number));
        let batch = Batch::new(
            session(&number.to_string()),
            Expected::None,
            at,
            vec![(Sequence(0), created()), (Sequence(0), signal(number))],
        );
        let positions = journals.append(batch).await.expect("a new entity");
        assert!(positions.first.0 < positions.last.0);
    }
}

async fn read_all(
    journals: &Journals,
    kinds: Option<&'static [&'static str]>,
    limit: usize,
) -> Vec<(usize, Position, i64)> {
    let (mut after, mut found) = (Cursor::start(journals.all().len()), Vec::new());
    loop {
        let Merged { entries, next, is_end } =
            journals.read_behind(after.clone(), kinds, limit).await.expect("memory works");
        assert!(entries.len() <= limit && after.is_within(&next));
        found.extend(entries.into_iter().map(|(index, entry)| match entry {
            Entry::Record(record) => (index, record.position, record.at.as_millis()),
            other => panic!("{other:?}"),
        }));
        if is_end {
            assert_eq!(next, journals.end().await.expect("memory works"));
            return found;
        }
        after = next;
    }
}

#[tokio::test]
async fn all_partitions_are_read_in_the_order_of_time_without_gaps() {
    let journals = partitioned();
    create(&journals, 300).await;
    for limit in [1, 7, 1_000] {
        let found = read_all(&journals, None, limit).await;
        let times: Vec<_> = found.iter().map(|(.., at)| *at).collect();
        assert_eq!(times, (0..300).flat_map(|at| [at, at]).collect::<Vec<_>>());
        let mut last = BTreeMap::new();
        for (index, position, _) in found {
            let before = last.insert(index, position).map_or(0, |position| position.0);
            assert_eq!(position.0, before + 1, "partition {index}");
        }
        // With 300 names, hardly any partition has none.
        assert!(last.len() > usize::from(Partition::COUNT) / 2, "{}", last.len());
    }
    let signals = read_all(&journals, Some(&["signal"]), 10).await;
    assert_eq!(signals.len(), 300);
}

#[tokio::test]
async fn one_journal_is_read_by_its_positions() {
    let journals = Journals::from(Arc::new(MemoryJournal::new()) as Arc<dyn Journal>);
    create(&journals, 20).await;
    let found = read_all(&journals, None, 3).await;
    let positions: Vec<_> = found.iter().map(|(_, position, _)| position.0).collect();
    assert_eq!(positions, (1..=40).collect::<Vec<_>>());
    assert_eq!(journals.end().await.expect("memory works").to_string(), "40");
}

#[tokio::test]
async fn what_is_about_an_entity_is_in_its_partition() {
    let journals = partitioned();
    let (entity, dispatch) = (session("one"), DispatchId::from_bytes([3; 16]));
    let records = vec![(Sequence(0), created()), (Sequence(0), dispatched(dispatch, 1))];
    let at = WallTime::from_millis(1);
    let batch = Batch::new(entity.clone(), Expected::None, at, records);
    journals.append(batch.clone()).await.expect("a new entity");
    let conflict = journals.append(batch).await;
    assert!(matches!(conflict, Err(Error::Conflict { .. })), "{conflict:?}");
    assert_eq!(journals.index_of(&entity), Partition::of(&entity).index());
    let own = journals.all()[Partition::of(&entity).index()].last().await;
    assert_eq!(own, Ok(Position(2)));
    let found = journals.find_dispatch(dispatch).await;
    assert_eq!(found, Ok(Some((entity.clone(), Position(2)))));
    assert_eq!(journals.find_dispatch(DispatchId::from_bytes([4; 16])).await, Ok(None));
    let page = journals.read_entity(entity, Position(1), 10).await.expect("memory works");
    assert_eq!(page.entries.len(), 2);
    let spec = Batch::new(None, Expected::Any, at, vec![(Sequence(0), signal(1))]);
    let refused = journals.append(spec).await;
    assert!(matches!(refused, Err(Error::Invalid { .. })), "{refused:?}");
}

#[tokio::test]
async fn closing_closes_every_partition() {
    let journals = partitioned();
    assert_eq!(journals.health(), Health::Working);
    journals.close().await;
    assert_eq!(journals.health(), Health::Closed);
    for journal in journals.all() {
        assert_eq!(journal.last().await, Err(Error::Closed));
    }
}
