//! Explanations and views that are computed from the records of a journal.
//!
//! [`why`] explains why a handler ended as it did, [`budget`] compares the budgets of handlers with
//! the time that they took, [`scan`] sums up timeouts and repeated failures, and [`projection`]
//! projects records into the formats of other systems. Each module folds records and returns facts.
//! The sentences about them that the command line and the daemon share are the `Display` of
//! [`why::Advice`]. Nothing here decides anything, reads a clock or does I/O.

pub mod budget;
pub mod projection;
pub mod scan;
pub mod why;
