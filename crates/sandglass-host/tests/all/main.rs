//! The host as an embedder sees it.

mod dispatching;
mod fixtures;
mod http;
mod server;
