//! What every journal must do, as tests that are generic over the store. A store passes them by one
//! line: [`conformance_tests!`](crate::conformance_tests).
//!
//! They panic if a store does not.

use std::sync::Arc;

use sandglass_model::{
    DeadlineOwner, DeadlineReport, Decision, DispatchId, Dispatched, Ended, EntityRef, Event,
    HandlerEnd, Incarnation, Object, Position, Record, RulesVersion, Sequence, SpecDigest,
    TraceContext, TransitionCause, WallTime,
};

use crate::{
    BATCH_MAX_RECORDS, Batch, EntityEntry, Entry, Error, Expected, Health, Journal, LastRecord,
    PAGE_MAX_BYTES, PAGE_MAX_ENTRIES, PRUNE_MAX_ENTITIES, Page, Place, Positions, RECORD_MAX_BYTES,
    RECORDING_MAX_BYTES, REST_MAX_ENTITIES, Recording, Rest, Resting, SEARCHED_MAX,
    SNAPSHOT_MAX_BYTES, Select, SelectedPlace, Snapshot,
};

/// Defines a test for each fact, in a module `$name`. `$open` is an expression of
/// type `Fn() -> Arc<dyn Journal>` that makes an empty journal. Needs tokio's
/// test macro at the place of use.
#[macro_export]
macro_rules! conformance_tests {
    ($name:ident, $open:expr) => {
        $crate::conformance_tests! { @each $name, $open;
            gives_back_what_was_appended
            numbers_records_from_one_without_gaps
            refuses_a_batch_whose_entity_is_elsewhere
            a_batch_behind_another_record_is_refused
            refuses_batches_that_cannot_be_meant
            takes_nothing_of_a_refused_batch
            refuses_what_is_too_large
            one_of_many_racing_appenders_wins
            a_conflict_fails_only_itself
            pages_are_bounded_and_go_on
            a_page_ends_with_the_entry_that_fills_it
            a_reader_that_follows_misses_none_and_sees_none_twice
            reads_one_entity_alone
            finds_kinds_of_records_and_states_where_to_continue
            reads_entity_by_entity
            finds_who_asked_for_a_dispatch
            gives_back_what_was_recorded_of_a_run
            refuses_recordings_of_runs_that_do_not_end_in_the_batch
            keeps_the_last_snapshot_of_each_entity
            prunes_whole_entities_and_keeps_their_places
            last_of_equals_the_last_record
            due_finds_what_is_in_flight_first
            an_append_clears_a_rest_and_a_rest_for_an_older_position_is_skipped
            pages_of_entities_have_no_gaps_and_repeat_nothing
            finds_ended_entities_and_those_with_another_spec
            pruned_entities_are_not_found
            a_closed_journal_says_so
        }
    };
    (@each $name:ident, $open:expr; $($fact:ident)*) => {
        mod $name {
            #[allow(unused_imports, reason = "the expression may need none of them")]
            use super::*;
            $(
                #[tokio::test]
                async fn $fact() {
                    let open = $open;
                    $crate::conformance::$fact(open()).await;
                }
            )*
        }
    };
}

/// A journal under test.
pub type Subject = Arc<dyn Journal>;

const AT: WallTime = WallTime::from_millis(1_700_000_000_123);

/// The entity `Session/ID`.
///
/// # Panics
/// `id` is not a valid id.
#[must_use]
pub fn session(id: &str) -> EntityRef {
    EntityRef::new("Session", id).expect("a valid id")
}

/// The record of an entity's creation.
#[must_use]
pub fn created() -> Event {
    Event::Created {
        spec: SpecDigest::of("spec", RulesVersion::CURRENT),
        incarnation: Incarnation::from_bytes([7; 16]),
        state: "Idle".to_owned(),
        variables: Object::from([("retries".to_owned(), 3.into())]),
        tenant: None,
        spawned_by: None,
    }
}

/// The record of a transition by `action`.
#[must_use]
pub fn transition(action: &str) -> Event {
    Event::Transition {
        action: action.to_owned(),
        params: Object::from([("text".to_owned(), "é\u{0}\u{1b} \"quoted\"".into())]),
        from: "Idle".to_owned(),
        to: "Idle".to_owned(),
        variables: Object::new(),
        cause: TransitionCause::Requested,
        trace: TraceContext::root([5; 24]),
        observed: Vec::new(),
        idempotency: None,
    }
}

/// The record of a signal that carries `payload`.
#[must_use]
pub fn signal(payload: impl Into<serde_json::Value>) -> Event {
    Event::Signal {
        name: "progress".to_owned(),
        from: None,
        dispatch: None,
        payload: payload.into(),
        resets_idle: false,
    }
}

/// The record of a dispatch.
#[must_use]
pub fn dispatched(dispatch: DispatchId, attempt: u32) -> Event {
    Event::Dispatched(Box::new(Dispatched {
        dispatch,
        spec: Some(SpecDigest::of("spec", RulesVersion::CURRENT)),
        expected: Some(Sequence(0)),
        integration: "run_tools".to_owned(),
        module: "run_tools".to_owned(),
        module_hash: None,
        action: "Go".to_owned(),
        params: Object::new(),
        state: "Idle".to_owned(),
        variables: Object::new(),
        config: [("dispatch".to_owned(), "another".to_owned())].into(),
        attempt,
        budget_ms: 1_000,
        budget_defaulted: false,
        asker: None,
        depth: 0,
        shape: None,
        retried: None,
        owner: DeadlineOwner::Handler,
        trace: TraceContext::root([5; 24]),
    }))
}

