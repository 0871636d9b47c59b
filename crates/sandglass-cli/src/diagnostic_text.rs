//! Renders diagnostics of files that people write, with the source lines around them.

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::ops::Range;
use std::path::Path;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, MietteError,
    MietteSpanContents, Report, Severity as Level, SourceCode, SourceSpan, SpanContents,
};
use sandglass_source::{Diagnostic, Finding, Severity, shortened};

use crate::explain;
use crate::terminal::{Output, printable_in_place, printable_path, wants_color};

/// Most characters of a line that are shown before and after the place: some lines of a terminal.
/// miette cannot draw a line of 64 Ki characters.
const AROUND_MAX_CHARS: usize = 120;
/// Most characters of the place itself that are shown.
const PLACE_MAX_CHARS: usize = 120;
/// Most characters of a message before its middle is cut: more than a sentence with all the names
/// that it can suggest.
const MESSAGE_MAX_CHARS: usize = 1_000;
/// How many characters of a cut message are its end, which states what is wrong with the value
/// that made it long.
const MESSAGE_END_CHARS: usize = 200;

/// Renders a diagnostic for people: what is wrong and where, the source line, and what to do.
fn render(path: &Path, source: &str, found: &Diagnostic, color: bool) -> String {
    let Diagnostic { severity, message, help, code, span, line, column } = found;
    let level = match severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warning,
    };
    let name = printable_path(path);
    let window = Window::around(span, source, found, &name);
    let message = abridge(message);
    let mut diagnostic = MietteDiagnostic::new(format!("{name}:{line}:{column}: {message}"))
        .with_severity(level)
        .with_label(LabeledSpan::underline(window.place.clone()));
    let explained = code.map(|code| format!("run `{}` for details", explain::command(code)));
    let help: Vec<_> = help.iter().cloned().chain(explained).collect();
    if !help.is_empty() {
        diagnostic = diagnostic.with_help(abridge(&help.join("; ")));
    }
    let report = Report::new(diagnostic).with_source_code(window);
    let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(theme).with_links(false);
    // Only a span outside the source can fail, and then only the source line is lost.
    if handler.render_report(&mut text, report.as_ref()).is_err() {
        text = format!("  {line}:{column}: {severity}: {message}\n");
    }
    text
}

/// The diagnostic as JSON.
pub(crate) fn to_json(path: &Path, found: &Diagnostic) -> serde_json::Value {
    serde_json::json!({
        "file": path.display().to_string(),
        "severity": found.severity.to_string(),
        "line": found.line,
        "column": found.column,
        "message": abridge(&found.message),
        "help": found.help.as_deref().map(abridge),
        "code": found.code,
    })
}

/// Prints findings with their source lines.
pub(crate) fn print(findings: &[Finding], output: &Output) -> io::Result<()> {
    findings.iter().try_for_each(|Finding { path, source, diagnostic }| {
        output.line(render(path, source, diagnostic, output.color()))
    })
}

/// Writes findings with their source lines to standard error. Returns how many are errors.
pub(crate) fn report(findings: &[Finding]) -> usize {
    let color = wants_color(&io::stderr());
    for Finding { path, source, diagnostic } in findings {
        // If this cannot be written, the exit code still reports it.
        let _ = writeln!(io::stderr(), "{}", render(path, source, diagnostic, color));
    }
    findings.iter().filter(|one| one.diagnostic.severity == Severity::Error).count()
}

/// The findings in one line, without their sources.
pub(crate) fn in_one_line(findings: &[Finding]) -> String {
    let line = |Finding { path, diagnostic, .. }: &Finding| {
        let Diagnostic { line, column, message, .. } = diagnostic;
        format!("{}:{line}:{column}: {message}", path.display())
    };
    findings.iter().map(line).collect::<Vec<_>>().join("; ")
}

/// Cuts the middle of a long message.
fn abridge(text: &str) -> Cow<'_, str> {
    if text.chars().nth(MESSAGE_MAX_CHARS).is_none() {
        return text.into();
    }
    let start = shortened(text, MESSAGE_MAX_CHARS - MESSAGE_END_CHARS);
    let end = text.char_indices().rev().nth(MESSAGE_END_CHARS - 1).map_or(0, |(at, _)| at);
    format!("{start}{}", &text[end..]).into()
}

/// The lines around a place, cut to a bounded length, so that the cost of drawing them does not
/// depend on the size of the source.
#[derive(Debug)]
struct Window {
    text: String,
    /// The place in `text`.
    place: Range<usize>,
    name: String,
    /// Line and column of the place in the source, from 0.
    line: usize,
    column: usize,
    /// How many lines of `text` precede that of the place.
    lines_before: usize,
}

