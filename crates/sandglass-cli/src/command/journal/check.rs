//! `sandglass journal check`: reads a whole journal in order to find damage.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Arc;

use sandglass_journal::{CheckProgress, Error, SqliteJournal};
use sandglass_model::{Clock, Position, SystemClock};
use sandglass_source::printable;
use serde_json::json;

use super::StopRequest;
use crate::exit::Exit;
use crate::terminal::{Output, report_error};

/// Reads all of a journal to find damage, even while it is being written
///
/// Checks the pages and indexes of the file, all recordings, and the checksum of every record. A
/// daemon does this in the background after its start. Nothing is changed.
///
/// Exit code: 0 intact, 2 the journal cannot be read, 3 it is damaged, 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass journal check runs.db\n  \
    sandglass journal check runs.db --json | jq .seconds")]
pub(crate) struct Arguments {
    /// The journal file
    journal: PathBuf,
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
    let mut journal = SqliteJournal::open_read_only(&arguments.journal)?;
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

fn print(arguments: &Arguments, last: Position, seconds: f64) -> anyhow::Result<Exit> {
    let Arguments { journal, json } = arguments;
    let output = Output::new();
    if *json {
        output.json(&json!({"journal": journal, "last": last, "seconds": seconds}))?;
    } else {
        let name = journal.display();
        let text =
            format!("`{name}`: all records up to position {last} are intact ({seconds:.1} s)");
        output.line(printable(&text))?;
    }
    Ok(Exit::Ok)
}
