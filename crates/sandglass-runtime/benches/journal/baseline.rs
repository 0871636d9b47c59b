//! The least that a durable log in SQLite costs: the same bytes in the same groups, in a
//! table without an index, a checksum or a look at what is there.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;

/// Copies the bodies of the last `records` records of the journal at `from` to a new table,
/// `group` of them in one transaction; how long that took.
pub(crate) fn run(from: &Path, to: &Path, records: u64, group: usize) -> Duration {
    let bodies = bodies(from, records);
    let mut connection = Connection::open(to).expect("a new file");
    connection.pragma_update(None, "journal_mode", "WAL").expect("taken");
    connection.pragma_update(None, "synchronous", "FULL").expect("taken");
    connection
        .execute_batch("CREATE TABLE log (position INTEGER PRIMARY KEY, body TEXT NOT NULL)")
        .expect("made");
    let begun = Instant::now();
    for some in bodies.chunks(group) {
        let transaction = connection.transaction().expect("begun");
        {
            let mut insert = transaction
                .prepare_cached("INSERT INTO log (body) VALUES (?1)")
                .expect("a statement");
            for body in some {
                insert.execute([body]).expect("inserted");
            }
        }
        transaction.commit().expect("durable");
    }
    begun.elapsed()
}

fn bodies(from: &Path, records: u64) -> Vec<String> {
    let connection = Connection::open(from).expect("a journal");
    let mut statement = connection
        .prepare("SELECT body FROM records ORDER BY position DESC LIMIT ?1")
        .expect("a statement");
    let bodies = statement.query_map([records as i64], |row| row.get(0)).expect("rows");
    bodies.map(|body| body.expect("a text")).collect()
}
