//! The daemon as its clients see it: over real connections to a port of this machine.

mod access;
mod bad_requests;
#[path = "../../../sandglass-http/tests/described/client.rs"]
mod client;
mod cluster;
mod connections;
mod delivery;
mod deployments;
#[path = "../../../sandglass-http/tests/described/document.rs"]
mod document;
mod events;
mod hosts;
mod keys;
mod live;
mod modules;
mod operations;
mod peers;
mod signals;
mod world;
