//! Errors and warnings about a file, with their places.

use std::fmt;
use std::ops::Range;

use sandglass_model::id::NAME_MAX_BYTES;

use crate::printable;

/// Most diagnostics of one file: more than an author fixes at once.
pub const DIAGNOSTICS_MAX: usize = 200;

/// Most diagnostics that are kept; there may be one more, which counts the others.
const KEPT_MAX: usize = DIAGNOSTICS_MAX - 1;

/// Most names that are compared to find the nearest one: a hint is not worth more time.
const NEAREST_AMONG_MAX: usize = 500;

/// Shortest key that can be a misspelling of another one.
const ONE_SLIP_MIN_LEN: usize = 3;

/// The score of a name that is one typing error away; equal names have 1.
const ONE_SLIP: f64 = 0.9;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but its author probably intends something else.
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

/// One error or warning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// What is wrong: lower case, no period, no control characters.
    pub message: String,
    /// What to do about it.
    pub help: Option<String>,
    /// The code of the error, if it has one.
    pub code: Option<&'static str>,
    /// The place, in bytes of the source.
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

/// Collects the diagnostics of one file: at most [`DIAGNOSTICS_MAX`]. If there are more, the last one counts
/// those that are left out, and errors take the places of warnings.
#[derive(Debug)]
pub struct Diagnostics<'s> {
    source: &'s str,
    line_starts: Vec<usize>,
    found: Vec<Diagnostic>,
    errors: usize,
    /// How many were not kept.
    dropped: usize,
    is_strict: bool,
    /// Keys that are kept but not acted on, with their places.
    ignored: Vec<(Range<usize>, String)>,
}

impl<'s> Diagnostics<'s> {
    /// Creates an empty list for `source`.
    #[must_use]
    pub fn new(source: &'s str) -> Self {
        let after_breaks = source.match_indices('\n').map(|(at, _)| at + 1);
        let line_starts = std::iter::once(0).chain(after_breaks).collect();
        let (found, ignored) = (Vec::new(), Vec::new());
        Self { source, line_starts, found, errors: 0, dropped: 0, is_strict: true, ignored }
    }

    /// Sets whether unknown keys, and defaults of the reader that the file should state, are errors.
    /// Otherwise they are warnings. The default is `true`.
    pub fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// Whether unknown keys and applied defaults are errors.
    #[must_use]
    pub fn is_strict(&self) -> bool {
        self.is_strict
    }

