//! Seeded simulation of Sandglass: it runs the real runtime, liveness and journal in a world that a
//! seed determines: clock, disk, handlers, clients and crashes. It looks for violations of
//! invariants, and never ships with the code that it tests.
//!
//! ```text
//!  seed ─▶ plan, specs, dice
//!             │
//!             ▼        one process after the other, each on a tokio runtime of its own
//!  clients ─▶ Runtime ─▶ Store ─▶ Disk ────── outlives each process ──▶ the next process
//!             │            └─▶ Ledger: each record when it is durable, each answer, each start
//!             └─▶ World: guests that return, hang, ask or are late, in a host that stops them
//! ```
//!
//! Worlds of several hosts are in `hosts`: each host is a runtime on a tokio runtime of its own, and one
//! scheduler decides which of them goes on.

mod automaton;
mod campaign;
mod client;
mod coverage;
mod dice;
mod disk;
mod fault;
mod guest;
mod hosts;
mod hunt;
mod invariant;
mod journal_file;
mod ledger;
mod life;
mod old_rule;
mod plan;
mod report;
mod scene;
mod simulation;
mod store;
mod undisarmed;
mod watchdog;
mod world;

pub use automaton::ResetOn;
pub use campaign::{Comparison, Failure, Mode, Seeds, Summary, campaign, shortest};
pub use coverage::{Coverage, Pairs, Trigger};
pub use fault::Fault;
pub use hosts::HostCounts;
pub use hunt::{HUNTS, HuntResult, MEDIAN_MAX, SEEDS_MAX, hunt};
pub use invariant::{Invariant, Violation};
pub use journal_file::write_journal;
pub use ledger::Counts;
pub use old_rule::RuleCounts;
pub use plan::Options;
pub use simulation::{Run, simulate};
