//! Opening, locking, closing, crashing, a full disk: what becomes of the file.

#![allow(clippy::disallowed_methods, reason = "tests may panic without a thread")]

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sandglass_journal::conformance::{
    at, batch, creation, dispatched, ended, recording, session, signal, step,
};
use sandglass_journal::{
    Error, FORMAT, Health, Journal, Select, Settings, SqliteJournal, SqliteReader,
};
use sandglass_model::{
    CallPlace, DispatchId, EndPoint, Event, Position, RulesVersion, SpecDigest, WallTime,
};

use crate::scratch::{Scratch, append_five, shared};

fn places(page: &sandglass_journal::Page) -> Vec<u64> {
    page.entries.iter().map(|entry| entry.position().0).collect()
}

#[tokio::test]
async fn an_answered_append_survives_a_crash() {
    let scratch = Scratch::new();
    let opened = scratch.open().expect("a new file");
    append_five(&opened.journal).await;
    drop(opened);
    let journal = shared(scratch.open().expect("the same file"));
    assert_eq!(journal.last().await, Ok(Position(5)));
    let next = journal.append(step(&session("a"), at(5), 4)).await.expect("goes on");
    assert_eq!(next.first, Position(6));
}

#[tokio::test]
async fn calls_before_the_close_are_finished() {
    let scratch = Scratch::new();
    let journal = shared(scratch.open().expect("a new file"));
    let asked = (0..50).map(|number| {
        let (journal, entity) = (journal.clone(), session(&number.to_string()));
        tokio::spawn(async move { journal.append(creation(&entity)).await })
    });
    let asked: Vec<_> = asked.collect();
    tokio::task::yield_now().await;
    journal.close().await;
    let mut kept = 0;
    for answer in asked {
        match answer.await.expect("no panic") {
            Ok(_) => kept += 1,
            Err(error) => assert_eq!(error, Error::Closed),
        }
    }
    assert_eq!(scratch.all().expect("readable").entries.len(), kept);
    for beside in ["journal.db-wal", "journal.db-shm"] {
        assert!(!scratch.path().join(beside).exists(), "one file is the whole journal");
    }
}

#[tokio::test]
async fn a_second_writer_is_refused_with_advice() {
    let scratch = Scratch::new();
    let first = scratch.open().expect("a new file");
    let error = scratch.open().expect_err("it is in use");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(error.to_string().contains("stop that process"), "{error}");
    first.journal.close().await;
    scratch.open().expect("the first has let go");
}

#[tokio::test]
async fn reads_beside_a_writer_and_after_its_crash_without_a_change() {
    let scratch = Scratch::new();
    let opened = scratch.open().expect("a new file");
    append_five(&opened.journal).await;
    assert_eq!(places(&scratch.all().expect("readable")), [1, 2, 3, 4, 5]);

    // As a kill leaves it: the log is not moved into the file.
    let crashed = Scratch::new();
    for name in ["journal.db", "journal.db-wal"] {
        fs::copy(scratch.path().join(name), crashed.path().join(name)).expect("copied");
    }
    let bytes = |name: &str| fs::read(crashed.path().join(name)).expect("there");
    let before = (bytes("journal.db"), bytes("journal.db-wal"));
    assert_eq!(places(&crashed.all().expect("readable")), [1, 2, 3, 4, 5]);
    assert!(before == (bytes("journal.db"), bytes("journal.db-wal")), "reading changed it");
    assert!(!crashed.path().join("journal.db.lock").exists());
    shared(crashed.open().expect("recovered"));
}

#[tokio::test]
async fn a_reader_notices_a_writer_that_comes_later() {
    let scratch = Scratch::with_five_records().await;
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    assert_eq!(reader.last(), Ok(Position(5)));
    let journal = shared(scratch.open().expect("whole"));
    journal.append(step(&session("a"), at(5), 4)).await.expect("appended");
    assert_eq!(reader.last(), Ok(Position(6)));
    assert_eq!(reader.read(Position(6), 1).expect("readable").entries.len(), 1);
}

