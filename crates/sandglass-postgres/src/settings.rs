//! How a database is used.

use std::time::Duration;

/// How long the server may take, and how many connections are opened.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// How long one statement may take until its connection is given up: 30 s. If it is an append,
    /// its outcome is then unknown and looked up on another connection.
    pub statement_limit: Duration,
    /// How long one attempt to connect may take: 5 s.
    pub connect_limit: Duration,
    /// Most connections for reading, besides one each for appending, for beats and for pruning: 4.
    pub readers: usize,
    /// How long a recording is kept that no record names: 15 minutes, which is longer than an append
    /// takes.
    pub orphans_kept: Duration,
    /// How long other members of the cluster wait for a new beat of this process before they declare it
    /// dead: 5 s.
    pub ttl: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        let (statement_limit, connect_limit) = (Duration::from_secs(30), Duration::from_secs(5));
        let orphans_kept = Duration::from_secs(15 * 60);
        let ttl = Duration::from_secs(5);
        Self { statement_limit, connect_limit, readers: 4, orphans_kept, ttl }
    }
}

impl Settings {
    /// Settings with other limits of time, for statements and for attempts to connect.
    #[must_use]
    pub fn limits(self, statement: Duration, connect: Duration) -> Self {
        Self { statement_limit: statement, connect_limit: connect, ..self }
    }

    /// Settings with another `ttl`.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }
}
