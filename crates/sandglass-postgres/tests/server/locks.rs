//! Locks that tests hold, so that statements wait for as long as a test wants.

use tokio_postgres::{Client, NoTls};

use crate::server::{self, Server, block};

/// A transaction that holds locks until this is dropped.
pub(crate) struct Lock(Option<Client>);

impl Lock {
    /// Locks what `sql` locks.
    pub(crate) fn by(server: &Server, database: &str, sql: &str) -> Self {
        let (url, sql) = (server.url(database), format!("BEGIN; {sql}"));
        let client = block(async move {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&sql).await.unwrap();
            client
        });
        Self(Some(client))
    }

    /// Ends the transaction.
    pub(crate) fn release(mut self) {
        let client = self.0.take().unwrap();
        block(async move { client.batch_execute("ROLLBACK").await }).unwrap();
    }
}

/// How many statements in a database wait for locks.
fn count_waiting(server: &Server, database: &str) -> usize {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
               AND datname = current_database()";
    server.psql(database, sql).parse().unwrap()
}

/// Waits until at least `count` statements wait for locks.
pub(crate) fn until_waiting(server: &Server, database: &str, count: usize) {
    server::until(|| count_waiting(server, database) >= count);
}

/// Waits until no statement waits for a lock.
pub(crate) fn until_none_waits(server: &Server, database: &str) {
    server::until(|| count_waiting(server, database) == 0);
}
