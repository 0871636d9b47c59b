//! `sandglass journal check`: reads a whole journal in order to find damage.

use std::io::{self, IsTerminal, Write};
use std::sync::Arc;

use sandglass_journal::{CheckProgress, Error, SqliteJournal};
use sandglass_model::{Clock, Position, SystemClock};
use sandglass_postgres::{Address, Flaw};
use sandglass_source::printable;
use serde_json::json;

use super::StopRequest;
use crate::exit::Exit;
use crate::journal_place::Place;
use crate::journal_reader::format_position;
use crate::open_database::OpenDatabase;
use crate::terminal::{Output, count, note, report_error};

/// Most flaws of a database that are reported one by one; all are counted.
const FLAWS_SHOWN: usize = 1_000;

/// Reads all of a journal to find damage, even while it is being written
///
/// Checks the pages and indexes of a file, all recordings and snapshots, the table of entities, and the
/// checksum of every record. A daemon does this in the background after its start. The check of a file
/// ends at the first damage. Of a database, all tables are checked, and each flaw is reported with its
/// table, partition and position. Nothing is changed.
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
        let checked = check_database(&arguments.journal.database()?, &show, stop);
        show("\u{1b}[K");
        let seconds = clock.now().since(begun).as_secs_f64();
        return match checked {
            Ok(Some(found)) => print_database(arguments, &found, seconds),
            Ok(None) => Ok(Exit::Cancelled),
            Err(error) if matches!(error.downcast_ref(), Some(Error::Damaged { .. })) => {
                report_error(&error);
                Ok(Exit::Diverged)
            }
            Err(error) => Err(error),
        };
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

/// What was found in a database.
#[derive(Debug, Default)]
struct DatabaseCheck {
    records: u64,
    /// The first flaws.
    flaws: Vec<Flaw>,
    flaw_count: u64,
}

/// Checks all tables of a database; `None` if it was interrupted.
fn check_database(
    address: &Address,
    show: &impl Fn(&str),
    stop: &StopRequest,
) -> anyhow::Result<Option<DatabaseCheck>> {
    let database = OpenDatabase::open_read_only(address)?;
    let mut check = database.database().check();
    let (mut found, mut table, mut rows) = (DatabaseCheck::default(), "", 0);
    while let Some(page) = database.wait(check.next())? {
        if page.table != table {
            (table, rows) = (page.table, 0);
        }
        rows += page.rows;
        found.records += if table == "records" { page.rows } else { 0 };
        found.flaw_count += u64::try_from(page.flaws.len()).unwrap_or(u64::MAX);
        for flaw in page.flaws {
            if found.flaws.len() < FLAWS_SHOWN {
                note(&describe(&flaw));
                found.flaws.push(flaw);
            }
        }
        show(&format!("checked {rows} rows of sandglass.{table}\u{1b}[K"));
        if stop.check().is_break() {
            return Ok(None);
        }
    }
    let omitted = found.flaw_count - u64::try_from(found.flaws.len()).unwrap_or(u64::MAX);
    if omitted > 0 {
        note(&format!("{omitted} more"));
    }
    Ok(Some(found))
}

/// Where a flaw is, and what is wrong there.
fn describe(Flaw { table, partition, position, what }: &Flaw) -> String {
    let place = match (partition, position) {
        (_, Some(position)) => format!(", position {}", format_position(*partition, *position)),
        (Some(partition), None) => format!(", partition {partition}"),
        (None, None) => String::new(),
    };
    format!("sandglass.{table}{place}: {what}")
}

fn print_database(
    arguments: &Arguments,
    found: &DatabaseCheck,
    seconds: f64,
) -> anyhow::Result<Exit> {
    let Arguments { journal, json } = arguments;
    let DatabaseCheck { records, flaws, flaw_count } = found;
    let output = Output::new();
    if *json {
        let to_json = |flaw: &Flaw| {
            let Flaw { table, partition, position, what } = flaw;
            json!({"table": table, "partition": partition, "position": position, "what": what})
        };
        output.json(&json!({
            "journal": journal,
            "records": records,
            "flaw_count": flaw_count,
            "flaws": flaws.iter().map(to_json).collect::<Vec<_>>(),
            "seconds": seconds,
        }))?;
    } else if *flaw_count == 0 {
        let records = count(*records, "record");
        let text = format!(
            "`{journal}`: {records} and all other tables read, and all are intact ({seconds:.1} s)"
        );
        output.line(printable(&text))?;
    } else {
        let text = format!(
            "`{journal}`: {} read, and {} found; docs/postgres.md (Damage) states what to do for each \
             table",
            count(*records, "record"),
            count(*flaw_count, "flaw")
        );
        output.line(printable(&text))?;
    }
    Ok(if *flaw_count == 0 { Exit::Ok } else { Exit::Diverged })
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
