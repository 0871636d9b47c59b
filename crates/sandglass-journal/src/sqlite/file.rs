//! The file of a journal: whose it is, its lock, and its connections. Nothing is
//! written to a file before it is known to be a journal, or empty.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, Transaction};

use super::{Settings, defense, fault};
use crate::{Error, NewFile};

/// What the header of the SQLite file says: "SdGl".
pub const APPLICATION_ID: u32 = 0x5364_476c;
/// The format that this version writes, and the newest that it reads.
pub const FORMAT: u32 = 5;

/// The format from which on the head says where the last write began, and the indexes are those
/// of today.
pub(super) const SINCE_WHERE_WRITES_BEGAN: u32 = 4;

/// How long SQLite waits for whoever else holds the file (a SQL prompt, say)
/// before an operation fails.
const BUSY: Duration = Duration::from_secs(5);

/// Pages that the writer keeps in memory, in KiB: the ends of some thousand entities'
/// index entries, so that appending to those reads nothing.
const WRITER_CACHE_KIB: i64 = 16 << 10;

/// The size of SQLite's header (<https://sqlite.org/fileformat2.html#the_database_header>).
const HEADER_BYTES: u64 = 100;
const CUT_OFF: &str = "it is no SQLite database, or cut off inside the header of one";

const SCHEMA: &str = include_str!("schema.sql");
/// What later formats add. Formats 2 and 5 only marked that records of later kinds may be
/// there.
const LATER: [(u32, &str); 2] =
    [(3, include_str!("format-3.sql")), (4, include_str!("format-4.sql"))];
const INDEXES: &str = include_str!("indexes.sql");
/// Those that it makes.
const INDEX_NAMES: [&str; 4] =
    ["records_of_entity", "dispatches_by_id", "recordings_of_dispatch", "snapshots_by_position"];
const VIEWS: &str = include_str!("views.sql");

/// How a file is opened that is there: by one thread alone.
const FOR_WRITING: OpenFlags =
    OpenFlags::SQLITE_OPEN_READ_WRITE.union(OpenFlags::SQLITE_OPEN_NO_MUTEX);

/// Holds the right to write a journal, until dropped or until the process ends.
#[derive(Debug)]
pub(super) struct WriterLock(File);

impl Drop for WriterLock {
    /// Closing the file isn't enough: a process that is being started beside has it, too,
    /// until it runs its program, and would keep the lock for that long (flock(2)).
    fn drop(&mut self) {
        // Where that fails, closing is what there is.
        let _ = self.0.unlock();
    }
}

/// Takes the lock file beside `path`. It is a file of its own because closing a
/// second handle of the journal itself would end SQLite's locks on it.
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

/// As [`lock`], where the lock file was made before; none where it wasn't, so that
/// nobody can hold it.
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

/// The path with `suffix` after its whole name.
pub(super) fn sidecar(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// What stands at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Present {
    /// Nothing, or an empty file.
    Nothing,
    /// A journal, by its header.
    Journal,
}

