//! The actor runtime of Sandglass: entities with their mailboxes and timers, the
//! handlers that they start, and their recovery after a crash.
//!
//! It carries out what `sandglass-liveness` decides, and decides nothing itself.
//! Each entity is one task that does one thing at a time: decide, append, and only
//! then act. Its handlers run beside it, so that it stays responsive.
//!
//! ```text
//!  send, signal ──▶ mailbox ─┐
//!  timers ───────────────────┤
//!  handlers' ends ───────────┼─▶ actor: decide ─▶ journal ─▶ apply ─▶ start, stop, publish
//!  handlers' signals ────────┘                 (durable)
//!  cancel ──▶ stop handles, past the mailbox: no queue and no disk delays a kill
//! ```

mod accounts;
mod actor;
mod asking;
mod blocked;
mod builder;
mod caught;
mod error;
#[cfg(feature = "guests")]
mod folder;
mod handlers;
#[cfg(feature = "guests")]
mod host_handlers;
mod inner;
#[cfg(feature = "guests")]
mod made_once;
mod pruning;
mod publish;
mod reading;
mod request;
mod runtime;
mod sessions;
mod shared;
mod signals;
mod snapshot;
mod specs;
mod table;
mod timer;
mod waking;
mod watch;

pub use accounts::ACCOUNTS_ONE_IN;
pub use actor::{MAILBOX_MAX, SIGNAL_QUEUE_MAX, SIGNALS_RECORDED_PER_RUN_MAX};
pub use asking::Asking;
pub use blocked::BlockedSession;
pub use builder::{AWAKE_MAX, BuildError, Builder, LINGER};
pub use error::{ActorError, ErrorClass};
#[cfg(feature = "guests")]
pub use folder::{
    Folder, FolderError, FolderModule, ModuleSource, SPEC_ENDING, SPECS_MAX, one_of_each_type,
};
pub use handlers::{
    FramesFuture, HandlerRun, Handlers, HostCallLimits, Reserved, RunFuture, Stop, StopRequest,
    not_run, unreported,
};
#[cfg(feature = "guests")]
pub use host_handlers::{HostHandlers, Module};
pub use pruning::Pruned;
pub use publish::{Event, RunView, SUBSCRIPTION_MAX, Snapshot, Subscription};
pub use request::{
    Accepted, Birth, Request, Retry, SessionResume, SessionStop, SessionStopped, Signal,
};
pub use runtime::Runtime;
pub use signals::Signals;
pub use snapshot::SNAPSHOT_EVERY;
pub use specs::{ReloadError, Reloaded};
pub use timer::{SimClock, until};

/// The snippets of the page on embedding, compiled and run.
#[cfg(all(doctest, feature = "guests"))]
#[doc = include_str!("../../../docs/embedding.md")]
mod embedding {}
