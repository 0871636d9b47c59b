//! Lines to people: colour only where somebody looks and wants it, and no control
//! characters of foreign origin.

use std::borrow::Cow;
use std::fmt::Display;
use std::io::{self, IsTerminal, Write};

use sandglass_source::{is_unprintable, printable};
use serde::Serialize;

use crate::json;

/// How a piece of text is meant.
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
    const fn code(self) -> Option<&'static str> {
        match self {
            Self::Plain => None,
            Self::Quiet => Some("2"),
            Self::Strong => Some("1"),
            Self::Good => Some("32"),
            Self::Doubtful => Some("33"),
            Self::Bad => Some("31"),
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

    /// Writes a line, at once. What is foreign in it has gone through [`printable`].
    /// Whoever closes its reading end has seen enough, which is no error: the exit
    /// code stays what it would have been.
    pub(crate) fn line(&mut self, line: impl Display) -> io::Result<()> {
        let mut stdout = self.stdout.lock();
        let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
        unless_nobody_reads(written).map_err(|error| {
            io::Error::new(error.kind(), format!("can't write to standard output: {error}"))
        })
    }

    /// Writes a value as a line of JSON, as [`Self::line`] does.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.line(json::line(value)?)
    }

    /// The same in lines that people read.
    pub(crate) fn json_pretty(&mut self, value: &impl Serialize) -> io::Result<()> {
        self.line(json::pretty(value)?)
    }

    /// `text` in a colour, where colours are shown.
    pub(crate) fn paint<'a>(&self, tone: Tone, text: &'a str) -> Cow<'a, str> {
        match tone.code() {
            Some(code) if self.color => format!("\u{1b}[{code}m{text}\u{1b}[0m").into(),
            _ => text.into(),
        }
    }
}

/// What came of writing, where a reader that has gone away is no error.
pub(crate) fn unless_nobody_reads(written: io::Result<()>) -> io::Result<()> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Says on standard error how it goes.
pub(crate) fn tell(text: &str) {
    // Nobody has to listen.
    let _ = writeln!(io::stderr(), "{}", printable(text));
}

/// Says on standard error why something could not be done.
pub(crate) fn complain(error: &anyhow::Error) {
    let text = format!("{error:#}");
    // Where even this can't be written, the exit code says it.
    let _ = writeln!(io::stderr(), "error: {}", printable(&text));
}

/// Says on standard error, in lines that are printable, what is wrong with the arguments.
pub(crate) fn complain_of_arguments(lines: &str) {
    // As above.
    let _ = write!(io::stderr(), "{lines}");
}

/// Says on standard error what somebody who waits wants to know.
pub(crate) fn note(text: &str) {
    // Nobody need read it.
    let _ = writeln!(io::stderr(), "note: {}", printable(text));
}

/// Whether colours are shown on a stream (<https://no-color.org>).
pub(crate) fn wants_color(stream: &impl IsTerminal) -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    stream.is_terminal() && !refused
}

/// What may be many lines, with nothing unprintable but their ends.
pub(crate) fn printable_lines(text: &str) -> Cow<'_, str> {
    let drives = |c: char| is_unprintable(c) && c != '\n';
    if !text.contains(drives) {
        return text.into();
    }
    let shown = |c: char| if drives(c) { c.escape_default().to_string() } else { c.into() };
    text.chars().map(shown).collect::<String>().into()
}

/// Text of foreign origin as it may reach a terminal, in as many bytes and with line
/// breaks and tabs left alone, so that places in it stay where they are.
pub(crate) fn printable_in_place(text: &str) -> String {
    let shown = |c: char| {
        let kept = !is_unprintable(c) || c == '\n' || c == '\t';
        if kept { c.to_string() } else { "?".repeat(c.len_utf8()) }
    };
    text.chars().map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_foreign_drives_the_terminal() {
        assert_eq!(printable_lines("a\u{1b}\u{2028}\nb"), "a\\u{1b}\\u{2028}\nb");
        let source = "a\u{1b}\u{9b}\tb\n";
        let shown = printable_in_place(source);
        assert_eq!((shown.as_str(), shown.len()), ("a???\tb\n", source.len()));
    }
}
