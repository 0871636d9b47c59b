//! The journals' public face: both stores against the conformance suite, and what
//! only a file can suffer.

mod backup;
mod conforms;
mod damage;
mod entities;
mod files;
mod forged;
mod journals;
mod places;
mod pruned;
mod recordings;
mod salvage;
mod scratch;
mod snapshots;
