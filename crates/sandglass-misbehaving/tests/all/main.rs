//! Tests the kit against hosts: the members, the functions of an embedder, and the page.

mod functions;
mod hosts;
mod kit;
mod world;