    /// The text of the file.
    #[must_use]
    pub fn source(&self) -> &'s str {
        self.source
    }

    /// Adds an error; `span` is in bytes of the source.
    pub fn error(&mut self, span: &Range<usize>, message: impl Into<String>) {
        self.push(Severity::Error, span, message.into(), None::<String>);
    }

    /// Adds an error, and what to do about it.
    pub fn error_with_help(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Error, span, message.into(), Some(help));
    }

    /// Adds a warning about something valid but probably unintended, and what to do about it.
    pub fn warning(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.push(Severity::Warning, span, message.into(), Some(help));
    }

    /// Reports that the reader applied a default where the file should state something: an error in a
    /// strict file, a warning in any other.
    pub fn report_default(
        &mut self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        let severity = if self.is_strict { Severity::Error } else { Severity::Warning };
        self.push(severity, span, message.into(), Some(help));
    }

    /// Reports a key that is not among the `known` ones of `label`: an error in a strict file. In any
    /// other, all such keys are one warning.
    pub(crate) fn report_unknown_key(
        &mut self,
        key: &str,
        span: &Range<usize>,
        label: &str,
        known: &[&str],
    ) {
        let mut known = known.iter().copied();
        if self.is_strict {
            let message = format!("unknown key `{key}` in {label}");
            self.error_with_help(span, message, did_you_mean(key, known));
            return;
        }
        if self.ignored.len() > NAMED_MAX {
            return;
        }
        let what = format!("`{key}` in {label}");
        if self.ignored.iter().any(|(_, ignored)| ignored.starts_with(&what)) {
            return;
        }
        let near = known.find(|known| is_one_slip(key, known));
        let near = near.filter(|_| key.len() >= ONE_SLIP_MIN_LEN);
        let near = near.map_or_else(String::new, |near| format!(" (did you mean `{near}`?)"));
        self.ignored.push((span.clone(), what + &near));
    }

    /// Whether one more report of a default would be dropped, so that it need not be looked for.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let severity = if self.is_strict { Severity::Error } else { Severity::Warning };
        self.found.len() >= KEPT_MAX && self.replaceable(severity).is_none()
    }

    /// Whether there is an error.
    #[must_use]
    pub fn has_errors(&self) -> bool {
        self.errors > 0
    }

    /// The line of a place, from 1.
    #[must_use]
    pub fn line(&self, at: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= at).max(1)
    }

    /// Returns the diagnostics in the order of the file, each once.
    #[must_use]
    pub fn finish(mut self) -> Vec<Diagnostic> {
        self.warn_of_ignored();
        self.found.sort_by_key(|one| (one.span.start, one.severity));
        self.found.dedup();
        if self.dropped > 0 {
            let kept = self.found.iter().filter(|one| one.severity == Severity::Error).count();
            let severity = if self.errors > kept { Severity::Error } else { Severity::Warning };
            let message =
                format!("{} or more further errors and warnings are not listed", self.dropped);
            let (end, help) = (self.source.len(), "correct those above first");
            self.found.push(self.diagnostic(severity, &(end..end), &message, Some(help.into())));
        }
        self.found
    }

    /// Adds the one warning about all keys that nothing acts on.
    fn warn_of_ignored(&mut self) {
        let mut ignored = std::mem::take(&mut self.ignored);
        ignored.sort_by_key(|(span, _)| span.start);
        let Some((first, _)) = ignored.first() else { return };
        let mut names: Vec<&str> =
            ignored.iter().take(NAMED_MAX).map(|(_, what)| what.as_str()).collect();
        if ignored.len() > NAMED_MAX {
            names.push("others");
        }
        let message = format!("kept, but not acted on: {}", names.join(", "));
        let help = "nothing here depends on them; correct what is misspelled";
        self.warning(first, message, help);
    }

    fn push(
        &mut self,
        severity: Severity,
        span: &Range<usize>,
        message: String,
        help: Option<impl Into<String>>,
    ) {
        self.errors += usize::from(severity == Severity::Error);
        if self.found.len() >= KEPT_MAX {
            self.dropped += 1;
            let Some(at) = self.replaceable(severity) else { return };
            self.found.remove(at);
        }
        self.found.push(self.diagnostic(severity, span, &message, help.map(Into::into)));
    }

    /// The last warning, which an error may replace.
    fn replaceable(&self, severity: Severity) -> Option<usize> {
        let is_warning = |one: &Diagnostic| one.severity == Severity::Warning;
        if severity == Severity::Error { self.found.iter().rposition(is_warning) } else { None }
    }

    pub(crate) fn diagnostic(
        &self,
        severity: Severity,
        span: &Range<usize>,
        message: &str,
        help: Option<String>,
    ) -> Diagnostic {
        let start = self.source.floor_char_boundary(span.start);
        let end = self.source.floor_char_boundary(span.end.max(start));
        let (line, column) = self.position(start);
        let message = printable(message).into_owned();
        let help = help.map(|help| printable(&help).into_owned());
        Diagnostic { severity, message, help, code: None, span: start..end, line, column }
    }

    fn position(&self, at: usize) -> (usize, usize) {
        let line = self.line_starts.partition_point(|start| *start <= at).max(1);
        let before = &self.source[self.line_starts[line - 1]..at];
        (line, before.chars().count() + 1)
    }
}

/// Returns the name among `known` that `wanted` was probably meant to be. `None` for a text that is
/// longer than any name, because the comparison takes time by its length.
#[must_use]
pub fn nearest<'a>(wanted: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if wanted.len() > NAME_MAX_BYTES {
        return None;
    }
    let wanted = wanted.to_lowercase();
    let score = |name: &str| {
        let name = name.to_lowercase();
        // In a short word, one typing error changes the score too much.
        let one_slip = wanted.len().min(name.len()) >= ONE_SLIP_MIN_LEN
            && wanted.len().abs_diff(name.len()) <= 1
            && is_one_slip(&wanted, &name);
        let score = strsim::jaro_winkler(&wanted, &name);
        if one_slip { score.max(ONE_SLIP) } else { score }
    };
    let scored = known.into_iter().take(NEAREST_AMONG_MAX).map(|name| (score(name), name));
    // Below this, a suggestion is a guess.
    let near = scored.filter(|(score, _)| *score > 0.8);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}

/// Most names in one message.
const NAMED_MAX: usize = 12;

/// Whether two texts differ by one typing error: a character that is replaced, missing or one too many, or
/// two neighbors that are swapped.
#[must_use]
pub fn is_one_slip(one: &str, other: &str) -> bool {
    let (mut one, mut other) = (one.chars(), other.chars());
    let next = |chars: &std::str::Chars<'_>| chars.clone().next();
    while next(&one).is_some() && next(&one) == next(&other) {
        one.next();
        other.next();
    }
    let last = |chars: &std::str::Chars<'_>| chars.clone().next_back();
    while last(&one).is_some() && last(&one) == last(&other) {
        one.next_back();
        other.next_back();
    }
    match [one, other].map(|mut rest| [rest.next(), rest.next(), rest.next()]) {
        [[Some(a), Some(b), None], [Some(c), Some(d), None]] => (a, b) == (d, c),
        [[one, None, _], [other, None, _]] => one.is_some() || other.is_some(),
        _ => false,
    }
}

