//! The table of entities in a file, and the check of all of a file: what becomes of them after
//! damage and edits.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sandglass_journal::conformance::{
    at, batch, created, creation, ended, recording, session, signal, step,
};
use sandglass_journal::{
    Batch, CheckProgress, Checking, Error, Expected, Health, Journal, Rest, Resting, Select,
    Settings, SqliteJournal,
};
use sandglass_model::{
    DispatchId, Event, Position, Recorded, RulesVersion, Sequence, SpecDigest, WallTime,
};

use crate::scratch::Scratch;

/// A closed journal in which `a`, with its last record at 5, rests until 1,000; `b` has ended, with
/// its last record at 6; and `c`, with one at 7, is awake.
async fn with_entities() -> Scratch {
    let scratch = Scratch::with_five_records().await;
    let journal = scratch.open().expect("a journal").journal;
    journal.append(creation(&session("b"))).await.expect("new");
    journal.append(creation(&session("c"))).await.expect("new");
    let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
    let wake_at = Some(WallTime::from_millis(1_000));
    let rest = Rest { wake_at, spec, is_listed: false };
    let ended = Rest { wake_at: None, spec: None, is_listed: false };
    let notes = vec![
        Resting { entity: session("a"), last: Position(5), rest },
        Resting { entity: session("b"), last: Position(6), rest: ended },
    ];
    journal.rest(notes).await.expect("noted");
    journal.close().await;
    scratch
}

async fn names(journal: &SqliteJournal, which: Select) -> Vec<String> {
    let page = journal.select(which, None, 100).await.expect("readable");
    page.entries.into_iter().map(|entry| entry.entity.id().to_owned()).collect()
}

fn due(until: i64) -> Select {
    Select::Due { until: WallTime::from_millis(until) }
}

fn to_the_end() -> CheckProgress {
    Arc::new(|_| ControlFlow::Continue(()))
}

fn later() -> Settings {
    Settings::default().checking(Checking::Later)
}

#[tokio::test]
async fn what_rests_is_known_after_a_restart() {
    let scratch = with_entities().await;
    for settings in [Settings::default(), later()] {
        let journal = SqliteJournal::open(scratch.journal(), settings).expect("intact").journal;
        assert_eq!(names(&journal, due(999)).await, ["c"]);
        assert_eq!(names(&journal, due(1_000)).await, ["c", "a"]);
        assert_eq!(names(&journal, Select::Ended).await, ["b"]);
        assert_eq!(journal.check(&to_the_end()), Ok(Some(Position(7))));
        journal.close().await;
    }
}

#[tokio::test]
async fn a_lost_or_wrong_table_is_made_again_with_all_entities_awake() {
    let edits = [
        "DROP TABLE entities",
        "DELETE FROM entities WHERE entity_id = 'c'",
        "UPDATE entities SET wake_at = 2000 WHERE entity_id = 'a'",
        "UPDATE entities SET due = 2000 WHERE entity_id = 'a'",
        "UPDATE entities SET rests_at = 7, due = NULL WHERE entity_id = 'c'",
        "UPDATE entities SET due = NULL WHERE entity_id = 'c'",
        "UPDATE entities SET rests_at = NULL WHERE entity_id = 'a'",
        "UPDATE entities SET rests_at = 4 WHERE entity_id = 'a'",
        "UPDATE entities SET is_listed = 1 WHERE entity_id = 'a'",
        "UPDATE entities SET checksum = NULL WHERE entity_id = 'a'",
        "UPDATE entities SET spec = NULL WHERE entity_id = 'a'",
        "INSERT INTO entities (entity_type, entity_id) VALUES ('Session', 'd')",
    ];
    for edit in edits {
        let scratch = with_entities().await;
        scratch.sql(edit);
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        let found = reader.check(&to_the_end()).expect_err(edit).to_string();
        assert!(found.contains("its table of entities"), "{edit}: {found}");
        let journal = scratch.open().expect("the records are intact").journal;
        assert_eq!(names(&journal, due(0)).await, ["a", "b", "c"], "{edit}");
        assert_eq!(names(&journal, Select::All).await, ["a", "b", "c"], "{edit}");
        assert_eq!(journal.check(&to_the_end()), Ok(Some(Position(7))), "{edit}");
        journal.close().await;
    }
}

#[tokio::test]
async fn a_forged_row_ends_no_entity_and_delays_none() {
    let scratch = with_entities().await;
    scratch.sql("UPDATE entities SET spec = NULL, wake_at = 5 WHERE entity_id = 'a'");
    let journal =
        SqliteJournal::open(scratch.journal(), later()).expect("its end is whole").journal;
    let ended = journal.select(Select::Ended, None, 9).await.expect("readable").entries;
    let rests: Vec<_> = ended.iter().map(|entry| (entry.entity.id(), &entry.rest)).collect();
    assert!(matches!(rests[..], [("b", Some(_))]), "{rests:?}");
    let found = journal.last_of(session("a")).await.expect("readable").expect("it exists");
    assert_eq!((found.last.position, found.rest), (Position(5), None), "it counts as awake");
    journal.append(step(&session("a"), at(5), 4)).await.expect("it follows");
    assert_eq!(names(&journal, due(0)).await, ["a", "c"]);
}

