//! What is wrong or doubtful in a file, and where.

use std::fmt;
use std::ops::Range;

use sandglass_model::id::NAME_MAX_BYTES;

use crate::printable;

/// Most diagnostics that are kept for one file: more than anybody mends in one go.
pub const DIAGNOSTICS_MAX: usize = 200;

/// Most names that are compared to find the nearest one: a larger file is no
/// reason to spend time on a hint.
const NEAREST_AMONG_MAX: usize = 500;

/// What a name counts for that is one slip away, where 1 is the same name.
const ONE_SLIP: f64 = 0.9;

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file can't be used.
    Error,
    /// The file can be used, and says something that its author hardly wants.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that is wrong or doubtful.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How much it matters.
    pub severity: Severity,
    /// What is wrong: lower case, no full stop, no control characters.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// The code that errors of its kind have wherever they are told; none where it has none.
    pub code: Option<&'static str>,
    /// Where, in bytes of the source.
    pub span: Range<usize>,
    /// Line of the span's start, from 1.
    pub line: usize,
    /// Column of the span's start, from 1, in characters.
    pub column: usize,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, message, line, column, .. } = self;
        write!(f, "{line}:{column}: {severity}: {message}")?;
        self.help.as_ref().map_or(Ok(()), |help| write!(f, "\n  help: {help}"))
    }
}

/// Gathers the diagnostics of one file: at most [`DIAGNOSTICS_MAX`].
#[derive(Debug)]
pub struct Diagnostics<'s> {
    source: &'s str,
    line_starts: Vec<usize>,
    found: Vec<Diagnostic>,
    errors: usize,
}

impl<'s> Diagnostics<'s> {
    /// Gathers those of `source`.
    #[must_use]
    pub fn new(source: &'s str) -> Self {
        let after_breaks = source.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_breaks).collect();
        Self { source, line_starts, found: Vec::new(), errors: 0 }
    }

    /// The text of the file.
    #[must_use]
    pub fn source(&self) -> &'s str {
        self.source
    }

    /// Notes an error; `span` is in bytes of the source.
    pub fn error(&mut self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), None);
    }

    /// Notes an error, and what to do about it.
    pub fn error_with_help(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Error, span, message.into(), Some(help.into()));
    }

    /// Notes what is legal and hardly meant, and what to do about it.
    pub fn warning(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, span, message.into(), Some(help.into()));
    }

    /// Whether an error was noted.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The line of a place, from 1.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.position(floor_char_boundary(self.source, at)).0
    }

    /// All that was found, in the order of the file.
    #[must_use]
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.found.sort_by_key(|one| (one.span.start, one.severity));
        self.found
    }

    fn push(
        &mut self,
        severity: Severity,
        span: &Range<usize>,
        message: String,
        help: Option<String>,
    ) {
        self.errors += usize::from(severity == Severity::Error);
        if self.found.len() >= DIAGNOSTICS_MAX {
            return;
        }
        let start = floor_char_boundary(self.source, span.start);
        let end = floor_char_boundary(self.source, span.end.max(start));
        let (line, column) = self.position(start);
        let message = printable(&message).into_owned();
        let help = help.map(|help| printable(&help).into_owned());
        self.found.push(Diagnostic {
            severity,
            message,
            help,
            code: None,
            span: start..end,
            line,
            column,
        });
    }

    fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at).max(1);
        let before = &self.source[self.line_starts[line - 1]..at];
        (line, before.chars().count() + 1)
    }
}

fn floor_char_boundary(text: &str, at: usize) -> usize {
    let at = at.min(text.len());
    (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// The name among `known` that `wanted` was probably meant to be; none for what is
/// longer than any name, since comparing takes time by its length.
#[must_use]
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if wanted.len() > NAME_MAX_BYTES {
        return None;
    }
    let wanted = wanted.to_lowercase();
    let score = |name: &str| {
        let name = name.to_lowercase();
        // In a short word one slip of the finger weighs too much.
        let one_slip = wanted.len().min(name.len()) >= 3
            && wanted.len().abs_diff(name.len()) <= 1
            && strsim::osa_distance(&wanted, &name) == 1;
        let score = strsim::jaro_winkler(&wanted, &name);
        if one_slip { score.max(ONE_SLIP) } else { score }
    };
    let scored = known.into_iter().take(NEAREST_AMONG_MAX).map(|name| (score(name), name));
    // Below this, a suggestion is a guess.
    let near = scored.filter(|(score, _)| *score > 0.75);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

/// Most names that a message lists.
const NAMED_MAX: usize = 12;

/// A help that names the nearest of `known`, or else some of them.
pub fn did_you_mean<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str> + Clone) -> String {
    if let Some(name) = nearest(wanted, known.clone()) {
        return format!("did you mean `{name}`?");
    }
    let mut known = known.into_iter().map(|name| format!("`{name}`"));
    let some: Vec<String> = known.by_ref().take(NAMED_MAX).collect();
    match (some.is_empty(), known.count()) {
        (true, _) => "none is declared".to_owned(),
        (false, 0) => format!("known here: {}", some.join(", ")),
        (false, more) => format!("known here: {} and {more} more", some.join(", ")),
    }
}
