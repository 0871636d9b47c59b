//! Parses the text of one TOML file into its tables, within bounds.

use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::DeTable;
use toml_parser::lexer::TokenKind;

use crate::{Diagnostic, Diagnostics, Table};

/// Most parts of one dotted key or header; no real key has more. The TOML parser bounds nested brackets,
/// but not this.
pub const KEY_PARTS_MAX: usize = 16;

/// A parsed TOML file.
#[derive(Debug)]
pub struct Document<'s>(Spanned<DeTable<'s>>);

impl<'s> Document<'s> {
    /// Parses `source`, which may have `max_bytes`. If it is not TOML, or exceeds a bound, reports that
    /// and returns `None`.
    pub fn parse(source: &'s str, max_bytes: usize, out: &mut Diagnostics<'_>) -> Option<Self> {
        if source.len() > max_bytes {
            let message = format!("the file has {} bytes, and may have {max_bytes}", source.len());
            out.error(&(0..0), message);
            return None;
        }
        if let Some(at) = overlong_key(source) {
            out.error(&(at..at), format!("a key may have {KEY_PARTS_MAX} parts at most"));
            return None;
        }
        let (document, errors) = DeTable::parse_recoverable(source);
        let (mut last, mut repeated) = (None, BTreeSet::new());
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let line = Some(out.line(span.start));
            // Others of a line follow from the first one.
            if last == line {
                continue;
            }
            last = line;
            let word = word_at(source, span.start);
            match error.message() {
                // All tables of the name follow from the first one.
                DUPLICATE if !repeated.insert(word) => {}
                DUPLICATE if is_header(source, span.start) => {
                    let message = format!("`[{word}]` and `[[{word}]]` are both in the file");
                    let help = format!("write each of them as `[[{word}]]`");
                    out.error_with_help(&span, message, help);
                }
                DUPLICATE => out.error_with_help(&span, error.message(), "remove one of the two"),
                message if message.starts_with("key with no value") => {
                    out.error_with_help(&span, message, "write KEY = VALUE");
                }
                message if is_unquoted(message) && !word.is_empty() => {
                    let help = format!("if it is a text, quote it: \"{word}\"");
                    out.error_with_help(&span, message, help);
                }
                message => out.error(&span, message),
            }
        }
        // Errors that follow from a misread line would mislead.
        errors.is_empty().then_some(Self(document))
    }

    /// The top-level table, called `label` in messages.
    pub fn table(&self, label: impl Into<String>) -> Table<'_, 's> {
        Table { values: self.0.get_ref(), label: label.into(), span: 0..0 }
    }
}

/// Returns the error of a file that is not UTF-8, which `what` names (`a spec file`). Its line and
/// column are computed from the valid bytes before it.
#[must_use]
pub fn not_text(source: &[u8], what: &str) -> Vec<Diagnostic> {
    let Err(error) = str::from_utf8(source) else { return Vec::new() };
    let valid = error.valid_up_to();
    let text = String::from_utf8_lossy(&source[..valid]);
    let mut out = Diagnostics::new(&text);
    let help = format!("{what} is TOML, and TOML is UTF-8");
    out.error_with_help(&(valid..valid), format!("byte {valid} is no UTF-8"), help);
    out.finish()
}

/// The message of the TOML parser about a key or table that is repeated.
const DUPLICATE: &str = "duplicate key";

/// Whether this message of the TOML parser is about a value that begins as no value does.
fn is_unquoted(message: &str) -> bool {
    let kinds =
        ["string values must be quoted", "invalid boolean", "invalid float", "invalid integer"];
    kinds.iter().any(|kind| message.starts_with(kind))
}

/// The word that begins at a place; empty if none does.
fn word_at(source: &str, at: usize) -> &str {
    let rest = source.get(at..).unwrap_or_default();
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_' && c != '-');
    &rest[..end.unwrap_or(rest.len())]
}

/// Whether the line of a place is the header of a table.
fn is_header(source: &str, at: usize) -> bool {
    let before = source.get(..at).unwrap_or_default();
    before.rsplit('\n').next().is_some_and(|line| line.trim_start().starts_with('['))
}

/// Finds a key with too many parts, because each dot nests one table deeper.
fn overlong_key(source: &str) -> Option<usize> {
    let mut dots = 0;
    toml_parser::Source::new(source).lex().find_map(|token| {
        match token.kind() {
            TokenKind::Dot => dots += 1,
            TokenKind::Equals | TokenKind::Comma | TokenKind::Newline => dots = 0,
            _ => {}
        }
        (dots >= KEY_PARTS_MAX).then(|| token.span().start())
    })
}