#[tokio::test]
async fn entities_of_torn_records_are_awake_or_gone() {
    for settings in [Settings::default(), later()] {
        let scratch = Scratch::with_five_records().await;
        let journal = scratch.open().expect("a journal").journal;
        let spec = Some(SpecDigest::of("spec", RulesVersion::CURRENT));
        let rest = Rest { wake_at: None, spec, is_listed: false };
        let note = Resting { entity: session("a"), last: Position(5), rest };
        journal.rest(vec![note]).await.expect("noted");
        journal.close().await;
        scratch.sql("UPDATE records SET kind = 'x' WHERE position = 5");
        let opened = SqliteJournal::open(scratch.journal(), settings).expect("torn at the end");
        assert_eq!(opened.recovered.len(), 1);
        let found = opened.journal.last_of(session("a")).await.expect("readable");
        let found = found.expect("it exists");
        assert_eq!((found.last.position, found.rest), (Position(4), None));
        assert_eq!(names(&opened.journal, due(0)).await, ["a"]);
        let new = Batch::new(
            session("new"),
            Expected::None,
            WallTime::default(),
            vec![(Sequence(0), created()), (Sequence(0), signal("x"))],
        );
        opened.journal.append(new).await.expect("new");
        opened.journal.close().await;
        scratch.sql("DELETE FROM records WHERE position = 6");
        let opened = SqliteJournal::open(scratch.journal(), settings).expect("torn at the end");
        assert_eq!(opened.journal.last_of(session("new")).await, Ok(None));
        assert_eq!(names(&opened.journal, Select::All).await, ["a"]);
        assert_eq!(opened.journal.check(&to_the_end()), Ok(Some(Position(4))));
    }
}

#[tokio::test]
async fn a_check_finds_edited_snapshots_and_recordings() {
    for edit in [
        "UPDATE snapshots SET body = 'another'",
        "UPDATE snapshots SET position = 5",
        "UPDATE recordings SET body = x'00'",
        "UPDATE recordings SET position = 5",
        "UPDATE recordings SET attempt = 2",
        "DELETE FROM recordings",
    ] {
        let scratch = with_entities().await;
        let journal = scratch.open().expect("a journal").journal;
        let dispatch = DispatchId::from_bytes([7; 16]);
        let mut end = ended(dispatch, 1);
        if let Event::Ended(ended) = &mut end {
            ended.recording = Some(Recorded::Bytes(9));
        }
        let end = batch(&session("c"), at(7), vec![(0, end)]);
        let end = end.with_recordings(vec![recording(dispatch, 1, 9)]);
        journal.append(end.with_snapshot(Some("as it is".to_owned()))).await.expect("it follows");
        journal.close().await;
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        assert_eq!(reader.check(&to_the_end()), Ok(Some(Position(8))));
        drop(reader);
        scratch.sql(edit);
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        let found = reader.check(&to_the_end()).expect_err(edit).to_string();
        let at = if edit.contains("position") { "position 5" } else { "position 8" };
        assert!(found.contains(at), "{edit}: {found}");
    }
}

#[tokio::test]
async fn a_check_after_the_opening_finds_damage_and_the_health_states_it() {
    let scratch = with_entities().await;
    scratch.sql("UPDATE records SET at_ms = at_ms + 1 WHERE position = 2");
    assert!(matches!(scratch.open(), Err(Error::Damaged { .. })));
    let journal =
        SqliteJournal::open(scratch.journal(), later()).expect("its end is whole").journal;
    assert_eq!(journal.health(), Health::Working, "not known yet");
    let reached = Arc::new(AtomicU64::new(0));
    let progress: CheckProgress = {
        let reached = Arc::clone(&reached);
        Arc::new(move |position| {
            reached.fetch_max(position.0, Ordering::Relaxed);
            ControlFlow::Continue(())
        })
    };
    let found = journal.check(&progress).expect_err("damaged").to_string();
    assert!(found.contains("position 2 of"), "{found}");
    journal.append(creation(&session("d"))).await.expect("appends work");
    assert!(matches!(journal.health(), Health::Failing { what } if what.contains("position 2")));
    journal.close().await;

    let scratch = with_entities().await;
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    assert_eq!(reader.check(&progress), Ok(Some(Position(7))));
    assert_eq!(reached.load(Ordering::Relaxed), 7);
    let never: CheckProgress = Arc::new(|_| ControlFlow::Break(()));
    assert_eq!(reader.check(&never), Ok(None));
    scratch.sql("UPDATE records SET batch = 8 WHERE position = 7");
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    assert!(reader.check(&to_the_end()).is_err());
}
