//! A journal's file with arbitrary damage, as it is read, salvaged and opened.
//!
//! The input is a list of damages to a journal that is always the same: one byte for the kind of
//! damage, four for its offset, and the data that the kind needs. The first byte selects whether
//! the damage is done to a journal that was closed, to one that was killed, or to the write-ahead
//! log of the latter.

use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use sandglass_journal::conformance::{at, batch, creation, session, signal, step};
use sandglass_journal::{Entry, Expected, Found, Journal, Page, Salvage, Settings, SqliteJournal};
use sandglass_model::Position;
use tokio::runtime::Builder;

use crate::promise;

/// Most damages: after more, nothing is left to read.
const DAMAGES_MAX: usize = 16;
/// The number of records in the journal: enough that its table has several pages.
const RECORDS: u64 = 40;
/// The size of a page, in bytes.
const PAGE_BYTES: usize = 4096;

/// Checks that reading and salvaging end, return each position once, and change nothing, and that a
/// refusal to open the journal changes nothing.
pub(crate) fn read(input: &[u8]) {
    static WHOLE: LazyLock<Whole> = LazyLock::new(Whole::new);
    let Some((which, damages)) = input.split_first() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal.db");
    let log = folder.path().join("journal.db-wal");
    let (mut file, mut wal) =
        if which % 3 == 0 { (WHOLE.closed.clone(), Vec::new()) } else { WHOLE.killed.clone() };
    damage(if which % 3 == 2 { &mut wal } else { &mut file }, damages);
    fs::write(&path, &file).expect("written");
    if !wal.is_empty() {
        fs::write(&log, &wal).expect("written");
    }
    let is_as_before = || {
        assert!(fs::read(&path).ok().as_ref() == Some(&file), "the file was changed");
        assert!(fs::read(&log).unwrap_or_default() == wal, "the log was changed");
    };
    read_in_pages(&path);
    salvage(&path);
    is_as_before();
    if let Err(refused) = SqliteJournal::open(&path, Settings::default()) {
        promise::check_text(&refused);
        is_as_before();
    }
}

fn read_in_pages(path: &Path) {
    let mut reader = match SqliteJournal::open_read_only(path) {
        Ok(reader) => reader,
        Err(refused) => return promise::check_text(&refused),
    };
    let mut from = Position(0);
    loop {
        let page: Page = match reader.read(from, 16) {
            Ok(page) => page,
            Err(refused) => return promise::check_text(&refused),
        };
        page.entries.iter().for_each(check_entry);
        let Some(next) = page.next else { return };
        assert!(next > from, "the next page does not follow");
        from = next;
    }
}

fn salvage(path: &Path) {
    let mut salvage = match Salvage::open(path, None, Position(1)) {
        Ok(salvage) => salvage,
        Err(refused) => return promise::check_text(&refused),
    };
    let mut next = Some(1);
    loop {
        let page = match salvage.page() {
            Ok(Some(page)) => page,
            Ok(None) => return,
            Err(refused) => return promise::check_text(&refused),
        };
        for found in page {
            let (first, last) = match &found {
                Found::Entry(entry) => {
                    check_entry(entry);
                    let first = entry.position().0;
                    (first, first.checked_add(entry.places() - 1))
                }
                Found::Unreadable { first, last, what } => {
                    promise::check_text(what);
                    (first.0, last.map(|last| last.0))
                }
            };
            assert_eq!(Some(first), next, "a position is returned once, and in order: {found:?}");
            next = last.and_then(|last| last.checked_add(1));
        }
    }
}

fn check_entry(entry: &Entry) {
    entry.damage().iter().for_each(promise::check_text);
    if let Entry::Record(record) = entry {
        assert!(record.position.0 <= RECORDS, "no such record was written: {record:?}");
    }
}

/// Applies the damages that the list describes.
fn damage(bytes: &mut Vec<u8>, mut damages: &[u8]) {
    for _ in 0..DAMAGES_MAX {
        let [what, place @ ..] = damages else { return };
        let Some((place, rest)) = place.split_first_chunk::<4>() else { return };
        damages = rest;
        let at = u32::from_le_bytes(*place) as usize;
        if bytes.is_empty() {
            return;
        }
        let at = at % bytes.len();
        match what % 4 {
            0 => bytes.truncate(at),
            1 => {
                let page = at / PAGE_BYTES * PAGE_BYTES;
                let end = (page + PAGE_BYTES).min(bytes.len());
                bytes[page..end].fill(*place.first().unwrap_or(&0));
            }
            _ => {
                let Some((length, rest)) = damages.split_first() else { return };
                let length = usize::from(*length % 16).min(rest.len()).min(bytes.len() - at);
                bytes[at..at + length].copy_from_slice(&rest[..length]);
                damages = &rest[length..];
            }
        }
    }
}

/// A journal before it is damaged.
struct Whole {
    closed: Vec<u8>,
    /// The file and its write-ahead log, as a kill leaves them.
    killed: (Vec<u8>, Vec<u8>),
}

impl Whole {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        let opened = SqliteJournal::open(path("journal.db"), Settings::default());
        let journal = opened.expect("a new journal").journal;
        let runtime = Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(append(&journal));
        let read = |name: &str| fs::read(path(name)).expect("it is there");
        let killed = (read("journal.db"), read("journal.db-wal"));
        runtime.block_on(journal.close());
        Self { closed: read("journal.db"), killed }
    }
}

async fn append(journal: &SqliteJournal) {
    let entity = session("a");
    journal.append(creation(&entity)).await.expect("appended");
    let mut last = journal.append(step(&entity, at(1), 1)).await.expect("appended").last;
    let rest: Vec<_> = (3..=RECORDS).map(|number| (1, signal(number))).collect();
    for some in rest.chunks(10) {
        let some = batch(&entity, Expected::At(last), some.to_vec());
        last = journal.append(some).await.expect("appended").last;
    }
}