/// Looks at the first bytes of the file, before SQLite does, which would roll
/// back or check in what it finds beside a database of somebody else.
pub(super) fn look(path: &Path) -> Result<Present, Error> {
    let mut header = Vec::new();
    // For writing, too: SQLite would open what it may only read, and say so late.
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

/// An empty file beside a log of changes is a journal that lost its contents:
/// SQLite would throw the log away.
fn nothing_left_over(path: &Path) -> Result<Present, Error> {
    let log = sidecar(path, "-wal");
    match log.metadata() {
        Ok(metadata) if metadata.len() > 0 => Err(Error::Damaged {
            place: format!("`{}`", path.display()),
            what: format!("it is empty or gone, but `{}` is left of it", log.display()),
        }),
        _ => Ok(Present::Nothing),
    }
}

/// Refuses a journal beside which a rollback journal of SQLite's stands: it would be
/// rolled back into the file. None of ours ever stands there.
pub(super) fn refuse_rollback(path: &Path) -> Result<(), Error> {
    let rollback = sidecar(path, "-journal");
    if rollback.metadata().is_ok_and(|metadata| metadata.len() > 0) {
        return Err(Error::Damaged {
            place: format!("`{}`", rollback.display()),
            what: "it would undo changes of the journal, and is none of its files; \
                   keep a copy, and move it away"
                .to_owned(),
        });
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

/// Opens the journal for writing, creating it where `present` is nothing. What is there
/// stays as it is, also where it is closed again, until [`begin_writing`].
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

/// Makes an empty journal under another name, and puts it where nothing stands, or an
/// empty file: a kill leaves what was there before, or a whole journal.
fn create(path: &Path) -> Result<(), Error> {
    let file = NewFile::in_place_of_empty(path)?;
    let make = || -> rusqlite::Result<()> {
        let mut connection = Connection::open_with_flags(file.partial(), FOR_WRITING)?;
        // Nobody needs it before it is whole, and synced as one.
        connection.pragma_update(None, "journal_mode", "MEMORY")?;
        connection.pragma_update(None, "synchronous", "OFF")?;
        let transaction = connection.transaction()?;
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        add_later(&transaction, 1)?;
        transaction.commit()?;
        // The file says so itself: SQLite never begins a rollback journal beside it.
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.close().map_err(|(_, error)| error)
    };
    make().map_err(|error| fault::of(path, "creating", &error))?;
    file.finish()
}

/// Adds what the formats behind `format` do.
fn add_later(transaction: &Transaction<'_>, format: u32) -> rusqlite::Result<()> {
    for (_, adds) in LATER.iter().filter(|(later, _)| *later > format) {
        transaction.execute_batch(adds)?;
    }
    transaction.execute_batch(INDEXES)?;
    transaction.execute_batch(VIEWS)?;
    transaction.pragma_update(None, "user_version", FORMAT)
}

/// Brings a journal that was found whole to the newest format, with all of its indexes.
/// What is in it stays as it is; earlier versions refuse it from then on, because they
/// know fewer records.
pub(super) fn upgrade(connection: &mut Connection, path: &Path) -> Result<(), Error> {
    let mut upgraded = || -> rusqlite::Result<()> {
        let format = stamp(connection)?.1;
        if format == FORMAT {
            let lost = lost_indexes(connection)?;
            if lost.is_empty() {
                return Ok(());
            }
            tracing::warn!(journal = %path.display(), ?lost, "made indexes again that were lost");
            return connection.execute_batch(INDEXES);
        }
        let transaction = connection.transaction()?;
        add_later(&transaction, format)?;
        transaction.commit()
    };
    upgraded().map_err(|error| fault::of(path, "upgrading", &error))
}

/// The indexes of a journal of the newest format that aren't there. None of them holds what
/// the records don't.
pub(super) fn lost_indexes(connection: &Connection) -> rusqlite::Result<Vec<&'static str>> {
    let mut known =
        connection.prepare("SELECT 1 FROM sqlite_schema WHERE type = 'index' AND name = ?1")?;
    let mut lost = Vec::new();
    for name in INDEX_NAMES {
        if !known.exists([name])? {
            lost.push(name);
        }
    }
    Ok(lost)
}

/// Lets a journal that was found whole be written: through a log, which is taken into
/// the file when that grows, and at the end.
pub(super) fn begin_writing(connection: &Connection, path: &Path) -> Result<(), Error> {
    let begun = || -> rusqlite::Result<()> {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        Ok(())
    };
    begun().map_err(|error| fault::of(path, "opening", &error))
}

fn prepare_writer(connection: &Connection, settings: &Settings) -> rusqlite::Result<()> {
    // A commit is on the disk when it returns, also where power fails.
    connection.pragma_update(None, "synchronous", "FULL")?;
    set_up(connection)?;
    connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
    if let Some(bytes) = settings.max_bytes {
        let page: u32 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
        // SQLite takes 32 bits, and no number below what there is already.
        let pages = u32::try_from(bytes / u64::from(page.max(1))).unwrap_or(u32::MAX - 1);
        connection.pragma_update(None, "max_page_count", pages.max(1))?;
    }
    Ok(())
}

/// What all connections have in common.
fn set_up(connection: &Connection) -> rusqlite::Result<()> {
    // Else a statement with parameters is planned anew for each of their values.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    // A file from elsewhere must not run code through its schema.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "cell_size_check", true)
}

/// Whether SQLite's log stands beside the journal: it does while a process writes
/// the journal, and after one was killed.
pub(super) fn has_log(path: &Path) -> bool {
    sidecar(path, "-wal").exists()
}

/// Removes the log that SQLite put beside a journal whose opening was refused, and that
/// nothing was written to. Only who holds the lock may.
pub(super) fn remove_empty_log(path: &Path) {
    let log = sidecar(path, "-wal");
    if log.metadata().is_ok_and(|metadata| metadata.len() == 0) {
        // Left there, they are only untidy.
        let _ = std::fs::remove_file(log);
        let _ = std::fs::remove_file(sidecar(path, "-shm"));
    }
}

/// How a journal is opened for reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Beside a log that may grow. SQLite keeps an index of it in a file.
    WithLog,
    /// As the one file that it is while nobody writes it. Nothing is put beside it,
    /// so that a folder may be read-only.
    Still,
}

/// Opens a journal that is there for reading alone: no lock, no write.
pub(super) fn open_reader(path: &Path, reading: Reading) -> Result<Connection, Error> {
    let connection = open_with(path, reading, set_up)?;
    defense::check_schema(&connection, path)?;
    Ok(connection)
}

/// The same of a file that may be cut off, for what is left of it.
pub(super) fn open_salvager(path: &Path, reading: Reading) -> Result<Connection, Error> {
    let connection = open_with(path, reading, |connection| {
        set_up(connection)?;
        // SQLite reads nothing of a file that is shorter than it says, unless its schema
        // may be repaired, which it can't be here: the file is open for reading alone.
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
        // To SQLite one byte is no file, and it removes the log beside it, also for who
        // only reads. The file isn't opened here: closing it would end SQLite's locks.
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

/// The path as SQLite's address of a file that nobody changes
/// (<https://sqlite.org/uri.html>).
fn still_address(path: &Path) -> String {
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let mut address = "file://".to_owned();
    for byte in absolute.as_os_str().as_encoded_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' => address.push(char::from(*byte)),
            _ if byte.is_ascii_alphanumeric() => address.push(char::from(*byte)),
            _ => address.push_str(&format!("%{byte:02x}")),
        }
    }
    address + "?immutable=1"
}

pub(super) fn stamp(connection: &Connection) -> rusqlite::Result<(u32, u32)> {
    let value = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0));
    // Kept by SQLite as 32 bits, given back with a sign.
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
        let held = lock(&path).expect("nobody has it");
        // As a child has it between its making and its program.
        let inherited = held.0.try_clone().expect("one more");
        assert!(lock(&path).is_err(), "it is held");
        drop(held);
        lock(&path).expect("it was let go");
        drop(inherited);
    }
}
