//! A copy of a journal as it is at one moment, taken while another process may write
//! it. No writer waits for it.
//!
//! SQLite's backup starts anew whenever somebody else has written between two of its
//! steps, unless its connection holds a read transaction over all of them. This one
//! does: in a write-ahead log that holds up nobody, only the log isn't begun anew
//! meanwhile (<https://sqlite.org/c3ref/backup_finish.html>).

use std::fs::Metadata;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use sandglass_model::Position;

use super::file::{self, Reading};
use super::{SqliteReader, fault, place, tail};
use crate::{Error, NewFile};

/// Pages that are copied between two looks at whether to go on: 4 MiB of the usual size.
const STEP_PAGES: i32 = 1024;
/// How often a journal is copied that others open, write and close meanwhile. Each of
/// them would have to come and go again within the time of one copy.
const COPIES_MAX: usize = 3;

/// How far a copy has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Pages of the file that are copied.
    pub pages: u64,
    /// Pages that there are.
    pub of: u64,
}

/// A backup that was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The position of its last record.
    pub last: Position,
    /// Its size.
    pub bytes: u64,
}

impl SqliteReader {
    /// Writes the journal, as it is at one moment, to a new file at `to`, and reads that
    /// whole before it takes its place. Blocks meanwhile. None where `go_on`, which is
    /// asked between two steps, ended it; nothing is left then.
    ///
    /// # Errors
    /// [`Error::Damaged`] where the journal isn't whole: no backup is made of such a one.
    /// [`Error::Unavailable`] where something stands at `to`, its folder is absent, or
    /// the disk fails.
    pub fn back_up(
        &mut self,
        to: impl AsRef<Path>,
        mut go_on: impl FnMut(Copied) -> ControlFlow<()>,
    ) -> Result<Option<BackedUp>, Error> {
        let to = free_place(to.as_ref())?;
        let file = NewFile::begin(&to)?;
        if self.copy_one_state(&file, &to, &mut go_on)?.is_break() {
            return Ok(None);
        }
        let copy = file::open_reader(file.partial(), Reading::Still)?;
        let last = tail::check(&copy, &self.path)?;
        let size = file.partial().metadata();
        let bytes = size.map_err(|error| fault::of_file(&to, "writing", &error))?.len();
        file.finish()?;
        Ok(Some(BackedUp { last, bytes }))
    }

    /// Copies until nobody has changed the file under the copy. Where a log stands beside
    /// the journal, the first one is good.
    fn copy_one_state(
        &mut self,
        file: &NewFile,
        to: &Path,
        go_on: &mut impl FnMut(Copied) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        for _ in 0..COPIES_MAX {
            let before = self.looks()?;
            *self = Self::open(&self.path)?;
            file.restart()?;
            let copied = self.copy(file.partial(), to, go_on);
            let undisturbed = !file::has_log(&self.path) && age(&self.looks()?) == age(&before);
            if self.reading == Reading::WithLog || undisturbed {
                return copied;
            }
        }
        let what = format!(
            "reading `{}` failed: others open and close it again and again; try again",
            self.path.display()
        );
        Err(Error::Unavailable { what })
    }

    fn looks(&self) -> Result<Metadata, Error> {
        self.path.metadata().map_err(|error| fault::of_file(&self.path, "reading", &error))
    }

    fn copy(
        &self,
        partial: &Path,
        to: &Path,
        go_on: &mut impl FnMut(Copied) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Error> {
        let mut run = || -> rusqlite::Result<ControlFlow<()>> {
            let mut target = open_target(partial)?;
            let snapshot = self.connection.unchecked_transaction()?;
            // It begins with the first read.
            file::stamp(&snapshot)?;
            let backup = Backup::new(&snapshot, &mut target)?;
            loop {
                match backup.step(STEP_PAGES)? {
                    StepResult::Done => return Ok(ControlFlow::Continue(())),
                    StepResult::More => {}
                    // Nobody else knows the target, and a log's reader waits for nobody.
                    _ => return Err(busy()),
                }
                let (left, of) = (backup.progress().remaining, backup.progress().pagecount);
                let pages = |number| u64::try_from(number).unwrap_or_default();
                if go_on(Copied { pages: pages(of - left), of: pages(of) }).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        };
        run().map_err(|error| match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                fault::of(&self.path, "reading", &error)
            }
            _ => fault::of(to, "writing", &error),
        })
    }
}

/// When it was changed last, and its size.
fn age(metadata: &Metadata) -> (Option<SystemTime>, u64) {
    (metadata.modified().ok(), metadata.len())
}

/// Where a backup may be put. What is left of an earlier journal there, as its log, would
/// be taken for a part of it.
fn free_place(to: &Path) -> Result<PathBuf, Error> {
    if to.symlink_metadata().is_ok() {
        // Says so, and begins nothing.
        NewFile::begin(to)?;
    }
    let to = place::find_or_new(to)?;
    file::look(&to)?;
    Ok(to)
}

/// The file is synced once, when it is whole, and nobody needs it before.
fn open_target(partial: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let target = Connection::open_with_flags(partial, flags)?;
    target.pragma_update(None, "journal_mode", "OFF")?;
    target.pragma_update(None, "synchronous", "OFF")?;
    Ok(target)
}

fn busy() -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
}
