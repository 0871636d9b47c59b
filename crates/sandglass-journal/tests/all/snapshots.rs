//! Snapshots that were changed behind the journal's back, and those of a torn end.

use sandglass_journal::Snapshot;
use sandglass_journal::conformance::{at, session, step};
use sandglass_model::Position;

use crate::scratch::{Scratch, shared};

/// Positions 1 to 5 as they are there, and 6, with a snapshot; closed.
async fn with_a_snapshot() -> Scratch {
    let scratch = Scratch::with_five_records().await;
    let journal = shared(scratch.open().expect("a journal"));
    let step = step(&session("a"), at(5), 4).with_snapshot(Some("as it is".to_owned()));
    journal.append(step).await.expect("it follows");
    journal.close().await;
    scratch
}

#[tokio::test]
async fn a_snapshot_that_was_changed_is_passed_over_and_the_journal_is_whole() {
    let edits = [
        "body = 'as it was'",
        "body = zeroblob(10)",
        "body = hex(zeroblob(2000000))",
        "position = 5",
        "checksum = x'00'",
        "entity_id = 'b'",
    ];
    for edit in edits {
        let scratch = with_a_snapshot().await;
        // What SQLite itself refuses is no damage that can come to be so.
        let edited = scratch.try_sql(&format!("UPDATE snapshots SET {edit}"));
        let journal = shared(scratch.open().expect("its records are whole"));
        let kept = journal.snapshot(session("a")).await.expect("readable");
        assert_eq!(kept.is_none(), edited, "{edit}");
        assert_eq!(journal.snapshot(session("b")).await, Ok(None), "{edit}");
        let step = step(&session("a"), at(6), 5).with_snapshot(Some("again".to_owned()));
        journal.append(step).await.expect("one more");
        let kept = journal.snapshot(session("a")).await.expect("readable");
        assert_eq!(kept.map(|kept| kept.position), Some(Position(7)), "{edit}");
    }
}

#[tokio::test]
async fn a_snapshot_of_a_torn_end_goes_with_it() {
    let scratch = with_a_snapshot().await;
    let mut reader =
        sandglass_journal::SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    let kept = reader.snapshot_of(&session("a")).expect("readable");
    let (entity, body) = (session("a"), "as it is".to_owned());
    assert_eq!(kept, Some(Snapshot { entity, position: Position(6), body }));
    assert_eq!(reader.snapshots(Position(1), Position(5)), Ok(vec![]));
    assert_eq!(reader.snapshots(Position(6), Position(6)), Ok(vec![session("a")]));
    drop(reader);
    scratch.sql("UPDATE records SET at_ms = 1 WHERE position = 6");
    let opened = scratch.open().expect("torn only at the end");
    assert_eq!(opened.recovered.len(), 1);
    let mut reader =
        sandglass_journal::SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    assert_eq!(reader.snapshot_of(&session("a")), Ok(None));
}
