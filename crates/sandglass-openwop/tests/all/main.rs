//! The OpenWOP host as its clients see it.

#[path = "../../../sandglass-http/tests/described/client.rs"]
mod client;
#[path = "../../../sandglass-http/tests/described/document.rs"]
mod document;
mod host;
mod operations;
#[path = "../../../sandglass-workflow/tests/all/pointers.rs"]
mod pointers;
mod protocol;
mod refusals;
