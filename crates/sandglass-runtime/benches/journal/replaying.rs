//! Decision replay of the whole journal, as `sandglass replay` does it.

use std::path::Path;
use std::time::Instant;

use sandglass_journal::{Entry, PAGE_MAX_ENTRIES, SqliteJournal};
use sandglass_liveness::replay::Replay;
use sandglass_model::Position;

use crate::timing::rate;

pub(crate) fn run(path: &Path) {
    println!("Decision replay\n");
    println!("| what | records/min |");
    println!("|---|---|");
    let begun = Instant::now();
    let read = each(path, |_| {});
    println!(
        "| reading and checking the records alone | {:.0} |",
        60.0 * rate(read, begun.elapsed())
    );
    let begun = Instant::now();
    let records = decide_again(path);
    println!("| deciding them again, too | {:.0} |\n", 60.0 * rate(records, begun.elapsed()));
}

/// Decides all records again; returns how many there are.
pub(crate) fn decide_again(path: &Path) -> u64 {
    let mut replay = Replay::new();
    each(path, |entry| match entry {
        Entry::Record(record) => replay.feed(record),
        other => panic!("{other:?}"),
    });
    let summary = replay.finish();
    assert_eq!(summary.divergence_count, 0, "{:?}", summary.divergences);
    summary.records
}

fn each(path: &Path, mut with: impl FnMut(&Entry)) -> u64 {
    let mut journal = SqliteJournal::open_read_only(path).expect("a journal");
    let (mut from, mut count) = (Some(Position(1)), 0);
    while let Some(start) = from {
        let page = journal.read(start, PAGE_MAX_ENTRIES).expect("readable");
        page.entries.iter().for_each(&mut with);
        count += page.entries.len() as u64;
        from = page.next;
    }
    count
}
