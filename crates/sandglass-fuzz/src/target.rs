//! The targets, by what they read.

pub(crate) mod event;
pub(crate) mod files;
pub(crate) mod guest;
mod hostile;
pub(crate) mod inspection;
pub(crate) mod journal;
pub(crate) mod json;
pub(crate) mod literals;
pub(crate) mod mutant;
pub(crate) mod pack;
pub(crate) mod smith;
pub(crate) mod spec;
pub(crate) mod symbols;
pub(crate) mod workflow;
