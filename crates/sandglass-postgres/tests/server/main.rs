//! Tests against real servers, which they start and stop themselves.
#![allow(clippy::unwrap_used, reason = "these are tests")]

mod conforms;
mod server;
