//! Where a server keeps its journal, and how it is opened: a file, a database, or memory.

mod check;
mod database;

pub(crate) use database::{grace, keep};

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sandglass_cluster::Peers;
use sandglass_journal::{
    Checking, Journal, Journals, MemoryJournal, Opened as OpenedFile, Settings, SqliteJournal,
};
use sandglass_postgres::{Address, Database, Deployments, Settings as DatabaseSettings};

use crate::Report;
use crate::base::Base;
use crate::config::ClusterConfig;
use crate::error::{Error, Result};

/// Longest file with the URL of a database, in bytes.
const URL_MAX_BYTES: u64 = 16 << 10;

/// Where a server keeps its journal. The URL of a database may contain a password, so it is in an
/// environment variable or a file, and in no argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalPlace {
    /// An SQLite file, which is created if there is none.
    File(PathBuf),
    /// The PostgreSQL database whose URL is in this environment variable.
    UrlInVariable(String),
    /// The PostgreSQL database whose URL is in this file.
    UrlInFile(PathBuf),
}

/// A journal that was opened.
pub(crate) struct Opened {
    pub(crate) journals: Journals,
    /// The database, if it is one.
    pub(crate) database: Option<Database>,
}

impl JournalPlace {
    /// The folder for modules that clients upload, beside a file.
    pub(crate) fn modules(&self) -> Option<PathBuf> {
        let Self::File(path) = self else { return None };
        let mut name = path.as_os_str().to_owned();
        name.push(".modules");
        Some(name.into())
    }

    /// Whether it is a database, which several hosts can share.
    pub(crate) const fn is_database(&self) -> bool {
        match self {
            Self::File(_) => false,
            Self::UrlInVariable(_) | Self::UrlInFile(_) => true,
        }
    }

    /// Whether `name` can be the name of an environment variable. Messages do not repeat any other text,
    /// because it may be a URL with a password.
    #[must_use]
    pub fn is_variable_name(name: &str) -> bool {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        !name.is_empty() && name.bytes().all(is_allowed)
    }

    /// Whether `text` is written as a database, not as a file: as a URL or `env:VAR`.
    #[must_use]
    pub fn names_database(text: &str) -> bool {
        ["env:", "postgres://", "postgresql://"].iter().any(|start| text.starts_with(start))
    }

    /// The address of the database, and where it was read; `None` for a file.
    fn address(&self) -> Result<Option<Address>> {
        let (source, url) = match self {
            Self::File(_) => return Ok(None),
            Self::UrlInVariable(variable) if !Self::is_variable_name(variable) => {
                return Err(Error::Unusable(
                    "`--journal-env` and `url_env` take the name of an environment variable (letters, \
                     digits and `_`): put the URL of the journal's database into the variable"
                        .to_owned(),
                ));
            }
            Self::UrlInVariable(variable) => {
                let url = std::env::var(variable).map_err(|_| {
                    Error::Unusable(format!(
                        "the environment has no `{variable}`, which is to hold the URL of the journal's \
                         database"
                    ))
                })?;
                (format!("the environment variable `{variable}`"), url)
            }
            Self::UrlInFile(path) => {
                let url = sandglass_host::file::read_text(path, URL_MAX_BYTES)?;
                (format!("`{}`", path.display()), url)
            }
        };
        let address = Address::parse(url.trim());
        match address {
            Ok(address) => Ok(Some(address.or_environment())),
            Err(error) => Err(Error::Unusable(format!("{source}: {error}"))),
        }
    }
}

/// The deployments of the database at `place`.
pub(crate) async fn deployments(place: Option<&JournalPlace>) -> Result<Deployments> {
    let address = place.map(JournalPlace::address).transpose()?.flatten();
    let address = address.ok_or_else(|| {
        Error::Unusable("the hosts of a cluster share a journal in a database".to_owned())
    })?;
    Ok(Deployments::connect(&address, DatabaseSettings::default()).await?)
}

/// Opens the journal at `place`; without a place, it is in memory. A database is opened as a member of
/// `cluster`, if there is one, with the client for its other hosts.
pub(crate) async fn open(
    place: Option<&JournalPlace>,
    cluster: Option<(&ClusterConfig, &Peers)>,
    checking: Checking,
    base: &Base,
    report: &Report,
) -> Result<Opened> {
    let Some(place) = place else {
        report("there is no journal: everything is in memory, and is lost when this process ends");
        let journal: Arc<dyn Journal> = Arc::new(MemoryJournal::new());
        return Ok(Opened { journals: journal.into(), database: None });
    };
    match (place, place.address()?) {
        (_, Some(address)) => database::open(&address, cluster, base, report).await,
        (JournalPlace::File(path), None) => {
            let journal = open_file(path, checking, base, report).await?;
            Ok(Opened { journals: journal.into(), database: None })
        }
        (_, None) => Err(Error::Unusable("the journal is at no place".to_owned())),
    }
}

async fn open_file(
    path: &Path,
    checking: Checking,
    base: &Base,
    report: &Report,
) -> Result<Arc<dyn Journal>> {
    let at = path.to_owned();
    let opening = tokio::task::spawn_blocking(move || {
        SqliteJournal::open(&at, Settings::default().checking(checking))
    });
    let begun = base.clock.now();
    let OpenedFile { journal, recovered } = opening.await.map_err(io::Error::from)??;
    for torn in recovered {
        report(&format!("recovered the journal: position {}: {}", torn.position, torn.what));
    }
    let (journal, metrics) = (Arc::new(journal), &base.telemetry.metrics);
    match checking {
        Checking::AtOpening => {
            let took = base.clock.now().since(begun);
            let last = journal.last().await?;
            metrics.journal_checked(last.0);
            tracing::info!(%last, ?took, "opened and checked the journal completely");
        }
        Checking::Later => check::check_later(&journal, path, &base.clock, metrics)?,
    }
    Ok(journal)
}
