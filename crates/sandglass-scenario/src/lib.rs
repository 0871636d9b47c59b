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

mod director;
mod error;
mod file;
mod protocol;
mod wait;
pub mod worker;

pub use director::{Director, Observer, Settings, Tally, Verdict, WORKER_COMMAND};
pub use error::Error;
pub use file::{Module, Scenario, SpecFile, check, find, is_scenario, load};
