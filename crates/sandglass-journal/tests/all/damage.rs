//! What was changed behind the journal's back, cut off or lost.

use std::fs;
use std::ops::ControlFlow;

use sandglass_journal::conformance::{at, session, step};
use sandglass_journal::{Entry, Error, Found, Journal, Opened, Salvage, SqliteJournal};
use sandglass_model::Position;

use crate::scratch::{Scratch, append_five};

/// Positions of the records that are whole, and of those that aren't.
fn read(scratch: &Scratch) -> (Vec<u64>, Vec<u64>) {
    let page = scratch.all().expect("the file itself is sound");
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for entry in page.entries {
        match entry {
            Entry::Record(record) => whole.push(record.position.0),
            Entry::Damaged { position, .. } => damaged.push(position.0),
            Entry::Pruned { .. } => {}
            Entry::Missing { first, last } => damaged.extend(first.0..=last.0),
        }
    }
    (whole, damaged)
}

const EDITS: [&str; 8] = [
    "body = replace(body, 'Go', 'No')",
    "body = '{'",
    "at_ms = at_ms + 1",
    "entity_id = 'b'",
    "sequence = 77",
    "kind = 'signal'",
    "checksum = x'00'",
    "batch = batch + 1",
];

#[tokio::test]
async fn every_edit_of_a_record_shows_and_the_rest_stays_readable() {
    for edit in EDITS {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(&format!("UPDATE records SET {edit} WHERE position = 2"));
        assert_eq!(read(&scratch), (vec![1, 3, 4, 5], vec![2]), "{edit}");
        let error = scratch.open().expect_err("damage that is not at the end");
        assert!(matches!(&error, Error::Damaged { place, .. } if place.contains("position 2")));
        assert_eq!(read(&scratch).1, [2], "refusing changed it: {edit}");
    }
}

#[tokio::test]
async fn missing_records_show() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("DELETE FROM records WHERE position IN (2, 3)");
    assert_eq!(read(&scratch), (vec![1, 4, 5], vec![2, 3]));
    assert!(matches!(scratch.open(), Err(Error::Damaged { .. })));
    scratch.sql("UPDATE records SET position = 9 WHERE position = 4");
    assert!(matches!(scratch.all(), Err(Error::Damaged { .. })), "behind the end");
    scratch.sql("UPDATE head SET position = 9");
    assert_eq!(read(&scratch), (vec![1, 5], vec![2, 3, 4, 6, 7, 8, 9]));
    let first = Scratch::with_five_records().await;
    first.sql("UPDATE records SET position = 0 WHERE position = 1");
    assert_eq!(read(&first), (vec![2, 3, 4, 5], vec![1]));
}

async fn recovered(scratch: &Scratch) -> (Vec<u64>, Position) {
    let Opened { journal, recovered } = scratch.open().expect("torn only at the end");
    let torn = recovered.iter().map(|torn| torn.position.0).collect();
    let last = journal.last().await.expect("readable");
    let sequence = if last == Position(4) { 3 } else { 2 };
    let next = journal.append(step(&session("a"), at(last.0), sequence)).await.expect("goes on");
    assert_eq!(next.first.0, last.0 + 1);
    journal.close().await;
    assert_eq!(read(scratch).1, [0; 0], "all of it is whole again");
    assert_eq!(scratch.open().expect("whole").recovered, [], "reported once");
    (torn, last)
}

#[tokio::test]
async fn a_torn_last_record_is_set_aside_and_appends_go_on() {
    for edit in EDITS {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(&format!("UPDATE records SET {edit} WHERE position = 5"));
        assert_eq!(read(&scratch), (vec![1, 2, 3, 4], vec![5]), "{edit}");
        assert_eq!(recovered(&scratch).await, (vec![5], Position(4)), "{edit}");
        let connection = rusqlite::Connection::open(scratch.journal()).expect("a SQLite file");
        let kept: i64 = connection
            .query_row("SELECT count(body) FROM torn_records WHERE position = 5", [], |row| {
                row.get(0)
            })
            .expect("the table is there");
        assert_eq!(kept, 1, "what was left of it is kept: {edit}");
    }
}

#[tokio::test]
async fn a_lost_last_record_is_noticed() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("DELETE FROM records WHERE position = 5");
    assert_eq!(read(&scratch), (vec![1, 2, 3, 4], vec![5]));
    assert_eq!(recovered(&scratch).await, (vec![5], Position(4)));
}

