//! Tests against real servers, which they start and stop themselves.
#![allow(clippy::unwrap_used, reason = "these are tests")]
#![allow(clippy::disallowed_methods, reason = "they wait for real servers")]
#![allow(clippy::print_stdout, reason = "seeds and counts of failed tests")]

mod across;
mod clock;
mod conforms;
mod damage;
mod deployments;
mod failover;
mod faults;
mod load;
mod locks;
mod membership;
mod notes;
mod owners;
#[allow(dead_code, reason = "tests/outages.rs uses the rest")]
mod proxy;
mod prunes;
#[allow(dead_code, reason = "tests/outages.rs uses the rest")]
mod server;
mod setup;
mod takes;
mod wire;
