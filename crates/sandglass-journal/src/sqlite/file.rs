//! The file of a journal: its identity, its lock, and its connections. Nothing is written to a file
//! before it is known to be a journal, or empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction};

use super::{Settings, defense, entities, fault};
use crate::{Error, NewFile};

/// The application id in the header of the SQLite file: "SdGl".
pub const APPLICATION_ID: u32 = 0x5364_476c;
/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 6;

/// The format that introduced snapshots, recordings and the pruning of entities.
const SINCE_SNAPSHOTS: u32 = 3;
/// The first format whose header states where the last write began, and which has today's indexes.
pub(super) const SINCE_WHERE_WRITES_BEGAN: u32 = 4;

/// The first format with a table of entities.
pub(super) const SINCE_ENTITIES: u32 = 6;

/// How long SQLite waits for another process with the file (an SQL prompt, for example) before an
/// operation fails.
const BUSY: Duration = Duration::from_secs(5);

/// The writer's page cache, in KiB: the ends of the index entries of some thousand entities, so
/// that appending to them reads nothing.
const WRITER_CACHE_KIB: i64 = 16 << 10;

/// The size of SQLite's header (<https://sqlite.org/fileformat2.html#the_database_header>).
const HEADER_BYTES: u64 = 100;
const CUT_OFF: &str = "it is no SQLite database, or cut off inside the header of one";

const SCHEMA: &str = include_str!("schema.sql");
/// What later formats add. Formats 2 and 5 only announced records of later kinds.
const LATER: [(u32, &str); 2] =
    [(3, include_str!("format-3.sql")), (4, include_str!("format-4.sql"))];
/// The table of entities, which can be made again from the records.
const ENTITIES: &str = include_str!("format-6.sql");
const INDEXES: &str = include_str!("indexes.sql");
/// The statements that add it.
const INDEX_NAMES: [&str; 4] =
    ["records_of_entity", "dispatches_by_id", "recordings_of_dispatch", "snapshots_by_position"];
/// Those that format 6 added.
const ENTITY_INDEX_NAMES: [&str; 3] = ["entities_by_due", "entities_by_spec", "ended_entities"];
const VIEWS: &str = include_str!("views.sql");

/// How an existing file is opened: by one thread only.
const FOR_WRITING: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// The right to write a journal, until it is dropped or the process ends.
#[derive(Debug)]
pub(super) struct WriterLock(File);

impl Drop for WriterLock {
    /// Closing the file is not enough: a child process that is being started has it, too, until it
    /// executes its program, and would hold the lock for that long (flock(2)).
    fn drop(&mut self) {
        // If that fails, closing has to do.
        let _ = self.0.unlock();
    }
}

/// Takes the lock file beside `path`. It is a file of its own because closing a second handle of
/// the journal itself would release SQLite's locks on it.
pub(super) fn lock(path: &Path) -> Result<WriterLock, Error> {
    let beside = sidecar(path, ".lock");
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file =
        options.open(&beside).map_err(|error| fault::of_file(&beside, "creating", &error))?;
    hold(path, &beside, file)
}

/// As [`lock`], if the lock file exists; `None` if it does not, because then no process holds it.
pub(super) fn lock_if_made(path: &Path) -> Result<Option<WriterLock>, Error> {
    let beside = sidecar(path, ".lock");
    match OpenOptions::new().write(true).open(&beside) {
        Ok(file) => hold(path, &beside, file).map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault::of_file(&beside, "opening", &error)),
    }
}

fn hold(path: &Path, beside: &Path, file: File) -> Result<WriterLock, Error> {
    match file.try_lock() {
        Ok(()) => Ok(WriterLock(file)),
        Err(TryLockError::WouldBlock) => Err(Error::Unavailable {
            what: format!(
                "journal `{}` is in use by another process (it holds `{}`): \
                 stop that process, or name another journal",
                path.display(),
                beside.display()
            ),
        }),
        Err(TryLockError::Error(error)) => Err(fault::of_file(beside, "locking", &error)),
    }
}

/// The path with `suffix` appended to its name.
pub(super) fn sidecar(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What exists at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    /// Nothing, or an empty file.
    Nothing,
    /// A journal, by its header.
    Journal,
}

