//! The append-only event log in PostgreSQL: one database holds a journal for each [`Partition`]. Each
//! partition has one owner at a time, and each append proves that its process still is the owner. Either
//! one process owns all of them ([`Database::open`]), or the members of a cluster share them
//! ([`Database::join`]).
//!
//! ```text
//! append(batch) --> writer: all that waits, for all partitions, one statement --> answers
//! read(from)    --> a connection of the pool: one statement, one bounded page     --> page
//! ```
//!
//! docs/postgres.md describes what operators need.
//!
//! [`Partition`]: sandglass_model::Partition

mod across;
mod address;
mod append;
mod blobs;
mod check;
mod database;
mod deployments;
mod dial;
mod entities;
mod fault;
mod group;
mod heads;
mod hosts;
mod limit;
mod link;
mod lookup;
mod membership;
mod notes;
mod owners;
mod page;
mod partition_journal;
mod pruning;
mod reader;
mod removal;
mod requests;
mod row;
mod schema;
mod settings;
mod settling;
mod shared;
mod skew;
mod snapshots;
mod takeover;
mod tenure;
mod tls;
mod writer;

pub use address::{Address, InvalidUrl, PASSWORD_VARIABLE};
pub use check::{Check, CheckedPage, Flaw};
pub use database::{Counts, Database};
pub use deployments::{
    Activation, Deployment, DeploymentContent, Deployments, FILES_MAX_BYTES, FormatUpgrade,
    GENERATIONS_KEPT, MANIFEST_MAX_BYTES, Proposal,
};
pub use hosts::RECORDS_FORMAT;
pub use owners::Owner;
pub use schema::{FORMAT, create, upgrade};
pub use settings::Settings;
