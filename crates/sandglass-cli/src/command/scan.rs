//! `sandglass scan`: what of a journal costs time and comes again.

use std::path::PathBuf;

use sandglass_insight::scan::{Scan, Scanned};
use sandglass_source::printable;

use crate::duration::format_millis;
use crate::exit::Exit;
use crate::journal_file;
use crate::terminal::{Output, Tone, note};

/// Lists the sessions of a journal with timeouts and repeated failures, the costliest first
///
/// A failure is the same again where its handler, what it was in, the kind of its error and
/// the `shape_key` of its action are the same. What was passed is shown as a sample, without
/// secrets that are known by their names or looks.
///
/// Exit code: 0, also where nothing was found, 2 no readable journal, 3 some records are damaged
/// or missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass scan run.journal\n  \
    sandglass scan run.journal --json | jq 'select(.timeouts > 3).session'")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// Print one JSON object a line: `{session, timeouts, timeouts_ms, call_timeouts,
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
    let mut output = Output::new();
    if found.is_empty() && !json {
        note("no timeouts, and no failure that came again");
    }
    for scanned in &found {
        if *json {
            output.json(scanned)?;
        } else {
            print(scanned, &mut output)?;
        }
    }
    Ok(exit)
}

fn print(scanned: &Scanned, output: &mut Output) -> anyhow::Result<()> {
    let Scanned { session, timeouts, timeouts_ms, call_timeouts, late_starts, repeats, cost_ms } =
        scanned;
    let name = session.to_string();
    let name = output.paint(Tone::Strong, &printable(&name)).into_owned();
    let timeouts = match timeouts {
        1 => format!("1 timeout ({})", format_millis(*timeouts_ms)),
        many => format!("{many} timeouts ({})", format_millis(*timeouts_ms)),
    };
    let calls = match call_timeouts {
        0 => String::new(),
        1 => ", 1 host call that timed out".to_owned(),
        many => format!(", {many} host calls that timed out"),
    };
    let late = match late_starts {
        0 => String::new(),
        1 => ", 1 handler that started too late".to_owned(),
        many => format!(", {many} handlers that started too late"),
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
            output.line(output.paint(Tone::Quiet, &sample))?;
        }
    }
    Ok(())
}