/// Reads the first bytes of the file before SQLite does, which would roll back or check in what it
/// finds beside a foreign database.
pub(super) fn look(path: &Path) -> Result<Present, Error> {
    let mut header = Vec::new();
    // For writing, too: SQLite would open a read-only file and report that late.
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(file) => file
            .take(HEADER_BYTES)
            .read_to_end(&mut header)
            .map_err(|error| fault::of_file(path, "reading", &error))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(fault::of_file(path, "opening for writing", &error)),
    };
    let field = |at: usize| {
        let bytes = header.get(at..at + 4)?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    };
    if header.is_empty() {
        return nothing_left_over(path);
    }
    if !header.starts_with(b"SQLite format 3\0") {
        return Err(fault::foreign(path, "it is no SQLite database; name another file"));
    }
    let (Some(format), Some(application)) = (field(60), field(68)) else {
        return Err(fault::foreign(path, CUT_OFF));
    };
    check_stamp(path, application, format)?;
    Ok(Present::Journal)
}

/// Checks for an empty file beside a log. It is a journal that has lost its contents: SQLite would
/// discard the log.
fn nothing_left_over(path: &Path) -> Result<Present, Error> {
    let log = sidecar(path, "-wal");
    match log.metadata() {
        Ok(metadata) if metadata.len() > 0 => {
            let what = format!("it is empty or gone, but `{}` is left of it", log.display());
            Err(fault::damaged(path, what))
        }
        _ => Ok(Present::Nothing),
    }
}

/// Refuses a journal beside a rollback journal of SQLite, which would be rolled back into the file.
/// Journals of Sandglass never have one.
pub(super) fn refuse_rollback(path: &Path) -> Result<(), Error> {
    let rollback = sidecar(path, "-journal");
    if rollback.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        let what = "it would undo changes of the journal, and is none of its files; \
                    keep a copy, and move it away";
        return Err(fault::damaged(&rollback, what));
    }
    Ok(())
}

fn check_stamp(path: &Path, application: u32, format: u32) -> Result<(), Error> {
    if application != APPLICATION_ID {
        Err(fault::foreign(path, "it is a SQLite database of something else; name another file"))
    } else if format == 0 {
        Err(fault::foreign(path, "it says no format"))
    } else if format > FORMAT {
        Err(Error::Newer { path: path.to_owned(), found: format, supported: FORMAT })
    } else {
        Ok(())
    }
}

/// Opens the journal for writing, and creates it if `present` is nothing. An existing file does not
/// change until [`begin_writing`], even if it is closed again.
pub(super) fn open_writer(
    path: &Path,
    present: Present,
    settings: &Settings,
) -> Result<Connection, Error> {
    if present == Present::Nothing {
        create(path)?;
    }
    let open = || -> rusqlite::Result<Connection> {
        let connection = Connection::open_with_flags(path, FOR_WRITING)?;
        connection.busy_timeout(BUSY)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        prepare_writer(&connection, settings)?;
        Ok(connection)
    };
    let failed = |error: rusqlite::Error| fault::of(path, "opening", &error);
    let connection = open().map_err(failed)?;
    let (application, format) = stamp(&connection).map_err(failed)?;
    check_stamp(path, application, format)?;
    defense::check_schema(&connection, path)?;
    Ok(connection)
}

/// Creates an empty journal under another name, and moves it to its path if nothing or an empty
/// file is there. A kill leaves what was there before, or a complete journal.
fn create(path: &Path) -> Result<(), Error> {
    let file = NewFile::in_place_of_empty(path)?;
    let make = || -> rusqlite::Result<()> {
        let mut connection = Connection::open_with_flags(file.partial(), FOR_WRITING)?;
        // It is not used before it is complete and synced.
        connection.pragma_update(None, "journal_mode", "MEMORY")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        add_later(&transaction, 1)?;
        transaction.commit()?;
        // The file itself states this, so that SQLite never begins a rollback journal beside it.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.close().map_err(|(_, error)| error)
    };
    make().map_err(|error| fault::of(path, "creating", &error))?;
    file.finish()
}

/// Adds what the formats after `format` need.
fn add_later(transaction: &Transaction<'_>, format: u32) -> rusqlite::Result<()> {
    for (_, adds) in LATER.iter().filter(|(later, _)| *later > format) {
        transaction.execute_batch(adds)?;
    }
    if format < SINCE_ENTITIES {
        // The index of records by entity is one of them, and makes filling the table fast.
        make_entities(transaction)?;
    }
    transaction.execute_batch(VIEWS)?;
    transaction.pragma_update(None, "user_version", FORMAT)
}

