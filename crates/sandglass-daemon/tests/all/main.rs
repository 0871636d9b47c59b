//! The daemon as its clients see it: over real connections to a port of this machine.

mod access;
mod bad_requests;
mod connections;
mod events;
mod live;
mod modules;
mod operations;
mod schema;
mod world;
