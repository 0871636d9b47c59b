//! Workflows of the OpenWOP protocol as pure data and functions: definitions and manifests of
//! packs, what happens in a run, the state that this leads to, and what follows from the state.
//!
//! ```text
//! records of a run ──projection──▶ events ──fold──▶ RunState ──plan(definition)──▶ Step
//! ```
//!
//! Nothing here executes a node, waits, or reads a file, a clock or a journal.

pub mod automaton;
mod channels;
pub mod condition;
pub mod cut;
pub mod decision;
pub mod definition;
mod document;
pub mod error;
pub mod event;
pub mod expression;
mod fields;
pub mod interrupt;
pub mod masks;
mod names;
pub mod node;
pub mod pack;
pub mod plan;
mod problem;
pub mod projection;
pub mod schema;
mod size;
pub mod state;
pub mod step;
pub mod variables;

pub use document::{DEPTH_MAX, KEY_MAX_BYTES};
pub use problem::{PROBLEMS_MAX, Place, Problem, quoted};
pub use size::json_size;