/// The record of a handler's end.
#[must_use]
pub fn ended(dispatch: DispatchId, attempt: u32) -> Event {
    let Event::Dispatched(started) = dispatched(dispatch, attempt) else { unreachable!() };
    let end =
        HandlerEnd { deadline: DeadlineReport::default(), ..HandlerEnd::interrupted(&started) };
    let decision = Decision::Superseded { action: "Go".to_owned() };
    Event::Ended(Box::new(Ended::new(Arc::new(end), decision)))
}

/// A recording of `bytes` bytes, none of which is text.
#[must_use]
pub fn recording(dispatch: DispatchId, attempt: u32, bytes: usize) -> Recording {
    Recording { dispatch, attempt, body: vec![0xff; bytes].into() }
}

/// Expects the last record of an entity at `position`.
#[must_use]
pub const fn at(position: u64) -> Expected {
    Expected::At(Position(position))
}

/// A batch about `entity`.
#[must_use]
pub fn batch(entity: &EntityRef, expected: Expected, records: Vec<(u64, Event)>) -> Batch {
    let records = records.into_iter().map(|(sequence, event)| (Sequence(sequence), event));
    Batch::new(entity.clone(), expected, AT, records.collect())
}

/// The batch that creates `entity`.
#[must_use]
pub fn creation(entity: &EntityRef) -> Batch {
    batch(entity, Expected::None, vec![(0, created())])
}

/// The batch of one step of `entity` to `sequence`.
#[must_use]
pub fn step(entity: &EntityRef, expected: Expected, sequence: u64) -> Batch {
    batch(entity, expected, vec![(sequence, transition("Go"))])
}

fn spec(source: &str) -> Batch {
    let event = Event::SpecRegistered {
        digest: SpecDigest::of(source, RulesVersion::CURRENT),
        automaton: "Session".to_owned(),
        source: source.to_owned(),
        rules: RulesVersion::CURRENT,
    };
    Batch::new(None, Expected::Any, AT, vec![(Sequence(0), event)])
}

async fn append(journal: &Subject, batch: Batch) -> Positions {
    journal.append(batch).await.expect("the batch follows on what is there")
}

async fn refused(journal: &Subject, batch: Batch) -> Error {
    journal.append(batch).await.expect_err("the batch must be refused")
}

async fn everything(journal: &Subject) -> Vec<Record> {
    let page = journal.read(Position(0), 1_000).await.expect("readable");
    assert_eq!(page.next, None, "the whole journal fits a page");
    page.into_records().expect("nothing is damaged")
}

/// See its name.
pub async fn gives_back_what_was_appended(journal: Subject) {
    let entity = session("a/b c");
    let first = batch(
        &entity,
        Expected::None,
        vec![
            (0, created()),
            (1, transition("Go")),
            (1, signal(serde_json::json!({"n": [1, 2.5]}))),
        ],
    );
    append(&journal, spec("name = \"é\"\n")).await;
    let positions = append(&journal, first.clone()).await;
    assert_eq!(positions, Positions { first: Position(2), last: Position(4) });
    let mut expected: Vec<_> =
        spec("name = \"é\"\n").records.into_iter().map(|record| (None, record)).collect();
    expected.extend(first.records.into_iter().map(|record| (Some(entity.clone()), record)));
    let records = everything(&journal).await;
    assert!(records.iter().all(|record| record.at == AT));
    let found: Vec<_> = records
        .into_iter()
        .map(|record| (record.entity, (record.sequence, record.event)))
        .collect();
    assert_eq!(found, expected);
}

/// See its name.
pub async fn numbers_records_from_one_without_gaps(journal: Subject) {
    assert_eq!(journal.last().await, Ok(Position(0)));
    assert_eq!(journal.read(Position(0), 10).await, Ok(Page::default()));
    for id in ["a", "b", "c"] {
        append(&journal, creation(&session(id))).await;
        refused(&journal, creation(&session(id))).await;
    }
    let places: Vec<u64> =
        everything(&journal).await.iter().map(|record| record.position.0).collect();
    assert_eq!(places, [1, 2, 3]);
    assert_eq!(journal.last().await, Ok(Position(3)));
}

/// See its name.
pub async fn refuses_a_batch_whose_entity_is_elsewhere(journal: Subject) {
    let entity = session("a");
    let conflict = |expected, found| Error::Conflict { entity: entity.clone(), expected, found };
    let found = |position, sequence| {
        Some(LastRecord { position: Position(position), sequence: Sequence(sequence) })
    };
    let absent = refused(&journal, step(&entity, at(1), 1)).await;
    assert_eq!(absent, conflict(at(1), None));
    append(&journal, creation(&entity)).await;
    let exists = refused(&journal, creation(&entity)).await;
    assert_eq!(exists, conflict(Expected::None, found(1, 0)));
    append(&journal, creation(&session("b"))).await;
    let of_another = refused(&journal, step(&entity, at(2), 1)).await;
    assert_eq!(of_another, conflict(at(2), found(1, 0)));
    append(&journal, step(&entity, at(1), 1)).await;
    let earlier = refused(&journal, step(&entity, at(1), 1)).await;
    assert_eq!(earlier, conflict(at(1), found(3, 1)));
    assert_eq!(
        earlier.to_string(),
        "Session/a has its last record at position 3 (sequence 1), \
         and the batch expects its last record at position 1"
    );
    append(&journal, batch(&entity, at(3), vec![(1, signal("x"))])).await;
    append(&journal, step(&entity, at(4), 2)).await;
}

