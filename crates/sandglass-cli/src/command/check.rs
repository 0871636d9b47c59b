//! `sandglass check`: reports all errors and warnings in spec files, manifests, modules and folders
//! of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use sandglass_host::file;
use sandglass_host::manifest::{is_manifest, is_module};
use sandglass_liveness::spec::{SOURCE_MAX_BYTES, Strictness};
use sandglass_liveness::{Parsed, Spec};
use sandglass_source::{Finding, Severity};

use crate::compiling;
use crate::diagnostic_text::{self, to_json};
use crate::exit::Exit;
use crate::integrations::{Integrations, find_unlimited};
use crate::terminal::{Output, Tone, count, printable_path, report_error};

/// Checks spec files, manifests, modules and folders of them
///
/// Reports all errors at once, each with its line and column, and warnings for what is allowed but
/// rarely intended, and for a spec that has handlers but no limits. A manifest is checked together
/// with its module, which must exist, match the manifest, compile, and import nothing that it is not
/// granted. A module is checked with the manifest beside it that names it; without one, nothing is
/// granted. In a folder, a module that a spec names and that does not exist is a warning.
///
/// A spec that leaves something out gets a default that keeps the promises of handlers, and a warning.
/// With --strict, or `strict = true` in [automaton], these warnings are errors, as are unknown keys and
/// missing modules.
///
/// Exit code: 0 no errors (warnings are allowed), 1 errors, 2 a file cannot be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass check session.ioa.toml\n  \
    sandglass check integrations/tools/integration.toml\n  sandglass check tool.wasm\n  \
    sandglass check specs/\n  sandglass check specs/*.ioa.toml --json | jq '.[] | select(.severity == \"error\")'")]
pub(crate) struct Arguments {
    /// Spec files (*.ioa.toml), manifests (integration.toml, *.integration.toml), modules (*.wasm,
    /// *.wat) and folders; each is checked once
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Print one JSON array of {file, severity, line, column, message, help, code}; a message about
    /// a whole file has line and column 1
    #[arg(long)]
    json: bool,
    /// Report defaults that specs rely on, unknown keys and missing modules as errors
    #[arg(long)]
    strict: bool,
    #[command(flatten)]
    compiling: compiling::CachedArguments,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let output = Output::new();
    let mut integrations = Integrations::new(arguments.compiling.clone());
    let strictness = if arguments.strict { Strictness::Strict } else { Strictness::AsDeclared };
    let mut all = Vec::new();
    let mut exit = Exit::Ok;
    for path in distinct(&arguments.paths) {
        let mut findings = match check(path, strictness, &mut integrations) {
            Ok(findings) => findings,
            Err(error) => {
                // The other files are checked nevertheless.
                report_error(&error);
                let Finding { path, diagnostic, .. } =
                    Finding::of_a_whole_file(path, &format!("{error:#}"));
                all.push(to_json(&path, &diagnostic));
                exit = Exit::Unusable;
                continue;
            }
        };
        findings.sort_by(|one, other| {
            let place = |finding: &Finding| finding.diagnostic.span.start;
            (&one.path, place(one)).cmp(&(&other.path, place(other)))
        });
        let [errors, warnings] = [Severity::Error, Severity::Warning].map(|severity| {
            findings.iter().filter(|one| one.diagnostic.severity == severity).count()
        });
        if errors > 0 && exit == Exit::Ok {
            exit = Exit::Failed;
        }
        if arguments.json {
            all.extend(findings.iter().map(|one| to_json(&one.path, &one.diagnostic)));
            continue;
        }
        diagnostic_text::print(&findings, &output)?;
        output.line(verdict(path, errors, warnings, &output))?;
    }
    if arguments.json {
        output.json_pretty(&all)?;
    }
    Ok(exit)
}

/// The distinct files among `paths`, which may name one by several paths.
fn distinct(paths: &[PathBuf]) -> impl Iterator<Item = &Path> {
    let mut seen = BTreeSet::new();
    let identity = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    paths.iter().map(PathBuf::as_path).filter(move |path| seen.insert(identity(path)))
}

fn check(
    path: &Path,
    strictness: Strictness,
    integrations: &mut Integrations,
) -> anyhow::Result<Vec<Finding>> {
    if path.is_dir() {
        integrations.check_folder(path, strictness)
    } else if is_manifest(path) {
        integrations.check_manifest(path)
    } else if is_module(path) {
        integrations.check_file(path)
    } else {
        check_spec(path, strictness, integrations)
    }
}

fn check_spec(
    path: &Path,
    strictness: Strictness,
    integrations: &mut Integrations,
) -> anyhow::Result<Vec<Finding>> {
    // One byte more than allowed is enough to reject a file that is too large.
    let bytes = file::start(path, SOURCE_MAX_BYTES as u64 + 1)?;
    let Parsed { spec, diagnostics } = Spec::parse_bytes(&bytes, strictness);
    let mut findings: Vec<Finding> =
        Finding::all_of(path, &String::from_utf8_lossy(&bytes), diagnostics).collect();
    if let Some(spec) = spec {
        findings.extend(find_unlimited(path, &spec));
        findings.extend(integrations.check_timed(path, &spec)?);
    }
    Ok(findings)
}

fn verdict(path: &Path, errors: usize, warnings: usize, output: &Output) -> String {
    let (tone, text) = match (errors, warnings) {
        (0, 0) => (Tone::Good, "ok".to_owned()),
        (0, _) => (Tone::Doubtful, format!("ok, {}", count(warnings, "warning"))),
        (_, 0) => (Tone::Bad, count(errors, "error")),
        _ => (Tone::Bad, format!("{}, {}", count(errors, "error"), count(warnings, "warning"))),
    };
    format!("{}: {}", printable_path(path), output.paint(tone, text))
}
