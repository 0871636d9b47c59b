//! Every decision of Sandglass, as pure functions of state, input and time.
//!
//! A [`Spec`] says what an entity may do, an [`Entity`] is the fold of its
//! records, [`decide()`] turns an [`Input`] into the records that follow from it, and
//! [`Replay`] does it all again from a journal. Nothing here reads a clock, waits,
//! draws a random number, does I/O or iterates an unordered collection: what is
//! decided once is decided the same way for ever.
//!
//! ```text
//!             Input, now                      Vec<Event>            (durable)
//!   shell ───────────────▶ decide(spec, entity) ─────────▶ journal ───────────▶ entity.apply
//!     ▲                                                                              │
//!     └──────── commands(before, after, events), idle_timer(), schedules() ──────────┘
//! ```

pub mod decide;
pub mod entity;
pub mod fold;
pub mod instant;
pub mod replay;
pub mod retention;
pub mod session;
pub mod spec;
pub mod stuck;
pub mod waits;

pub use decide::{Command, Decided, Input, Refusal, Resume, Retry, commands, decide, go_over};
pub use entity::{Entity, IdleTimer, InFlight, Past, Schedule};
pub use fold::Fold;
pub use replay::{Divergence, Replay, Summary};
pub use retention::Retention;
pub use sandglass_model::Signature;
pub use session::Session;
pub use spec::{Diagnostic, Parsed, Severity, Spec};
pub use stuck::is_stuck;
pub use waits::Waits;
