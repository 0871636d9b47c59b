//! The kit against hosts: the members, the functions of an embedder's own, and the page.

mod functions;
mod hosts;
mod kit;
mod world;
