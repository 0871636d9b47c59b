//! Why a scenario cannot be read or played.

use std::io;

use sandglass_host::{file, manifest};
use sandglass_runtime::BuildError;
use sandglass_telemetry::otlp;

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a scenario cannot be read or played.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Playing was interrupted.
    #[error("interrupted")]
    Interrupted,
    /// The runtime does not run.
    #[error("the runtime is stopped")]
    Stopped,
    /// A file of the scenario cannot be used, or the runtime failed. The text states which and why.
    #[error("{0}")]
    Failed(String),
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
    /// A manifest cannot be read.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    /// The journal cannot be read or written.
    #[error(transparent)]
    Journal(#[from] sandglass_journal::Error),
    /// The environment does not configure the export of spans correctly.
    #[error(transparent)]
    Telemetry(#[from] otlp::Error),
    /// The runtime could not be started.
    #[error(transparent)]
    Runtime(#[from] BuildError),
    /// A message between director and worker cannot be written or read.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
}

/// Formats an error with its causes, in one line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |&error| error.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}

impl Error {
    /// States what failed, and why.
    pub(crate) fn failed(what: &str, why: &dyn std::error::Error) -> Self {
        Self::Failed(format!("{what}: {}", with_causes(why)))
    }

    /// Adds what failed to an error of the operating system.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        |why| Self::System { what: what.into(), why }
    }
}
