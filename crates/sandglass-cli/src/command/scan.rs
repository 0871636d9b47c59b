//! `sandglass scan`: lists what costs time in a journal, and what repeats.

use std::path::PathBuf;

use sandglass_insight::scan::{Scan, Scanned};
use sandglass_source::printable;

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::journal_file;
use crate::terminal::{Output, Tone, note};

/// Lists the sessions of a journal with timeouts and repeated failures, the costliest first
///
/// Failures are equal if their handlers, the host calls that they were in, their kinds of error and
/// the `shape_key` of their actions are equal. The last params are shown as a sample, without
/// values that look like secrets or are named like one.
///
/// Exit code: 0 scanned, even if nothing was found, 2 the journal cannot be read, 3 some records
/// are damaged or missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass scan run.journal\n  \
    sandglass scan run.journal --json | jq 'select(.timeouts > 3).session'")]
pub(crate) struct Arguments {
    /// The journal file
    journal: PathBuf,
    /// Print one JSON object per line: `{session, timeouts, timeouts_ms, call_timeouts,
    /// late_starts, repeats, cost_ms}`
    #[arg(long)]
    json: bool,
}

pub(crate) fn execute(arguments: &Arguments) -> anyhow::Result<Exit> {
    let Arguments { journal, json } = arguments;
    let mut scan = Scan::default();
    let exit = journal_file::read(journal, |record| {
        record.into_iter().for_each(|record| scan.feed(record))
    })?;
    let found = scan.finish();
    let output = Output::new();
    if found.is_empty() && !json {
        note("no timeouts, and no repeated failures");
    }
    for scanned in &found {
        if *json {
            output.json(scanned)?;
        } else {
            print(scanned, &output)?;
        }
    }
    Ok(exit)
}

fn print(scanned: &Scanned, output: &Output) -> anyhow::Result<()> {
    let Scanned { session, timeouts, timeouts_ms, call_timeouts, late_starts, repeats, cost_ms } =
        scanned;
    let name = session.to_string();
    let name = output.paint(Tone::Strong, printable(&name));
    let timeouts = match timeouts {
        1 => format!("1 timeout ({})", format_millis(*timeouts_ms)),
        many => format!("{many} timeouts ({})", format_millis(*timeouts_ms)),
    };
    let calls = match call_timeouts {
        0 => String::new(),
        1 => ", 1 host call timed out".to_owned(),
        many => format!(", {many} host calls timed out"),
    };
    let late = match late_starts {
        0 => String::new(),
        1 => ", 1 handler started too late".to_owned(),
        many => format!(", {many} handlers started too late"),
    };
    output
        .line(format_args!("{name}  cost {}, {timeouts}{calls}{late}", format_millis(*cost_ms)))?;
    for repeat in repeats {
        let signature = repeat.signature.to_string();
        output.line(format_args!(
            "  {} times, {}: {}",
            repeat.count,
            format_millis(repeat.cost_ms),
            printable(&signature)
        ))?;
        if !repeat.sample.is_empty() {
            let sample = format!("    last with {}", printable(&repeat.sample));
            output.line(output.paint(Tone::Quiet, sample))?;
        }
    }
    Ok(())
}