#[tokio::test]
async fn more_than_one_write_can_tear_is_no_torn_end() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("UPDATE head SET position = 1000000");
    let refused = scratch.open();
    assert!(matches!(refused, Err(Error::Damaged { .. })), "{refused:?}");
    scratch.sql("UPDATE head SET position = 5");
    assert_eq!(scratch.open().expect("nothing was changed").recovered, []);
}

#[tokio::test]
async fn records_before_the_last_write_are_never_set_aside() {
    for loss in [
        "DELETE FROM records WHERE position > 3",
        "DELETE FROM records WHERE position > 1",
        "UPDATE records SET body = 'x' WHERE position >= 4",
        "DELETE FROM records WHERE position = 4; DELETE FROM records WHERE position = 5",
    ] {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(loss);
        let before = read(&scratch);
        let refused = scratch.open();
        assert!(
            matches!(&refused, Err(Error::Damaged { what, .. }) if what.contains("last write")),
            "{loss}: {refused:?}"
        );
        assert_eq!(read(&scratch), before, "refusing changed it: {loss}");
    }
}

#[tokio::test]
async fn records_behind_the_last_used_position_are_damage() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("UPDATE head SET before = 2, position = 4");
    let is_reported =
        |error: &Error| matches!(error, Error::Damaged { what, .. } if what.contains("position 4"));
    let refused = scratch.open().expect_err("one would be written over");
    assert!(is_reported(&refused), "{refused:?}");
    assert!(scratch.all().is_err_and(|error| is_reported(&error)));
    let mut salvage = Salvage::open(scratch.journal(), None, Position(1)).expect("readable");
    let (mut records, mut gaps) = (0, Vec::new());
    while let Some(page) = salvage.page().expect("readable") {
        for found in page {
            match found {
                Found::Unreadable { what, .. } => gaps.push(what),
                _ => records += 1,
            }
        }
    }
    assert_eq!(records, 5, "all are had");
    assert!(gaps.len() == 1 && gaps[0].contains("position 4"), "{gaps:?}");
}

#[tokio::test]
async fn a_lost_index_is_made_again_and_no_backup_goes_without() {
    for index in ["records_of_entity", "dispatches_by_id", "snapshots_by_position"] {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(&format!("DROP INDEX {index}"));
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        let to = scratch.path().join("backup.db");
        let refused = reader.back_up(&to, |_| ControlFlow::Continue(()));
        assert!(refused.is_err_and(|error| error.to_string().contains(index)), "{index}");
        drop(reader);
        assert_eq!(scratch.open().expect("nothing else is lost").recovered, []);
        let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
        let made = reader.back_up(&to, |_| ControlFlow::Continue(())).expect("all of it is there");
        assert_eq!(made.map(|made| made.last), Some(Position(5)), "{index}");
    }
}

#[tokio::test]
async fn an_index_that_misses_a_record_is_reported_when_it_is_read() {
    let scratch = Scratch::with_five_records().await;
    // Behind the back of the index, which is there again afterwards.
    scratch.sql(
        "CREATE TABLE kept AS SELECT * FROM records WHERE position = 2; \
         DELETE FROM records WHERE position = 2; \
         CREATE TABLE schema AS SELECT * FROM sqlite_schema WHERE name = 'records_of_entity'; \
         PRAGMA writable_schema = ON; \
         DELETE FROM sqlite_schema WHERE name = 'records_of_entity'",
    );
    scratch.sql(
        "INSERT INTO records SELECT * FROM kept; PRAGMA writable_schema = ON; \
         INSERT INTO sqlite_schema SELECT * FROM schema",
    );
    assert_eq!(read(&scratch), (vec![1, 2, 3, 4, 5], vec![]));
    let mut salvage =
        Salvage::open(scratch.journal(), Some(session("a")), Position(1)).expect("readable");
    let first = salvage.page().expect("readable").expect("what the index has");
    assert_eq!(first.len(), 4);
    let page = salvage.page().expect("readable").expect("a page");
    assert!(
        matches!(&page[..], [Found::Unreadable { what, .. }] if what.contains("4 entries for 5")),
        "{page:?}"
    );
    assert!(scratch.open().is_err(), "who would write it is refused");
}

