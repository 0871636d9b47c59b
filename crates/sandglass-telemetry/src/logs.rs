//! The log of the binary: written to standard error as text or JSON, at configurable levels.

use std::io::{self, IsTerminal as _};

use tracing::Level;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::shown::escape;

/// The environment variable with the levels.
pub const LEVEL_VARIABLE: &str = "SANDGLASS_LOG";

/// How lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// For people; with colours on a terminal.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Why the log cannot be set up.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The levels are invalid.
    #[error(
        "`{}` is not a log level: use off, error, warn, info, debug or trace, or target=level, \
         several separated by commas", escape(.0)
    )]
    InvalidLevels(String),
    /// The process already has a log.
    #[error("log is already set up in this process")]
    AlreadySet,
}

/// Reads levels: `warn`, or `sandglass_host=debug,warn`.
///
/// # Errors
/// Errors if the text is neither.
pub fn levels(text: &str) -> Result<Targets, Error> {
    let invalid = || Error::InvalidLevels(text.to_owned());
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    for part in &parts {
        // The parser takes a misspelled level for a target, and would log everything of it.
        let level = part.rsplit('=').next().unwrap_or(part);
        if level.is_empty() || level.parse::<LevelFilter>().is_err() {
            return Err(invalid());
        }
    }
    parts.join(",").parse().map_err(|_| invalid())
}

/// Lines that may wait to be written: a terminal shows them in a few seconds. More are dropped.
const WAITING_MAX_LINES: usize = 8 * 1024;

/// The log of this process. When dropped, it writes the waiting lines, for at most a second.
#[derive(Debug)]
#[must_use = "the log ends when this is dropped"]
pub struct Log {
    _writer: WorkerGuard,
}

/// Sets up the log of this process with `levels`, by default those of [`LEVEL_VARIABLE`], or else warnings
/// and errors.
///
/// A separate thread writes. If the reader of standard error is slow, lines are dropped, so that neither
/// guests nor kills wait.
///
/// # Errors
/// Errors if the levels are invalid, or the process already has a log.
pub fn init(format: Format, levels: Option<&str>) -> Result<Log, Error> {
    let from_environment =
        std::env::var_os(LEVEL_VARIABLE).map(|text| text.to_string_lossy().into_owned());
    let filter = match levels.or(from_environment.as_deref()) {
        Some(text) if !text.trim().is_empty() => self::levels(text)?,
        _ => Targets::new().with_default(LevelFilter::from_level(Level::WARN)),
    };
    let registry = tracing_subscriber::registry().with(filter);
    let (stderr, writer) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(WAITING_MAX_LINES)
        .thread_name("sandglass-log")
        .finish(io::stderr());
    let lines = tracing_subscriber::fmt::layer().with_writer(stderr);
    let set = match format {
        Format::Text => registry.with(lines.with_ansi(wants_color())).try_init(),
        Format::Json => registry.with(lines.json().flatten_event(true)).try_init(),
    };
    set.map_err(|_| Error::AlreadySet)?;
    Ok(Log { _writer: writer })
}

/// Whether standard error shows colours (<https://no-color.org>).
fn wants_color() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !refused
}
