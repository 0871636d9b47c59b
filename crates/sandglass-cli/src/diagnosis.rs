//! What is wrong in a file, shown with the line that it stands in.

use std::path::Path;

use miette::{
    GraphicalReportHandler, GraphicalTheme, LabeledSpan, MietteDiagnostic, NamedSource, Report,
    Severity as Level,
};
use sandglass_liveness::{Diagnostic, Severity};

use crate::terminal::{printable, printable_in_place};

/// The diagnostic as people read it: what, where, the source line, what to do.
pub(crate) fn rendered(path: &Path, source: &str, found: &Diagnostic, color: bool) -> String {
    let Diagnostic { severity, message, help, span, line, column } = found;
    let level = match severity {
        Severity::Error => Level::Error,
        Severity::Warning => Level::Warning,
    };
    let name = printable(&path.display().to_string()).into_owned();
    let end = span.end.min(source.len());
    let label = LabeledSpan::underline(span.start.min(end)..end);
    let mut diagnostic = MietteDiagnostic::new(format!("{name}:{line}:{column}: {message}"))
        .with_severity(level)
        .with_label(label);
    if let Some(help) = help {
        diagnostic = diagnostic.with_help(help);
    }
    let report = Report::new(diagnostic)
        .with_source_code(NamedSource::new(name, printable_in_place(source)));
    let theme = if color { GraphicalTheme::unicode() } else { GraphicalTheme::unicode_nocolor() };
    let mut text = String::new();
    let handler = GraphicalReportHandler::new_themed(theme).with_links(false);
    // Writing to a string can't fail; a span outside the source would only lose the line.
    if handler.render_report(&mut text, report.as_ref()).is_err() {
        text = format!("  {found}\n");
    }
    text
}

/// The diagnostic as scripts read it.
pub(crate) fn as_json(path: &Path, found: &Diagnostic) -> serde_json::Value {
    serde_json::json!({
        "file": path.display().to_string(),
        "severity": found.severity.to_string(),
        "line": found.line,
        "column": found.column,
        "message": found.message,
        "help": found.help,
    })
}
