//! Copies a journal as it is at one moment, even while another process writes to it. No writer
//! waits for the copy.
//!
//! SQLite's backup restarts whenever another process has written between two of its steps, unless
//! its connection holds a read transaction over all of them. This one does: with a write-ahead log
//! that blocks no writer, it only delays the log's restart
//! (<https://sqlite.org/c3ref/backup_finish.html>).

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

/// Pages that are copied between two checks whether to continue: 4 MiB of the usual size.
const STEP_PAGES: i32 = 1024;
/// How often the copy is tried if other processes open, write and close the journal meanwhile. Each
/// would have to do all of that within the time of one copy.
const COPIES_MAX: usize = 3;

/// The progress of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Pages that are copied.
    pub pages: u64,
    /// Pages in all.
    pub of: u64,
}

/// A finished backup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BackedUp {
    /// The position of its last record.
    pub last: Position,
    /// Its size.
    pub bytes: u64,
}

impl SqliteReader {
    /// Writes the journal, as it is at one moment, to a new file at `to`, which is read completely
    /// before it gets that name. Blocks meanwhile. Returns `None` if `go_on`, which is called
    /// between two steps, returned false; then no file is left.
    ///
    /// # Errors
    /// [`Error::Damaged`] if the journal is not intact: no backup is made of it.
    /// [`Error::Unavailable`] if `to` exists, its folder does not, or the disk fails.
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

    /// Copies until the file did not change during the copy. If a log exists beside the journal,
    /// the first copy is good.
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
            // The read transaction begins with the first read.
            file::stamp(&snapshot)?;
            let backup = Backup::new(&snapshot, &mut target)?;
            loop {
                match backup.step(STEP_PAGES)? {
                    StepResult::Done => return Ok(ControlFlow::Continue(())),
                    StepResult::More => {}
                    // No other process knows the target, and a reader of a log waits for none.
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

/// The time of its last change, and its size.
fn age(metadata: &Metadata) -> (Option<SystemTime>, u64) {
    (metadata.modified().ok(), metadata.len())
}

/// Checks where a backup may be written. A file that was left there by an earlier journal, such as
/// its log, would be taken for a part of the backup.
fn free_place(to: &Path) -> Result<PathBuf, Error> {
    if to.symlink_metadata().is_ok() {
        // Fails without beginning anything.
        NewFile::begin(to)?;
    }
    let to = place::find_or_new(to)?;
    file::look(&to)?;
    Ok(to)
}

/// The file is synced once, when it is complete; before that, nothing depends on it.
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