/// Makes the table of entities with all entities awake, and all indexes that are missing.
fn make_entities(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    transaction.execute_batch(ENTITIES)?;
    make_indexes(transaction)?;
    entities::rebuild(transaction)
}

/// Converts an intact journal to the newest format, with all of its indexes. Its contents do not
/// change. Earlier versions refuse it from then on, because they know fewer kinds of records.
pub(super) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let mut upgraded = || -> rusqlite::Result<()> {
        let format = stamp(connection)?.1;
        if format == FORMAT {
            if entities::is_lost(connection)? {
                return rebuild_entities(connection, path, "it is missing");
            }
            let lost = lost_indexes(connection)?;
            if !lost.is_empty() {
                tracing::warn!(journal = %path.display(), ?lost, "made indexes again that were lost");
            } else if !has_earlier_index(connection)? {
                return Ok(());
            }
            let transaction = connection.transaction()?;
            make_indexes(&transaction)?;
            return transaction.commit();
        }
        let transaction = connection.transaction()?;
        add_later(&transaction, format)?;
        transaction.commit()
    };
    upgraded().map_err(|error| fault::of(path, "upgrading", &error))
}

/// Whether the index of recordings is by the whole id of a dispatch, as before.
fn has_earlier_index(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema \
               WHERE name = 'recordings_of_dispatch' AND sql NOT LIKE '%unhex%')";
    connection.query_row(sql, [], |row| row.get(0))
}

/// Makes the indexes that are missing, and replaces the earlier one.
fn make_indexes(transaction: &Transaction<'_>) -> rusqlite::Result<()> {
    if has_earlier_index(transaction)? {
        transaction.execute_batch("DROP INDEX recordings_of_dispatch")?;
    }
    transaction.execute_batch(INDEXES)
}

/// Makes the table of entities again, because of what is wrong with it.
pub(super) fn rebuild_entities(
    connection: &mut Connection,
    path: &Path,
    why: &str,
) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    make_entities(&transaction)?;
    transaction.commit()?;
    tracing::warn!(journal = %path.display(), why, "made the table of entities again");
    Ok(())
}

/// The missing indexes of a journal of format 4 or a later one. Indexes contain nothing that the
/// records do not.
pub(super) fn lost_indexes(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    let has_entities = stamp(connection)?.1 >= SINCE_ENTITIES;
    let of_entities = ENTITY_INDEX_NAMES.into_iter().filter(|_| has_entities);
    let mut known =
        connection.prepare("SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?1")?;
    let mut lost = Vec::new();
    for name in INDEX_NAMES.into_iter().chain(of_entities) {
        if !known.exists([name])? {
            lost.push(name);
        }
    }
    Ok(lost)
}

/// Prepares an intact journal for writing: with a log, which is moved into the file when it grows,
/// and at the end.
pub(super) fn begin_writing(connection: &Connection, path: &Path) -> Result<(), Error> {
    let begun = || -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        Ok(())
    };
    begun().map_err(|error| fault::of(path, "opening", &error))
}

fn prepare_writer(connection: &Connection, settings: &Settings) -> rusqlite::Result<()> {
    // A commit is on the disk when it returns, even if power fails.
    connection.pragma_update(None, "synchronous", "FULL")?;
    set_up(connection)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    connection.pragma_update(None, "wal_autocheckpoint", LOG_PAGES)?;
    if let Some(bytes) = settings.max_bytes {
        let page: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        // SQLite accepts 32 bits, and no number below the present one.
        let pages = u32::try_from(bytes / u64::from(page.max(1))).unwrap_or(u32::MAX - 1);
        connection.pragma_update(None, "max_page_count", pages.max(1))?;
    }
    Ok(())
}

/// How long the log grows before it is moved into the file, in pages of 4 KiB. Indexes of entities that
/// are awake change with each commit, and only their last state is moved.
const LOG_PAGES: u32 = 2048;

/// The settings that all connections share.
fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Otherwise, a statement with parameters is planned again for each of their values.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // A foreign file must not execute code through its schema.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "cell_size_check", true)
}

/// Whether SQLite's log exists beside the journal: it does while a process writes the journal, and
/// after one was killed.
pub(super) fn has_log(path: &Path) -> bool {
    sidecar(path, "-wal").exists()
}

