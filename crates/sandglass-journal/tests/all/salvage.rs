//! What is read of a journal whose file can't be read in one piece.

use std::fs;

use sandglass_journal::conformance::{batch, creation, session, signal};
use sandglass_journal::{Entry, Expected, Found, Salvage};
use sandglass_model::{EntityRef, Position};

use crate::scratch::{Scratch, shared};

const RECORDS: u64 = 400;
const PAGE: usize = 4096;

/// A closed journal of so many records that it has many pages.
pub(crate) async fn many() -> Scratch {
    let scratch = Scratch::new();
    let journal = shared(scratch.open().expect("a new file"));
    let entity = session("a");
    let mut last = journal.append(creation(&entity)).await.expect("appended").last;
    let records = (1..RECORDS).map(|number| (0, signal(number))).collect::<Vec<_>>();
    for some in records.chunks(100) {
        let some = batch(&entity, Expected::At(last), some.to_vec());
        last = journal.append(some).await.expect("appended").last;
    }
    journal.close().await;
    scratch
}

fn salvaged(scratch: &Scratch, entity: Option<EntityRef>, from: u64) -> Vec<Found> {
    let salvage = Salvage::open(scratch.journal(), entity, Position(from));
    let mut salvage = salvage.expect("it says that it is a journal");
    let mut found = Vec::new();
    while let Some(page) = salvage.page().expect("the disk works") {
        found.extend(page);
    }
    found
}

/// The positions of the records, if every position is reported once and in order.
#[track_caller]
fn records(found: &[Found], from: u64, hint: &str) -> Vec<u64> {
    let (mut next, mut records) = (from, Vec::new());
    for one in found {
        let (first, last) = match one {
            Found::Entry(entry) => (entry.position().0, entry.position().0 + entry.places() - 1),
            Found::Unreadable { first, last: Some(last), .. } => (first.0, last.0),
            Found::Unreadable { first, last: None, .. } => (first.0, RECORDS.max(first.0)),
        };
        assert_eq!(first, next, "{hint}: {one:?}");
        next = last + 1;
        if let Found::Entry(Entry::Record(record)) = one {
            records.push(record.position.0);
        }
    }
    assert!(next > RECORDS, "{hint}: nothing is reported of {next}");
    records
}

#[tokio::test]
async fn an_intact_journal_is_read_completely() {
    let scratch = many().await;
    let all: Vec<u64> = (1..=RECORDS).collect();
    assert_eq!(records(&salvaged(&scratch, None, 0), 1, "all"), all);
    assert_eq!(records(&salvaged(&scratch, None, 300), 300, "from 300"), all[299..]);
    assert_eq!(records(&salvaged(&scratch, Some(session("a")), 1), 1, "of one"), all);
    assert_eq!(salvaged(&scratch, Some(session("b")), 1), []);
    assert_eq!(salvaged(&scratch, None, RECORDS + 1), []);
}

#[tokio::test]
async fn a_lost_page_costs_only_its_own_records() {
    let scratch = many().await;
    let whole = fs::read(scratch.journal()).expect("there");
    let (mut in_the_middle, mut harmless) = (0, 0);
    for page in 1..whole.len() / PAGE {
        let mut bytes = whole.clone();
        bytes[page * PAGE..(page + 1) * PAGE].fill(0xff);
        fs::write(scratch.journal(), &bytes).expect("written");
        let hint = format!("page {page}");
        let found = salvaged(&scratch, None, 1);
        let records = records(&found, 1, &hint);
        let lost = RECORDS - records.len() as u64;
        // Only the page above all others leaves nothing.
        assert!(lost == RECORDS || lost < 60, "{hint} cost {lost}");
        let is_between = records.first() == Some(&1) && records.last() == Some(&RECORDS);
        in_the_middle += u64::from(lost > 0 && is_between);
        harmless += u64::from(lost == 0);
        assert!(fs::read(scratch.journal()).expect("there") == bytes, "{hint}");
    }
    assert!(in_the_middle > 3, "{in_the_middle} pages between others");
    assert!(harmless > 3, "indexes are no records, and {harmless} pages were needless");
}

#[tokio::test]
async fn a_lost_index_loses_no_record_of_an_entity() {
    let scratch = many().await;
    let whole = fs::read(scratch.journal()).expect("there");
    for page in 1..whole.len() / PAGE {
        let mut bytes = whole.clone();
        bytes[page * PAGE..(page + 1) * PAGE].fill(0xff);
        fs::write(scratch.journal(), &bytes).expect("written");
        let all = salvaged(&scratch, None, 1);
        let of_one = salvaged(&scratch, Some(session("a")), 1);
        let is_record = |found: &&Found| matches!(found, Found::Entry(Entry::Record(_)));
        let (all, of_one) = (all.iter().filter(is_record), of_one.iter().filter(is_record));
        assert!(all.eq(of_one), "page {page}");
    }
}

#[tokio::test]
async fn a_journal_that_was_cut_off_gives_what_is_left() {
    let scratch = many().await;
    let whole = fs::read(scratch.journal()).expect("there");
    let mut most = 0;
    for pages in 2..whole.len() / PAGE {
        fs::write(scratch.journal(), &whole[..pages * PAGE]).expect("written");
        let Ok(mut salvage) = Salvage::open(scratch.journal(), None, Position(1)) else { continue };
        let mut found = Vec::new();
        while let Some(page) = salvage.page().expect("the disk works") {
            found.extend(page);
        }
        let left = records(&found, 1, &format!("{pages} pages")).len();
        most = most.max(left);
    }
    assert!(most > 100, "{most} records");
}

#[tokio::test]
async fn a_damaged_log_is_read_as_far_as_it_goes() {
    let scratch = Scratch::new();
    let writing = scratch.open().expect("a new file");
    crate::scratch::append_five(&writing.journal).await;
    let crashed = Scratch::new();
    fs::copy(scratch.journal(), crashed.journal()).expect("copied");
    let mut log = fs::read(scratch.path().join("journal.db-wal")).expect("there");
    // In the second of the last three writes.
    let frames = (log.len() - 32) / (24 + PAGE);
    let at = 32 + (frames / 2) * (24 + PAGE) + 100;
    log[at] ^= 1;
    fs::write(crashed.path().join("journal.db-wal"), &log).expect("written");
    let found = salvaged(&crashed, None, 1);
    let Some((Found::Unreadable { first, last: None, what }, before)) = found.split_last() else {
        panic!("the damage is not reported last: {found:?}");
    };
    assert!(what.contains("journal.db-wal"), "{what}");
    assert!(!before.is_empty() && first.0 == before.len() as u64 + 1, "{found:?}");
    assert!(fs::read(crashed.path().join("journal.db-wal")).expect("there") == log);
}

#[tokio::test]
async fn a_flipped_byte_loses_no_record_in_silence() {
    let scratch = many().await;
    let whole = fs::read(scratch.journal()).expect("there");
    for page in 1..whole.len() / PAGE {
        for at in [0, 3, 8, 1000, PAGE - 1] {
            let mut bytes = whole.clone();
            bytes[page * PAGE + at] ^= 0xff;
            fs::write(scratch.journal(), &bytes).expect("written");
            records(&salvaged(&scratch, None, 1), 1, &format!("page {page}, byte {at}"));
        }
    }
}
