//! Every way for a guest to hang or harm, and what a host must do to each.
//!
//! [`kit`] has the members that need nothing of an embedder's, [`against`] makes those that
//! call the embedder's own host functions, and [`run`] runs them against a [`Host`] and says
//! of each whether that did what it must: ended it on time, in the outcome, dying span and
//! transition that are declared, inside its memory, with nothing left behind, and with room
//! for a handler that does its work.
//!
//! ```text
//! kit(), against(functions) ──▶ members ──▶ run(host, members) ──▶ verdicts
//! ```
//!
//! It decides nothing, and ships in no binary: it is for tests.

mod functions;
mod kit;
mod member;
mod page;
mod peer;
mod running;
mod spec;
mod symbols;
mod verdict;

use sandglass_host::Host;

pub use functions::against;
pub use kit::kit;
pub use member::{Begins, Ending, Handler, Member, Must, Peer};
pub use page::markdown;
pub use running::run;
pub use verdict::{Observed, Verdict, Verdicts};

/// All members for `host`: the [`kit`], and those [`against`] its own functions.
#[must_use]
pub fn all(host: &Host) -> Vec<Member> {
    [kit(), against(&host.functions())].concat()
}

/// The snippets of the page about the kit, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guests/misbehaving.md")]
mod snippets {}
