//! Findings in files, for the operator's log.

use sandglass_source::Finding;

/// All findings, each with its place and what to do, separated by semicolons.
pub(crate) fn in_one_line<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> String {
    let line = |finding: &Finding| {
        let found = &finding.diagnostic;
        let help = found.help.as_ref().map(|help| format!(" ({help})")).unwrap_or_default();
        let (path, line, column) = (finding.path.display(), found.line, found.column);
        format!("{path}:{line}:{column}: {}{help}", found.message)
    };
    findings.into_iter().map(line).collect::<Vec<_>>().join("; ")
}
