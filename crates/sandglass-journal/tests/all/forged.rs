//! Files that are made to look like journals: an error, and never an endless read.

use sandglass_journal::{Error, Journal as _, Salvage, Settings, SqliteJournal};
use sandglass_model::Position;

use crate::scratch::Scratch;

/// Columns of `records`, of an endless number of rows.
const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) \
     SELECT i AS position, i AS batch, 0 AS at_ms, 'Session' AS entity_type, 'a' AS entity_id, \
     0 AS sequence, 'signal' AS kind, '{}' AS body, x'' AS checksum FROM n";

/// What each way to open the file says.
async fn refusals(scratch: &Scratch) -> [String; 3] {
    let refusal = |opened: Option<Error>| match opened {
        Some(error @ Error::Foreign { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    };
    [
        refusal(SqliteJournal::open_read_only(scratch.journal()).err()),
        refusal(SqliteJournal::open(scratch.journal(), Settings::default()).err()),
        refusal(Salvage::open(scratch.journal(), None, Position(1)).err()),
    ]
}

#[tokio::test]
async fn a_view_or_a_virtual_table_in_the_place_of_a_table_is_refused() {
    for table in ["records", "head", "snapshots", "recordings", "pruned", "torn_records"] {
        for (forged, kind) in [
            (format!("CREATE VIEW {} AS {ENDLESS}", table.to_uppercase()), "view"),
            (format!("CREATE VIRTUAL TABLE {table} USING fts5(position, body)"), "table"),
        ] {
            let scratch = Scratch::with_five_records().await;
            scratch.sql(&format!("DROP TABLE {table}; {forged}"));
            for refusal in refusals(&scratch).await {
                let expected = format!("`{table}` is a {kind} that stores no rows");
                assert!(refusal.contains(&expected), "{refusal}");
            }
        }
    }
}

#[tokio::test]
async fn a_trigger_or_a_computed_column_is_refused() {
    let column = "body TEXT GENERATED ALWAYS AS (hex(zeroblob(500000000)))";
    for (forged, expected) in [
        (
            "CREATE TRIGGER late AFTER INSERT ON records BEGIN DELETE FROM head; END".to_owned(),
            "it has a trigger `late`",
        ),
        (
            format!(
                "DROP TABLE records; CREATE TABLE records (position INTEGER PRIMARY KEY, {column})"
            ),
            "its table `records` has columns that are computed",
        ),
    ] {
        let scratch = Scratch::with_five_records().await;
        scratch.sql(&format!("DROP VIEW endings; DROP VIEW dispatches; DROP VIEW transitions; DROP VIEW log; {forged}"));
        for refusal in refusals(&scratch).await {
            assert!(refusal.contains(expected), "{refusal}");
        }
    }
}

#[tokio::test]
async fn views_and_tables_of_peoples_own_are_left_alone() {
    let scratch = Scratch::with_five_records().await;
    scratch.sql("CREATE VIEW mine AS SELECT * FROM log; CREATE TABLE notes (text)");
    assert_eq!(scratch.all().expect("a journal").entries.len(), 5);
    scratch.open().expect("a journal").journal.close().await;
}

#[cfg(unix)]
#[tokio::test]
async fn only_the_owner_may_read_a_journal_and_what_is_made_beside_it() {
    use std::ops::ControlFlow;
    use std::os::unix::fs::PermissionsExt as _;

    let scratch = Scratch::new();
    let opened = scratch.open().expect("a new file");
    crate::scratch::append_five(&opened.journal).await;
    let mut reader = SqliteJournal::open_read_only(scratch.journal()).expect("readable");
    let backup = scratch.path().join("backup.db");
    reader.back_up(&backup, |_| ControlFlow::Continue(())).expect("made").expect("not ended");
    let mut seen = Vec::new();
    for entry in std::fs::read_dir(scratch.path()).expect("there") {
        let entry = entry.expect("readable");
        let mode = entry.metadata().expect("there").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600, "{entry:?}");
        seen.push(entry.file_name().into_string().expect("UTF-8"));
    }
    seen.sort();
    let beside = ["journal.db", "journal.db-shm", "journal.db-wal", "journal.db.lock"];
    assert_eq!(seen, [&["backup.db"][..], &beside].concat());
    opened.journal.close().await;
}
