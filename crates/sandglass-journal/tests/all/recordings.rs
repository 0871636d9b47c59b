//! Recordings that were changed behind the journal's back, and those of a torn end.

use std::ops::ControlFlow;

use sandglass_journal::conformance::{at, batch, creation, ended, recording, session};
use sandglass_journal::{Error, Journal, SqliteJournal};
use sandglass_model::{DispatchId, Position};

use crate::scratch::{Scratch, shared};

const FIRST: DispatchId = DispatchId::from_bytes([1; 16]);
const LAST: DispatchId = DispatchId::from_bytes([2; 16]);

/// Positions 1 (created), 2 and 3 (ends of [`FIRST`] and [`LAST`], each recorded); closed.
async fn with_two_recordings() -> Scratch {
    let scratch = Scratch::new();
    let journal = shared(scratch.open().expect("a new file"));
    let entity = session("a");
    journal.append(creation(&entity)).await.expect("new");
    for (dispatch, last) in [(FIRST, 1), (LAST, 2)] {
        let end = batch(&entity, at(last), vec![(0, ended(dispatch, 1))]);
        let end = end.with_recordings(vec![recording(dispatch, 1, 10_000)]);
        journal.append(end).await.expect("it follows");
    }
    journal.close().await;
    scratch
}

#[tokio::test]
async fn a_file_with_the_index_by_whole_ids_is_read_and_gets_the_present_one() {
    // The table of entities is made again together with the indexes.
    for also in ["", "DROP TABLE entities;", "DROP INDEX snapshots_by_position;"] {
        let scratch = with_two_recordings().await;
        scratch.sql(&format!(
            "{also} DROP INDEX recordings_of_dispatch;
             CREATE UNIQUE INDEX recordings_of_dispatch ON recordings (dispatch, attempt)",
        ));
        let by_whole_ids = "USING INDEX recordings_of_dispatch (dispatch=? AND attempt=?)";
        let plan = scratch.plan_of_recording();
        assert!(plan.ends_with(by_whole_ids), "{plan}");
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        assert_eq!(reader.recording(FIRST, 1), Ok(Some(vec![0xff; 10_000])));
        drop(reader);
        let opened = scratch.open().expect("it is intact");
        assert_eq!(opened.recovered, []);
        let journal = opened.journal;
        assert_eq!(journal.recording(LAST, 1).await, Ok(Some(vec![0xff; 10_000])));
        let end = batch(&session("a"), at(3), vec![(0, ended(LAST, 1))]);
        let end = end.with_recordings(vec![recording(LAST, 1, 3)]);
        let again = journal.append(end).await.expect_err("it was recorded before");
        assert!(again.to_string().contains("recorded"), "{again}");
        journal.close().await;
        let plan = scratch.plan_of_recording();
        assert!(
            plan.contains("USING INDEX recordings_of_dispatch (<expr>=? AND <expr>=?"),
            "{plan}"
        );
    }
}

const EDITS: [&str; 7] = [
    "body = zeroblob(10000)",
    "body = zeroblob(100000000)",
    "dispatch = 'another'",
    "attempt = 2",
    "checksum = x'00'",
    "checksum = zeroblob(16)",
    "position = position + 100",
];

#[tokio::test]
async fn a_recording_that_was_changed_refuses_the_opening_and_is_not_backed_up() {
    for edit in EDITS {
        let scratch = with_two_recordings().await;
        scratch.sql(&format!("UPDATE recordings SET {edit} WHERE position = 2"));
        if !edit.starts_with("position") {
            let error = scratch.open().expect_err("damage that is not at the end");
            let message = error.to_string();
            assert!(matches!(error, Error::Damaged { .. }), "{edit}: {message}");
            assert!(
                message.contains("position 2") && message.contains("recording"),
                "{edit}: {message}"
            );
        }
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        let backup = reader.back_up(scratch.path().join("b.db"), |_| ControlFlow::Continue(()));
        assert!(matches!(backup, Err(Error::Damaged { .. })), "{edit}: {backup:?}");
        if !edit.starts_with("dispatch") && !edit.starts_with("attempt") {
            let read = reader.recording(FIRST, 1);
            assert!(matches!(read, Err(Error::Damaged { .. })), "{edit}: {read:?}");
        }
        assert_eq!(reader.recording(LAST, 1), Ok(Some(vec![0xff; 10_000])), "{edit}");
        assert_eq!(scratch.all().expect("readable").into_records().expect("whole").len(), 3);
    }
}

#[tokio::test]
async fn a_torn_recording_at_the_end_goes_with_its_batch_and_may_come_again() {
    for edit in EDITS {
        let scratch = with_two_recordings().await;
        scratch.sql(&format!("UPDATE recordings SET {edit} WHERE position = 3"));
        let opened = scratch.open().expect("torn only at the end");
        let torn: Vec<u64> = opened.recovered.iter().map(|torn| torn.position.0).collect();
        // One that stands elsewhere isn't missed where it stood.
        let last = if edit.starts_with("position") { Position(4) } else { Position(3) };
        assert_eq!(torn, [last.0], "{edit}");
        assert_eq!(opened.journal.recording(LAST, 1).await, Ok(None), "{edit}");
        let end = batch(&session("a"), at(last.0 - 1), vec![(0, ended(LAST, 1))]);
        let end = end.with_recordings(vec![recording(LAST, 1, 3)]);
        let again = opened.journal.append(end).await.expect("there is nothing of it");
        assert_eq!(again.last, last, "{edit}");
        opened.journal.close().await;
        assert_eq!(scratch.open().expect("whole").recovered, [], "reported once: {edit}");
        let kept: i64 = rusqlite::Connection::open(scratch.journal())
            .and_then(|file| {
                let sql = "SELECT count(body) FROM torn_records WHERE kind = 'recording'";
                file.query_row(sql, [], |row| row.get(0))
            })
            .expect("the table is there");
        assert_eq!(kept, 1, "{edit}");
    }
}