/// Records that do not advance the sequence are followed by position, too. Otherwise two writers
/// could each record an end of one handler.
pub async fn a_batch_behind_another_record_is_refused(journal: Subject) {
    let (entity, one) = (session("a"), DispatchId::from_bytes([1; 16]));
    append(&journal, creation(&entity)).await;
    let asked = vec![(1, transition("Go")), (1, dispatched(one, 1))];
    let seen = Expected::At(append(&journal, batch(&entity, at(1), asked)).await.last);
    // One writer ends the handler as interrupted and runs it again: the sequence stays.
    let rerun = vec![(1, ended(one, 1)), (1, dispatched(one, 2))];
    append(&journal, batch(&entity, seen, rerun)).await;
    // The other writer, which has not seen that, ends it as completed, or records something else.
    let found = Some(LastRecord { position: Position(5), sequence: Sequence(1) });
    let completed = vec![(1, ended(one, 1)), (2, transition("Done"))];
    for stale in [completed, vec![(1, ended(one, 1))], vec![(1, signal("x"))]] {
        let error = refused(&journal, batch(&entity, seen, stale)).await;
        assert_eq!(error, Error::Conflict { entity: entity.clone(), expected: seen, found });
    }
    assert_eq!(journal.last().await, Ok(Position(5)));
    append(&journal, step(&entity, at(5), 2)).await;
    // Another life of the name has the same sequences at other positions.
    assert_eq!(journal.prune(vec![(entity.clone(), Position(6))]).await, Ok(vec![6]));
    append(&journal, creation(&entity)).await;
    let of_the_former = refused(&journal, step(&entity, at(1), 1)).await;
    assert!(matches!(of_the_former, Error::Conflict { .. }), "{of_the_former:?}");
    append(&journal, step(&entity, at(7), 1)).await;
}

/// See its name.
pub async fn refuses_batches_that_cannot_be_meant(journal: Subject) {
    let entity = session("a");
    append(&journal, creation(&entity)).await;
    let first = at(1);
    let new = session("new");
    let spec_record = spec("x").records.remove(0);
    let senseless = [
        batch(&entity, first, vec![]),
        batch(&entity, first, vec![(0, created())]),
        batch(&entity, first, vec![(0, transition("Go"))]),
        batch(&entity, first, vec![(2, transition("Go"))]),
        batch(&entity, first, vec![(1, signal("x"))]),
        batch(&entity, first, vec![(1, transition("Go")), (1, transition("Go"))]),
        batch(&entity, first, vec![(0, spec_record.1.clone())]),
        batch(&new, Expected::None, vec![(1, created())]),
        batch(&new, Expected::None, vec![(1, transition("Go"))]),
        Batch { expected: Expected::None, ..spec("x") },
        Batch { records: vec![(Sequence(0), signal("x"))], ..spec("x") },
        Batch { records: vec![(Sequence(1), spec_record.1)], ..spec("x") },
    ];
    for batch in senseless {
        let error = refused(&journal, batch.clone()).await;
        assert!(matches!(error, Error::Invalid { .. }), "{batch:?} -> {error:?}");
    }
    assert_eq!(journal.last().await, Ok(Position(1)));
    assert_eq!(
        journal.health(),
        Health::Working,
        "a defect of the appender is not one of the disk"
    );
}

/// See its name.
pub async fn takes_nothing_of_a_refused_batch(journal: Subject) {
    let entity = session("a");
    let broken = vec![(0, created()), (1, transition("Go")), (1, transition("Go"))];
    refused(&journal, batch(&entity, Expected::None, broken)).await;
    assert_eq!(everything(&journal).await, []);
    append(&journal, creation(&entity)).await;
}

/// See its name.
pub async fn refuses_what_is_too_large(journal: Subject) {
    let entity = session("a");
    let text = "x".repeat(RECORD_MAX_BYTES);
    let record = batch(&entity, Expected::None, vec![(0, signal(text))]);
    let many = vec![(0, signal(0)); BATCH_MAX_RECORDS + 1];
    let heavy = vec![(0, signal("x".repeat(RECORD_MAX_BYTES - 1_000))); 3];
    let objects = serde_json::Value::Array(vec![serde_json::json!({"": 0}); 220_000]);
    let dense = batch(&entity, Expected::None, vec![(0, signal(objects))]);
    let many = batch(&entity, Expected::None, many);
    let too_large = [record, dense, many, batch(&entity, Expected::None, heavy)];
    for batch in too_large {
        let error = refused(&journal, batch).await;
        assert!(matches!(error, Error::TooLarge { .. }), "{error:?}");
    }
    let largest = vec![(0, signal("x".repeat(RECORD_MAX_BYTES - 1_000)))];
    append(&journal, batch(&entity, Expected::None, largest)).await;
    assert_eq!(everything(&journal).await.len(), 1);
}

/// See its name.
pub async fn one_of_many_racing_appenders_wins(journal: Subject) {
    let entity = session("a");
    append(&journal, creation(&entity)).await;
    let racing: Vec<_> = (0..16)
        .map(|_| {
            let (journal, batch) = (Arc::clone(&journal), step(&entity, at(1), 1));
            tokio::spawn(async move { journal.append(batch).await })
        })
        .collect();
    let mut won = 0;
    for appender in racing {
        match appender.await.expect("no panic") {
            Ok(_) => won += 1,
            Err(error) => assert!(matches!(error, Error::Conflict { .. }), "{error:?}"),
        }
    }
    assert_eq!(won, 1);
    assert_eq!(journal.last().await, Ok(Position(2)));
}

