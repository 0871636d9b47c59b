//! The OpenWOP host as its clients see it.

#[path = "../../../sandglass-http/tests/described/client.rs"]
mod client;
mod definitions;
#[path = "../../../sandglass-http/tests/described/document.rs"]
mod document;
mod host;
mod operations;
mod protocol;
mod refusals;