#[tokio::test]
async fn a_batch_that_lost_its_end_is_removed_completely() {
    let scratch = Scratch::with_five_records().await;
    // One write of two batches.
    scratch.sql(
        "DELETE FROM records WHERE position = 5; \
         UPDATE records SET body = 'x' WHERE position = 4; UPDATE head SET before = 2",
    );
    assert_eq!(recovered(&scratch).await, (vec![3, 4, 5], Position(2)));

    let unnoticed = Scratch::with_five_records().await;
    unnoticed
        .sql("DELETE FROM records WHERE position > 3; UPDATE head SET before = 2, position = 3");
    assert_eq!(recovered(&unnoticed).await, (vec![3], Position(2)));
}

#[tokio::test]
async fn a_journal_cut_off_anywhere_is_refused_and_not_changed() {
    let scratch = Scratch::new();
    let opened = scratch.open().expect("a new file");
    append_five(&opened.journal).await;
    opened.journal.close().await;
    let whole = fs::read(scratch.journal()).expect("there");
    let mut cuts: Vec<usize> = (1..whole.len()).step_by(4096).collect();
    cuts.extend((4096..whole.len()).step_by(4096));
    cuts.extend([10, 50, 99, 100, 101, whole.len() - 1]);
    for cut in cuts {
        fs::write(scratch.journal(), &whole[..cut]).expect("written");
        match scratch.open() {
            // What was cut off held nothing.
            Ok(_) => assert_eq!(read(&scratch), (vec![1, 2, 3, 4, 5], vec![]), "cut at {cut}"),
            Err(Error::Damaged { .. } | Error::Foreign { .. }) => {
                assert!(
                    fs::read(scratch.journal()).expect("there") == whole[..cut],
                    "cut at {cut}"
                );
            }
            Err(other) => panic!("cut at {cut}: {other:?}"),
        }
        if let Err(reading) = scratch.all() {
            assert!(
                matches!(reading, Error::Damaged { .. } | Error::Foreign { .. }),
                "cut at {cut}: {reading:?}"
            );
        }
    }
}

#[tokio::test]
async fn any_byte_may_be_wrong_without_a_panic() {
    let scratch = Scratch::with_five_records().await;
    let whole = fs::read(scratch.journal()).expect("there");
    for at in (0..whole.len()).step_by(97) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x5a;
        fs::write(scratch.journal(), &bytes).expect("written");
        if let Ok(page) = scratch.all() {
            for entry in page.entries {
                // Whatever reads as a record is one that was written.
                assert!(entry.position() <= Position(6), "byte {at}: {entry:?}");
            }
        }
        // Opened, or refused: either is an answer.
        drop(scratch.open());
    }
}

#[tokio::test]
async fn an_emptied_journal_beside_its_log_is_not_a_new_journal() {
    let scratch = Scratch::new();
    let opened = scratch.open().expect("a new file");
    append_five(&opened.journal).await;
    let crashed = Scratch::new();
    let log = crashed.path().join("journal.db-wal");
    fs::copy(scratch.path().join("journal.db-wal"), &log).expect("copied");
    let error = crashed.open().expect_err("SQLite would drop the log");
    assert!(matches!(error, Error::Damaged { .. }), "{error:?}");
    assert!(log.exists());
}

/// A journal of five records as a kill leaves it, all of it in its log, which
/// `change` has gone through.
async fn crashed(change: impl FnOnce(&mut Vec<u8>)) -> Scratch {
    let writing = Scratch::new();
    let opened = writing.open().expect("a new file");
    append_five(&opened.journal).await;
    let crashed = Scratch::new();
    fs::copy(writing.journal(), crashed.journal()).expect("copied");
    let mut log = fs::read(writing.path().join("journal.db-wal")).expect("there");
    change(&mut log);
    fs::write(crashed.path().join("journal.db-wal"), log).expect("written");
    crashed
}

const FRAME: usize = 24 + 4096;

#[tokio::test]
async fn a_log_that_ends_in_the_middle_of_a_write_is_recovered_and_reported() {
    for cut in [1, 100, FRAME, FRAME + 1] {
        let scratch = crashed(|log| log.truncate(log.len() - cut)).await;
        let kept = fs::read(scratch.path().join("journal.db-wal")).expect("there");
        assert_eq!(recovered(&scratch).await, (vec![5], Position(4)), "cut by {cut}");
        let copy = fs::read(scratch.path().join("journal.db-wal.torn")).expect("kept");
        assert!(copy == kept, "cut by {cut}");
    }
    let flipped = crashed(|log| *log.last_mut().expect("there") ^= 1).await;
    assert_eq!(recovered(&flipped).await, (vec![5], Position(4)));
    let whole = crashed(|_| {}).await;
    assert_eq!(whole.open().expect("whole").recovered, []);
    assert!(!whole.path().join("journal.db-wal.torn").exists());
}

