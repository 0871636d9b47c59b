//! `sandglass journal backup`: copies one state of a journal to a new file.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use anyhow::bail;
use sandglass_journal::{BackedUp, Copied, Error, SqliteJournal};
use sandglass_source::printable;
use serde_json::json;

use super::StopRequest;
use crate::exit::Exit;
use crate::journal_place::Place;
use crate::terminal::{Output, report_error};

/// Copies the state of a journal at one moment, even while it is being written
///
/// Writers do not wait for it. The copy is verified before it appears as TO, so that TO always
/// opens and replays; an interrupted backup leaves no file. A damaged journal is not backed up:
/// export what can be read of it.
///
/// Exit code: 0 the backup is on the disk, 2 the journal cannot be read, or TO exists or cannot be
/// written, 3 the journal is damaged, 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass journal backup runs.db backups/runs-monday.db\n  \
    sandglass journal backup runs.db copy.db && sandglass replay copy.db\n  \
    sandglass journal backup runs.db copy.db --json | jq .last")]
pub(crate) struct Arguments {
    /// The journal file
    journal: PathBuf,
    /// The new file, in an existing folder
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(arguments: &Arguments, stop: &StopRequest) -> anyhow::Result<Exit> {
    let place = Place::from(arguments.journal.clone().into_os_string());
    if !matches!(place, Place::File(_)) {
        bail!(
            "`{place}` is a database: back it up with pg_dump, or copy it into a file with \
             `sandglass journal copy {place} FILE`"
        );
    }
    let shows_progress = io::stderr().is_terminal();
    // The backup does not depend on whether its progress can be written.
    let show = |text: &str| {
        if shows_progress {
            let _ = write!(io::stderr(), "\r{text}");
        }
    };
    let backed_up = SqliteJournal::open_read_only(&arguments.journal).and_then(|mut journal| {
        journal.back_up(&arguments.to, |Copied { pages, of }| {
            show(&format!("copied {} %", pages.saturating_mul(100) / of.max(1)));
            stop.check()
        })
    });
    show("\u{1b}[K");
    match backed_up {
        Ok(Some(backed_up)) => print(arguments, backed_up),
        Ok(None) => Ok(Exit::Cancelled),
        Err(error @ Error::Damaged { .. }) => {
            let advice = "no backup was made; `sandglass journal export` saves what can be read";
            report_error(&anyhow::Error::new(error).context(advice));
            Ok(Exit::Diverged)
        }
        Err(error) => Err(error.into()),
    }
}

fn print(arguments: &Arguments, backed_up: BackedUp) -> anyhow::Result<Exit> {
    let BackedUp { last, bytes } = backed_up;
    let Arguments { journal, to, json } = arguments;
    let output = Output::new();
    if *json {
        output.json(&json!({"journal": journal, "to": to, "last": last, "bytes": bytes}))?;
    } else {
        let text = format!("`{}`: all records up to position {last}, {bytes} bytes", to.display());
        output.line(printable(&text))?;
    }
    Ok(Exit::Ok)
}
