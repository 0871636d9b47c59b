//! The log of the run. A line is cut after 8 KiB, and a run may write 10,000 of them; more
//! are counted and dropped. Control characters are escaped, and secrets that the run was
//! given are taken out.
//!
//! ```
//! use sandglass_guest::{json, log};
//!
//! log::info!("fetched {} of {}", 3, 7);
//! log::warn("one is missing");
//! # fn more() -> Result<(), sandglass_guest::Failure> {
//! log::fields(log::Level::Warn, "slow", json!({ "ms": 812 }))?;
//! # Ok(())
//! # }
//! ```

use std::fmt;

use serde::Serialize;

use crate::host_error::to_json;
use crate::{HostError, backend};

#[doc(inline)]
pub use crate::{
    __debug as debug, __error as error, __info as info, __trace as trace, __warn as warn,
};

/// How much a line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Each step, for whoever follows one run.
    Trace,
    /// For whoever looks for a mistake.
    Debug,
    /// What is usual.
    Info,
    /// What is unusual, and was coped with.
    Warn,
    /// What went wrong.
    Error,
}

/// Writes a line.
pub fn write(level: Level, line: &str) {
    backend::log(level, line);
}

/// Writes what `format_args!` makes, as the macros of this module do.
#[doc(hidden)]
pub fn write_formatted(level: Level, line: fmt::Arguments<'_>) {
    match line.as_str() {
        Some(line) => write(level, line),
        None => write(level, &line.to_string()),
    }
}

/// Writes a line at the level `trace`.
pub fn trace(line: &str) {
    write(Level::Trace, line);
}

/// Writes a line at the level `debug`.
pub fn debug(line: &str) {
    write(Level::Debug, line);
}

/// Writes a line at the level `info`.
pub fn info(line: &str) {
    write(Level::Info, line);
}

/// Writes a line at the level `warn`.
pub fn warn(line: &str) {
    write(Level::Warn, line);
}

/// Writes a line at the level `error`.
pub fn error(line: &str) {
    write(Level::Error, line);
}

/// Writes a line with fields: what serializes to an object. For a core module line and
/// fields have at most 64 KiB together, for a component the fields alone.
///
/// # Errors
/// The fields are no object, or too large.
pub fn fields(level: Level, line: &str, fields: impl Serialize) -> Result<(), HostError> {
    backend::log_fields(level, line, &object("the fields", &fields)?)
}

/// Writes one wide event: what serializes to an object with all that is to be known of a
/// piece of work, by custom `kind`, `operation`, `success`, `duration_ns`, `tags`,
/// `attributes` and `measurements`; at most 64 KiB. It becomes a line of the log, and an
/// event of the run's span.
///
/// # Errors
/// It is no object, or too large.
pub fn wide_event(event: impl Serialize) -> Result<(), HostError> {
    backend::wide_event(&object("the event", &event)?)
}

fn object(what: &str, value: &impl Serialize) -> Result<String, HostError> {
    let text = to_json(what, value)?;
    if text.starts_with('{') {
        return Ok(text);
    }
    Err(HostError::new(format!("{what} must be an object")))
}

/// Writes a line at the level `trace`, formatted as by [`format!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __trace {
    ($($line:tt)+) => {
        $crate::log::write_formatted($crate::log::Level::Trace, ::core::format_args!($($line)+))
    };
}

/// Writes a line at the level `debug`, formatted as by [`format!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($line:tt)+) => {
        $crate::log::write_formatted($crate::log::Level::Debug, ::core::format_args!($($line)+))
    };
}

/// Writes a line at the level `info`, formatted as by [`format!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($line:tt)+) => {
        $crate::log::write_formatted($crate::log::Level::Info, ::core::format_args!($($line)+))
    };
}

/// Writes a line at the level `warn`, formatted as by [`format!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($line:tt)+) => {
        $crate::log::write_formatted($crate::log::Level::Warn, ::core::format_args!($($line)+))
    };
}

/// Writes a line at the level `error`, formatted as by [`format!`].
#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($line:tt)+) => {
        $crate::log::write_formatted($crate::log::Level::Error, ::core::format_args!($($line)+))
    };
}
