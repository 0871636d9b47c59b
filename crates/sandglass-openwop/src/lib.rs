//! An OpenWOP host over a Sandglass runtime: workflow runs are entities of it, their bounds
//! are limits of their sessions, and their events are a projection of its records.

pub mod condition;
pub mod definition;
mod document;
pub mod expression;
mod fields;
mod problem;

pub use document::{DEPTH_MAX, KEY_MAX_BYTES};
pub use problem::{PROBLEMS_MAX, Place, Problem};
