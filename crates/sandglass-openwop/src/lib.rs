//! An OpenWOP host over a Sandglass runtime: runs of workflows are entities, their limits are limits
//! of sessions, and their events are derived from records.
//!
//! The path of one run, from a request to its last event:
//!
//! ```text
//! client ─▶ http ─▶ Service ─▶ Runs::begin ─▶ Runtime: the entity of the run ═══▶ journal
//!                              first action     │ ▲ report: events, next action     │ records
//!                                   dispatch    ▼ │                                 ▼
//!              RunHandlers: Execution::handle ─▶ context ─▶ node ─▶ plan      Projection: events
//!                                                                                   │
//! client ◀─ http: masked ◀───────────────────── RunLog, for all readers ◀─ Feeds ◀──┘
//! ```
//!
//! The lower loop repeats for each node. The last action of a run ends its session, and the record
//! of that becomes the last event. What a workflow is, what happens in it and what comes next are
//! pure code in `sandglass-workflow`; nothing here limits or stores a run by itself.

// In the order of the path.
mod action;
mod breach;
mod context;
mod feed;
mod handlers;
mod http;
mod log;
mod node;
mod recent;
mod replay;
mod runs;
mod service;
// What they share.
mod code;
mod engine;
pub mod folder;
mod id;
mod library;
mod settings;
mod sync;

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
/// The type of entities that record workflow definitions.
pub const WORKFLOW_TYPE: &str = "OpenwopWorkflow";

/// The specs of runs, replays and definitions, for the runtime's builder.
#[must_use]
pub fn specs() -> [Spec; 3] {
    let run = include_str!("run.ioa.toml");
    let replay = run.replace(RUN_TYPE, REPLAY_TYPE);
    [run, &replay, include_str!("workflow.ioa.toml")].map(|source| {
        Spec::parse(source).spec.expect("the specs of this crate are sound; a test says so")
    })
}