impl Window {
    fn around(span: &Range<usize>, source: &str, found: &Diagnostic, name: &str) -> Self {
        let start = source.floor_char_boundary(span.start);
        let line_start = source[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = source[start..].find('\n').map_or(source.len(), |at| start + at);
        let end = source.floor_char_boundary(span.end).clamp(start, line_end);
        let mut text = String::new();
        let before = source[..line_start].strip_suffix('\n');
        if let Some(before) = before {
            let line = before.rsplit('\n').next().unwrap_or_default();
            text.push_str(&keep_start(line));
            text.push('\n');
        }
        text.push_str(&keep_end(&source[line_start..start]));
        let place_start = text.len();
        let place = printable_in_place(&shortened(&source[start..end], PLACE_MAX_CHARS));
        text.push_str(&place);
        let place = place_start..text.len();
        text.push_str(&keep_start(&source[end..line_end]));
        if let Some(after) = source[line_end..].strip_prefix('\n').filter(|rest| !rest.is_empty()) {
            text.push('\n');
            text.push_str(&keep_start(after.split('\n').next().unwrap_or_default()));
        }
        Self {
            text,
            place,
            name: name.to_owned(),
            line: found.line.saturating_sub(1),
            column: found.column.saturating_sub(1),
            lines_before: usize::from(before.is_some()),
        }
    }
}

impl SourceCode for Window {
    fn read_span<'a>(
        &'a self,
        span: &SourceSpan,
        lines_before: usize,
        lines_after: usize,
    ) -> Result<Box<dyn SpanContents<'a> + 'a>, MietteError> {
        let part = self.text.read_span(span, lines_before, lines_after)?;
        let line = (self.line + part.line()).saturating_sub(self.lines_before);
        // Without preceding lines, the part starts with the place itself.
        let column = if lines_before == 0 { self.column } else { part.column() };
        Ok(Box::new(MietteSpanContents::new_named(
            self.name.clone(),
            part.data(),
            *part.span(),
            line,
            column,
            part.line_count(),
        )))
    }
}

/// The start of a line, escaped.
fn keep_start(line: &str) -> String {
    let line = line.strip_suffix('\r').unwrap_or(line);
    printable_in_place(&shortened(line, AROUND_MAX_CHARS))
}

/// The end of a line up to a place, escaped.
fn keep_end(line: &str) -> String {
    match line.char_indices().rev().nth(AROUND_MAX_CHARS) {
        Some((at, skipped)) => {
            format!("…{}", printable_in_place(&line[at + skipped.len_utf8()..]))
        }
        None => printable_in_place(line),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(source: &str, span: Range<usize>) -> Diagnostic {
        let before = &source[..span.start];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Diagnostic {
            severity: Severity::Error,
            message: "wrong".to_owned(),
            help: None,
            code: None,
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            span,
        }
    }

    #[test]
    fn a_finding_far_into_a_line_is_shown_with_its_surroundings() {
        let long = "a".repeat(70_000);
        let source = format!("first\nsecond\nx = \"{long}\" here {long}\nlast\nnever");
        let at = source.find("here").expect("there");
        let text = render(Path::new("f"), &source, &found(&source, at..at + 4), false);
        for part in ["f:3:70008: wrong", "[f:3:70008]", "2 │ second", "3 │ …aaa", "4 │ last"]
        {
            assert!(text.contains(part), "no {part:?} in:\n{text}");
        }
        assert!(text.contains("\" here aaa") && text.contains("aaa…"), "{text}");
        assert!(!text.contains("first") && !text.contains("never") && text.len() < 2_000, "{text}");
    }

    #[test]
    fn any_place_in_any_source_can_be_rendered() {
        for source in ["", "\n", "a\r\nbü\r\n\u{1b}c", "\r\r\n\n\u{202e}", "\tä\n"] {
            for start in (0..=source.len()).filter(|at| source.is_char_boundary(*at)) {
                for end in start..source.len() + 2 {
                    let text = render(Path::new("f"), source, &found(source, start..end), false);
                    assert!(text.contains("wrong"), "{source:?} {start}..{end}: {text}");
                    assert!(!text.contains(['\u{1b}', '\u{202e}', '\r']), "{text:?}");
                }
            }
        }
    }

    #[test]
    fn a_long_message_keeps_its_start_and_its_end() {
        let text = format!("`{}` is no duration", "é".repeat(70_000));
        let short = abridge(&text);
        assert!(short.starts_with("`éé") && short.ends_with("é` is no duration"));
        assert_eq!(short.chars().count(), MESSAGE_MAX_CHARS + 1);
        assert_eq!(abridge("short"), "short");
    }
}
