//! The arguments with which servers are given their journal.

use std::path::PathBuf;

use anyhow::bail;
use sandglass_server::JournalPlace;

/// Where the journal is.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Arguments {
    /// Keep all state in this journal, which is created if it does not exist; without a journal, state
    /// is lost when the process ends
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Keep all state in the PostgreSQL database whose URL this environment variable holds; a process
    /// that has the journal stops. `sandglass journal create` prepares the database
    #[arg(long, value_name = "VAR", conflicts_with = "journal")]
    journal_env: Option<String>,
}

impl Arguments {
    /// # Errors
    /// The file is written as a URL.
    pub(crate) fn place(self) -> anyhow::Result<Option<JournalPlace>> {
        match (self.journal, self.journal_env) {
            (Some(path), _) if is_url(&path) => bail!(
                "--journal takes a file. Put the URL of a database into an environment variable, where \
                 other users cannot read it, and name the variable: --journal-env VAR"
            ),
            (Some(path), _) => Ok(Some(JournalPlace::File(path))),
            (None, Some(variable)) => Ok(Some(JournalPlace::UrlInVariable(variable))),
            (None, None) => Ok(None),
        }
    }
}

fn is_url(path: &std::path::Path) -> bool {
    let text = path.to_string_lossy();
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}
