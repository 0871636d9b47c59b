//! Why a server cannot be started or reloaded.

use std::io;

use sandglass_daemon::{ReloadError, StoreError};
use sandglass_host::{BuildError as HostError, file};
use sandglass_runtime::{ActorError, BuildError as RuntimeError, FolderError};
use sandglass_source::{Finding, Severity};
use sandglass_telemetry::otlp;

use crate::findings::in_one_line;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a server cannot be started or reloaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The configuration, a folder, a key or a certificate cannot be used. The text states which and
    /// why.
    #[error("{0}")]
    Unusable(String),
    /// Errors in files that people write, and the warnings beside them. The text has the errors alone,
    /// in one line.
    #[error("{}", in_one_line(.0.iter().filter(|one| one.diagnostic.severity == Severity::Error)))]
    Wrong(Vec<Finding>),
    /// Something failed because of the operating system.
    #[error("{what}")]
    System {
        /// What failed.
        what: String,
        /// The error of the operating system.
        #[source]
        why: io::Error,
    },
    /// Input or output failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A file or folder cannot be read.
    #[error(transparent)]
    File(#[from] file::Error),
    /// The folder of specs cannot be used.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// A scenario of the folder cannot be used.
    #[error(transparent)]
    Scenario(#[from] sandglass_scenario::Error),
    /// The environment does not configure the export of spans correctly.
    #[error(transparent)]
    Telemetry(#[from] otlp::Error),
    /// The host of the guests could not be started.
    #[error("cannot start the host")]
    Host(#[from] HostError),
    /// The journal cannot be opened.
    #[error("cannot use the journal")]
    Journal(#[from] sandglass_journal::Error),
    /// Another process has taken the journal. A restart would take it back.
    #[error("{0}")]
    Taken(String),
    /// The uploaded modules cannot be read.
    #[error(transparent)]
    Modules(#[from] StoreError),
    /// The runtime could not be started.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The workflow definitions could not be recorded.
    #[error(transparent)]
    Workflows(#[from] ActorError),
    /// The specs, modules and keys could not be replaced.
    #[error(transparent)]
    Reload(#[from] ReloadError),
}

impl Error {
    /// The text with that of its causes.
    pub(crate) fn in_full(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(why) = cause {
            text.push_str(&format!(": {why}"));
            cause = why.source();
        }
        text
    }

    /// Adds what failed to an error of the operating system.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |why| Self::System { what: what.into(), why }
    }
}