/// A help text that is computed only if its diagnostic is kept, because that takes time and a file may have
/// a mistake in each of its bytes.
pub struct Help<F>(pub F);

impl<F> fmt::Debug for Help<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Help")
    }
}

impl<F: FnOnce() -> String> Help<F> {
    /// Computes the text.
    pub fn text(self) -> String {
        (self.0)()
    }
}

impl<F: FnOnce() -> String> From<Help<F>> for String {
    fn from(help: Help<F>) -> Self {
        help.text()
    }
}

/// Returns a help text that names the nearest of `known`, or else some of them.
pub fn did_you_mean<'a>(
    wanted: &str,
    known: impl IntoIterator<Item = &'a str> + Clone,
) -> Help<impl FnOnce() -> String> {
    Help(move || {
        if let Some(name) = nearest(wanted, known.clone()) {
            return format!("did you mean `{name}`?");
        }
        let mut known = known.into_iter();
        let some = known.by_ref().take(NAMED_MAX).map(|name| format!("`{name}`"));
        let some: Vec<String> = some.collect();
        match (some.is_empty(), known.count()) {
            (true, _) => "none is declared".to_owned(),
            (false, 0) => format!("known here: {}", some.join(", ")),
            (false, more) => format!("known here: {} and {more} more", some.join(", ")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_keys_are_one_warning_unless_the_file_is_strict() {
        for (is_strict, wanted) in [
            (
                false,
                "1:1: warning: kept, but not acted on: `parms` in [x] (did you mean `params`?), \
                 `other` in [x]\n  help: nothing here depends on them; correct what is misspelled",
            ),
            (
                true,
                "1:1: error: unknown key `parms` in [x]\n  help: did you mean `params`?\n\
                 2:1: error: unknown key `other` in [x]\n  help: known here: `params`",
            ),
        ] {
            let mut out = Diagnostics::new("parms\nother\n");
            out.set_strict(is_strict);
            for (key, span) in [("parms", 0..5), ("other", 6..11), ("other", 6..11)] {
                out.report_unknown_key(key, &span, "[x]", &["params"]);
            }
            assert_eq!(out.has_errors(), is_strict);
            let all: Vec<String> = out.finish().iter().map(ToString::to_string).collect();
            assert_eq!(all.join("\n"), wanted);
        }
    }

    #[test]
    fn a_name_is_suggested_only_if_it_is_similar() {
        assert_eq!(nearest("from_", ["from", "to"]), Some("from"));
        assert_eq!(nearest("vra", ["var"]), Some("var"));
        for (wanted, known) in [("delete", "deadline"), ("config", "continues")] {
            assert_eq!(nearest(wanted, [known]), None, "{wanted}");
        }
    }
    #[test]
    fn one_typing_error_is_a_slip_and_two_are_not() {
        for (one, other) in [
            ("from", "form"),
            ("from", "fro"),
            ("rom", "from"),
            ("aa", "a"),
            ("aab", "ab"),
            ("é", "e"),
            ("", "x"),
            ("effect", "effects"),
        ] {
            assert!(is_one_slip(one, other) && is_one_slip(other, one), "{one} {other}");
            assert_eq!(strsim::osa_distance(one, other), 1, "{one} {other}");
        }
        for (one, other) in
            [("from", "from"), ("", ""), ("from", "to"), ("abc", "cab"), ("a", "abc")]
        {
            assert!(!is_one_slip(one, other) && !is_one_slip(other, one), "{one} {other}");
        }
    }

    #[test]
    fn a_file_of_mistakes_is_reported_in_part_and_its_errors_first() {
        let source = "x\n".repeat(1_000);
        let mut out = Diagnostics::new(&source);
        out.set_strict(false);
        let computed = std::cell::Cell::new(0);
        let help = || {
            Help(|| {
                computed.set(computed.get() + 1);
                String::new()
            })
        };
        for line in 0..998 {
            out.report_default(&(2 * line..2 * line + 1), format!("{line}"), help());
        }
        assert!(out.is_full());
        for line in [998, 999] {
            out.error_with_help(&(2 * line..2 * line + 1), "wrong", help());
        }
        assert_eq!(computed.get(), KEPT_MAX + 2, "no help is computed for what is not kept");
        assert!(out.is_full());
        let found = out.finish();
        assert_eq!(found.len(), DIAGNOSTICS_MAX);
        let lines: Vec<usize> = found.iter().map(|one| one.line).collect();
        assert_eq!(lines[..197], (1..=197).collect::<Vec<_>>());
        assert_eq!(lines[197..], [999, 1000, 1001]);
        assert_eq!(found[199].message, "801 or more further errors and warnings are not listed");
        assert_eq!(found[199].severity, Severity::Warning);
    }
}
