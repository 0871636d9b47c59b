//! Where the journal of a trial is.

use std::ffi::OsString;
use std::path::PathBuf;

use sandglass_journal::{PAGE_MAX_ENTRIES, SqliteJournal};
use sandglass_model::{Cursor, Position, Record};

use crate::binary::sandglass;

/// A place that a daemon keeps its journal at, and that the trial reads.
pub(crate) trait Place {
    /// The option of `sandglass up` that names the place, and its value.
    fn option(&self) -> (&'static str, OsString);

    /// The variables of the daemon's environment.
    fn variables(&self) -> Vec<(&'static str, String)>;

    /// How many journals there are.
    fn journals(&self) -> usize;

    /// The next records behind `after`, each with the index of its journal, and whether these were all that
    /// there were.
    fn read_behind(&self, after: &Cursor) -> (Vec<(usize, Record)>, bool);

    /// The records behind `after` that are there now, and advances it. It does not wait for those that are
    /// appended meanwhile: daemons under load may append faster than this reads.
    fn read_to_end(&self, after: &mut Cursor) -> Vec<(usize, Record)> {
        let mut all = Vec::new();
        loop {
            let (page, is_end) = self.read_behind(after);
            page.iter().for_each(|(journal, record)| after.advance(*journal, record.position));
            all.extend(page);
            if is_end {
                return all;
            }
        }
    }

    /// Waits until nothing can be appended any more by a daemon that was killed.
    fn settle(&self);

    /// Checks that `records`, which are those of all journals, replay without divergences.
    fn replay(&self, records: &[(usize, Record)]);
}

/// A SQLite file.
#[derive(Debug)]
pub(crate) struct File(pub(crate) PathBuf);

impl Place for File {
    fn option(&self) -> (&'static str, OsString) {
        ("--journal", self.0.clone().into())
    }

    fn variables(&self) -> Vec<(&'static str, String)> {
        Vec::new()
    }

    fn journals(&self) -> usize {
        1
    }

    fn read_behind(&self, after: &Cursor) -> (Vec<(usize, Record)>, bool) {
        let mut journal = SqliteJournal::open_read_only(&self.0).expect("a journal");
        let from = Position(after.at(0).0 + 1);
        let page = journal.read(from, PAGE_MAX_ENTRIES).expect("it can be read");
        let is_end = page.next.is_none();
        let records = page.into_records().expect("no record is damaged");
        (records.into_iter().map(|record| (0, record)).collect(), is_end)
    }

    fn settle(&self) {}

    fn replay(&self, _: &[(usize, Record)]) {
        sandglass(&[&"replay", &self.0]).exits(0).says(" 0 divergences");
    }
}
