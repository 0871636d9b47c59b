//! The users' own ABI: the imports of module `env` that core modules have today.
//!
//! Strings are (pointer, length) pairs of UTF-8. A function that fails answers
//! -1, and `host_last_error` says why.

mod ask;
mod batch;
mod context;
mod outside;
mod scratch;
mod streams;
mod telemetry;
mod reporting;
mod time;

use serde::de::DeserializeOwned;
use wasmtime::{Caller, Linker, Result};

use crate::store::RunStore;
use sandglass_supervisor::functions::Functions;

use super::guest_memory::{FAILED, text};

/// The module that these functions are imported from. Its name is left out of
/// theirs in reports.
pub(crate) const MODULE: &str = "env";

/// The import by which a guest says that it fetches its context itself.
pub(crate) const GET_CONTEXT: &str = "host_get_context";

const OK: i32 = 0;

/// What is read of a name (of a level, a method, a secret), in bytes. Reading can't
/// be interrupted, so this and each other bound is a little above what can be meant.
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
    ask::link(linker, functions)
}

/// Zero for what was done; -1 for what failed, and why is noted.
fn done<E: ToString>(caller: &mut Caller<'_, RunStore>, result: Result<(), E>) -> i32 {
    match result {
        Ok(()) => OK,
        Err(why) => failed(caller, why),
    }
}

/// Notes why a function failed, and answers -1.
fn failed(caller: &mut Caller<'_, RunStore>, why: impl ToString) -> i32 {
    caller.data_mut().guest_mut().fail(why);
    FAILED
}

/// What the JSON of at most `max` bytes at `place` says, or what is wrong with it.
fn json<T: DeserializeOwned>(
    caller: &mut Caller<'_, RunStore>,
    what: &'static str,
    place: (i32, i32),
    max: u32,
) -> Result<Result<T, String>> {
    let text = text(caller, what, place, max)?;
    Ok(text.map_err(|unreadable| unreadable.to_string()).and_then(|text| {
        sandglass_model::json::read(&text)
            .map_err(|error| format!("{what} is not valid JSON: {error}"))
    }))
}
