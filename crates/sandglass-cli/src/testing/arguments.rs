//! `sandglass test`: runs the test cases beside a guest.

use std::path::PathBuf;

use crate::compiling;

/// Runs the test cases of guests with scripted host calls and virtual time
///
/// A hang of fifteen minutes takes milliseconds, and no request reaches a network. Cases are in
/// *.test.toml beside a guest: the input of the handler, the scripted responses, and what is
/// expected. docs/testing.md describes every key.
///
/// Exit code: 0 all cases passed, 1 some failed, 2 a file cannot be read or is invalid, or no case matches
/// --filter.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass test\n  sandglass test my-tool --watch\n  \
    sandglass test my-tool --filter hang\n  sandglass test my-tool --update\n  \
    sandglass test my-tool --json | jq '.suites[].cases[] | select(.passed | not)'\n  \
    sandglass test my-tool --junit report.xml")]
pub(crate) struct Arguments {
    /// *.test.toml files, or folders that are searched for them
    #[arg(value_name = "PATH", default_value = ".")]
    pub(super) paths: Vec<PathBuf>,
    /// Run only cases whose names contain this
    #[arg(long, value_name = "TEXT")]
    pub(super) filter: Option<String>,
    /// Run the cases again whenever a guest, a manifest or a test file changes, until Ctrl-C
    #[arg(long, conflicts_with_all = ["json", "junit", "update"])]
    pub(super) watch: bool,
    /// Replace the expectations of failed cases by their actual results, and print the changes
    #[arg(long, conflicts_with = "json")]
    pub(super) update: bool,
    /// Print one JSON object: {suites: [{file, guest, cases: [{name, passed, took_us,
    /// virtual_ms, outcome, differences: [{what, expected, found}], report}]}], passed, failed}
    #[arg(long)]
    pub(super) json: bool,
    /// Also write a report in the format of JUnit
    #[arg(long, value_name = "FILE")]
    pub(super) junit: Option<PathBuf>,
    #[command(flatten)]
    pub(super) compiling: compiling::CachedArguments,
    #[command(flatten)]
    pub(super) optimizing: compiling::Optimizing,
}
