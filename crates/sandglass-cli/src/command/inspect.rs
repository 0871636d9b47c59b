//! `sandglass inspect`: shows what a guest is, and what its manifest permits it.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use sandglass_host::manifest::{self, Found};
use sandglass_host::{FixedSecrets, Manifest, file};
use sandglass_model::{GuestLimits, Rejection};

use crate::compiling;
use crate::diagnostic_text::in_one_line;
use crate::exit::Exit;
use crate::inspection::{self, Report};
use crate::integrations::host;
use crate::terminal::Output;

/// Shows what a guest is: ABI, imports, exports, size, memory, WASI, debug information, and what
/// its manifest permits
///
/// To find out whether the host would run the guest, it is compiled, as by `check`; everything else
/// is read from its bytes. The limits on files are those of the host.
///
/// Exit code: 0 the host would run it, 1 it would not (with the reason), 2 it cannot be read, or is
/// not WebAssembly.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass inspect tool.wasm\n  \
    sandglass inspect tool.wasm --manifest tools/integration.toml\n  \
    sandglass inspect tool.wasm --json | jq '.guest.imports[] | select(.is_known | not)'")]
pub(crate) struct Arguments {
    /// The guest: a core module or a component, binary (.wasm) or text (.wat)
    #[arg(value_name = "GUEST")]
    guest: PathBuf,
    /// Its manifest [default: the integration.toml beside it that names it, if there is one]
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// Print one JSON object of {guest, manifest, permissions, rejection}
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    compiling: compiling::CachedArguments,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let found = find_manifest(arguments)?;
    let max_bytes =
        found.as_ref().map_or_else(largest, |found| found.file().granted.module_max_bytes());
    // A guest that is larger than its manifest allows is inspected too.
    let bytes = file::read(&arguments.guest, max_bytes.max(largest()))?;
    let host = host(&arguments.compiling)?;
    let guest = match host.inspect(&bytes) {
        Ok(guest) => guest,
        Err(Rejection { kind, message }) => {
            let path = arguments.guest.display();
            bail!("`{path}`: {message} ({kind}; {})", crate::explain::command(kind.as_str()))
        }
    };
    let manifest = match &found {
        Some(found) => found.file().manifest(Arc::new(FixedSecrets::default())),
        None => Manifest::default(),
    };
    let report = Report {
        permissions: found.as_ref().map(|found| guest.under(found.file())),
        manifest: found.as_ref().map(|found| found.path().display().to_string()),
        rejection: host.load(&bytes, manifest).err(),
        guest,
    };
    let output = Output::new();
    if arguments.json {
        output.json_pretty(&report)?;
    } else {
        for line in inspection::lines(&arguments.guest, &report, &output) {
            output.line(line)?;
        }
    }
    Ok(if report.rejection.is_none() { Exit::Ok } else { Exit::Failed })
}

/// Largest guest that is read if no manifest allows more, in bytes.
fn largest() -> u64 {
    let defaults = GuestLimits::default();
    defaults.module_bytes.max(defaults.component_bytes)
}

/// The manifest that the arguments name, or the one beside the guest.
fn find_manifest(arguments: &Arguments) -> anyhow::Result<Option<Found>> {
    let found = match &arguments.manifest {
        Some(path) => Found::read(path).map(Some),
        None => manifest::beside(&arguments.guest),
    };
    found.map_err(|error| match error {
        manifest::Error::Wrong(findings) => {
            anyhow::anyhow!("manifest: {}", in_one_line(&findings))
        }
        error => error.into(),
    })
}