/// See its name.
pub async fn a_conflict_fails_only_itself(journal: Subject) {
    let taken = session("taken");
    append(&journal, creation(&taken)).await;
    let racing: Vec<_> = (0..200)
        .map(|number| {
            let fits = number % 3 != 0;
            let own = session(&format!("own-{number}"));
            let journal = Arc::clone(&journal);
            let batch = creation(if fits { &own } else { &taken });
            (fits, tokio::spawn(async move { journal.append(batch).await }))
        })
        .collect();
    for (fits, appender) in racing {
        let answer = appender.await.expect("no panic");
        assert_eq!(answer.is_ok(), fits, "{answer:?}");
    }
    let places: Vec<u64> =
        everything(&journal).await.iter().map(|record| record.position.0).collect();
    assert_eq!(places, (1..=134).collect::<Vec<u64>>());
}

/// See its name.
pub async fn pages_are_bounded_and_go_on(journal: Subject) {
    let entity = session("a");
    append(&journal, creation(&entity)).await;
    for sequence in 1..25 {
        append(&journal, step(&entity, at(sequence), sequence)).await;
    }
    let (mut from, mut found) = (Some(Position(0)), Vec::new());
    while let Some(start) = from {
        let page = journal.read(start, 10).await.expect("readable");
        assert!(page.entries.len() <= 10);
        found.extend(page.entries.iter().map(|entry| entry.position().0));
        from = page.next;
    }
    assert_eq!(found, (1..=25).collect::<Vec<u64>>());
    let none = journal.read(Position(3), 0).await.expect("readable");
    assert_eq!(none.entries.len(), 1, "a page always gets on");
    assert_eq!(journal.read(Position(26), 10).await, Ok(Page::default()));
    assert_eq!(journal.read(Position(u64::MAX), 10).await, Ok(Page::default()));
}

/// See its name.
pub async fn a_page_ends_with_the_entry_that_fills_it(journal: Subject) {
    let entity = session("a");
    let heavy = vec![(0, signal("x".repeat(PAGE_MAX_BYTES / 3))); 8];
    append(&journal, batch(&entity, Expected::None, heavy)).await;
    let (mut from, mut lengths) = (Some(Position(0)), Vec::new());
    while let Some(start) = from {
        let page = journal.read(start, PAGE_MAX_ENTRIES).await.expect("readable");
        let same = journal.read_entity(entity.clone(), start, PAGE_MAX_ENTRIES).await;
        assert_eq!(same.expect("readable"), page);
        lengths.push(page.entries.len());
        from = page.next;
    }
    assert_eq!(lengths, [3, 3, 2]);
    let by_entity = journal.read_by_entity(None, PAGE_MAX_ENTRIES).await.expect("readable");
    assert_eq!(by_entity.entries.len(), 3);
}

