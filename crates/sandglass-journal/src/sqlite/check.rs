//! Reads a journal completely in order to find damage, while it is written or not. A start checks
//! only the end of a journal, which alone can be torn; this finds what has decayed since.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Connection;
use sandglass_model::Position;

use super::{SqliteReader, entities, fault, file, recording, snapshot, tail};
use crate::{Entry, Error, PAGE_MAX_ENTRIES};

/// Is called between two pieces of the work of a check, of some milliseconds each, with the position
/// up to which all records are checked. It may wait, and ends the check if it breaks.
pub type CheckProgress = Arc<dyn Fn(Position) -> ControlFlow<()> + Send + Sync>;

/// SQLite's steps between two calls of [`CheckProgress`].
const STEPS_BETWEEN_CALLS: i32 = 10_000;

impl SqliteReader {
    /// Reads the whole journal: its pages, indexes, table of entities, snapshots, recordings and all records up to the last one at
    /// this moment. Returns the position of that one, or `None` if `progress` ended the check. Blocks
    /// meanwhile.
    ///
    /// SQLite's own check reads one state of the file, so meanwhile the log of a journal that is
    /// being written grows.
    ///
    /// # Errors
    /// [`Error::Damaged`] with the first damage that was found; [`Error::Unavailable`].
    pub fn check(&mut self, progress: &CheckProgress) -> Result<Option<Position>, Error> {
        let last = self.last()?;
        if self.check_structure(progress)?.is_break() {
            return Ok(None);
        }
        let mut from = Some(Position(1));
        while let Some(start) = from.filter(|start| *start <= last) {
            let page = self.read(start, PAGE_MAX_ENTRIES)?;
            if let Some(damaged) = page.entries.iter().find(|entry| entry.damage().is_some()) {
                let what = damaged.damage().unwrap_or_default();
                return Err(tail::damaged_at(&self.path, damaged.position(), &what));
            }
            let checked = page.entries.last().map_or(start, Entry::last_position);
            if progress(checked).is_break() {
                return Ok(None);
            }
            from = page.next;
        }
        let torn = self.snapshot(|snapshot| tail::torn_batch(snapshot))?;
        match torn {
            Some(position) => Err(tail::damaged_at(&self.path, position, tail::TORN_BATCH)),
            None => Ok(Some(last)),
        }
    }

    /// Checks everything but the records themselves.
    fn check_structure(&self, progress: &CheckProgress) -> Result<ControlFlow<()>, Error> {
        let mut connection = file::open_reader(&self.path, self.reading)?;
        let is_ended = Arc::new(AtomicBool::new(false));
        let (ended, progress) = (Arc::clone(&is_ended), Arc::clone(progress));
        let go_on = move || {
            let breaks = progress(Position(0)).is_break();
            ended.fetch_or(breaks, Ordering::Relaxed);
            breaks
        };
        let failed = |error: rusqlite::Error| fault::of(&self.path, "checking", &error);
        connection.progress_handler(STEPS_BETWEEN_CALLS, Some(go_on)).map_err(failed)?;
        let snapshot = connection.transaction().map_err(failed)?;
        let checked = tail::check_structure(&snapshot, &self.path)
            .and_then(|()| find_flaw(&snapshot).map_err(failed))
            .and_then(|flaw| match flaw {
                None => Ok(()),
                Some((Some(position), what)) => Err(tail::damaged_at(&self.path, position, &what)),
                Some((None, what)) => Err(fault::damaged(&self.path, what)),
            });
        match checked {
            Err(_) if is_ended.load(Ordering::Relaxed) => Ok(ControlFlow::Break(())),
            checked => checked.map(ControlFlow::Continue),
        }
    }
}

/// What is wrong with the tables beside the records, and where.
fn find_flaw(snapshot: &Connection) -> rusqlite::Result<Option<(Option<Position>, String)>> {
    if let Some(what) = entities::flaw(snapshot)? {
        return Ok(Some((None, entities_flawed(&what))));
    }
    if let Some((position, what)) = snapshot::flaw(snapshot)? {
        let what =
            format!("{what}; delete that row of `snapshots`, and the records are read instead");
        return Ok(Some((Some(position), what)));
    }
    if let Some((position, what)) = recording::flaws(snapshot, 1)?.pop_first() {
        return Ok(Some((Some(position), what)));
    }
    let missing = recording::missing(snapshot)?;
    Ok(missing.map(|position| (Some(position), "its recording is missing".to_owned())))
}

/// What a check says about a table of entities that does not match the records.
pub(super) fn entities_flawed(what: &str) -> String {
    format!(
        "its table of entities: {what}; opening it for writing with the complete check makes the \
         table again"
    )
}
