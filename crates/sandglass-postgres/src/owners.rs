//! Which processes have the journal, and whether a copy into it is complete.

use sandglass_journal::Error;
use tokio_postgres::types::Type;

use crate::database::Database;
use crate::schema::{HASH, INCOMPLETE};

/// A process that has partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its id, which no other process has.
    pub host: String,
    /// Its machine, and the number of the process there.
    pub name: String,
    /// How often it has reported that it is alive; one that serves does so every second.
    pub beats: i64,
    /// Whether it has closed the journal.
    pub is_closed: bool,
}

impl Database {
    /// The processes that had partitions last.
    ///
    /// # Errors
    /// [`Error::Unavailable`].
    pub async fn owners(&self) -> Result<Vec<Owner>, Error> {
        let sql = "SELECT DISTINCT h.host, h.name, h.beats, h.dead FROM sandglass.partitions p \
                   JOIN sandglass.hosts h ON h.host = p.owner ORDER BY h.host";
        let rows = self.reader().query(sql, &[]).await?;
        let read = |row: &tokio_postgres::Row| -> Result<Owner, tokio_postgres::Error> {
            let (host, name) = (row.try_get(0)?, row.try_get(1)?);
            Ok(Owner { host, name, beats: row.try_get(2)?, is_closed: row.try_get(3)? })
        };
        let owners = rows.iter().map(read).collect::<Result<_, _>>();
        owners.map_err(|error| self.reader().unreadable(error))
    }

    /// Notes that a copy of another journal into this one begins or is complete. In between, the
    /// database is not opened again: it lacks records.
    ///
    /// # Errors
    /// [`Error::Unavailable`], for example if the role may not change `sandglass.cluster`.
    pub async fn note_incomplete(&self, is_incomplete: bool) -> Result<(), Error> {
        let sql = "UPDATE sandglass.cluster SET hash = $1";
        let hash = if is_incomplete { INCOMPLETE } else { HASH };
        self.reader().query(sql, &[(&hash, Type::TEXT)]).await.map(drop)
    }
}
