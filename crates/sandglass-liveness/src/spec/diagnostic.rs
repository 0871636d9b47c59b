//! What is wrong or doubtful in a spec file, and where.

use std::fmt;
use std::ops::Range;

use sandglass_model::id::NAME_MAX_BYTES;

/// Most diagnostics that are kept for one file: more than anybody mends in one go.
pub const DIAGNOSTICS_MAX: usize = 200;

/// Most names that are compared to find the nearest one: a larger spec is no
/// reason to spend time on a hint.
const NEAREST_AMONG_MAX: usize = 500;

/// What a name counts for that is one slip away, where 1 is the same name.
const ONE_SLIP: f64 = 0.9;

/// How much a diagnostic matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The spec can't be used.
    Error,
    /// The spec can be used, and does something that its author hardly wants.
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

/// Gathers the diagnostics of one file.
#[derive(Debug)]
pub(super) struct Diagnostics<'s> {
    source: &'s str,
    line_starts: Vec<usize>,
    found: Vec<Diagnostic>,
    errors: usize,
}

impl<'s> Diagnostics<'s> {
    pub(super) fn new(source: &'s str) -> Self {
        let after_breaks = source.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_breaks).collect();
        Self { source, line_starts, found: Vec::new(), errors: 0 }
    }

    pub(super) fn source(&self) -> &'s str {
        self.source
    }

    pub(super) fn error(&mut self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), None);
    }

    pub(super) fn error_with_help(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Error, span, message.into(), Some(help.into()));
    }

    pub(super) fn warning(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, span, message.into(), Some(help.into()));
    }

    pub(super) fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// All that was found, in the order of the file.
    pub(super) fn finish(mut self) -> Vec<Diagnostic> {
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
        let message = printable(&message);
        let help = help.map(|help| printable(&help));
        self.found.push(Diagnostic { severity, message, help, span: start..end, line, column });
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

/// Text of foreign origin, as it may reach a terminal.
fn printable(text: &str) -> String {
    let clean = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.into() };
    text.chars().map(clean).collect()
}

/// The name among `known` that `wanted` was probably meant to be; none for what is
/// longer than any name, since comparing takes time by its length.
pub(super) fn nearest<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
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

/// A help that names the nearest of `known`, or else some of them.
pub(super) fn did_you_mean<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> String {
    if let Some(name) = nearest(wanted, known.clone()) {
        return format!("did you mean `{name}`?");
    }
    let some: Vec<String> = known.into_iter().take(12).map(|name| format!("`{name}`")).collect();
    if some.is_empty() {
        "none is declared".to_owned()
    } else {
        format!("known here: {}", some.join(", "))
    }
}
