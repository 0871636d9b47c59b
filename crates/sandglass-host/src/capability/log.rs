//! What guests write to the log, by their own call or to WASI's standard output
//! and error: bounded in number and size, one line each, with nothing in it that
//! a terminal would obey.

use std::sync::{Arc, Mutex, PoisonError};

use sandglass_model::{DispatchId, TraceContext};

use crate::secret::Redactor;

/// Most lines that one run may write. More are counted and not written: a flood
/// must neither fill a disk nor slow anybody down.
const MAX_LINES: u32 = 10_000;

/// Longest line, in bytes; the rest of it is cut.
pub(crate) const LINE_MAX_BYTES: u32 = 8 * 1024;

/// How much a guest's line matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    /// The level of this name, in any case; whatever else is information.
    pub(crate) fn of(name: &str) -> Self {
        const NAMES: [(&str, Level); 7] = [
            ("error", Level::Error),
            ("fatal", Level::Error),
            ("warn", Level::Warn),
            ("warning", Level::Warn),
            ("debug", Level::Debug),
            ("trace", Level::Trace),
            ("info", Level::Info),
        ];
        NAMES
            .into_iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map_or(Self::Info, |(_, level)| level)
    }
}

/// The log of one run. Clones write to the same.
#[derive(Clone, Debug)]
pub(crate) struct GuestLog {
    integration: Arc<str>,
    dispatch: DispatchId,
    trace: TraceContext,
    redactor: Redactor,
    lines: Arc<Mutex<u32>>,
}

impl GuestLog {
    /// The log of a run whose secrets `redactor` knows.
    pub(crate) fn new(
        integration: &str,
        dispatch: DispatchId,
        trace: TraceContext,
        redactor: Redactor,
    ) -> Self {
        Self { integration: integration.into(), dispatch, trace, redactor, lines: Arc::default() }
    }

    /// Whether nothing more is written, so that nothing more need be read.
    pub(crate) fn is_full(&self) -> bool {
        *self.lines.lock().unwrap_or_else(PoisonError::into_inner) > MAX_LINES
    }

    pub(crate) fn write(&self, level: Level, message: String) {
        let line = {
            let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
            *lines = lines.saturating_add(1);
            *lines
        };
        if line <= MAX_LINES {
            let message = self.redactor.text(message);
            let message = one_line(clipped(&message, LINE_MAX_BYTES));
            self.emit(level, clipped(&message, LINE_MAX_BYTES));
        } else if line == MAX_LINES + 1 {
            self.emit(Level::Warn, "the guest logs too much: its further lines are dropped");
        }
    }

    fn emit(&self, level: Level, message: &str) {
        let Self { integration, dispatch, trace, .. } = self;
        let (trace_id, span_id) = (trace.trace_id, trace.span_id);
        macro_rules! emit {
            ($level:ident) => {
                tracing::event!(
                    target: "sandglass::guest", tracing::Level::$level,
                    %integration, %dispatch, %trace_id, %span_id, "{message}"
                )
            };
        }
        match level {
            Level::Error => emit!(ERROR),
            Level::Warn => emit!(WARN),
            Level::Info => emit!(INFO),
            Level::Debug => emit!(DEBUG),
            Level::Trace => emit!(TRACE),
        }
    }
}

/// The longest part of `text` from its beginning that fits `max` bytes.
fn clipped(text: &str, max: u32) -> &str {
    let mut end = text.len().min(max as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Cuts `text` to at most `max` bytes, between two characters.
pub(crate) fn truncate(text: &mut String, max: u32) {
    text.truncate(clipped(text, max).len());
}

/// `text` with each control character replaced by its escape.
pub(crate) fn one_line(text: &str) -> String {
    let mut line = String::with_capacity(text.len());
    for c in text.trim_end_matches(['\n', '\r']).chars() {
        if c.is_control() { line.extend(c.escape_default()) } else { line.push(c) }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_nothing_that_a_terminal_obeys() {
        assert_eq!(one_line("a\u{1b}[31m\nb\r\n"), "a\\u{1b}[31m\\nb");
    }

    #[test]
    fn texts_are_cut_between_characters() {
        let mut text = "aé".to_owned();
        truncate(&mut text, 2);
        assert_eq!(text, "a");
    }

    #[test]
    fn levels_are_known_by_name() {
        assert_eq!(Level::of("WARN"), Level::Warn);
        assert_eq!(Level::of("notice"), Level::Info);
    }
}
