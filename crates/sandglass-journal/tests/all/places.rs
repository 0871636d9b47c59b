//! Which file a path leads to: links, other names, and what is no file at all.
#![cfg(unix)]

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

use sandglass_journal::conformance::{at, session, step};
use sandglass_journal::{Error, Journal, Settings, SqliteJournal};
use sandglass_model::Position;

use crate::scratch::{Scratch, append_five, shared};

fn open(path: &Path) -> Result<sandglass_journal::Opened, Error> {
    SqliteJournal::open(path, Settings::default())
}

fn is_foreign(path: &Path, says: &str) {
    for error in [
        open(path).map(drop).expect_err("no journal to write"),
        SqliteJournal::open_read_only(path).map(drop).expect_err("no journal to read"),
    ] {
        assert!(matches!(error, Error::Foreign { .. }), "{error:?}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

#[tokio::test]
async fn a_link_leads_to_the_same_journal_with_its_log_and_its_lock() {
    let (scratch, elsewhere) = (Scratch::new(), Scratch::new());
    symlink(scratch.journal(), elsewhere.journal()).expect("a link");
    symlink(scratch.path(), elsewhere.path().join("folder")).expect("a link");
    let in_folder = elsewhere.path().join("folder/journal.db");
    // What it leads to is there only afterwards.
    fs::write(scratch.journal(), b"").expect("written");
    let opened = open(&elsewhere.journal()).expect("a new file");
    append_five(&opened.journal).await;
    for path in [elsewhere.journal(), in_folder, scratch.journal()] {
        let mut reader = SqliteJournal::open_read_only(&path).expect("readable");
        assert_eq!(reader.last(), Ok(Position(5)), "the log was not seen by {}", path.display());
        let second = open(&path).map(drop).expect_err("it has a writer");
        assert!(second.to_string().contains("in use"), "{second}");
    }
    opened.journal.append(step(&session("a"), at(5), 4)).await.expect("the writer isn't disturbed");
    opened.journal.close().await;
    assert_eq!(fs::read_dir(elsewhere.path()).expect("there").count(), 2, "nothing beside a link");
    shared(open(&elsewhere.journal()).expect("the first has let go"));
}

#[test]
fn a_link_that_leads_nowhere_is_refused() {
    let scratch = Scratch::new();
    symlink(scratch.path().join("absent.db"), scratch.journal()).expect("a link");
    is_foreign(&scratch.journal(), "leads nowhere");
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 1, "nothing was made");
}

#[tokio::test]
async fn a_file_of_two_names_is_refused_under_both() {
    let scratch = Scratch::with_five_records().await;
    let other = scratch.path().join("other.db");
    fs::hard_link(scratch.journal(), &other).expect("a second name");
    is_foreign(&scratch.journal(), "more than one name");
    is_foreign(&other, "more than one name");
    fs::remove_file(other).expect("there");
    shared(scratch.open().expect("one name again"));
}

#[test]
fn what_is_no_regular_file_is_refused_at_once_and_nothing_is_put_beside_it() {
    let scratch = Scratch::new();
    let _socket = UnixListener::bind(scratch.journal()).expect("a socket");
    let fifo = scratch.path().join("fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
    assert!(made.success());
    is_foreign(&scratch.journal(), "no regular file");
    is_foreign(&fifo, "no regular file");
    is_foreign(Path::new("/dev/null"), "no regular file");
    is_foreign(scratch.path(), "folder");
    assert_eq!(fs::read_dir(scratch.path()).expect("there").count(), 2, "nothing was made");
}

#[tokio::test]
async fn a_pipe_in_the_place_of_a_log_or_a_lock_is_refused_at_once() {
    for beside in ["journal.db-wal", "journal.db.lock"] {
        let scratch = Scratch::with_five_records().await;
        let fifo = scratch.path().join(beside);
        // The lock file stays where a journal was.
        let _ = fs::remove_file(&fifo);
        let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs");
        assert!(made.success());
        is_foreign(&scratch.journal(), beside);
    }
}

#[tokio::test]
async fn a_journal_that_may_not_be_written_is_refused_for_writing_alone() {
    let scratch = Scratch::with_five_records().await;
    let lock = scratch.path().join("journal.db.lock");
    fs::remove_file(&lock).expect("there");
    fs::set_permissions(scratch.journal(), Permissions::from_mode(0o444)).expect("ours");
    assert_eq!(scratch.all().expect("readable").entries.len(), 5);
    if OpenOptions::new().write(true).open(scratch.journal()).is_ok() {
        return; // Permissions bind everybody but this user.
    }
    let error = scratch.open().expect_err("read-only");
    assert!(error.to_string().contains("opening for writing"), "{error}");
    assert!(!lock.exists(), "a lock was left behind");
}
