//! Keeps a file of unknown origin from deciding how long its reader takes. A journal has tables
//! where its statements name tables; a forged file may have a view over an endless query there,
//! or pages that refer to one another many times over.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rusqlite::Connection;

use super::{fault, file};
use crate::Error;

/// The tables of a journal, in any format.
const TABLES: [&str; 7] =
    ["records", "head", "torn_records", "recordings", "snapshots", "pruned", "entities"];

/// How many steps of SQLite's virtual machine pass between two checks of their number.
const STEPS_BETWEEN_CHECKS: u16 = 10_000;

/// Steps that one read may take of a file of any size: a fraction of a second.
const STEPS_MIN: u64 = 10_000_000;

/// Steps that one read may take for each byte of the file. Reading a record takes about 50 steps,
/// and a record occupies 200 bytes or more.
const STEPS_PER_BYTE: u64 = 4;

/// Refuses a file in which a name of a journal's tables is not an ordinary table, or in which
/// SQLite would run statements of the file's own.
pub(super) fn check_schema(connection: &Connection, path: &Path) -> Result<(), Error> {
    let found = forged(connection).map_err(|error| fault::of(path, "opening", &error))?;
    match found {
        None => Ok(()),
        Some(what) => {
            let what = fault::shown(&what);
            let what = format!("{what}, which no journal has; do not trust the file");
            Err(fault::foreign(path, what))
        }
    }
}

/// What the schema has that no journal has.
fn forged(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let mut objects = connection.prepare(
        "SELECT type, name, tbl_name, rootpage, sql FROM main.sqlite_schema WHERE type <> 'index'",
    )?;
    let mut rows = objects.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, name): (String, String) = (row.get(0)?, row.get(1)?);
        if kind == "trigger" {
            return Ok(Some(format!("it has a trigger `{name}`")));
        }
        let Some(table) = TABLES.into_iter().find(|table| name.eq_ignore_ascii_case(table)) else {
            continue;
        };
        let has_pages = row.get::<_, Option<i64>>(3)?.is_some_and(|page| page > 0);
        if kind != "table" || !has_pages {
            return Ok(Some(format!("`{table}` is a {kind} that stores no rows")));
        }
        if has_computed_columns(connection, table)? {
            return Ok(Some(format!("its table `{table}` has columns that are computed")));
        }
    }
    Ok(None)
}

fn has_computed_columns(connection: &Connection, table: &str) -> rusqlite::Result<bool> {
    let mut hidden =
        connection.prepare("SELECT 1 FROM pragma_table_xinfo(?1, 'main') WHERE hidden <> 0")?;
    hidden.exists([table])
}

/// The steps that the present read has taken.
#[derive(Debug)]
pub(super) struct Steps(Arc<AtomicU64>);

impl Steps {
    /// Interrupts each read that takes more steps than the size of the file explains.
    pub(super) fn limit(connection: &mut Connection, path: &Path) -> rusqlite::Result<Self> {
        let steps = Arc::new(AtomicU64::new(0));
        let (counted, path) = (Arc::clone(&steps), path.to_owned());
        let count = move || {
            let between = u64::from(STEPS_BETWEEN_CHECKS);
            let taken = counted.fetch_add(between, Ordering::Relaxed) + between;
            taken > STEPS_MIN && taken > allowed(&path)
        };
        connection.progress_handler(i32::from(STEPS_BETWEEN_CHECKS.cast_signed()), Some(count))?;
        Ok(Self(steps))
    }

    /// Starts counting for the next read.
    pub(super) fn begin(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The steps that one read of the journal at `path` may take.
fn allowed(path: &Path) -> u64 {
    let bytes = |path: PathBuf| path.metadata().map_or(0, |metadata| metadata.len());
    let bytes = bytes(path.to_owned()).saturating_add(bytes(file::sidecar(path, "-wal")));
    STEPS_MIN.saturating_add(bytes.saturating_mul(STEPS_PER_BYTE))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query that ends after `rows` rows.
    fn count_to(connection: &Connection, rows: i64) -> rusqlite::Result<i64> {
        let query = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT ?1) \
                     SELECT count(*) FROM n";
        connection.query_row(query, [rows], |row| row.get(0))
    }

    #[test]
    fn a_read_ends_when_it_takes_more_steps_than_the_file_explains() {
        let mut connection = Connection::open_in_memory().expect("opened");
        let path = Path::new("absent.db");
        let steps = Steps::limit(&mut connection, path).expect("limited");
        assert_eq!(count_to(&connection, 1000).ok(), Some(1000));
        let error = count_to(&connection, i64::MAX).expect_err("too many steps");
        let error = fault::of(path, "reading", &error);
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
        assert!(
            error.to_string().contains("more steps than a journal of its size needs"),
            "{error}"
        );
        steps.begin();
        assert_eq!(count_to(&connection, 1000).ok(), Some(1000), "the next one has its own");
    }
}
