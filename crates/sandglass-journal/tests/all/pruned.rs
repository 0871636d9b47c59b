//! What was pruned, and what was changed behind the journal's back about that.

use std::ops::ControlFlow;

use sandglass_journal::conformance::{at, creation, session, step};
use sandglass_journal::{Entry, Error, Found, Salvage, SqliteJournal};
use sandglass_model::Position;

use crate::scratch::{Scratch, shared};

/// Positions 1 to 5 of one entity, 6 and 8 of one that was pruned, 7 of a third; closed.
async fn pruned() -> Scratch {
    let scratch = Scratch::with_five_records().await;
    let journal = shared(scratch.open().expect("a journal"));
    for batch in [creation(&session("b")), creation(&session("c")), step(&session("b"), at(6), 1)] {
        journal.append(batch).await.expect("it follows");
    }
    let entities = vec![(session("b"), Position(8))];
    assert_eq!(journal.prune(entities).await, Ok(vec![2]));
    journal.close().await;
    scratch
}

fn describe(entry: &Entry) -> (u64, u64, &'static str) {
    let kind = match entry {
        Entry::Record(_) => "record",
        Entry::Pruned { .. } => "pruned",
        Entry::Damaged { .. } => "damaged",
        Entry::Missing { .. } => "missing",
    };
    (entry.position().0, entry.places(), kind)
}

#[tokio::test]
async fn a_pruned_journal_is_intact_and_continues_behind_its_last_position() {
    let scratch = pruned().await;
    let opened = scratch.open().expect("nothing is missing");
    assert_eq!(opened.recovered, []);
    let journal = shared(opened);
    assert_eq!(journal.last().await, Ok(Position(8)));
    let next = journal.append(creation(&session("b"))).await.expect("another life");
    assert_eq!(next.first, Position(9));
    journal.close().await;
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    let made = reader.back_up(scratch.path().join("b.db"), |_| ControlFlow::Continue(()));
    assert_eq!(made.expect("whole").expect("not ended").last, Position(9));
    let page = scratch.all().expect("readable");
    let found: Vec<_> = page.entries[5..].iter().map(describe).collect();
    assert_eq!(found, [(6, 1, "pruned"), (7, 1, "record"), (8, 1, "pruned"), (9, 1, "record")]);
}

#[tokio::test]
async fn a_journal_whose_last_writes_were_all_pruned_is_intact() {
    let scratch = pruned().await;
    let journal = shared(scratch.open().expect("a journal"));
    assert_eq!(journal.prune(vec![(session("c"), Position(7))]).await, Ok(vec![1]));
    journal.close().await;
    let journal = shared(scratch.open().expect("nothing is missing"));
    assert_eq!(journal.last().await, Ok(Position(8)));
    let next = journal.append(creation(&session("c"))).await.expect("another life");
    assert_eq!(next.first, Position(9));
}

#[tokio::test]
async fn lost_records_are_distinguished_from_pruned_ones() {
    let scratch = pruned().await;
    scratch.sql("DELETE FROM records WHERE position IN (5, 7)");
    let page = scratch.all().expect("readable");
    let found: Vec<_> = page.entries[4..].iter().map(describe).collect();
    assert_eq!(found, [(5, 1, "missing"), (6, 1, "pruned"), (7, 1, "missing"), (8, 1, "pruned")]);
    assert!(matches!(scratch.open(), Err(Error::Damaged { .. })));
    let mut salvage = Salvage::open(scratch.journal(), None, Position(6)).expect("a journal");
    let found = salvage.page().expect("the disk works").expect("there is some");
    assert!(matches!(found[0], Found::Entry(Entry::Pruned { .. })), "{found:?}");
}

#[tokio::test]
async fn a_forged_range_hides_no_loss() {
    let edits = [
        "UPDATE pruned SET last = 7 WHERE first = 6",
        "UPDATE pruned SET first = 5 WHERE first = 6",
        "UPDATE pruned SET checksum = x'00' WHERE first = 6",
        "DELETE FROM pruned WHERE first = 6",
    ];
    for edit in edits {
        let scratch = pruned().await;
        scratch.sql(edit);
        let refused = scratch.open();
        assert!(matches!(refused, Err(Error::Damaged { .. })), "{edit}: {refused:?}");
        let page = scratch.all().expect("readable");
        let is_lost = |entry: &Entry| entry.damage().is_some() && entry.position() == Position(6);
        assert!(page.entries.iter().any(is_lost), "{edit}: {page:?}");
    }
}
