//! Every way in which a guest can hang or do harm, and what a host must do about each.
//!
//! [`kit`] returns the members that need no host functions of an embedder, and [`against`] creates
//! those that call the embedder's own host functions. [`run`] runs them against a [`Host`], and
//! judges for each member whether the host did what it must: it ended the member on time, with the
//! declared outcome, dying span and transition, within its memory, without leaving anything behind,
//! and with resources left for a handler that works.
//!
//! ```text
//! kit(), against(functions) ──▶ members ──▶ run(host, members) ──▶ verdicts
//! ```
//!
//! It makes no decisions for a product, and ships in no binary: it is for tests.

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

/// The snippets of the page about the kit, which are compiled and executed.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/guests/misbehaving.md")]
mod snippets {}
