//! `sandglass new`: creates a guest project that builds, with a test that passes.

use std::path::PathBuf;

use crate::exit::Exit;
use crate::project::{self, Language};
use crate::terminal::Output;

/// Creates a guest project: a handler, its manifest, its build files and its first tests
///
/// Exit code: 0 created, 2 the name is not allowed, or the folder exists already.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass new greeter --lang rust\n  \
    sandglass new tools/greeter --lang python")]
pub(crate) struct Arguments {
    /// The new folder, which has the name of the integration: a lowercase letter, and then lowercase
    /// letters, digits, - and _
    #[arg(value_name = "NAME")]
    path: PathBuf,
    /// The language of the guest
    #[arg(long, value_name = "LANGUAGE")]
    lang: Language,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { path, lang } = arguments;
    let files = project::create(path, *lang)?;
    let output = Output::new();
    for file in files {
        output.line(file.display())?;
    }
    let folder = path.display();
    let build = lang.build_command();
    output.line(format!("\nNext, in {folder}:\n  {build}\n  sandglass test"))?;
    Ok(Exit::Ok)
}