#[tokio::test]
async fn a_log_that_is_wrong_before_finished_writes_is_refused_and_not_changed() {
    for at in [0, 9, 17, 30, 32 + FRAME * 3, 32 + 8, 32 + 15, 32 + FRAME + 11] {
        let scratch = crashed(|log| log[at] ^= 1).await;
        let log = scratch.path().join("journal.db-wal");
        let before = fs::read(&log).expect("there");
        let opening = scratch.open().expect_err("SQLite would drop what was answered");
        assert!(matches!(opening, Error::Damaged { .. }), "byte {at}: {opening:?}");
        let reading = scratch.all().expect_err("so would it here");
        assert!(matches!(reading, Error::Damaged { .. }), "byte {at}: {reading:?}");
        assert!(fs::read(&log).expect("there") == before, "byte {at}");
    }
}

/// Where the write of each frame of a log begins and ends.
fn writes(log: &[u8]) -> Vec<std::ops::Range<usize>> {
    let mut writes = Vec::new();
    let mut begin = 0;
    for (number, frame) in log[32..].chunks(FRAME).enumerate() {
        if frame[4..8] != [0; 4] {
            writes.push(begin..number + 1);
            begin = number + 1;
        }
    }
    writes
}

#[tokio::test]
async fn a_frame_without_its_header_hides_no_finished_writes_behind_it() {
    let mut frames = Vec::new();
    drop(crashed(|log| frames = writes(log)).await);
    let last = frames.pop().expect("a write");
    assert!(frames.len() >= 3, "{frames:?}");
    for lost in 0..last.end {
        for zeros in [0..24, 8..16, 0..FRAME] {
            let at = 32 + lost * FRAME;
            let scratch = crashed(|log| log[at + zeros.start..at + zeros.end].fill(0)).await;
            let opened = scratch.open();
            if last.contains(&lost) {
                let recovered = opened.expect("the last write alone is torn").recovered;
                let torn: Vec<_> = recovered.iter().map(|torn| torn.position.0).collect();
                assert_eq!(torn, [5], "frame {lost}, bytes {zeros:?}");
                assert!(scratch.path().join("journal.db-wal.torn").exists());
            } else {
                assert!(
                    matches!(&opened, Err(Error::Damaged { place, .. }) if place.contains("-wal")),
                    "frame {lost}, bytes {zeros:?}: {opened:?}"
                );
                let message = opened.expect_err("it is damaged").to_string();
                assert!(message.starts_with("journal `"), "frame {lost}: {message}");
                assert!(message.contains("` is damaged: "), "frame {lost}: {message}");
                assert!(scratch.all().is_err(), "frame {lost}, bytes {zeros:?}");
            }
        }
    }
}

#[tokio::test]
async fn frames_of_an_earlier_generation_of_the_log_are_not_damage() {
    let writing = Scratch::new();
    let opened = writing.open().expect("a new file");
    append_five(&opened.journal).await;
    let checkpoint = rusqlite::Connection::open(writing.journal()).expect("a SQLite file");
    let taken_in = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let busy = checkpoint.query_row("PRAGMA wal_checkpoint(RESTART)", [], taken_in);
    assert_eq!(busy, Ok(0), "the next write begins the log anew");
    let log = writing.path().join("journal.db-wal");
    let before = fs::metadata(&log).expect("there").len();
    opened.journal.append(step(&session("a"), at(5), 4)).await.expect("it follows");
    assert_eq!(fs::metadata(&log).expect("there").len(), before, "written over what was there");
    assert_eq!(read(&writing), (vec![1, 2, 3, 4, 5, 6], vec![]));
    let crashed = Scratch::new();
    fs::copy(writing.journal(), crashed.journal()).expect("copied");
    fs::copy(&log, crashed.path().join("journal.db-wal")).expect("copied");
    assert_eq!(crashed.open().expect("whole").recovered, []);
}

