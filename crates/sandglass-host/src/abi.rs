//! How guests see the host: one module for each set of imports, and the reading
//! and writing of guest memory.

mod answer;
pub(crate) mod core_module;
pub(crate) mod embedder;
pub(crate) mod env;
pub(crate) mod guest_memory;
mod stdio;
pub(crate) mod wasi_preview1;