/// Removes the log that SQLite created beside a journal whose opening was refused, and that has no
/// contents. The caller must hold the lock.
pub(super) fn remove_empty_log(path: &Path) {
    let log = sidecar(path, "-wal");
    if log.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        // If it stays, it does no harm.
        let _ = std::fs::remove_file(log);
        let _ = std::fs::remove_file(sidecar(path, "-shm"));
    }
}

/// How a journal is opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// With a log that may grow. SQLite keeps an index of it in a file.
    WithLog,
    /// As one file, because no process writes it. No other file is created, so its folder may be
    /// read-only.
    Still,
}

/// Opens an existing journal for reading only: without lock and write.
pub(super) fn open_reader(path: &Path, reading: Reading) -> Result<Connection, Error> {
    let connection = open_with(path, reading, set_up)?;
    defense::check_schema(&connection, path)?;
    Ok(connection)
}

/// As [`open_to_read`], but also opens a file that is cut off.
pub(super) fn open_salvager(path: &Path, reading: Reading) -> Result<Connection, Error> {
    let connection = open_with(path, reading, |connection| {
        set_up(connection)?;
        // SQLite refuses a file that is shorter than its header states, unless its schema may be
        // repaired. That cannot happen here, because the file is opened for reading only.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_WRITABLE_SCHEMA, true)?;
        Ok(())
    })?;
    match defense::check_schema(&connection, path) {
        Err(forged @ Error::Foreign { .. }) => Err(forged),
        // Only a part of the schema can be read.
        Ok(()) | Err(_) => Ok(connection),
    }
}

fn open_with(
    path: &Path,
    reading: Reading,
    prepare: impl Fn(&Connection) -> rusqlite::Result<()>,
) -> Result<Connection, Error> {
    match path.metadata().map(|metadata| metadata.len()) {
        Ok(0) => return Err(fault::foreign(path, "it is empty")),
        // SQLite takes a file of one byte for no file, and removes the log beside it even when it
        // only reads. The file is not opened here, because closing it would release SQLite's locks.
        Ok(1..HEADER_BYTES) => return Err(fault::foreign(path, CUT_OFF)),
        Ok(_) => {}
        Err(error) => return Err(fault::of_file(path, "opening", &error)),
    }
    let open = || -> rusqlite::Result<(Connection, u32, u32)> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = match reading {
            Reading::WithLog => Connection::open_with_flags(path, flags)?,
            Reading::Still => Connection::open_with_flags(
                still_address(path),
                flags | OpenFlags::SQLITE_OPEN_URI,
            )?,
        };
        connection.busy_timeout(BUSY)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        prepare(&connection)?;
        let (application, format) = stamp(&connection)?;
        Ok((connection, application, format))
    };
    let (connection, application, format) =
        open().map_err(|error| fault::of(path, "opening", &error))?;
    check_stamp(path, application, format)?;
    Ok(connection)
}

/// The path as SQLite's URI of a file that no process changes (<https://sqlite.org/uri.html>).
fn still_address(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut address = "file://".to_owned();
    for byte in absolute.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => {
                address.push(char::from(*byte));
            }
            _ => address.push_str(&format!("%{byte:02x}")),
        }
    }
    address + "?immutable=1"
}

/// Whether its format has snapshots, recordings and pruned entities.
pub(super) fn has_snapshots(connection: &Connection) -> rusqlite::Result<bool> {
    Ok(stamp(connection)?.1 >= SINCE_SNAPSHOTS)
}

/// Its application id and its format.
pub(super) fn stamp(connection: &Connection) -> rusqlite::Result<(u32, u32)> {
    let value = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    // SQLite stores 32 bits, and returns them with a sign.
    let unsigned = |value: i64| u32::try_from(value & 0xffff_ffff).unwrap_or_default();
    Ok((unsigned(value("application_id")?), unsigned(value("user_version")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_let_go_is_free_also_while_a_child_still_has_its_file() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("journal.db");
        let held = lock(&path).expect("it is free");
        // As in a child process between fork and exec.
        let inherited = held.0.try_clone().expect("one more");
        assert!(lock(&path).is_err(), "it is held");
        drop(held);
        lock(&path).expect("it was let go");
        drop(inherited);
    }
}
