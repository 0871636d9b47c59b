//! `sandglass journal backup`: one state of a journal, in a file of its own.

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;

use sandglass_journal::{BackedUp, Copied, Error, SqliteJournal};
use sandglass_source::printable;
use serde_json::json;

use super::Wish;
use crate::exit::Exit;
use crate::terminal::{Output, report_error};

/// Copies a journal as it is at one moment, also while it is being written
///
/// No writer waits for it. The copy is read whole before it appears under its name, so
/// that what stands there opens and replays; a backup that is interrupted leaves nothing
/// there. A damaged journal isn't backed up: export what can be read of it.
///
/// Exit code: 0 the backup is on the disk, 2 no readable journal, or TO is there already
/// or can't be written, 3 the journal is damaged, 130 interrupted.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  sandglass journal backup runs.db backups/runs-monday.db\n  \
    sandglass journal backup runs.db copy.db && sandglass replay copy.db\n  \
    sandglass journal backup runs.db copy.db --json | jq .last")]
pub(crate) struct Arguments {
    /// The journal, as --journal named it
    journal: PathBuf,
    /// The new file; its folder is there, it is not
    to: PathBuf,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn execute(arguments: &Arguments, wish: &Wish) -> anyhow::Result<Exit> {
    let mut progress = Progress { shown: io::stderr().is_terminal() };
    let backed_up = SqliteJournal::open_read_only(&arguments.journal).and_then(|mut journal| {
        journal.back_up(&arguments.to, |copied| {
            progress.show(copied);
            wish.go_on()
        })
    });
    progress.clear();
    match backed_up {
        Ok(Some(backed_up)) => tell(arguments, backed_up),
        Ok(None) => Ok(Exit::Cancelled),
        Err(error @ Error::Damaged { .. }) => {
            let advice = "no backup was made; `sandglass journal export` gives what can be read";
            report_error(&anyhow::Error::new(error).context(advice));
            Ok(Exit::Diverged)
        }
        Err(error) => Err(error.into()),
    }
}

fn tell(arguments: &Arguments, backed_up: BackedUp) -> anyhow::Result<Exit> {
    let BackedUp { last, bytes } = backed_up;
    let Arguments { journal, to, json } = arguments;
    let mut output = Output::new();
    if *json {
        output.json(&json!({"journal": journal, "to": to, "last": last, "bytes": bytes}))?;
    } else {
        let told = format!("`{}` holds all up to position {last}, in {bytes} bytes", to.display());
        output.line(printable(&told))?;
    }
    Ok(Exit::Ok)
}

/// One line on a terminal, written over and over; nowhere else.
struct Progress {
    shown: bool,
}

impl Progress {
    fn show(&mut self, copied: Copied) {
        if self.shown {
            let percent = copied.pages.saturating_mul(100) / copied.of.max(1);
            // Nobody need see it.
            let _ = write!(io::stderr(), "\rcopied {percent} %");
        }
    }

    fn clear(&mut self) {
        if self.shown {
            // As above.
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }
}
