//! Parses the text of one TOML file into its tables, within bounds.

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
        let mut last = None;
        for error in &errors {
            let span = error.span().unwrap_or(0..0);
            let what = (out.line(span.start), error.message());
            // Brackets that are nested too deep are errors one by one; one report per line is enough.
            if last != Some(what) {
                out.error(&span, error.message());
            }
            last = Some(what);
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
