//! What an error of SQLite means for the caller, by its code, never by its text.

use std::path::Path;

use rusqlite::{ErrorCode, ffi};

use crate::Error;
pub(super) use crate::store::printable as shown;

/// The error of an operation on an open journal.
pub(super) fn of(path: &Path, doing: &str, error: &rusqlite::Error) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::ConstraintViolation) => {
            damaged(path, format!("{} (when {doing})", shown(error)))
        }
        // The statements are the journal's own, so the names in them are not contents of the file.
        Some(ErrorCode::Unknown) if is_about_the_statement(error) => {
            let why = without_sql(error);
            damaged(path, format!("a part of every journal is missing: {why} (when {doing})"))
        }
        Some(ErrorCode::OperationInterrupted) => damaged(
            path,
            format!(
                "{doing} it takes more steps than a journal of its size needs; the file is damaged or \
                 forged"
            ),
        ),
        Some(ErrorCode::NotADatabase) => foreign(path, "it is no SQLite database"),
        Some(ErrorCode::DiskFull) => unavailable(path, doing, error, "make room"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            unavailable(path, doing, error, "end what else writes to it")
        }
        Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            unavailable(path, doing, error, "check the rights of the file and its folder")
        }
        _ => unavailable(path, doing, error, "check the disk"),
    }
}

/// SQLite's message about a statement, without the statement.
fn without_sql(error: &rusqlite::Error) -> String {
    match error {
        rusqlite::Error::SqlInputError { msg, .. } => shown(msg),
        other => shown(other),
    }
}

fn is_about_the_statement(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code & 0xff == ffi::SQLITE_ERROR)
}

fn unavailable(path: &Path, doing: &str, error: &rusqlite::Error, advice: &str) -> Error {
    let what = format!("{doing} `{}` failed: {}; {advice}", path.display(), shown(error));
    Error::Unavailable { what }
}

/// An error of the file system about the journal's own files.
pub(super) fn of_file(path: &Path, doing: &str, error: &std::io::Error) -> Error {
    Error::Unavailable { what: format!("{doing} `{}` failed: {error}", path.display()) }
}

pub(super) fn damaged(path: &Path, what: impl Into<String>) -> Error {
    Error::Damaged { place: format!("`{}`", path.display()), what: what.into() }
}

pub(super) fn foreign(path: &Path, what: impl Into<String>) -> Error {
    Error::Foreign { path: path.to_owned(), what: what.into() }
}
