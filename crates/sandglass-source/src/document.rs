//! One file: from its text to its tables, within bounds, or why it is no TOML.

use toml::Spanned;
use toml::de::DeTable;
use toml_parser::lexer::TokenKind;

use crate::{Diagnostic, Diagnostics, Table};

/// Most parts of one dotted key or header. The TOML parser bounds nested brackets
/// by itself and leaves this to its callers; nobody's key has more.
pub const KEY_PARTS_MAX: usize = 16;

/// A file that is TOML.
#[derive(Debug)]
pub struct Document<'s>(Spanned<DeTable<'s>>);

impl<'s> Document<'s> {
    /// Reads `source`, which may have `max_bytes`. None where it is no TOML, or too
    /// much of it, which is then reported.
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
        let mut told = None;
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let what = (out.line(span.start), error.message());
            // Brackets that are nested too deeply are wrong one by one.
            if told != Some(what) {
                out.error(&span, error.message());
            }
            told = Some(what);
        }
        // What follows from a misread line would only mislead.
        errors.is_empty().then_some(Self(document))
    }

    /// The table that the whole file is, called `label` in messages.
    pub fn table(&self, label: impl Into<String>) -> Table<'_, 's> {
        Table { values: self.0.get_ref(), label: label.into(), span: 0..0 }
    }
}

/// What is wrong with a file that is no text, which `what` names (`a spec file`).
/// The bytes that are text are what its place is told by.
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

/// Where a key of too many parts ends: each dot nests one table deeper.
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
