//! An OpenWOP host over a Sandglass runtime: workflow runs are entities of it, their bounds
//! are limits of their sessions, and their events are a projection of its records.
//!
//! ```text
//! http ──▶ Service ──▶ Runtime: one entity for each run ──▶ RunHandlers: a node, then what is next
//!   ▲                       │ records                              │
//!   └── logs of runs ◀── projection                      plan(definition, state)
//! ```
//!
//! `projection` makes events of records, `state` is the fold of events, and `plan` says what
//! comes next: all three are pure. Nothing here bounds a run by itself.

mod action;
mod breach;
mod context;
mod feed;
pub mod folder;
mod handlers;
mod http;
mod interrupt;
mod library;
mod log;
mod node;
mod replay;
mod service;
mod settings;

use sandglass_liveness::Spec;
pub use sandglass_workflow::event::Kind as EventKind;
pub use sandglass_workflow::{PROBLEMS_MAX, Place, Problem};

pub use folder::LeftOut;
pub use handlers::RunHandlers;
pub use http::{DISCOVERY_PATH, OPENAPI_PATH, OpenWop};
pub use library::Library;
pub use replay::end_of_node;
pub use service::{OPERATOR, Service};
pub use settings::{PackLimits, Settings, unbounded};

/// The type of entities that are runs.
pub const RUN_TYPE: &str = "OpenwopRun";
/// The type of entities that are replays of runs.
pub const REPLAY_TYPE: &str = "OpenwopReplay";
/// The type of entities that keep workflow definitions.
pub const WORKFLOW_TYPE: &str = "OpenwopWorkflow";

/// The specs of runs, of replays, and of what keeps definitions, to be given to the runtime's
/// builder beside others.
#[must_use]
pub fn specs() -> [Spec; 3] {
    let run = include_str!("run.ioa.toml");
    let replay = run.replace(RUN_TYPE, REPLAY_TYPE);
    [run, &replay, include_str!("workflow.ioa.toml")].map(|source| {
        Spec::parse(source).spec.expect("the specs of this crate are sound; a test says so")
    })
}
