//! Where a journal is: how commands are given a file or a database.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use sandglass_journal::SqliteJournal;
use sandglass_postgres::{Address, PASSWORD_VARIABLE};
use sandglass_server::JournalPlace;
use serde::{Serialize, Serializer};

use crate::open_database::OpenDatabase;

/// Where a journal is, as an argument: the path of a file, the URL of a database without a password, or
/// `env:VAR`. It is examined when it is used, because the parser of arguments repeats what it refuses.
#[derive(Clone)]
pub(crate) enum Place {
    File(PathBuf),
    Url(String),
    /// The environment variable that holds the URL.
    Variable(String),
}

impl From<OsString> for Place {
    fn from(argument: OsString) -> Self {
        match argument.to_str() {
            Some(url) if is_url(url) => Self::Url(url.to_owned()),
            Some(text) => match text.strip_prefix("env:") {
                Some(variable) => Self::Variable(variable.to_owned()),
                None => Self::File(argument.into()),
            },
            None => Self::File(argument.into()),
        }
    }
}

impl Place {
    /// The address of the database; `None` for a file.
    ///
    /// # Errors
    /// Errors if it is not valid, or if the argument contains a password.
    pub(crate) fn address(&self) -> anyhow::Result<Option<Address>> {
        let address = match self {
            Self::File(_) => return Ok(None),
            Self::Url(url) => {
                let address = Address::parse(url)?;
                if address.has_password() {
                    bail!(
                        "the URL of the database contains a password, and other users of this \
                         machine can see arguments. Leave it out, and set {PASSWORD_VARIABLE} or name a \
                         file that contains it (?password_file=FILE); or put the URL into an \
                         environment variable and write env:VARIABLE"
                    );
                }
                address
            }
            Self::Variable(variable) if !JournalPlace::is_variable_name(variable) => bail!(
                "`env:` takes the name of an environment variable (letters, digits and `_`): put the URL \
                 of the database into the variable; a file of this name is written ./env:NAME"
            ),
            Self::Variable(variable) => {
                let url = std::env::var(variable).ok().with_context(|| {
                    format!(
                        "the environment has no `{variable}`, which is to hold the URL of a \
                         database; a file of this name is written ./env:{variable}"
                    )
                })?;
                let address = Address::parse(url.trim());
                address.with_context(|| format!("the environment variable `{variable}`"))?
            }
        };
        Ok(Some(address.or_environment()))
    }

    /// The address of the database.
    ///
    /// # Errors
    /// As [`Place::address`], and for a file.
    pub(crate) fn database(&self) -> anyhow::Result<Address> {
        self.address()?.with_context(|| {
            format!(
                "`{self}` is a file; name a database: postgresql://USER@HOST/DATABASE or env:VAR"
            )
        })
    }

    /// Whether a process has the journal open for writing; `None` if that cannot be determined. Takes
    /// up to some seconds for a database.
    pub(crate) fn has_writer(&self) -> Option<bool> {
        match self.address().ok()? {
            None => match self {
                Self::File(path) => SqliteJournal::has_writer(path),
                _ => None,
            },
            Some(address) => {
                let database = OpenDatabase::open_read_only(&address).ok()?;
                database.writers().ok().map(|writers| !writers.is_empty())
            }
        }
    }
}

/// Without user and password.
impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url(url) => match Address::parse(url) {
                Ok(address) => f.write_str(address.place()),
                Err(_) => f.write_str("a database"),
            },
            Self::Variable(variable) if JournalPlace::is_variable_name(variable) => {
                write!(f, "env:{variable}")
            }
            // It may be a URL.
            Self::Variable(_) => f.write_str("env:VAR"),
        }
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({self})")
    }
}

impl Serialize for Place {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Whether `text` is the URL of a database.
pub(crate) fn is_url(text: &str) -> bool {
    text.starts_with("postgres://") || text.starts_with("postgresql://")
}

/// Where the journal of a server is.
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
    /// The file is written as a database.
    pub(crate) fn place(self) -> anyhow::Result<Option<JournalPlace>> {
        match (self.journal, self.journal_env) {
            (Some(path), _) if JournalPlace::names_database(&path.to_string_lossy()) => bail!(
                "--journal takes a file. Put the URL of a database into an environment variable, where \
                 other users cannot read it, and name the variable: --journal-env VAR. A file whose name \
                 begins with `env:` is written ./env:NAME"
            ),
            (Some(path), _) => Ok(Some(JournalPlace::File(path))),
            (None, Some(variable)) => Ok(Some(JournalPlace::UrlInVariable(variable))),
            (None, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(text: &str) -> Place {
        OsString::from(text).into()
    }

    #[test]
    fn an_argument_is_a_file_a_url_or_a_variable() {
        assert!(matches!(place("runs.db"), Place::File(_)));
        assert!(matches!(place("./env:RUNS"), Place::File(_)));
        assert!(matches!(place("env:RUNS"), Place::Variable(name) if name == "RUNS"));
        for url in ["postgres://ann@h/d", "postgresql://ann@h/d"] {
            assert!(matches!(place(url), Place::Url(_)));
            assert_eq!(place(url).to_string(), "postgresql://h:5432/d");
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for url in ["postgres://ann:secret@h/d", "postgres://ann:secret@h", "postgres://secret"] {
            let error = format!("{:#}", place(url).address().expect_err("refused"));
            assert!(!error.contains("secret"), "{error}");
            let shown = format!("{:?} {}", place(url), place(url));
            assert!(!shown.contains("secret"), "{shown}");
        }
        place("postgres://ann@h/d?password_file=/run/secret").address().expect("no password");
        let misplaced = place("env:postgres://ann:secret@h/d");
        let error = format!("{:#}", misplaced.address().expect_err("refused"));
        assert!(!format!("{error} {misplaced:?} {misplaced}").contains("secret"), "{error}");
    }
}
