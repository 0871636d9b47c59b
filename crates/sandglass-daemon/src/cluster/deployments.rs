//! What the hosts of a cluster run: generations of specs and modules that are in their database. The caller
//! implements [`Deployments`].

use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use sandglass_model::WallTime;

use crate::error::{Code, Error};

/// A generation that can be activated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deployment {
    /// Its number.
    pub generation: u64,
    /// The host that proposed it, for people.
    pub proposed_by: String,
    /// The version of that host's program.
    pub version: String,
    /// When it was proposed.
    pub at: WallTime,
    /// When it was last activated; `None` if it never was.
    pub activated: Option<WallTime>,
}

/// A new version of a module, which was checked.
#[derive(Clone, Debug)]
pub struct UploadedModule {
    /// The name that specs give it.
    pub name: String,
    /// Its bytes.
    pub bytes: Arc<[u8]>,
    /// The owner of the key with which it was uploaded.
    pub by: String,
    /// When.
    pub at: WallTime,
}

/// The generation that must be active when another one is activated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedActive {
    /// The one that is active when the request arrives.
    Present,
    /// This one.
    Only(u64),
}

/// Why generations were not changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeploymentError {
    /// There is no such generation.
    #[error(
        "there is no such generation; `sandglass cluster status` lists those that can be activated"
    )]
    Unknown,
    /// Another generation is active than the client expects.
    #[error(
        "another generation was activated meanwhile: {}; nothing was changed; look at it, and then activate \
         again",
        .active.map_or_else(|| "none".to_owned(), |one| one.to_string())
    )]
    Conflict {
        /// The one that is active.
        active: Option<u64>,
    },
    /// This host cannot run the generation; the text states why.
    #[error("{0}")]
    Refused(String),
    /// Hosts cannot read the format of records; the text names them.
    #[error("{0}")]
    Unreadable(String),
    /// The database does not respond; the text states why. The change may have been made.
    #[error("{0}")]
    Unavailable(String),
}

/// The generations of a cluster. Every change is finished even if its future is dropped.
pub trait Deployments: fmt::Debug + Send + Sync + 'static {
    /// The generations that can be activated, by number, as they were last read.
    fn list(&self) -> Arc<[Deployment]>;

    /// Whether this host runs a generation.
    fn has_generation(&self) -> bool;

    /// Checks that this host can run a generation, and makes it the active one. This host runs it then, and
    /// the others follow. Returns the generation that it has replaced, which may be itself.
    fn activate(
        &self,
        generation: u64,
        replaced: ExpectedActive,
    ) -> BoxFuture<'_, Result<Option<u64>, DeploymentError>>;

    /// Makes a generation with this version of a module, and activates it. This host runs it then.
    fn upload(&self, module: UploadedModule) -> BoxFuture<'_, Result<(), DeploymentError>>;

    /// Has all hosts write the newest format of records that this host's program has. Returns the format.
    fn upgrade_format(&self) -> BoxFuture<'_, Result<u32, DeploymentError>>;
}

impl From<DeploymentError> for Error {
    fn from(error: DeploymentError) -> Self {
        let code = match error {
            DeploymentError::Unknown => Code::UnknownGeneration,
            DeploymentError::Conflict { .. } => Code::GenerationReplaced,
            DeploymentError::Refused(_) => Code::GenerationRefused,
            DeploymentError::Unreadable(_) => Code::FormatUnreadable,
            DeploymentError::Unavailable(_) => Code::JournalUnavailable,
        };
        Self::new(code, error.to_string())
    }
}
