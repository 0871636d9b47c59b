//! `sandglass play`: plays scenarios and checks their expectations.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use sandglass_host::CompileLimits;
use sandglass_journal::SqliteJournal;
use sandglass_scenario::{Director, Error, Scenario, Settings, Tally};

use crate::compiling;
use crate::diagnostic_text::{self, to_json};
use crate::exit::Exit;
use crate::interrupts::Interrupts;
use crate::terminal::{Output, report_error};
use crate::timeline::{Style, Timeline};

/// Plays scenarios and checks their expectations
///
/// A scenario sends actions to entities, waits, kills and restarts the runtime, and states what is
/// expected. Prints a timeline of all records.
///
/// Exit code: 0 every expectation held, 1 one failed, 2 a scenario, spec or journal cannot be used,
/// 130 Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass play guest-fixtures/incident\n  \
    sandglass play scenario.toml --journal play.journal && sandglass replay play.journal\n  \
    sandglass play scenario.toml --metrics 127.0.0.1:9464\n  \
    sandglass play scenario.toml --json | jq 'select(.type == \"expectation\")'")]
pub(crate) struct Arguments {
    /// A scenario file, or a folder: every scenario*.toml in it
    path: PathBuf,
    /// Print one JSON object per line; the last one is the summary
    #[arg(long)]
    json: bool,
    /// Keep the journal in this file: a new or empty one, or a journal to append to
    #[arg(long, value_name = "FILE")]
    journal: Option<PathBuf>,
    /// Serve metrics for Prometheus while the scenario plays; nothing is served in virtual time
    #[arg(long, value_name = "ADDR")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    compiling: compiling::Arguments,
    #[command(flatten)]
    optimizing: compiling::Optimizing,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let style = if arguments.json { Style::Json } else { Style::Text };
    let Some(scenarios) = load(&arguments.path, style)? else { return Ok(Exit::Unusable) };
    if let Some(journal) = &arguments.journal {
        check_journal(journal)?;
    }
    let scratch = tempfile::tempdir().context("can't create a folder for the journal")?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("can't start")?;
    runtime.block_on(play(&scenarios, arguments, scratch.path(), style))
}

async fn play(
    scenarios: &[Scenario],
    arguments: &Arguments,
    scratch: &Path,
    style: Style,
) -> anyhow::Result<Exit> {
    let mut timeline = Timeline::new(style);
    let mut all = Tally::default();
    for (number, scenario) in scenarios.iter().enumerate() {
        let own = scratch.join(format!("{number}.journal"));
        let journal = arguments.journal.as_ref().unwrap_or(&own);
        let settings = Settings {
            journal,
            compiling: arguments.compiling.limits(CompileLimits::default()),
            baseline_from: arguments.optimizing.baseline_from(arguments.journal.is_some()),
            metrics: arguments.metrics,
        };
        let mut interrupts = Interrupts::listen()?;
        let started = Director::start(scenario, settings, &mut timeline, interrupts.next()).await;
        let director = match started {
            Err(Error::Interrupted) => return Ok(Exit::Cancelled),
            started => started?,
        };
        let tally = match director.run().await {
            Ok(tally) => tally,
            Err(Error::Interrupted) => return Ok(Exit::Cancelled),
            Err(error) => {
                report_error(&error.into());
                return Ok(Exit::Failed);
            }
        };
        all.expectations += tally.expectations;
        all.failed += tally.failed;
    }
    timeline.summary(scenarios.len(), all.expectations, all.failed)?;
    Ok(if all.failed == 0 { Exit::Ok } else { Exit::Failed })
}

/// All scenarios; `None` if some have errors, after these are printed.
fn load(path: &Path, style: Style) -> anyhow::Result<Option<Vec<Scenario>>> {
    let (mut scenarios, mut findings) = (Vec::new(), Vec::new());
    for file in sandglass_scenario::find(path)? {
        match sandglass_scenario::load(&file)? {
            Ok(scenario) => scenarios.push(scenario),
            Err(found) => findings.extend(found),
        }
    }
    if findings.is_empty() {
        return Ok(Some(scenarios));
    }
    let output = Output::new();
    match style {
        Style::Json => {
            let mut lines = findings.iter().map(|one| to_json(&one.path, &one.diagnostic));
            lines.try_for_each(|line| output.line(line))?;
        }
        Style::Text => diagnostic_text::print(&findings, &output)?,
    }
    Ok(None)
}

/// Rejects a path that a journal must not be written to, before anything starts.
fn check_journal(journal: &Path) -> anyhow::Result<()> {
    match journal.metadata() {
        Ok(metadata) if metadata.is_dir() => bail!("`{}` is a folder", journal.display()),
        Ok(metadata) if !metadata.is_file() => {
            bail!("`{}` is not a regular file; name another one", journal.display())
        }
        Ok(metadata) if metadata.len() > 0 => {
            SqliteJournal::open_read_only(journal)?;
            Ok(())
        }
        _ => Ok(()),
    }
}
