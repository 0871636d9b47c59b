//! The database of a journal, used by commands that block.

use std::collections::BTreeMap;
use std::time::Duration;

use sandglass_journal::{Error, Journals};
use sandglass_model::{Clock, SystemClock};
use sandglass_postgres::{Address, Database, Owner, PASSWORD_VARIABLE, Settings};
use tokio::runtime::{Handle, Runtime};

use crate::threads;
use crate::wait::pause;

/// How long a process that has the journal is watched for a beat, of which it has one every second.
const WATCH: Duration = Duration::from_secs(4);
const WATCH_EVERY: Duration = Duration::from_millis(200);

/// A database. It is closed when it is dropped.
#[derive(Debug)]
pub(crate) struct OpenDatabase {
    database: Database,
    journals: Journals,
    handle: Handle,
    threads: Option<Runtime>,
}

impl OpenDatabase {
    /// # Errors
    /// As [`Database::open_read_only`].
    pub(crate) fn open_read_only(address: &Address) -> anyhow::Result<Self> {
        Self::open_by(address, Database::open_read_only(address, Settings::default()))
    }

    /// Takes the journal from a process that has it.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub(crate) fn open(address: &Address) -> anyhow::Result<Self> {
        Self::open_by(address, Database::open(address, Settings::default()))
    }

    fn open_by(
        address: &Address,
        opening: impl Future<Output = Result<Database, Error>>,
    ) -> anyhow::Result<Self> {
        let threads = threads::start(Some(1))?;
        let handle = threads.handle().clone();
        let opened = tokio::task::block_in_place(|| handle.block_on(opening));
        match opened {
            Ok(database) => {
                let journals = database.journals();
                Ok(Self { database, journals, handle, threads: Some(threads) })
            }
            Err(error) => {
                threads.shutdown_background();
                Err(explain(address, error))
            }
        }
    }

    pub(crate) const fn database(&self) -> &Database {
        &self.database
    }

    pub(crate) const fn journals(&self) -> &Journals {
        &self.journals
    }

    /// Blocks until `work` is done, even within a runtime.
    pub(crate) fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        tokio::task::block_in_place(|| self.handle.block_on(work))
    }

    /// The names of processes that have the journal and are alive: within some seconds, they report
    /// it. Returns at once if the last one has closed it.
    ///
    /// # Errors
    /// As [`Database::owners`].
    pub(crate) fn writers(&self) -> Result<Vec<String>, Error> {
        self.wait(async {
            let before = open_owners(self.database.owners().await?);
            let clock = SystemClock::new();
            let begun = clock.now();
            while !before.is_empty() && clock.now().since(begun) < WATCH {
                pause(WATCH_EVERY).await;
                let now = open_owners(self.database.owners().await?);
                let alive = |(host, (_, beats)): &(&String, &(String, i64))| {
                    before.get(*host).is_none_or(|(_, earlier)| beats > earlier)
                };
                let alive = now.iter().filter(alive).map(|(_, (name, _))| name.clone());
                let alive: Vec<String> = alive.collect();
                if !alive.is_empty() {
                    return Ok(alive);
                }
            }
            Ok(Vec::new())
        })
    }
}

impl Drop for OpenDatabase {
    fn drop(&mut self) {
        self.wait(self.database.close());
        if let Some(threads) = self.threads.take() {
            threads.shutdown_background();
        }
    }
}

/// Why a database cannot be opened, with its place, and where its password is from if it concerns that.
pub(crate) fn explain(address: &Address, error: Error) -> anyhow::Error {
    let Error::Unavailable { what } = &error else { return error.into() };
    let concerns_password = what.contains("password");
    let source = match address.password_file() {
        _ if !concerns_password => String::new(),
        Some(file) => format!(" (the password is from `{}`)", file.display()),
        None if address.has_password() => String::new(),
        None => format!(
            " (there is no password: set {PASSWORD_VARIABLE}, or name a file that contains it with \
             ?password_file=FILE)"
        ),
    };
    anyhow::Error::new(error).context(format!("{}{source}", address.place()))
}

/// The names and beats of processes that have not closed the journal.
fn open_owners(owners: Vec<Owner>) -> BTreeMap<String, (String, i64)> {
    let open = owners.into_iter().filter(|owner| !owner.is_closed);
    open.map(|owner| (owner.host, (owner.name, owner.beats))).collect()
}