/// See its name.
pub async fn a_reader_that_follows_misses_none_and_sees_none_twice(journal: Subject) {
    let appenders = (0..4).map(|number| {
        let (journal, entity) = (Arc::clone(&journal), session(&number.to_string()));
        tokio::spawn(async move {
            let mut last = append(&journal, creation(&entity)).await.last;
            for sequence in 1..50 {
                last = append(&journal, step(&entity, Expected::At(last), sequence)).await.last;
            }
        })
    });
    let appenders: Vec<_> = appenders.collect();
    let mut found: Vec<u64> = Vec::new();
    while found.len() < 200 {
        let are_done = appenders.iter().all(tokio::task::JoinHandle::is_finished);
        let from = found.last().map_or(1, |last| last + 1);
        let page = journal.read(Position(from), 7).await.expect("readable");
        found.extend(page.entries.iter().map(|entry| entry.position().0));
        if page.entries.is_empty() {
            assert!(!are_done, "{found:?}");
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(found, (1..=200).collect::<Vec<u64>>());
}

/// See its name.
pub async fn reads_one_entity_alone(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    append(&journal, creation(&a)).await;
    append(&journal, creation(&b)).await;
    append(&journal, step(&a, at(1), 1)).await;
    append(&journal, step(&b, at(2), 1)).await;
    append(&journal, step(&a, at(3), 2)).await;
    let first = journal.read_entity(a.clone(), Position(0), 2).await.expect("readable");
    let places =
        |page: &Page| -> Vec<u64> { page.entries.iter().map(|entry| entry.position().0).collect() };
    assert_eq!((places(&first), first.next), (vec![1, 3], Some(Position(5))));
    let rest = journal.read_entity(a, Position(5), 2).await.expect("readable");
    assert_eq!((places(&rest), rest.next), (vec![5], None));
    let absent = journal.read_entity(session("c"), Position(0), 2).await;
    assert_eq!(absent, Ok(Page::default()));
}

/// See its name.
pub async fn finds_kinds_of_records_and_states_where_to_continue(journal: Subject) {
    const KINDS: &[&str] = &["created", "signal"];
    let found = |from, limit| {
        let journal = &journal;
        async move {
            let found = journal.read_kinds(KINDS, Position(from), limit).await.expect("readable");
            let places: Vec<u64> = found.entries.iter().map(|entry| entry.position().0).collect();
            (places, found.next.0, found.is_end)
        }
    };
    assert_eq!(found(0, 10).await, (vec![], 1, true));
    let a = session("a");
    append(&journal, spec("early")).await;
    append(&journal, creation(&a)).await;
    append(&journal, step(&a, at(2), 1)).await;
    append(&journal, batch(&a, at(3), vec![(1, signal("x")), (1, signal("y"))])).await;
    append(&journal, step(&a, at(5), 2)).await;
    assert_eq!(found(0, 10).await, (vec![2, 4, 5], 7, true));
    // A page that is full ends before the next record that is wanted, wherever that is.
    assert_eq!(found(0, 1).await, (vec![2], 4, false));
    assert_eq!(found(4, 1).await, (vec![4], 5, false));
    assert_eq!(found(6, 10).await, (vec![], 7, true));
    assert_eq!(found(7, 10).await, (vec![], 7, true));
    // One search is bounded, also if it finds nothing.
    let (mut sequence, mut last) = (2, Position(6));
    for _ in 0..SEARCHED_MAX.div_ceil(u64::try_from(BATCH_MAX_RECORDS).expect("a few")) {
        let steps = (1..=u64::try_from(BATCH_MAX_RECORDS).expect("a few"))
            .map(|one| (sequence + one, transition("Go")));
        last = append(&journal, batch(&a, Expected::At(last), steps.collect())).await.last;
        sequence += u64::try_from(BATCH_MAX_RECORDS).expect("a few");
    }
    assert_eq!(found(6, 10).await, (vec![], 6 + SEARCHED_MAX, false));
    let z = batch(&a, Expected::At(last), vec![(sequence, signal("z"))]);
    let last = append(&journal, z).await.last.0;
    assert_eq!(found(6 + SEARCHED_MAX, 10).await, (vec![last], last + 1, true));
}

/// See its name.
pub async fn reads_entity_by_entity(journal: Subject) {
    // Names order by their type first, and by bytes.
    let mut names: Vec<EntityRef> = ["b", "a/1", "a", "é", "Z"].map(session).into();
    names.push(EntityRef::new("Order", "z").expect("a valid name"));
    for name in &names {
        append(&journal, creation(name)).await;
    }
    append(&journal, spec("late")).await;
    for (name, position) in names.iter().zip(1..) {
        append(&journal, step(name, at(position), 1)).await;
    }
    names.sort();
    let mut expected = vec![(None, 7)];
    let all = everything(&journal).await;
    for name in names.into_iter().map(Some) {
        let own = all.iter().filter(|record| record.entity == name);
        expected.extend(own.map(|record| (name.clone(), record.position.0)));
    }
    for limit in [1, 2, 3, 100] {
        let (mut after, mut found) = (None, Vec::new());
        loop {
            let page = journal.read_by_entity(after, limit).await.expect("readable");
            assert!(page.entries.len() <= limit);
            found.extend(page.entries.iter().filter_map(Place::of));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        let found: Vec<_> =
            found.into_iter().map(|place| (place.entity, place.position.0)).collect();
        assert_eq!(found, expected, "in pages of {limit}");
    }
}

/// See its name.
pub async fn finds_who_asked_for_a_dispatch(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    let life = Incarnation::random().expect("randomness");
    let of = |sequence| DispatchId::derive(life, Sequence(sequence), 0, AT);
    append(&journal, creation(&a)).await;
    let asked = vec![(0, created()), (1, transition("Go")), (1, dispatched(of(1), 1))];
    append(&journal, batch(&b, Expected::None, asked)).await;
    let again = vec![(1, dispatched(of(1), 2)), (1, dispatched(of(2), 1))];
    append(&journal, batch(&b, at(4), again)).await;
    assert_eq!(journal.find_dispatch(of(1)).await, Ok(Some((b.clone(), Position(4)))));
    assert_eq!(journal.find_dispatch(of(2)).await, Ok(Some((b, Position(6)))));
    assert_eq!(journal.find_dispatch(of(3)).await, Ok(None));
}

/// See its name.
pub async fn gives_back_what_was_recorded_of_a_run(journal: Subject) {
    let (entity, one) = (session("a"), DispatchId::from_bytes([1; 16]));
    let two = DispatchId::from_bytes([2; 16]);
    append(&journal, creation(&entity)).await;
    let both = vec![(0, ended(one, 1)), (0, signal("x")), (0, ended(two, 7)), (0, ended(two, 8))];
    let recorded = vec![recording(two, 7, 3), recording(one, 1, 0)];
    append(&journal, batch(&entity, at(1), both).with_recordings(recorded)).await;
    assert_eq!(journal.recording(one, 1).await, Ok(Some(vec![])));
    assert_eq!(journal.recording(two, 7).await, Ok(Some(vec![0xff; 3])));
    for (dispatch, attempt) in [(one, 2), (two, 8), (DispatchId::from_bytes([3; 16]), 1)] {
        assert_eq!(journal.recording(dispatch, attempt).await, Ok(None));
    }
    let largest = vec![recording(two, 9, RECORDING_MAX_BYTES)];
    let end = batch(&entity, at(5), vec![(0, ended(two, 9))]);
    append(&journal, end.with_recordings(largest)).await;
    let kept = journal.recording(two, 9).await.expect("readable");
    assert_eq!(kept.map(|body| body.len()), Some(RECORDING_MAX_BYTES));
}

/// See its name.
pub async fn refuses_recordings_of_runs_that_do_not_end_in_the_batch(journal: Subject) {
    let (entity, one) = (session("a"), DispatchId::from_bytes([1; 16]));
    append(&journal, creation(&entity)).await;
    let first = batch(&entity, at(1), vec![(0, ended(one, 1))]);
    append(&journal, first.with_recordings(vec![recording(one, 1, 1)])).await;
    let with = |event, recorded| batch(&entity, at(2), vec![(0, event)]).with_recordings(recorded);
    let senseless = [
        with(ended(one, 1), vec![recording(one, 1, 1)]),
        with(signal("x"), vec![recording(one, 2, 1)]),
        with(ended(one, 2), vec![recording(one, 3, 1)]),
        with(ended(one, 2), vec![recording(one, 2, 1), recording(one, 2, 1)]),
        batch(&entity, at(2), vec![(0, ended(one, 2)), (0, ended(one, 1))])
            .with_recordings(vec![recording(one, 2, 1), recording(one, 1, 1)]),
    ];
    for batch in senseless {
        let error = refused(&journal, batch.clone()).await;
        assert!(matches!(error, Error::Invalid { .. }), "{batch:?} -> {error:?}");
    }
    let large = with(ended(one, 2), vec![recording(one, 2, RECORDING_MAX_BYTES + 1)]);
    assert!(matches!(refused(&journal, large).await, Error::TooLarge { .. }));
    assert_eq!(journal.recording(one, 2).await, Ok(None), "nothing is left of a refused batch");
    assert_eq!(journal.last().await, Ok(Position(2)));
}

/// See its name.
pub async fn keeps_the_last_snapshot_of_each_entity(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    let text = |text: &str| Some(text.to_owned());
    append(&journal, creation(&a).with_snapshot(text("a at 0"))).await;
    append(&journal, creation(&b).with_snapshot(text("b at 0"))).await;
    let pair = vec![(1, transition("Go")), (1, signal("x"))];
    let pair = batch(&a, at(1), pair);
    append(&journal, pair.with_snapshot(text("a at 1"))).await;
    append(&journal, step(&a, at(4), 2)).await;
    let refused_one = step(&a, at(4), 2).with_snapshot(text("of a refused batch"));
    refused(&journal, refused_one).await;
    let of = |entity: &EntityRef, position, body: &str| {
        let (entity, position) = (entity.clone(), Position(position));
        Ok(Some(Snapshot { entity, position, body: body.to_owned() }))
    };
    assert_eq!(journal.snapshot(a.clone()).await, of(&a, 4, "a at 1"));
    assert_eq!(journal.snapshot(b.clone()).await, of(&b, 2, "b at 0"));
    assert_eq!(journal.snapshot(session("c")).await, Ok(None));
    let of_none = refused(&journal, spec("x").with_snapshot(text("x"))).await;
    assert!(matches!(of_none, Error::Invalid { .. }), "{of_none:?}");
    let large = step(&a, at(5), 3).with_snapshot(Some("x".repeat(SNAPSHOT_MAX_BYTES + 1)));
    assert!(matches!(refused(&journal, large).await, Error::TooLarge { .. }));
}

/// See its name.
pub async fn prunes_whole_entities_and_keeps_their_places(journal: Subject) {
    let (a, b, c) = (session("a"), session("b"), session("c"));
    let gone = DispatchId::from_bytes([1; 16]);
    append(&journal, creation(&a)).await;
    append(&journal, creation(&b).with_snapshot(Some("b".to_owned()))).await;
    append(&journal, step(&a, at(1), 1)).await;
    let records = vec![(0, dispatched(gone, 1)), (0, ended(gone, 1))];
    let end = batch(&b, at(2), records);
    append(&journal, end.with_recordings(vec![recording(gone, 1, 3)])).await;
    append(&journal, creation(&c)).await;
    append(&journal, step(&b, at(5), 1)).await;
    let entities =
        vec![(b.clone(), Position(7)), (a.clone(), Position(1)), (session("d"), Position(2))];
    assert_eq!(journal.prune(entities).await, Ok(vec![4, 0, 0]), "of a there are later ones");
    let page = journal.read(Position(0), 100).await.expect("readable");
    let pruned = |first, last| (first, last - first + 1, "pruned");
    let describe = |entry: &Entry| {
        let kind = if matches!(entry, Entry::Pruned { .. }) { "pruned" } else { "record" };
        (entry.position().0, entry.places(), kind)
    };
    let found: Vec<_> = page.entries.iter().map(describe).collect();
    let record = |at| (at, 1, "record");
    assert_eq!(found, [record(1), pruned(2, 2), record(3), pruned(4, 5), record(6), pruned(7, 7)]);
    assert_eq!(page.into_records().map(|records| records.len()), Ok(3));
    assert_eq!(journal.last().await, Ok(Position(7)), "its place is not given again");
    assert_eq!(journal.read_entity(b.clone(), Position(0), 9).await, Ok(Page::default()));
    assert_eq!(journal.find_dispatch(gone).await, Ok(None));
    assert_eq!(journal.recording(gone, 1).await, Ok(None));
    assert_eq!(journal.snapshot(b.clone()).await, Ok(None));
    let again = append(&journal, creation(&b)).await;
    assert_eq!(again.first, Position(8), "another life of the same name");
    assert_eq!(journal.prune(vec![(c, Position(6)), (b, Position(8))]).await, Ok(vec![1, 1]));
    let page = journal.read(Position(3), 100).await.expect("readable");
    let found: Vec<_> = page.entries.iter().map(describe).collect();
    assert_eq!(found, [record(3), pruned(4, 8)]);
    let many = vec![(session("x"), Position(1)); PRUNE_MAX_ENTITIES + 1];
    assert!(matches!(journal.prune(many).await, Err(Error::TooLarge { .. })));
}

/// A note that the entity whose last record is at `last` rests until `wake_at`, in milliseconds.
fn rests(entity: &EntityRef, last: u64, wake_at: Option<i64>) -> Resting {
    let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
    let rest = Rest { wake_at: wake_at.map(WallTime::from_millis), spec, is_listed: false };
    Resting { entity: entity.clone(), last: Position(last), rest }
}

/// All entities that `which` selects, read in pages of `limit`.
async fn selected(journal: &Subject, which: &Select, limit: usize) -> Vec<EntityEntry> {
    let (mut after, mut found) = (None::<SelectedPlace>, Vec::new());
    loop {
        let page = journal.select(which.clone(), after.clone(), limit).await.expect("readable");
        assert!(page.entries.len() <= limit.max(1));
        assert!(page.next.is_none() || page.next > after, "a page always gets on");
        found.extend(page.entries);
        after = page.next;
        if after.is_none() {
            return found;
        }
    }
}

async fn names(journal: &Subject, which: &Select) -> Vec<String> {
    let found = selected(journal, which, 1_000).await;
    found.iter().map(|entry| entry.entity.id().to_owned()).collect()
}

const fn due(until: i64) -> Select {
    Select::Due { until: WallTime::from_millis(until) }
}

/// See its name.
pub async fn last_of_equals_the_last_record(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    append(&journal, creation(&a)).await;
    append(&journal, batch(&b, Expected::None, vec![(0, created()), (1, transition("Go"))])).await;
    append(&journal, step(&a, at(1), 1)).await;
    append(&journal, spec("late")).await;
    for (entity, position, sequence) in [(&a, 4, 1), (&b, 3, 1)] {
        let found = journal.last_of(entity.clone()).await.expect("readable").expect("it exists");
        let last = LastRecord { position: Position(position), sequence: Sequence(sequence) };
        assert_eq!(found, EntityEntry { entity: entity.clone(), last, rest: None });
        let records = journal.read_entity(entity.clone(), Position(0), 10).await.expect("readable");
        assert_eq!(records.entries.last().map(Entry::position), Some(last.position));
    }
    assert_eq!(journal.last_of(session("c")).await, Ok(None));
    let noted = rests(&b, 3, Some(7));
    assert_eq!(journal.rest(vec![noted.clone()]).await, Ok(()));
    let found = journal.last_of(b).await.expect("readable").expect("it exists");
    assert_eq!((found.last.position, found.rest), (Position(3), Some(noted.rest)));
}

/// See its name.
pub async fn due_finds_what_is_in_flight_first(journal: Subject) {
    let all = ["late", "soon", "awake", "sooner", "never", "listed", "exact"].map(session);
    for entity in &all {
        append(&journal, creation(entity)).await;
    }
    let [late, soon, _, sooner, never, listed, exact] = &all;
    let mut is_listed = rests(listed, 6, Some(5_000));
    is_listed.rest.is_listed = true;
    let noted = vec![
        rests(late, 1, Some(3_001)),
        rests(soon, 2, Some(2_000)),
        rests(sooner, 4, Some(1_000)),
        rests(never, 5, None),
        is_listed,
        rests(exact, 7, Some(3_000)),
    ];
    assert_eq!(journal.rest(noted).await, Ok(()));
    assert_eq!(names(&journal, &due(3_000)).await, ["awake", "listed", "sooner", "soon", "exact"]);
    assert_eq!(names(&journal, &due(i64::MIN)).await, ["awake", "listed"]);
    assert_eq!(names(&journal, &due(i64::MAX)).await.len(), 6, "all but the one without a timer");
    let mut earlier = rests(late, 1, Some(-5));
    earlier.rest.spec = None;
    assert_eq!(journal.rest(vec![earlier]).await, Ok(()), "it is noted anew");
    let found = names(&journal, &due(1_000)).await;
    assert_eq!(found, ["awake", "listed", "late", "sooner"], "the last note holds");
}

/// See its name.
pub async fn an_append_clears_a_rest_and_a_rest_for_an_older_position_is_skipped(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    append(&journal, creation(&a)).await;
    append(&journal, creation(&b)).await;
    let notes = vec![rests(&a, 1, Some(5)), rests(&b, 2, None)];
    assert_eq!(journal.rest(notes).await, Ok(()));
    assert_eq!(names(&journal, &due(4)).await, Vec::<String>::new());
    // A batch that is refused clears nothing.
    refused(&journal, step(&a, at(7), 1)).await;
    assert_eq!(names(&journal, &due(4)).await, Vec::<String>::new());
    append(&journal, step(&a, at(1), 1)).await;
    assert_eq!(names(&journal, &due(4)).await, ["a"], "it is awake");
    let older = vec![rests(&a, 1, None), rests(&session("c"), 1, None)];
    assert_eq!(journal.rest(older).await, Ok(()), "both are skipped");
    let found = journal.last_of(a.clone()).await.expect("readable").expect("it exists");
    assert_eq!((found.last.position, found.rest), (Position(3), None));
    assert_eq!(journal.last_of(session("c")).await, Ok(None));
    // Records that do not advance the sequence clear it, too.
    assert_eq!(journal.rest(vec![rests(&a, 3, None)]).await, Ok(()));
    assert_eq!(names(&journal, &due(4)).await, Vec::<String>::new());
    append(&journal, batch(&a, at(3), vec![(1, signal("x"))])).await;
    assert_eq!(names(&journal, &due(4)).await, ["a"]);
    let many = vec![rests(&a, 4, None); REST_MAX_ENTITIES + 1];
    assert!(matches!(journal.rest(many).await, Err(Error::TooLarge { .. })));
}

/// See its name.
pub async fn pages_of_entities_have_no_gaps_and_repeat_nothing(journal: Subject) {
    append(&journal, spec("early")).await;
    let mut entities: Vec<EntityRef> = (0..40).map(|number| session(&number.to_string())).collect();
    entities.push(EntityRef::new("Order", "1").expect("a valid name"));
    for (entity, position) in entities.iter().zip(2..) {
        assert_eq!(append(&journal, creation(entity)).await.last, Position(position));
    }
    let mut notes = Vec::new();
    for (number, entity) in entities.iter().enumerate().filter(|(number, _)| number % 3 > 0) {
        // Many have the same time.
        let mut note = rests(entity, number as u64 + 2, Some(number as i64 / 7));
        if number % 3 == 1 {
            note.rest.spec = None;
        }
        notes.push(note);
    }
    assert_eq!(journal.rest(notes).await, Ok(()));
    let of_type = Select::OtherSpec {
        entity_type: "Session".to_owned(),
        spec: SpecDigest::of("another", RulesVersion::CURRENT),
    };
    let counts = [(Select::All, 41), (due(i64::MAX), 41), (Select::Ended, 14), (of_type, 13)];
    for (which, count) in counts {
        let at_once = selected(&journal, &which, 1_000).await;
        assert_eq!(at_once.len(), count, "{which:?}");
        for limit in [0, 1, 2, 7, 13, 40, 41] {
            assert_eq!(selected(&journal, &which, limit).await, at_once, "{which:?} by {limit}");
        }
    }
    let mut by_name = entities.clone();
    by_name.sort();
    let all = selected(&journal, &Select::All, 10).await;
    assert_eq!(all.into_iter().map(|entry| entry.entity).collect::<Vec<_>>(), by_name);
}

/// See its name.
pub async fn finds_ended_entities_and_those_with_another_spec(journal: Subject) {
    let digest = |source: &str| SpecDigest::of(source, RulesVersion::CURRENT);
    let all = ["z", "y", "x", "w", "v", "u"].map(session);
    for entity in &all {
        append(&journal, creation(entity)).await;
    }
    let order = EntityRef::new("Order", "1").expect("a valid name");
    append(&journal, creation(&order)).await;
    let obeying = |entity, last, spec: Option<&str>| {
        let mut note = rests(entity, last, None);
        note.rest.spec = spec.map(digest);
        note
    };
    let notes = vec![
        obeying(&all[0], 1, None),
        obeying(&all[1], 2, Some("old")),
        obeying(&all[2], 3, Some("new")),
        obeying(&all[3], 4, Some("older")),
        obeying(&all[4], 5, None),
        obeying(&order, 7, Some("old")),
    ];
    assert_eq!(journal.rest(notes).await, Ok(()));
    assert_eq!(names(&journal, &Select::Ended).await, ["z", "v"], "by their last records");
    let other = |spec| Select::OtherSpec { entity_type: "Session".to_owned(), spec: digest(spec) };
    assert_eq!(names(&journal, &other("new")).await, ["w", "y"], "awake ones are not among them");
    assert_eq!(names(&journal, &other("newest")).await, ["w", "x", "y"]);
    append(&journal, step(&all[3], at(4), 1)).await;
    append(&journal, step(&all[0], at(1), 1)).await;
    assert_eq!(names(&journal, &other("new")).await, ["y"]);
    assert_eq!(names(&journal, &Select::Ended).await, ["v"]);
}

/// See its name.
pub async fn pruned_entities_are_not_found(journal: Subject) {
    let (a, b) = (session("a"), session("b"));
    append(&journal, creation(&a)).await;
    append(&journal, creation(&b)).await;
    let mut note = rests(&a, 1, None);
    note.rest.spec = None;
    assert_eq!(journal.rest(vec![note.clone()]).await, Ok(()));
    assert_eq!(journal.prune(vec![(a.clone(), Position(1))]).await, Ok(vec![1]));
    for which in [Select::All, due(i64::MAX)] {
        assert_eq!(names(&journal, &which).await, ["b"], "{which:?}");
    }
    assert_eq!(names(&journal, &Select::Ended).await, Vec::<String>::new());
    assert_eq!(journal.last_of(a.clone()).await, Ok(None));
    assert_eq!(journal.rest(vec![note]).await, Ok(()), "it is skipped");
    assert_eq!(journal.last_of(a.clone()).await, Ok(None));
    append(&journal, creation(&a)).await;
    assert_eq!(names(&journal, &due(0)).await, ["a", "b"], "another life of the same name");
}

/// See its name.
pub async fn a_closed_journal_says_so(journal: Subject) {
    let entity = session("a");
    append(&journal, creation(&entity)).await;
    assert_eq!(journal.health(), Health::Working);
    journal.close().await;
    journal.close().await;
    assert_eq!(journal.health(), Health::Closed);
    assert_eq!(refused(&journal, step(&entity, at(1), 1)).await, Error::Closed);
    assert_eq!(journal.read(Position(0), 1).await, Err(Error::Closed));
    assert_eq!(journal.read_entity(entity, Position(0), 1).await, Err(Error::Closed));
    assert_eq!(journal.read_by_entity(None, 1).await, Err(Error::Closed));
    let dispatch = DispatchId::from_bytes([7; 16]);
    assert_eq!(journal.find_dispatch(dispatch).await, Err(Error::Closed));
    assert_eq!(journal.recording(dispatch, 1).await, Err(Error::Closed));
    assert_eq!(journal.snapshot(session("a")).await, Err(Error::Closed));
    assert_eq!(journal.prune(Vec::new()).await, Err(Error::Closed));
    assert_eq!(journal.last().await, Err(Error::Closed));
    assert_eq!(journal.last_of(session("a")).await, Err(Error::Closed));
    assert_eq!(journal.rest(Vec::new()).await, Err(Error::Closed));
    assert_eq!(journal.select(Select::All, None, 1).await, Err(Error::Closed));
}