#[tokio::test]
async fn reads_a_journal_of_an_odd_name() {
    let scratch = Scratch::with_five_records().await;
    let odd = scratch.path().join("a?b#c%20 é.db");
    fs::rename(scratch.journal(), &odd).expect("renamed");
    let mut reader = SqliteJournal::open_read_only(&odd).expect("readable");
    assert_eq!(reader.last(), Ok(Position(5)));
}

#[test]
fn refuses_a_file_that_is_not_a_journal_and_does_not_change_it() {
    let scratch = Scratch::new();
    let other = rusqlite::Connection::open(scratch.path().join("other.db")).expect("created");
    other.execute_batch("CREATE TABLE theirs (x); INSERT INTO theirs VALUES (1);").expect("valid");
    drop(other);
    let database = fs::read(scratch.path().join("other.db")).expect("there");
    let noise: Vec<u8> =
        (0..5_000_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0]).collect();
    let foreign: [&[u8]; 6] =
        [b"name = \"a text file\"\n", b"S", b"SQLite format 3\0", &noise, &[0; 8192], &database];
    for bytes in foreign {
        fs::write(scratch.journal(), bytes).expect("written");
        let opening = scratch.open().expect_err("foreign");
        assert!(matches!(opening, Error::Foreign { .. }), "{opening:?}");
        let reading = scratch.all().expect_err("foreign");
        assert!(matches!(reading, Error::Foreign { .. }), "{reading:?}");
        assert!(fs::read(scratch.journal()).expect("there") == bytes, "it was changed");
        let names = fs::read_dir(scratch.path()).expect("there").count();
        assert_eq!(names, 2, "nothing was put beside it");
    }
}

#[test]
fn opens_an_empty_file_for_writing_but_not_for_reading() {
    let scratch = Scratch::new();
    let absent = scratch.all().expect_err("absent");
    assert!(absent.to_string().contains("no such file"), "{absent}");
    fs::write(scratch.journal(), b"").expect("written");
    let empty = scratch.all().expect_err("empty");
    assert!(matches!(empty, Error::Foreign { .. }), "{empty:?}");
    shared(scratch.open().expect("taken"));
    assert_eq!(scratch.all().expect("a journal now").entries, []);
    let folder = SqliteJournal::open(scratch.path(), Settings::default()).expect_err("a folder");
    assert!(matches!(folder, Error::Foreign { .. }), "{folder:?}");
    let nowhere = scratch.path().join("absent/journal.db");
    let error = SqliteJournal::open(nowhere, Settings::default()).expect_err("no folder");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_new_journal_replaces_an_empty_file_atomically() {
    use std::os::unix::fs::PermissionsExt as _;

    let scratch = Scratch::new();
    fs::write(scratch.journal(), "").expect("written");
    let private = fs::Permissions::from_mode(0o600);
    fs::set_permissions(scratch.journal(), private).expect("set");
    let opened = scratch.open().expect("made");
    let made = fs::metadata(scratch.journal()).expect("there");
    assert!(made.len() > 0 && made.permissions().mode() & 0o777 == 0o600, "{made:?}");
    let header = fs::read(scratch.journal()).expect("there");
    // As SQLite notes it: written through a log from the first moment on.
    assert_eq!(header[18..20], [2, 2]);
    opened.journal.close().await;
    let mut names: Vec<_> = fs::read_dir(scratch.path())
        .expect("there")
        .map(|entry| entry.expect("readable").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["journal.db", "journal.db.lock"], "nothing else is left");
}

#[tokio::test]
async fn refuses_a_newer_format_and_leaves_it_alone() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql(&format!("PRAGMA user_version = {}", FORMAT + 1));
    let newer = Error::Newer { path: scratch.journal(), found: FORMAT + 1, supported: FORMAT };
    assert_eq!(scratch.open().expect_err("newer"), newer);
    assert_eq!(scratch.all().expect_err("newer"), newer);
    scratch.sql(&format!("PRAGMA user_version = {FORMAT}"));
    assert_eq!(places(&scratch.all().expect("unchanged")), [1, 2, 3, 4, 5]);
}

