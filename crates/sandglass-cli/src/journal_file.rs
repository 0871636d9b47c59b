//! The journal that a command writes: opened, and what was not whole is told.

use std::path::Path;

use sandglass_journal::{Error, Opened, Settings, SqliteJournal};

use crate::terminal::tell;

/// Opens the journal at `path` for writing, or makes one. Blocks while it is read.
///
/// # Errors
/// As [`SqliteJournal::open`].
pub(crate) fn open(path: &Path) -> Result<SqliteJournal, Error> {
    let Opened { journal, recovered } = SqliteJournal::open(path, Settings::default())?;
    for torn in recovered {
        tell(&format!("recovered the journal: position {}: {}", torn.position, torn.what));
    }
    Ok(journal)
}
