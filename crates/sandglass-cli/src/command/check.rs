//! `sandglass check`: everything that is wrong or doubtful in spec files, at once.

use std::path::{Path, PathBuf};

use sandglass_liveness::spec::SOURCE_MAX_BYTES;
use sandglass_liveness::{Parsed, Spec};
use sandglass_source::{Severity, printable};

use crate::diagnosis::{as_json, rendered};
use crate::exit::Exit;
use crate::terminal::{Output, Tone, complain};
use sandglass_host::file;

/// Checks spec files: all errors at once, each with its line and column, and
/// warnings for what is legal but hardly meant
///
/// Exit code: 0 usable (warnings are allowed), 1 errors, 2 a file can't be read.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass check session.ioa.toml\n  \
    sandglass check specs/*.ioa.toml --json | jq '.[] | select(.severity == \"error\")'")]
pub(crate) struct Arguments {
    /// Spec files (*.ioa.toml)
    #[arg(required = true, value_name = "SPEC")]
    specs: Vec<PathBuf>,
    /// Print one JSON array of {file, severity, line, column, message, help}
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let mut output = Output::new();
    let mut all = Vec::new();
    let mut exit = Exit::Ok;
    for path in &arguments.specs {
        // One byte more than allowed shows that it is too large for a spec.
        let bytes = match file::start(path, SOURCE_MAX_BYTES as u64 + 1) {
            Ok(bytes) => bytes,
            Err(error) => {
                // The other files are checked all the same.
                complain(&error.into());
                exit = Exit::Unusable;
                continue;
            }
        };
        let Parsed { diagnostics, .. } = Spec::parse_bytes(&bytes);
        let [errors, warnings] = [Severity::Error, Severity::Warning]
            .map(|severity| diagnostics.iter().filter(|one| one.severity == severity).count());
        if errors > 0 && exit == Exit::Ok {
            exit = Exit::Failed;
        }
        if arguments.json {
            all.extend(diagnostics.iter().map(|one| as_json(path, one)));
            continue;
        }
        let source = String::from_utf8_lossy(&bytes);
        for one in &diagnostics {
            output.line(rendered(path, &source, one, output.color()))?;
        }
        output.line(verdict(path, errors, warnings, &output))?;
    }
    if arguments.json {
        output.line(serde_json::to_string_pretty(&all)?)?;
    }
    Ok(exit)
}

fn verdict(path: &Path, errors: usize, warnings: usize, output: &Output) -> String {
    let count =
        |number: usize, one: &str| format!("{number} {one}{}", if number == 1 { "" } else { "s" });
    let path = path.display().to_string();
    let (tone, text) = match (errors, warnings) {
        (0, 0) => (Tone::Good, "ok".to_owned()),
        (0, _) => (Tone::Doubtful, format!("ok, {}", count(warnings, "warning"))),
        (_, 0) => (Tone::Bad, count(errors, "error")),
        _ => (Tone::Bad, format!("{}, {}", count(errors, "error"), count(warnings, "warning"))),
    };
    format!("{}: {}", printable(&path), output.paint(tone, &text))
}
