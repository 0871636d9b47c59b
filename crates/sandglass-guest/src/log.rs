//! The log of the handler. A line is cut after 8 KiB. A handler may write 10,000 lines; further
//! lines are counted and dropped. Control characters are escaped, and secrets that the handler has
//! read are removed.
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

/// The severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Each step, to follow one execution.
    Trace,
    /// Details for debugging.
    Debug,
    /// A normal event.
    Info,
    /// An unusual event that was handled.
    Warn,
    /// An error.
    Error,
}

/// Writes a line.
pub fn write(level: Level, line: &str) {
    backend::log(level, line);
}

/// Writes a line from `format_args!`, for the macros of this module.
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

/// Writes a line with fields, which serialize to an object. The limit of 64 KiB applies to the line
/// and the fields together in a core module, and to the fields alone in a component.
///
/// # Errors
/// Errors if the fields are not an object, or too large.
pub fn fields(level: Level, line: &str, fields: impl Serialize) -> Result<(), HostError> {
    backend::log_fields(level, line, &object("the fields", &fields)?)
}

/// Writes one wide event, an object of at most 64 KiB that describes one piece of work completely;
/// its usual keys are `kind`, `operation`, `success`, `duration_ns`, `tags`, `attributes` and
/// `measurements`. It becomes a line of the log and an event of the handler's span.
///
/// # Errors
/// Errors if it is not an object, or too large.
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
