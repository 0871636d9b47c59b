//! `sandglass journal check`: reads a whole journal in order to find damage.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use sandglass_journal::{CheckProgress, Entry, Error, Found, SqliteJournal};
use sandglass_model::{Clock, Position, SystemClock};
use sandglass_source::printable;
use serde_json::json;

use super::StopRequest;
use crate::exit::Exit;
use crate::journal_place::Place;
use crate::journal_reader::{Located, Pages, format_position};
use crate::terminal::{Output, count, note, report_error};

/// Most places that are reported on standard error.
const GAPS_SHOWN: u64 = 20;

/// Reads all of a journal to find damage, even while it is being written
///
/// Checks the pages and indexes of the file, all recordings, and the checksum of every record. A
/// daemon does this in the background after its start. Of a database, the checksums of all records
/// are checked, and that none is missing. Nothing is changed.
///
/// Exit code: 0 intact, 2 the journal cannot be read, 3 it is damaged, 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass journal check runs.db\n  \
    sandglass journal check postgresql://sandglass@db.example/runs\n  \
    sandglass journal check runs.db --json | jq .seconds")]
pub(crate) struct Arguments {
    /// The journal: a file, postgresql://USER@HOST/DATABASE or env:VAR, a variable that holds such a URL
    #[arg(value_name = "JOURNAL")]
    journal: Place,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(arguments: &Arguments, stop: &StopRequest) -> anyhow::Result<Exit> {
    let (clock, shows_progress) = (SystemClock::new(), io::stderr().is_terminal());
    let begun = clock.now();
    // The check does not depend on whether its progress can be written.
    let show = move |text: &str| {
        if shows_progress {
            let _ = write!(io::stderr(), "\r{text}");
        }
    };
    let Place::File(path) = &arguments.journal else {
        let (records, gaps) = match check_database(arguments, &show, stop) {
            Ok(Some(checked)) => checked,
            Ok(None) => return Ok(Exit::Cancelled),
            Err(error) => return Err(error),
        };
        show("\u{1b}[K");
        let seconds = clock.now().since(begun).as_secs_f64();
        return print_database(arguments, records, gaps, seconds);
    };
    let mut journal = SqliteJournal::open_read_only(path)?;
    let (of, stop) = (journal.last()?, stop.clone());
    let progress: CheckProgress = Arc::new(move |position: Position| {
        match position {
            Position(0) => show("checking the pages and indexes of the file"),
            position => show(&format!("checked the records up to {position} of {of}\u{1b}[K")),
        }
        stop.check()
    });
    let checked = journal.check(&progress);
    show("\u{1b}[K");
    let seconds = clock.now().since(begun).as_secs_f64();
    match checked {
        Ok(Some(last)) => print(arguments, last, seconds),
        Ok(None) => Ok(Exit::Cancelled),
        Err(error @ Error::Damaged { .. }) => {
            let advice = "keep a copy; `sandglass journal export` saves what can be read";
            report_error(&anyhow::Error::new(error).context(advice));
            Ok(Exit::Diverged)
        }
        Err(error) => Err(error.into()),
    }
}

/// Reads all records of a database; returns how many there are, and how many times some are damaged or
/// missing.
fn check_database(
    arguments: &Arguments,
    show: &impl Fn(&str),
    stop: &StopRequest,
) -> anyhow::Result<Option<(u64, u64)>> {
    let mut pages = Pages::open(&arguments.journal, None, Position(1))?;
    let (mut records, mut gaps) = (0, 0);
    while let Some(page) = pages.page()? {
        for Located { partition, found } in &page {
            records += u64::from(matches!(found, Found::Entry(Entry::Record(_))));
            if let Found::Entry(entry) = found
                && let Some(what) = entry.damage()
            {
                gaps += 1;
                if gaps <= GAPS_SHOWN {
                    let at = format_position(*partition, entry.position());
                    note(&format!("position {at}: {what}"));
                }
            }
        }
        show(&format!("checked {records} records\u{1b}[K"));
        if stop.check().is_break() {
            return Ok(None);
        }
    }
    Ok(Some((records, gaps)))
}

fn print_database(
    arguments: &Arguments,
    records: u64,
    gaps: u64,
    seconds: f64,
) -> anyhow::Result<Exit> {
    let Arguments { journal, json } = arguments;
    let output = Output::new();
    if *json {
        output.json(
            &json!({"journal": journal, "records": records, "gaps": gaps, "seconds": seconds}),
        )?;
    } else if gaps == 0 {
        let records = count(records, "record");
        let text = format!("`{journal}`: {records} read, and all are intact ({seconds:.1} s)");
        output.line(printable(&text))?;
    } else {
        let text = format!(
            "`{journal}`: {} read; records are damaged or missing at {}. Restore a backup, or save \
             the others with `sandglass journal export`",
            count(records, "record"),
            count(gaps, "place")
        );
        output.line(printable(&text))?;
    }
    Ok(if gaps == 0 { Exit::Ok } else { Exit::Diverged })
}

fn print(arguments: &Arguments, last: Position, seconds: f64) -> anyhow::Result<Exit> {
    let Arguments { journal, json } = arguments;
    let output = Output::new();
    if *json {
        output.json(&json!({"journal": journal, "last": last, "seconds": seconds}))?;
    } else {
        let name = journal;
        let text =
            format!("`{name}`: all records up to position {last} are intact ({seconds:.1} s)");
        output.line(printable(&text))?;
    }
    Ok(Exit::Ok)
}
