//! Backups: one state, in one piece, while others write.

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use sandglass_journal::conformance::{batch, creation, session, signal};
use sandglass_journal::{BackedUp, Error, Expected, Journal, Settings, SqliteJournal};
use sandglass_model::{EntityRef, Position};
use tokio::runtime::Handle;

use crate::scratch::{Scratch, shared};

/// More than the backup copies in one step.
const RECORDS: u64 = 12;

/// A record of 1 MiB.
async fn append_large(journal: &dyn Journal, entity: &EntityRef) {
    let record = vec![(0, signal("x".repeat(1 << 20)))];
    let large = batch(entity, Expected::Any, record);
    journal.append(large).await.expect("no writer waits");
}

/// An open journal of [`RECORDS`] records about one entity.
async fn large() -> (Scratch, Arc<dyn Journal>, EntityRef) {
    let scratch = Scratch::new();
    let journal = shared(scratch.open().expect("a new file"));
    let entity = session("a");
    journal.append(creation(&entity)).await.expect("appended");
    for _ in 1..RECORDS {
        append_large(&*journal, &entity).await;
    }
    (scratch, journal, entity)
}

/// What lies in the folder beside the journal and its own files.
fn others(scratch: &Scratch) -> Vec<String> {
    let names = fs::read_dir(scratch.path()).expect("there");
    let names = names.map(|one| one.expect("readable").file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("journal.db")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_is_one_state_and_holds_up_no_writer() {
    let (scratch, journal, entity) = large().await;
    let to = scratch.path().join("backup.db");
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    let mut steps = 0;
    let backed_up = tokio::task::block_in_place(|| {
        reader.back_up(&to, |copied| {
            assert!(copied.pages > 0 && copied.pages < copied.of, "{copied:?}");
            assert!(!to.exists(), "nothing half done has the name");
            steps += 1;
            Handle::current().block_on(append_large(&*journal, &entity));
            ControlFlow::Continue(())
        })
    });
    let backed_up = backed_up.expect("made").expect("not ended");
    assert!(steps > 1, "{steps} steps");
    assert_eq!(backed_up.last, Position(RECORDS), "as it was when the copy began");
    assert_eq!(journal.last().await, Ok(Position(RECORDS + steps)));
    assert_eq!(fs::metadata(&to).expect("there").len(), backed_up.bytes);
    assert_eq!(others(&scratch), ["backup.db"]);

    let copy = shared(SqliteJournal::open(&to, Settings::default()).expect("whole"));
    assert_eq!(copy.last().await, Ok(Position(RECORDS)));
    append_large(&*copy, &entity).await;
    copy.close().await;
}

#[tokio::test]
async fn a_backup_that_is_ended_leaves_nothing() {
    let (scratch, _journal, _) = large().await;
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    let ended = reader.back_up(scratch.path().join("backup.db"), |_| ControlFlow::Break(()));
    assert_eq!(ended, Ok(None));
    assert_eq!(others(&scratch), [""; 0]);
}

fn backed_up(scratch: &Scratch) -> Result<Option<BackedUp>, Error> {
    let to = scratch.path().join("backup.db");
    let mut reader = SqliteJournal::open_read_only(scratch.journal())?;
    reader.back_up(to, |_| ControlFlow::Continue(()))
}

#[tokio::test]
async fn a_journal_that_is_not_whole_is_not_backed_up() {
    let damages = [
        ("UPDATE records SET at_ms = at_ms + 1 WHERE position = 2", "position 2"),
        ("UPDATE records SET at_ms = at_ms + 1 WHERE position = 5", "position 5"),
        ("DELETE FROM records WHERE position = 2", "position 2"),
        ("DELETE FROM records WHERE position = 5", "position 5"),
        ("DELETE FROM records WHERE position > 3; UPDATE head SET position = 3", "position 3"),
    ];
    for (damage, at) in damages {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(damage);
        let refused = backed_up(&scratch);
        let place = scratch.journal().display().to_string();
        assert!(
            matches!(&refused, Err(Error::Damaged { place: damaged, .. })
                if damaged.contains(at) && damaged.contains(&place)),
            "{damage}: {refused:?}"
        );
        assert_eq!(others(&scratch), [""; 0], "{damage}");
    }
}

#[tokio::test]
async fn a_backup_replaces_nothing_and_joins_nothing() {
    let scratch = Scratch::with_five_records().await;
    let to = scratch.path().join("backup.db");
    fs::write(&to, "").expect("written");
    let refused = backed_up(&scratch).expect_err("even an empty file belongs to someone");
    assert!(refused.to_string().contains("already"), "{refused}");
    assert!(matches!(refused, Error::Unavailable { .. }), "{refused:?}");
    assert_eq!(fs::read(&to).expect("there"), b"");
    fs::remove_file(&to).expect("removed");

    let log = scratch.path().join("backup.db-wal");
    fs::write(&log, "left over").expect("written");
    let refused = backed_up(&scratch).expect_err("SQLite would take it for the backup's");
    assert!(refused.to_string().contains("backup.db-wal"), "{refused}");
    fs::remove_file(&log).expect("removed");

    let made = backed_up(&scratch).expect("made").expect("not ended");
    assert_eq!(made.last, Position(5));
    assert_eq!(others(&scratch), ["backup.db"]);
}
