//! `sandglass test`: the cases that an author writes beside a guest.

use std::path::PathBuf;

use crate::compiling;
use crate::exit::Exit;
use crate::testing;

/// Runs the test cases of guests against a scripted world, in virtual time: a hang of fifteen
/// minutes takes milliseconds, and nothing goes over a network
///
/// Cases are in *.test.toml beside a guest: what the handler is given, what the world
/// answers it, and what is expected. docs/testing.md has every key.
///
/// Exit code: 0 all passed, 1 some failed, 2 a file can't be read or is wrong.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass test\n  sandglass test my-tool --watch\n  \
    sandglass test my-tool --filter hang\n  sandglass test my-tool --update\n  \
    sandglass test my-tool --json | jq '.suites[].cases[] | select(.passed | not)'\n  \
    sandglass test my-tool --junit report.xml")]
pub(crate) struct Arguments {
    /// Folders with *.test.toml in them or in the folders in them, or such files
    #[arg(value_name = "PATH", default_value = ".")]
    pub(crate) paths: Vec<PathBuf>,
    /// Run the cases alone whose names hold this
    #[arg(long, value_name = "TEXT")]
    pub(crate) filter: Option<String>,
    /// Run them again whenever a guest, a manifest or a test file changes, until Ctrl-C
    #[arg(long, conflicts_with_all = ["json", "junit", "update"])]
    pub(crate) watch: bool,
    /// Of cases that fail, show what would change in their files, and write what came as
    /// what is expected
    #[arg(long, conflicts_with = "json")]
    pub(crate) update: bool,
    /// Print one JSON object: {suites: [{file, guest, cases: [{name, passed, took_us,
    /// virtual_ms, outcome, differences: [{what, expected, found}], report}]}], passed, failed}
    #[arg(long)]
    pub(crate) json: bool,
    /// Where compiled code is kept, so that what takes seconds to compile does so once; the
    /// user's cache folder, unless it is said
    #[arg(long, value_name = "FOLDER")]
    pub(crate) compiled_cache: Option<PathBuf>,
    /// Write a report in the form of JUnit, too
    #[arg(long, value_name = "FILE")]
    pub(crate) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) compiling: compiling::Arguments,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    testing::execute(arguments)
}
