//! `sandglass scan`: lists what costs time in a journal, and what repeats.

use sandglass_insight::scan::{Scan, Scanned};
use sandglass_source::printable;

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::journal_file;
use crate::journal_place::Place;
use crate::terminal::{Output, Tone, count, note};

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
    sandglass scan postgresql://sandglass@db.example/runs\n  \
    sandglass scan run.journal --json | jq 'select(.timeouts > 3).session'")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// Print one JSON object per line: {session, timeouts, timeouts_ms, call_timeouts, late_starts,
    /// repeats: [{signature, count, sample?, cost_ms}], cost_ms}
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
        if *json { output.json(scanned)? } else { print(scanned, &output)? }
    }
    Ok(exit)
}

fn print(scanned: &Scanned, output: &Output) -> anyhow::Result<()> {
    let Scanned { session, timeouts, timeouts_ms, call_timeouts, late_starts, repeats, cost_ms } =
        scanned;
    let name = output.paint(Tone::Strong, printable(&session.to_string()));
    let (cost, timeouts_took) = (format_millis(*cost_ms), format_millis(*timeouts_ms));
    let mut line =
        format!("{name}  cost {cost}, {} ({timeouts_took})", count(*timeouts, "timeout"));
    if *call_timeouts > 0 {
        line += &format!(", {} timed out", count(*call_timeouts, "host call"));
    }
    if *late_starts > 0 {
        line += &format!(", {} started too late", count(*late_starts, "handler"));
    }
    output.line(line)?;
    for repeat in repeats {
        output.line(format_args!(
            "  {}, {}: {}",
            count(repeat.count, "time"),
            format_millis(repeat.cost_ms),
            printable(&repeat.signature.to_string())
        ))?;
        if !repeat.sample.is_empty() {
            let sample = format!("    last with {}", printable(&repeat.sample));
            output.line(output.paint(Tone::Quiet, sample))?;
        }
    }
    Ok(())
}
