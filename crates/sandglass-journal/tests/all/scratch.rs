//! A folder that goes away with the test, and journals of known contents in it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandglass_journal::conformance::{at, creation, session, signal, step};
use sandglass_journal::{
    Batch, Error, Journal, Opened, Page, Settings, SqliteJournal, conformance,
};
use sandglass_model::Position;

/// A folder of its own for each test.
#[derive(Debug)]
pub(crate) struct Scratch(tempfile::TempDir);

impl Scratch {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.0.path().join("journal.db")
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn open(&self) -> Result<Opened, Error> {
        SqliteJournal::open(self.journal(), Settings::default())
    }

    /// A journal that is whole: positions 1 (created), 2 (step 1), 3 and 4 (step 2
    /// and a signal, one batch), 5 (step 3); closed.
    pub(crate) async fn with_five_records() -> Self {
        let scratch = Self::new();
        let opened = scratch.open().expect("a new file");
        append_five(&opened.journal).await;
        opened.journal.close().await;
        scratch
    }

    /// Changes the file behind the journal's back.
    pub(crate) fn sql(&self, statements: &str) {
        let connection = rusqlite::Connection::open(self.journal()).expect("a SQLite file");
        connection.execute_batch(statements).expect("valid SQL");
    }

    /// The same; false where SQLite itself refuses.
    pub(crate) fn try_sql(&self, statements: &str) -> bool {
        let connection = rusqlite::Connection::open(self.journal()).expect("a SQLite file");
        connection.execute_batch(statements).is_ok()
    }

    /// How SQLite would look a dispatch up.
    pub(crate) fn plan_of_find_dispatch(&self) -> String {
        let connection = rusqlite::Connection::open(self.journal()).expect("a SQLite file");
        let sql = "EXPLAIN QUERY PLAN SELECT entity_type, entity_id, position FROM records \
                   WHERE kind = 'dispatched' \
                   AND iif(json_valid(body), unhex(substr(body ->> '$.dispatch', 17, 16)), NULL) \
                       = unhex(substr(?1, 17, 16)) \
                   AND iif(json_valid(body), body ->> '$.dispatch', NULL) = ?1 \
                   ORDER BY position LIMIT 1";
        connection.query_row(sql, [""], |row| row.get(3)).expect("a plan")
    }

    /// How SQLite would look a recording up.
    pub(crate) fn plan_of_recording(&self) -> String {
        let connection = rusqlite::Connection::open(self.journal()).expect("a SQLite file");
        let sql = "EXPLAIN QUERY PLAN SELECT body FROM recordings \
                   WHERE dispatch = ?1 AND attempt = ?2 \
                   AND unhex(substr(dispatch, 17, 16)) = unhex(substr(?1, 17, 16)) \
                   AND unhex(substr(dispatch, 1, 16)) = unhex(substr(?1, 1, 16))";
        connection.query_row(sql, ["", ""], |row| row.get(3)).expect("a plan")
    }

    pub(crate) fn all(&self) -> Result<Page, Error> {
        SqliteJournal::open_read_only(self.journal())?.read(Position(0), 100)
    }
}

pub(crate) async fn append_five(journal: &SqliteJournal) {
    let entity = session("a");
    let pair = vec![(2, conformance::transition("Go")), (2, signal("half way"))];
    let batches: [Batch; 4] = [
        creation(&entity),
        step(&entity, at(1), 1),
        conformance::batch(&entity, at(2), pair),
        step(&entity, at(4), 3),
    ];
    for batch in batches {
        journal.append(batch).await.expect("each follows on the one before");
    }
}

/// As the runtime holds it.
pub(crate) fn shared(opened: Opened) -> Arc<dyn Journal> {
    assert_eq!(opened.recovered, [], "nothing is torn");
    Arc::new(opened.journal)
}