/// What takes a journal back to the format before.
const BACK_TO_5: &str = "DROP TABLE entities; PRAGMA user_version = 5;";
const BACK_TO_4: &str = "PRAGMA user_version = 4;";
const BACK_TO_3: &str = "ALTER TABLE head DROP COLUMN before; DROP INDEX dispatches_by_id; \
    CREATE INDEX dispatches_by_id \
        ON records (iif(json_valid(body), unhex(substr(body ->> '$.dispatch', 1, 12)), NULL)) \
        WHERE kind = 'dispatched'; \
    PRAGMA user_version = 3;";
const BACK_TO_2: &str = "DROP TABLE recordings; DROP TABLE snapshots; DROP TABLE pruned; DROP VIEW endings; \
    CREATE VIEW endings AS SELECT position FROM log WHERE kind = 'ended'; \
    DROP INDEX dispatches_by_id; \
    CREATE INDEX records_of_dispatch \
        ON records (iif(json_valid(body), body ->> '$.dispatch', NULL)) WHERE kind = 'dispatched'; \
    CREATE UNIQUE INDEX steps_of_entity ON records (entity_type, entity_id, sequence) \
        WHERE kind IN ('created', 'transition'); \
    PRAGMA user_version = 2;";
const BACK_TO_1: &str = "DROP INDEX records_of_dispatch; PRAGMA user_version = 1;";

#[tokio::test]
async fn an_earlier_format_is_read_as_it_is_and_upgraded_when_it_is_written() {
    let dispatch = DispatchId::from_bytes([7; 16]);
    let back = [BACK_TO_5, BACK_TO_4, BACK_TO_3, BACK_TO_2, BACK_TO_1];
    for format in 1..FORMAT {
        let back = back[..(FORMAT - format) as usize].concat();
        let scratch = Scratch::with_five_records().await;
        let journal = shared(scratch.open().expect("a journal"));
        let asked = batch(&session("a"), at(5), vec![(3, dispatched(dispatch, 1))]);
        journal.append(asked).await.expect("it follows");
        journal.close().await;
        scratch.sql(&back);
        let found = Ok(Some((session("a"), Position(6))));

        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        assert_eq!(reader.find_dispatch(dispatch), found, "without an index, too");
        assert_eq!(reader.recording(dispatch, 1), Ok(None));
        let plan = scratch.plan_of_find_dispatch();
        let by_id = Some("dispatches_by_id");
        let index = [None, Some("records_of_dispatch"), None, by_id, by_id];
        let index = index[format as usize - 1];
        assert!(index.is_none_or(|index| plan.contains(index)), "format {format}: {plan}");
        backed_up(&mut reader, &scratch);
        drop(reader);

        let journal = shared(scratch.open().expect("the same journal"));
        assert_eq!(journal.find_dispatch(dispatch).await, found);
        let end = batch(&session("a"), at(6), vec![(3, ended(dispatch, 1))]);
        let end = end.with_recordings(vec![recording(dispatch, 1, 5)]);
        let due = Select::Due { until: WallTime::default() };
        let awake = journal.select(due, None, 10).await.expect("readable").entries;
        assert_eq!(awake.len(), 1, "all entities of an upgraded journal are awake: {awake:?}");
        journal.append(end).await.expect("goes on");
        assert_eq!(journal.recording(dispatch, 1).await, Ok(Some(vec![0xff; 5])));
        journal.close().await;
        assert!(scratch.plan_of_find_dispatch().contains("dispatches_by_id"), "by the index");
        shared(scratch.open().expect("once is enough"));
        let views = "SELECT outcome, action FROM endings; SELECT budget_ms FROM dispatches";
        scratch.sql(views);
    }
}

/// A backup of an earlier format keeps it.
fn backed_up(reader: &mut SqliteReader, scratch: &Scratch) {
    let to = scratch.path().join("backup.db");
    let made = reader.back_up(&to, |_| ControlFlow::Continue(())).expect("whole");
    assert_eq!(made.expect("not ended").last, Position(6));
}

#[tokio::test]
async fn a_body_that_is_not_json_is_set_aside_although_an_index_reads_it() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("UPDATE records SET kind = 'dispatched', body = '{' WHERE position = 5");
    let opened = scratch.open().expect("its last record is torn");
    assert_eq!(opened.recovered.len(), 1, "{:?}", opened.recovered);
}

