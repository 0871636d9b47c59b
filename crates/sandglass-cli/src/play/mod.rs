//! Plays scenarios. A *director* prints the timeline and checks what is expected;
//! the runtime lives in a *worker*, a child process, because a kill of it must be a
//! real one.
//!
//! ```text
//! director ── requests (stdin) ──▶ worker: runtime, host ── appends ──▶ journal
//!    ▲  ▲                            │                                    │
//!    │  └── replies, "appended" ◀────┘                                    │
//!    └───────────────── reads what was appended ◀─────────────────────────┘
//! ```
//!
//! What the director knows of entities it reads from the journal alone.

mod address;
mod director;
mod expect;
mod metric;
mod process;
mod protocol;
mod server;
mod story;
mod timeline;
mod virtual_clock;
mod wait;
pub(crate) mod worker;

pub(crate) use director::{Director, Tally};
pub(crate) use process::WORKER_COMMAND;
pub(crate) use timeline::{Style, Timeline};
pub(crate) use wait::{every, pause};
pub(crate) use worker::guest;
