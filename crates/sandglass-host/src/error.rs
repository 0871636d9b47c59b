//! Why the host could not do its work. What a guest does is never an error, but an outcome.

use std::path::PathBuf;

use sandglass_model::Busy;

use sandglass_supervisor::ticker::TickerHealth;

/// Why a dispatch got no outcome.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Too many dispatches are queued or in flight. Try again when some have ended.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// The host lacks something that the handler run needs.
    #[error("the host cannot start the handler: {0}")]
    Unavailable(String),
    /// Deadlines cannot be enforced, so no guest is started.
    #[error(
        "the epoch ticker is not healthy ({0:?}), so no guest is started without a deadline; restart the host"
    )]
    TickerUnhealthy(TickerHealth),
    /// The host is shutting down.
    #[error("the host is shutting down")]
    ShuttingDown,
    /// The handler run was lost through a fault of the host.
    #[error("the run was lost through a fault of the host; its effects may have landed")]
    Lost,
}

/// Why a host could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The sandbox could not be set up, usually because there is too little address space.
    #[error("the sandbox for {max_runs} runs at once could not be set up ({why}); allow fewer")]
    Sandbox {
        /// How many handler runs at a time the settings allow.
        max_runs: u32,
        /// What Wasmtime says.
        why: String,
    },
    /// The folder for compiled code cannot be used.
    #[error(
        "`{}` can't keep compiled code: {why}; name a folder of this user's alone, or one that \
         isn't there yet", folder.display()
    )]
    CompiledCache {
        /// The folder.
        folder: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// One of the embedder's own host functions cannot be registered.
    #[error("the host function `{name}` cannot be registered: {why}")]
    Function {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The operating system started no thread.
    #[error("the host's threads could not be started")]
    Threads(#[source] std::io::Error),
}