#[tokio::test]
async fn a_full_disk_refuses_appends_until_there_is_space_and_loses_nothing() {
    let scratch = Scratch::new();
    let settings = Settings::default().max_bytes(1 << 20);
    let journal = SqliteJournal::open(scratch.journal(), settings).expect("a new file").journal;
    let entity = session("a");
    journal.append(creation(&entity)).await.expect("there is room");
    let large =
        |last, sequence| batch(&entity, at(last), vec![(sequence, signal("x".repeat(2 << 20)))]);
    let error = journal.append(large(1, 0)).await.expect_err("no room");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    assert!(matches!(journal.health(), Health::Failing { .. }));

    journal.append(step(&entity, at(1), 1)).await.expect("a small one still has room");
    assert_eq!(journal.health(), Health::Working);
    journal.close().await;
    let roomier = shared(scratch.open().expect("whole"));
    roomier.append(large(2, 1)).await.expect("there is room now");
    assert_eq!(roomier.last().await, Ok(Position(3)));
}

#[tokio::test]
async fn people_can_read_it_with_sql() {
    let scratch = Scratch::with_five_records().await;
    let connection = rusqlite::Connection::open(scratch.journal()).expect("a SQLite file");
    let read: (String, String, String) = connection
        .query_row("SELECT at, entity, action FROM transitions WHERE sequence = 2", [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })
        .expect("the view is there");
    assert_eq!(read, ("2023-11-14T22:13:20.123Z".into(), "Session/a".into(), "Go".into()));
}

#[tokio::test]
async fn people_can_read_how_a_handler_ended_with_sql() {
    let scratch = Scratch::with_five_records().await;
    let journal = shared(scratch.open().expect("a journal"));
    let dispatch = DispatchId::from_bytes([7; 16]);
    let mut end = ended(dispatch, 1);
    if let Event::Ended(ended) = &mut end {
        ended.started_at = Some(WallTime::from_millis(1_700_000_000_123));
        ended.deadline_at = Some(WallTime::from_millis(1_700_000_001_123));
        ended.ended_at = Some(EndPoint { place: CallPlace::Inside, call: 3 });
        ended.dying_span = Some("host_http_call".to_owned());
    }
    let records = vec![(3, dispatched(dispatch, 1)), (3, end)];
    let batch = batch(&session("a"), at(5), records);
    journal.append(batch).await.expect("it follows");
    journal.close().await;
    let connection = rusqlite::Connection::open(scratch.journal()).expect("a SQLite file");
    let read: String = connection
        .query_row(
            "SELECT concat_ws(' ', expected, integration, substr(spec, 1, 4), started_at, \
             deadline_at, ended_place, ended_call, dying_span, outcome, cause) \
             FROM dispatches JOIN endings USING (dispatch, attempt)",
            [],
            |row| row.get(0),
        )
        .expect("the views are there");
    let spec = &SpecDigest::of("spec", RulesVersion::CURRENT).to_string()[..4];
    let expected = format!(
        "0 run_tools {spec} 2023-11-14T22:13:20.123Z 2023-11-14T22:13:21.123Z inside 3 \
         host_http_call interrupted host_lost"
    );
    assert_eq!(read, expected);
}

#[tokio::test]
async fn no_reader_beside_a_busy_writer_takes_its_log_for_damaged() {
    let scratch = Scratch::new();
    let journal = shared(scratch.open().expect("a new file"));
    let path = scratch.journal();
    let writing = Arc::new(AtomicBool::new(true));
    let reading = std::thread::spawn({
        let writing = Arc::clone(&writing);
        move || {
            let mut looks = 0;
            while writing.load(Ordering::Relaxed) {
                SqliteJournal::open_read_only(&path).expect("it is whole");
                looks += 1;
            }
            looks
        }
    });
    // Past the size at which the log is begun anew, several times.
    for number in 0..1500 {
        let entity = session(&format!("{number}"));
        journal.append(creation(&entity)).await.expect("new");
    }
    writing.store(false, Ordering::Relaxed);
    assert!(reading.join().expect("no look found damage") > 10);
}
