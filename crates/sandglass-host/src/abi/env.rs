//! The `env` ABI: the imports of module `env`, for core modules.
//!
//! Texts are (pointer, length) pairs of UTF-8. A function that fails returns -1, and
//! `host_last_error` says why.

mod ask;
mod batch;
mod connect;
mod context;
mod evaluation;
mod exchanges;
mod outside;
mod reporting;
mod scratch;
mod signal;
mod streams;
mod telemetry;
mod time;

use serde::de::DeserializeOwned;
use wasmtime::{Caller, Engine, Linker, Result};

use crate::store::RunStore;
use sandglass_supervisor::functions::Functions;

use super::guest_memory::{CallFailure, text};

/// The module that these functions are imported from. Reports leave it out of their names.
pub(crate) const MODULE: &str = "env";

/// A guest that imports this function fetches its context itself.
pub(crate) const GET_CONTEXT: &str = "host_get_context";

/// The start of names that are no misspellings, but functions of the runtime for which existing guests
/// were written. Only an embedder can provide them.
pub(crate) const OF_EMBEDDERS: &str = "host_temper_";

/// What a function that succeeds and returns nothing returns.
const OK: i32 = 0;

/// Longest name (of a level, a method, a secret) that is read, in bytes. Nothing interrupts reading,
/// so this bound and the others are not far above what guests use.
const NAME_BYTES: u32 = 1024;

/// Links every function of this ABI.
pub(crate) fn link(linker: &mut Linker<RunStore>, functions: &mut Functions) -> Result<()> {
    context::link(linker, functions)?;
    reporting::link(linker, functions)?;
    telemetry::link(linker, functions)?;
    time::link(linker, functions)?;
    scratch::link(linker, functions)?;
    outside::link(linker, functions)?;
    streams::link(linker, functions)?;
    ask::link(linker, functions)?;
    signal::link(linker, functions)?;
    connect::link(linker, functions)?;
    evaluation::link(linker, functions)?;
    exchanges::link(linker, functions)
}

/// Whether the host itself has a function of this name.
pub(crate) fn is_built_in(name: &str) -> bool {
    let mut functions = Functions::default();
    let linked = link(&mut Linker::new(&Engine::default()), &mut functions);
    linked.is_ok() && functions.find(MODULE, name).is_some()
}

/// Parses the JSON of at most `max` bytes at `place`.
fn json<T: DeserializeOwned>(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
    max: u32,
) -> Result<T, CallFailure> {
    let text = text(caller, what, place, max)?;
    let parsed = sandglass_source::json::read(&text);
    Ok(parsed.map_err(|error| format!("{what} is not valid JSON: {error}"))?)
}