#[tokio::test]
async fn a_refused_journal_is_not_changed_by_its_log_either() {
    let scratch = crashed(|_| {}).await;
    let log = scratch.path().join("journal.db-wal");
    // Cut off behind its header, and all of it still in the log.
    let file = fs::read(scratch.journal()).expect("there");
    fs::write(scratch.journal(), &file[..100]).expect("written");
    let before = fs::read(&log).expect("there");
    let refused = scratch.open().expect_err("pages are missing");
    assert!(matches!(refused, Error::Damaged { .. }), "{refused:?}");
    assert!(!refused.to_string().contains(char::is_control), "{refused}");
    assert!(fs::read(scratch.journal()).expect("there") == file[..100], "the log was taken in");
    assert!(fs::read(&log).expect("there") == before);
}

/// A rollback journal that would put zeros in the place of the first page
/// (<https://sqlite.org/fileformat2.html#the_rollback_journal>).
fn rollback() -> Vec<u8> {
    let mut bytes = vec![0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7];
    // Pages in it, of which the checksum begins with this, pages of the file, sizes.
    for number in [1_u32, 7, 1, 512, 4096] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.resize(512, 0);
    bytes.extend(1_u32.to_be_bytes());
    bytes.resize(bytes.len() + 4096, 0);
    bytes.extend(7_u32.to_be_bytes());
    bytes
}

#[tokio::test]
async fn nothing_is_rolled_back_into_a_journal() {
    let scratch = Scratch::with_five_records().await;
    let beside = scratch.path().join("journal.db-journal");
    fs::write(&beside, rollback()).expect("written");
    let before = fs::read(scratch.journal()).expect("there");
    let refused = scratch.open().expect_err("it would lose all of it");
    let place =
        |error: &Error| matches!(error, Error::Damaged { place, .. } if place.contains("-journal"));
    assert!(place(&refused), "{refused:?}");
    assert!(fs::read(scratch.journal()).expect("there") == before);
    assert!(fs::read(&beside).expect("there") == rollback());
    assert!(scratch.all().is_err_and(|error| place(&error)), "no reader passes over it either");
    let salvage = Salvage::open(scratch.journal(), None, Position(1));
    let found = salvage.and_then(|mut salvage| salvage.page()).expect("readable").expect("a page");
    assert_eq!(found.len(), 5, "all are exported");
    fs::remove_file(&beside).expect("there");
    assert_eq!(scratch.open().expect("whole").recovered, []);
}

#[tokio::test]
async fn pages_that_are_out_of_order_end_a_reader() {
    let scratch = crate::salvage::many().await;
    let whole = fs::read(scratch.journal()).expect("there");
    let mut refused = 0;
    for page in 1..whole.len() / 4096 {
        for other in 1..whole.len() / 4096 {
            let mut bytes = whole.clone();
            bytes.copy_within(page * 4096..(page + 1) * 4096, other * 4096);
            fs::write(scratch.journal(), &bytes).expect("written");
            let Ok(mut reader) = SqliteJournal::open_read_only(scratch.journal()) else { continue };
            let mut from = Some(Position(0));
            while let Some(start) = from {
                let Ok(page) = reader.read(start, 16) else {
                    refused += 1;
                    break;
                };
                assert!(page.next.is_none_or(|next| next > start), "{page:?}");
                from = page.next;
            }
        }
    }
    assert!(refused > 0, "no order was wrong");
}

#[tokio::test]
async fn no_reader_drops_the_log_of_a_file_that_is_cut_off() {
    for kept in [1, 50, 99, 100, 4096] {
        let scratch = crashed(|_| {}).await;
        let log = scratch.path().join("journal.db-wal");
        let file = fs::read(scratch.journal()).expect("there");
        fs::write(scratch.journal(), &file[..kept]).expect("written");
        let before = fs::read(&log).expect("there");
        drop(scratch.all());
        drop(Salvage::open(scratch.journal(), None, Position(1)));
        drop(scratch.open().expect_err("it is cut off"));
        assert!(fs::read(&log).is_ok_and(|log| log == before), "{kept} bytes are left");
        assert!(fs::read(scratch.journal()).expect("there") == file[..kept]);
    }
}

#[tokio::test]
async fn a_refused_opening_leaves_nothing_beside() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("DELETE FROM records WHERE position = 2");
    let names = || fs::read_dir(scratch.path()).expect("there").count();
    let before = names();
    drop(scratch.open().expect_err("a record is missing"));
    assert_eq!(names(), before);
}
