//! Writes lines for people: in color only on a terminal that wants it, and without control
//! characters of foreign origin.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use ratatui::backend::IntoCrossterm as _;
use ratatui::style::Style;
use ratatui::text::Line;
use sandglass_source::{is_unprintable, printable};
use serde::Serialize;

use crate::json;

/// The meaning of a piece of text, which decides its style.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    Plain,
    Quiet,
    Strong,
    Good,
    Doubtful,
    Bad,
}

impl Tone {
    pub(crate) const fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Quiet => Style::new().dim(),
            Self::Strong => Style::new().bold(),
            Self::Good => Style::new().green(),
            Self::Doubtful => Style::new().yellow(),
            Self::Bad => Style::new().red(),
        }
    }
}

/// Standard output.
#[derive(Debug)]
pub(crate) struct Output {
    stdout: io::Stdout,
    color: bool,
}

impl Output {
    pub(crate) fn new() -> Self {
        let stdout = io::stdout();
        let color = wants_color(&stdout);
        Self { stdout, color }
    }

    pub(crate) const fn color(&self) -> bool {
        self.color
    }

    /// Writes and flushes a line. The caller has escaped foreign text with [`printable`]. A closed
    /// pipe is not an error: its reader has seen enough, and the exit code stays what it would be.
    pub(crate) fn line(&self, line: impl Display) -> io::Result<()> {
        let mut stdout = self.stdout.lock();
        let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        ignore_broken_pipe(written).map_err(|error| {
            io::Error::new(error.kind(), format!("can't write to standard output: {error}"))
        })
    }

    /// Writes a value as one line of JSON.
    pub(crate) fn json(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(json::line(value)?)
    }

    /// Writes a value as indented JSON.
    pub(crate) fn json_pretty(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(json::pretty(value)?)
    }

    /// A line of a report: its label in `width` columns, and its value.
    pub(crate) fn detail(&self, width: usize, label: &str, value: &str) -> String {
        format!("  {}{value}", self.paint(Tone::Quiet, format!("{label:<width$}")))
    }

    /// `text` in the style of `tone`, if color is on.
    pub(crate) fn paint(&self, tone: Tone, text: impl Display) -> String {
        if !self.color || tone == Tone::Plain {
            return text.to_string();
        }
        tone.style().into_crossterm().apply(text).to_string()
    }

    /// A styled line, with its styles only if color is on.
    pub(crate) fn styled(&self, line: &Line<'_>) -> String {
        if !self.color {
            return line.to_string();
        }
        let spans = line.spans.iter();
        spans.map(|span| span.style.into_crossterm().apply(&span.content).to_string()).collect()
    }
}

/// The result of a write, of which a closed pipe is no error.
pub(crate) fn ignore_broken_pipe(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line about progress to standard error.
pub(crate) fn report_progress(text: &str) {
    // Standard error may be closed, which must not end the work.
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Writes an error to standard error.
pub(crate) fn report_error(error: &anyhow::Error) {
    let text = format!("{error:#}");
    // If this cannot be written either, the exit code still reports it.
    let _ = writeln!(io::stderr(), "error: {}", printable(&text));
}

/// Writes a note to standard error.
pub(crate) fn note(text: &str) {
    report_progress(&format!("note: {text}"));
}

/// Whether `stream` shows colors (<https://no-color.org>).
pub(crate) fn wants_color(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !refused
}

/// A number of things, with the noun in the singular or the plural.
pub(crate) fn count(number: impl TryInto<u64>, noun: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    match noun.strip_suffix("ity") {
        _ if number == 1 => format!("{number} {noun}"),
        Some(stem) => format!("{number} {stem}ities"),
        None if noun.ends_with("ch") => format!("{number} {noun}es"),
        None => format!("{number} {noun}s"),
    }
}

/// A path, for people.
pub(crate) fn printable_path(path: &Path) -> String {
    printable(&path.display().to_string()).into_owned()
}

/// Escapes everything unprintable but line breaks.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    let is_escaped = |c: char| is_unprintable(c) && c != '\n';
    if !text.contains(is_escaped) {
        return text.into();
    }
    let escape = |c: char| if is_escaped(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(escape).collect::<String>().into()
}

/// Replaces everything unprintable but line breaks and tabs with as many `?` as it has bytes, so
/// that byte offsets stay valid.
pub(crate) fn printable_in_place(text: &str) -> String {
    let replace = |c: char| {
        let is_kept = !is_unprintable(c) || c == '\n' || c == '\t';
        if is_kept { c.to_string() } else { "?".repeat(c.len_utf8()) }
    };
    text.chars().map(replace).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_the_right_plural() {
        let found =
            ["run", "entity", "dispatch"].map(|noun| [count(1_u64, noun), count(2_u64, noun)]);
        let expected =
            [["1 run", "2 runs"], ["1 entity", "2 entities"], ["1 dispatch", "2 dispatches"]];
        assert_eq!(found, expected);
    }

    #[test]
    fn foreign_text_does_not_control_the_terminal() {
        assert_eq!(printable_lines("a\u{1b}\u{2028}\nb"), "a\\u{1b}\\u{2028}\nb");
        let source = "a\u{1b}\u{9b}\tb\n";
        let replaced = printable_in_place(source);
        assert_eq!((replaced.as_str(), replaced.len()), ("a???\tb\n", source.len()));
    }
}
