//! The actor runtime of Sandglass: entities with their mailboxes and timers, the
//! handlers that they start, and their recovery after a crash.
//!
//! It carries out what `sandglass-liveness` decides, and decides nothing itself.
//! Each entity is one task that does one thing at a time: decide, append, and only
//! then act. Its handlers execute beside it, so that it stays responsive.
//!
//! # Example
//! A runtime with one spec, an action, and how its handler ended. Handlers are usually guests
//! (`HostHandlers`, with the feature `guests`); here they are a few lines of Rust.
//!
//! ```
//! use std::sync::Arc;
//!
//! use sandglass_journal::MemoryJournal;
//! use sandglass_liveness::Spec;
//! use sandglass_model::{Cause, Completion, EntityRef, Object, Outcome, RunReport};
//! use sandglass_runtime::{HandlerRun, Handlers, RunFuture, Runtime};
//!
//! const SPEC: &str = r#"
//! [automaton]
//! name = "Letter"
//! states = ["Written", "Sending", "Sent", "Lost"]
//! initial = "Written"
//! terminal = ["Sent", "Lost"]
//! allow_indefinite_states = ["Written", "Sending"]
//!
//! [[action]]
//! name = "Send"
//! from = ["Written"]
//! to = "Sending"
//! effect = "trigger post"
//!
//! [[action]]
//! name = "Arrive"
//! from = ["Sending"]
//! to = "Sent"
//!
//! [[action]]
//! name = "Lose"
//! from = ["Sending"]
//! to = "Lost"
//!
//! [[integration]]
//! name = "post"
//! trigger = "post"
//! module = "post"
//! deadline = "10s"
//! on_success = "Arrive"
//! on_failure = "Lose"
//! on_timeout = "Lose"
//! on_interrupted = "Lose"
//! on_cancelled = "Lose"
//! "#;
//!
//! /// Handlers that succeed at once.
//! struct Succeeding;
//!
//! impl Handlers for Succeeding {
//!     fn start(&self, run: HandlerRun) -> RunFuture {
//!         Box::pin(async move {
//!             let outcome = Outcome::Completed(Completion::default());
//!             RunReport::unreported(&run.dispatched, outcome, Cause::Returned)
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = Spec::parse(SPEC).spec.expect("a valid spec");
//! let runtime = Runtime::builder(Arc::new(MemoryJournal::new()))
//!     .specs([spec])
//!     .handlers(Arc::new(Succeeding))
//!     .build()
//!     .await?;
//! let letter: EntityRef = "Letter/1".parse()?;
//! runtime.create(letter.clone()).await?;
//! let accepted = runtime.send(&letter, "Send", Object::new()).await?;
//! let outcome = runtime.outcome(&letter, accepted.dispatches[0]).await?;
//! assert!(matches!(outcome, Outcome::Completed(_)));
//! assert_eq!(runtime.settled(&letter).await?.state, "Sent");
//! # Ok(())
//! # }
//! ```
//!
//! # The way of one action
//! ```text
//!  send, signal ──▶ mailbox ─┐
//!  timers ───────────────────┤
//!  ends of handlers ─────────┼─▶ actor: decide ─▶ journal ─▶ apply ─▶ start, stop, publish
//!  signals of handlers ──────┘                 (durable)
//!  cancel ──▶ stop handles, past the mailbox: no queue and no disk delays a kill
//! ```
//!
//! The modules, in the order in which one action passes them:
//!
//! 1. `runtime` (actions), `sessions` (stops and resumes) and `reading` (views) are what callers
//!    use; `request` and `error` are what goes in and comes out.
//! 2. `table` finds the entity; if it sleeps, `inner` and `waking` read it from the journal
//!    and start its task.
//! 3. `actor` is that task: `messages` takes the action from the mailbox, `reservations` reserves
//!    slots for its handlers, `committing` decides, appends and acts.
//! 4. `actor::runs` starts the handlers through the trait in `handlers`; `host_handlers` implements
//!    it with guests. `asking` and `signals` are what a handler can do meanwhile.
//! 5. `actor::pending` records how each handler ended, and retries while the journal fails.
//! 6. `publish` shows the result to subscribers, and `projecting` in the formats of other systems;
//!    `actor::timers` arms the timers of the new state.
//!
//! `builder` starts and recovers all of this, `specs` replaces specs, and `pruning` removes
//! entities that have ended. Of a store that several hosts share, `serving` knows which partitions are
//! served, and `moving` adopts, releases and loses them. Asks, signals and spawns for entities of other
//! hosts leave by `other_hosts` and arrive in `delivering`; `waiting` finds cycles of asks on all hosts.

mod account_sampling;
mod activity;
mod actor;
mod asking;
mod blocked;
mod builder;
mod causality;
#[cfg(feature = "guests")]
mod computed_once;
mod conversations;
mod delivering;
mod error;
#[cfg(feature = "guests")]
mod folder;
mod handlers;
#[cfg(feature = "guests")]
mod host_handlers;
mod inner;
mod loading;
mod moving;
mod other_hosts;
mod panics;
mod projecting;
mod pruning;
mod publish;
mod quota;
mod reading;
mod repeated;
mod replay;
mod request;
mod resting;
mod runtime;
mod serving;
mod sessions;
mod shared;
mod signals;
mod snapshot;
mod spawning;
#[cfg(feature = "guests")]
mod spec_decisions;
mod specs;
mod table;
mod timer;
mod waiting;
mod waking;
mod watch;

pub use account_sampling::ACCOUNTS_ONE_IN;
pub use actor::{MAILBOX_MAX, SIGNAL_QUEUE_MAX, SIGNALS_RECORDED_PER_RUN_MAX};
pub use asking::{Asking, SIGNALS_SENT_PER_RUN_MAX};
pub use blocked::BlockedSession;
pub use builder::{AWAKE_MAX, BuildError, Builder, LINGER};
pub use error::{ActorError, ErrorClass};
#[cfg(feature = "guests")]
pub use folder::{
    Folder, FolderError, FolderModule, ModuleSource, SPEC_ENDING, SPECS_MAX, one_of_each_type,
    unknown_timed_functions,
};
pub use handlers::{
    FramesFuture, HandlerNow, HandlerRun, Handlers, HostCallLimits, Reserved, RunFuture, Stop,
    StopRequest, not_run,
};
#[cfg(feature = "guests")]
pub use host_handlers::{HostHandlers, Module, handler_now};
pub use other_hosts::{
    Here, OtherHosts, RemoteActivity, RemoteAsk, RemoteRequest, RemoteResponse, RemoteSessionOver,
    RemoteSignal, RemoteSpawn, RemoteSpawned, RemoteWaits, Undelivered,
};
pub use projecting::{ProjectedSubscription, ProjectionGap};
pub use pruning::Pruned;
pub use publish::{Event, RunView, SUBSCRIPTION_MAX, Snapshot, Subscription};
pub use quota::BUSY_SPAWNED_MAX;
pub use replay::{ReplaySource, replay_journal};
pub use request::{
    Accepted, NewEntity, Request, Retry, SessionResume, SessionStop, SessionStopped, Signal,
};
pub use runtime::Runtime;
pub use signals::Signals;
pub use snapshot::SNAPSHOT_EVERY;
#[cfg(feature = "guests")]
pub use spec_decisions::SpecDecisions;
pub use specs::{ReloadError, Reloaded};
pub use timer::{SimClock, until};

/// The snippets of the page on embedding, compiled and run.
#[cfg(all(doctest, feature = "guests"))]
#[doc = include_str!("../../../docs/embedding.md")]
mod embedding {}
