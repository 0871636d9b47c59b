//! Every decision of Sandglass, as pure functions of state, input and time.
//!
//! A [`Spec`] states what an entity may do, an [`Entity`] is the fold of its records, [`decide()`]
//! turns an [`Input`] into the records that follow from it and the entity that they lead to, and
//! [`Replay`] repeats all decisions of a journal. Nothing here reads a clock, waits, draws a random
//! number, does I/O or iterates over an unordered collection, so the same inputs always lead to the
//! same decisions.
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

pub use decide::{
    Command, Decided, Input, Known, Refusal, Resume, Retry, SpawnEnd, Terms, TimedOutCall,
    change_spec, commands, decide, decide_knowing,
};
pub use entity::{EndedDispatch, Entity, Fields, IdleTimer, InFlight, Schedule};
pub use fold::Fold;
pub use replay::{Divergence, Replay, Summary};
pub use retention::Retention;
pub use sandglass_model::Signature;
pub use session::Session;
pub use spec::{Diagnostic, Parsed, Severity, Spec};
pub use stuck::is_stuck;
pub use waits::Waits;
