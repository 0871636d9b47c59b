//! `sandglass new`: a project that builds, with a first test that passes.

use std::path::PathBuf;

use crate::exit::Exit;
use crate::project::{self, Language};
use crate::terminal::Output;

/// Makes a project of a guest: a handler, its manifest, what builds it, and its first tests
///
/// Exit code: 0 made, 2 the name can't be used, or something is there already.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass new greeter --lang rust\n  \
    sandglass new tools/greeter --lang python")]
pub(crate) struct Arguments {
    /// The new folder, named as the integration is to be: small letters, digits, `-`, `_`
    #[arg(value_name = "NAME")]
    path: PathBuf,
    /// What it is written in
    #[arg(long, value_name = "LANGUAGE")]
    lang: Language,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { path, lang } = arguments;
    let files = project::make(path, *lang)?;
    let mut output = Output::new();
    for file in files {
        output.line(file.display())?;
    }
    let folder = path.display();
    let build = lang.build_command();
    output.line(format!("\nNext, in {folder}:\n  {build}\n  sandglass test"))?;
    Ok(Exit::Ok)
}
